"""Duplicates up to pose: the same picture though it was turned, mirrored, scaled, cropped, bordered or stamped.

================= ===================================================================================================
``search.py``     the search as a whole: :func:`find_duplicates`, and its steps for collections that do not fit memory
``regions.py``    which part of a frame is the picture: all of it, or what lies inside a border
``pictures.py``   small grey frames and the patches that signatures are computed from
``signature.py``  vectors that turns and mirrors do not change, from the steerable basis of :mod:`unpose.align`
``neighbours.py`` the nearest signatures: candidates
``pixels.py``     candidates aligned by :mod:`unpose.align` and compared pixel against pixel
``sets.py``       sets of duplicates, and which picture to keep
================= ===================================================================================================

``fitted.npz`` holds the numbers that ``benchmarks/dedupe_fit.py`` fits. ``docs/benchmarks/duplicates.md`` has the
measurements.
"""

from unpose.dedupe.neighbours import Candidates, find_candidates
from unpose.dedupe.pictures import FRAME_SIDE, extract_patch, grey_frame
from unpose.dedupe.pixels import Comparison, compare, probability
from unpose.dedupe.regions import Region, find_regions
from unpose.dedupe.search import Entries, Match, Matches, check, chunks, describe, find_duplicates
from unpose.dedupe.sets import Quality, choose_keeper, duplicate_sets, sharpness
from unpose.dedupe.signature import signatures

__all__ = [
    "FRAME_SIDE",
    "Candidates",
    "Comparison",
    "Entries",
    "Match",
    "Matches",
    "Quality",
    "Region",
    "check",
    "choose_keeper",
    "chunks",
    "compare",
    "describe",
    "duplicate_sets",
    "extract_patch",
    "find_candidates",
    "find_duplicates",
    "find_regions",
    "grey_frame",
    "probability",
    "sharpness",
    "signatures",
]
