"""Respect a symmetry as far as it holds: what the ``[symmetry]`` table of a recipe adds to the training step.

================== ==================================================================================================
``base.py``        the interface of the methods, random elements of candidate groups
``soft.py``        :class:`SoftEquivariance`: a penalty for each group, with learned weights
``constrained.py`` :class:`InvarianceConstrained`: invariance as a constraint, with learned multipliers
``instance.py``    :class:`InstanceAugment`: a range of poses for each image
``objective.py``   the methods in the training loop
================== ==================================================================================================
"""

from unpose.train.symmetry.base import Bounds, LearnedSymmetry
from unpose.train.symmetry.constrained import InvarianceConstrained
from unpose.train.symmetry.instance import InstanceAugment
from unpose.train.symmetry.objective import SymmetryObjective, make_symmetry
from unpose.train.symmetry.soft import SoftEquivariance

__all__ = [
    "Bounds",
    "InstanceAugment",
    "InvarianceConstrained",
    "LearnedSymmetry",
    "SoftEquivariance",
    "SymmetryObjective",
    "make_symmetry",
]
