"""Search an orbit: the pose that brings one image onto another, over a whole group, for many pairs at once."""

from unpose.align.api import Alignment, Neighbours, align, nearest, orbit_distances

__all__ = ["Alignment", "Neighbours", "align", "nearest", "orbit_distances"]
