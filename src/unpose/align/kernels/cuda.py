"""The CUDA backend: a Triton kernel for the search over all pairs, the reference for the rest."""

from numpy.typing import NDArray
from torch import Tensor

from unpose.align.kernels import search_cuda
from unpose.align.kernels.reference import ImagePairs, best_poses_of_candidates, frequencies, peaks

__all__ = ["ImagePairs", "best_poses", "best_poses_of_candidates", "peaks"]


def best_poses(
    views: Tensor, fixed: Tensor, starts: NDArray, angles: Tensor, full_circle: bool
) -> tuple[Tensor, Tensor]:
    """Find the best pose of every pair; see :func:`unpose.align.kernels.reference.best_poses`."""
    return search_cuda.best_poses(views, fixed, frequencies(starts).to(views.device), angles.to(views.device))
