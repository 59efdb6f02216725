"""The page of an audit: contents in ``results.py``, verdict in ``words.py``, HTML in ``page.py`` and ``polar.py``."""

from unpose.report.audit.page import render_audit
from unpose.report.audit.results import (
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
from unpose.report.audit.words import headline, movement, percent, sentences

__all__ = [
    "AuditResults", "AuditedClass", "AuditedElement", "AuditedMeasure", "AuditedModule", "Comparison", "LayerShare",
    "RealPairs", "Repair", "WorstImage", "headline", "movement", "percent", "render_audit", "sentences",
]  # fmt: skip
