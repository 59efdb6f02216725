"""Images on the sphere: latitude-longitude grids, attention with areas, rotation.

================ ====================================================================================================
``grid.py``      :func:`directions`, :func:`areas`, :func:`sphere_mean`, :func:`rotate`
``attention.py`` :class:`SphereAttention`: softmax times area over geodesic neighbourhoods
``network.py``   :func:`sphere_net`: a classifier of panoramas
================ ====================================================================================================

Shifts of the longitude are exact; for other rotations the error falls with the resolution.
"""

from unpose.sphere.attention import SphereAttention, sphere_attention
from unpose.sphere.grid import areas, directions, rotate, sphere_mean
from unpose.sphere.network import SphereNetwork, sphere_net

__all__ = [
    "SphereAttention",
    "SphereNetwork",
    "areas",
    "directions",
    "rotate",
    "sphere_attention",
    "sphere_mean",
    "sphere_net",
]
