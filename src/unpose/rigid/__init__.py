"""The rigid motion between two point clouds with unknown correspondence; :mod:`unpose.points` offers it, too.

===================== ===============================================================================================
``register.py``       :func:`register`: search over all rotations, then refinement
``correspondence.py`` motions from matched points, from soft correspondence and from tangent planes
===================== ===============================================================================================
"""

from unpose.rigid.register import Registration, register

__all__ = ["Registration", "register"]
