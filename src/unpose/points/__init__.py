"""Point clouds: networks, frames and registration that do not depend on pose, in the plane and in space.

Clouds are ``(b, n, d)`` tensors, d = 2 or 3, with a mask where they differ in size. Files:

================== ==================================================================================================
``equivariant.py`` :func:`egnn`, :func:`ga_attention`, :func:`iterate`: layers that commute with E(d)
``frames.py``      :func:`invariant_coordinates`, :func:`local_frames`: frames from the points themselves
``clouds.py``      masks, neighbours, :func:`pool` and :class:`DeepSet`
================== ==================================================================================================

:func:`register`, the rigid motion between two clouds with unknown correspondence, comes from :mod:`unpose.rigid`.
"""

from unpose.points.clouds import DeepSet, pool
from unpose.points.equivariant import CloudNetwork, EGNNLayer, GAAttention, egnn, ga_attention, iterate
from unpose.points.frames import InvariantCoordinates, invariant_coordinates, local_frames
from unpose.rigid import Registration, register

__all__ = [
    "CloudNetwork",
    "DeepSet",
    "EGNNLayer",
    "GAAttention",
    "InvariantCoordinates",
    "Registration",
    "egnn",
    "ga_attention",
    "invariant_coordinates",
    "iterate",
    "local_frames",
    "pool",
    "register",
]
