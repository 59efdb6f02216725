"""Results as pictures and as HTML pages. This room takes plain arrays and imports no other room.

==================== =================================================================================================
``notebook.py``      tables and pictures that results show in notebooks
``thumbnails.py``    small pictures and sprite sheets
``results.py``       what pages show; ``documents.py`` and ``assets/``: their templates, styles and scripts
==================== =================================================================================================

Doors of their own, for the commands:

==================== =================================================================================================
``page.py``          the page of ``unpose cluster``; ``attention.py``: its picture of the attention matrix
``audit/``           the page of ``unpose audit``
``symmetry_page.py`` the page of ``unpose discover``
``duplicates.py``    the page of ``unpose dedupe``
``figures.py``       montages, heat maps, scatter plots and curves as Pillow images
==================== =================================================================================================
"""

from unpose.report.notebook import MOST_ROWS, curve_html, pictures_html, table_html, text_html
from unpose.report.results import Rejected, Reproduction
from unpose.report.thumbnails import display_range, evenly_spaced, share_equally, thumbnail

__all__ = [
    "MOST_ROWS",
    "Rejected",
    "Reproduction",
    "curve_html",
    "display_range",
    "evenly_spaced",
    "pictures_html",
    "share_equally",
    "table_html",
    "text_html",
    "thumbnail",
]
