"""Pixels: conversion, resampling, smoothing, canvas and light.

================= ===================================================================================================
``batch.py``      from the arrays that users pass to a checked tensor (n, c, h, w), and back
``sampling.py``   values between pixels, warps by poses, exact quarter turns and mirrors; the only file that resamples
``spectrum.py``   sums of sines and cosines; ideal low-pass resizing
``smoothing.py``  Gaussian smoothing and downscaling
``canvas.py``     images of different sizes on one canvas
``light.py``      background and contrast: measure, compare and match them
``imagenet.py``   a small network for photographs, from the extra ``features``
``statistics.py`` vectors that describe texture and shape and do not change under quarter turns and mirrors
``kernels/``      compiled versions of ``sampling.py`` for the CPU and for CUDA
================= ===================================================================================================
"""

from unpose.images.batch import as_batch, from_batch
from unpose.images.canvas import (
    LARGEST_DEFAULT_CANVAS,
    border_level,
    choose_canvas,
    onto_canvas,
    onto_one_canvas,
    resize_box,
)
from unpose.images.light import Light, common_light_difference, match_light, measure_light
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
from unpose.images.smoothing import downscale, smooth
from unpose.images.spectrum import fourier_resize, from_real_spectrum, real_spectrum

__all__ = [
    "LARGEST_DEFAULT_CANVAS",
    "Light",
    "as_batch",
    "border_level",
    "choose_canvas",
    "common_light_difference",
    "displacements",
    "downscale",
    "fourier_resize",
    "from_batch",
    "from_real_spectrum",
    "match_light",
    "measure_light",
    "mirror",
    "onto_canvas",
    "onto_one_canvas",
    "pixel_grid",
    "quarter_turn",
    "real_spectrum",
    "resize_box",
    "sample",
    "sample_with_gradient",
    "smooth",
    "source_points",
    "warp",
]
