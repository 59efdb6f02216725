"""Measure how invariant or equivariant any function is; knows no model."""

from unpose.audit.error import EquivarianceError, equivariance_error
from unpose.audit.inputs import smooth_noise
from unpose.audit.modules import ModuleError, ModulesAudit, audit_modules

__all__ = [
    "EquivarianceError",
    "ModuleError",
    "ModulesAudit",
    "audit_modules",
    "equivariance_error",
    "smooth_noise",
]
