"""Pixels: sampling between them, warping by poses, smoothing, and the public door."""

from unpose.images.batch import as_batch, from_batch
from unpose.images.sampling import (
    displacements,
    mirror,
    pixel_grid,
    quarter_turn,
    sample,
    sample_with_gradient,
    source_points,
    warp,
)
from unpose.images.smoothing import smooth

__all__ = [
    "as_batch",
    "displacements",
    "from_batch",
    "mirror",
    "pixel_grid",
    "quarter_turn",
    "sample",
    "sample_with_gradient",
    "smooth",
    "source_points",
    "warp",
]
