"""Results as pictures and as an HTML page. This room takes plain arrays and imports no other room.

================= ===================================================================================================
``page.py``       :func:`render`: the page of a clustering, one self-contained HTML file
``results.py``    what the page shows: :class:`Results` and its parts
``assets/``       template, styles and scripts of the page, one script per section
``attention.py``  the picture of the attention matrix
``thumbnails.py`` small pictures and sprite sheets
``figures.py``    montages, heat maps, scatter plots and curves as Pillow images; imported by its own name
================= ===================================================================================================
"""

from unpose.report.page import render
from unpose.report.results import Cluster, Rejected, Reproduction, Results, Round
from unpose.report.thumbnails import display_range, evenly_spaced, thumbnail

__all__ = [
    "Cluster",
    "Rejected",
    "Reproduction",
    "Results",
    "Round",
    "display_range",
    "evenly_spaced",
    "render",
    "thumbnail",
]
