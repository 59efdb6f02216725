"""Results as pictures and as an HTML page. This room takes plain arrays and imports no other room.

==================== =================================================================================================
``page.py``          :func:`render`: the page of a clustering, one self-contained HTML file
``results.py``       what the page shows: :class:`Results` and its parts
``assets/``          template, styles and scripts of the page, one script per section
``attention.py``     the picture of the attention matrix
``thumbnails.py``    small pictures and sprite sheets
``notebook.py``      tables and pictures that results show in notebooks
==================== =================================================================================================

Doors of their own, for the commands:

==================== =================================================================================================
``audit/``           the page of ``unpose audit``
``symmetry_page.py`` the page of ``unpose discover``
``duplicates.py``    the page of ``unpose dedupe``
``figures.py``       montages, heat maps, scatter plots and curves as Pillow images
==================== =================================================================================================
"""

from unpose.report.notebook import MOST_ROWS, curve_html, pictures_html, table_html, text_html
from unpose.report.page import render
from unpose.report.results import Cluster, Rejected, Reproduction, Results, Round, Whole
from unpose.report.thumbnails import display_range, evenly_spaced, share_equally, thumbnail

__all__ = [
    "MOST_ROWS",
    "Cluster",
    "Rejected",
    "Reproduction",
    "Results",
    "Round",
    "Whole",
    "curve_html",
    "display_range",
    "evenly_spaced",
    "pictures_html",
    "render",
    "share_equally",
    "table_html",
    "text_html",
    "thumbnail",
]
