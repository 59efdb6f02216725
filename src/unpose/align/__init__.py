"""Search an orbit: find the pose that brings one image onto another, over a whole group, for many pairs at once.

==================== ==================================================================================================
``align``            the pose that brings each image onto its reference
``nearest``          the nearest neighbours of each image under the orbit distance
``orbit_distances``  the dense matrix of orbit distances
``Search``           the settings that all three take: group, bounds, contrast, mask, device, threads, memory
``check_memory``     refuses a search that needs more memory than its budget
==================== ==================================================================================================

Where to look: ``api.py`` has the public functions and ``search.py`` their settings; ``pipeline.py`` takes pairs through
the stages; ``coarse.py`` scores a grid of poses in the steerable basis of ``basis.py``; ``refine.py`` is the
Gauss-Newton refinement, ``pyramid.py`` the image sizes at which it runs; ``photometry.py`` has the distances;
``neighbour_graph.py`` is the quick variant of ``nearest``; ``memory.py`` estimates the peak memory; ``kernels/`` has
the code for each device. Two modules are imported by their own names: ``unpose.align.checkpoints``, with which an
interrupted search continues, and ``unpose.align.descent``, our reading of the published gradient descent.
"""

from unpose.align.api import Alignment, Neighbours, align, nearest, orbit_distances
from unpose.align.memory import MemoryBudgetError, check_memory
from unpose.align.search import Progress, Search, SearchSettings

__all__ = [
    "Alignment",
    "MemoryBudgetError",
    "Neighbours",
    "Progress",
    "Search",
    "SearchSettings",
    "align",
    "check_memory",
    "nearest",
    "orbit_distances",
]
