"""Closed curves as complex sequences: outlines of masks, their distance over the orbit, and networks on them.

=============== =====================================================================================================
``outlines.py`` :func:`contour` of a mask, :func:`resample`, :func:`outline_distances` by FFT, :func:`outline_features`
``network.py``  :func:`complex_circular_net`: equivariant to rotation and start, invariant after pooling
=============== =====================================================================================================
"""

from unpose.contours.network import ComplexCircularLayer, ComplexCircularNet, complex_circular_net
from unpose.contours.outlines import OutlineMatch, contour, outline_distances, outline_features, resample

__all__ = [
    "ComplexCircularLayer",
    "ComplexCircularNet",
    "OutlineMatch",
    "complex_circular_net",
    "contour",
    "outline_distances",
    "outline_features",
    "resample",
]
