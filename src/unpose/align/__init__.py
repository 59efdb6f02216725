"""Search an orbit: find the pose that brings one image onto another, over a whole group, for many pairs at once.

==================== ==================================================================================================
``align``            the pose that brings each image onto its reference
``align_from``       refines poses that are known roughly
``nearest``          the nearest neighbours of each image under the orbit distance
``orbit_distances``  the dense matrix of orbit distances
``Search``           the settings that all three take: group, bounds, contrast, mask, device, threads, memory
``check_memory``     refuses a search that needs more memory than its budget
==================== ==================================================================================================

Where to look: ``api.py`` has the public functions and ``search.py`` their settings; ``pipeline.py`` takes pairs through
the stages, ``starts.py`` from known poses; ``coarse.py`` scores a grid of poses in the steerable basis of ``basis.py``;
``refine.py`` is the Gauss-Newton refinement, ``pyramid.py`` the image sizes at which it runs; ``photometry.py`` has the
distances; ``neighbour_graph.py`` is the quick variant of ``nearest``, ``indexed_search.py`` the one for many
images, with ``signatures.py``, ``cells.py`` and ``graph_descent.py``; ``memory.py`` estimates the peak memory;
``kernels/`` has the code for each device. Five modules are imported by their own names: ``unpose.align.blocks``, into
which long stages are split, ``unpose.align.dask_executor``, which computes blocks on a Dask cluster,
``unpose.align.checkpoints``, with which an interrupted search continues, ``unpose.align.descent``, our reading of the
published gradient descent, and ``unpose.align.basis``, from which :mod:`unpose.dedupe` makes signatures.
"""

from unpose.align.api import Alignment, Neighbours, align, nearest, orbit_distances
from unpose.align.memory import MemoryBudgetError, check_memory
from unpose.align.search import Limits, Progress, Search, SearchSettings
from unpose.align.starts import align_from

__all__ = [
    "Alignment",
    "Limits",
    "MemoryBudgetError",
    "Neighbours",
    "Progress",
    "Search",
    "SearchSettings",
    "align",
    "align_from",
    "check_memory",
    "nearest",
    "orbit_distances",
]
