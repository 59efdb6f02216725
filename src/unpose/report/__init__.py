"""Results as pictures and as an HTML page. This room takes plain arrays and imports no other room.

==================== =================================================================================================
``page.py``          :func:`render`: the page of a clustering, one self-contained HTML file
``audit_page.py``    :func:`render_audit`: the page of an audit; ``audit_results.py`` what it shows, ``audit_words.py``
                     its verdict in words, ``polar.py`` its polar plot
``results.py``       what the page shows: :class:`Results` and its parts
``symmetry_page.py`` :func:`render_symmetry`: the page of a discovery
``assets/``          template, styles and scripts of the page, one script per section
``attention.py``     the picture of the attention matrix
``thumbnails.py``    small pictures and sprite sheets
``notebook.py``      tables and pictures that results show in notebooks
``figures.py``       montages, heat maps, scatter plots and curves as Pillow images; imported by its own name
==================== =================================================================================================
"""

from unpose.report.audit_page import render_audit
from unpose.report.audit_results import (
    AuditedClass,
    AuditedElement,
    AuditedMeasure,
    AuditedModule,
    AuditResults,
    Comparison,
    LayerShare,
    RealPairs,
    Repair,
    WorstImage,
)
from unpose.report.audit_words import headline, movement, percent, sentences
from unpose.report.notebook import MOST_ROWS, curve_html, pictures_html, table_html, text_html
from unpose.report.page import render
from unpose.report.results import Cluster, Rejected, Reproduction, Results, Round, Whole
from unpose.report.symmetry_page import SymmetryFamily, SymmetryResults, render_symmetry
from unpose.report.thumbnails import display_range, evenly_spaced, share_equally, thumbnail

__all__ = [
    "MOST_ROWS",
    "AuditResults",
    "AuditedClass",
    "AuditedElement",
    "AuditedMeasure",
    "AuditedModule",
    "Cluster",
    "Comparison",
    "LayerShare",
    "RealPairs",
    "Rejected",
    "Repair",
    "Reproduction",
    "Results",
    "Round",
    "SymmetryFamily",
    "SymmetryResults",
    "Whole",
    "WorstImage",
    "curve_html",
    "display_range",
    "evenly_spaced",
    "headline",
    "movement",
    "percent",
    "pictures_html",
    "render",
    "render_audit",
    "render_symmetry",
    "sentences",
    "share_equally",
    "table_html",
    "text_html",
    "thumbnail",
]
