"""Measure how invariant or equivariant any function is, and find the module that breaks equivariance.

Any callable can be audited: a layer, a network, an embedding, an explanation. Every error is reported beside the error
of interpolation alone and the error of a control outside the group. Files, by what you want to change:

=============== =====================================================================================================
``error.py``    :func:`equivariance_error`: the error of every group element, its floor, the control
``modules.py``  :func:`audit_modules`: the same question for every module of a network, on its own
``elements.py`` which group elements are tried, and which control
``actions.py``  how an element acts on images, on group axes and on feature maps
``trace.py``    records the inputs and outputs of all modules during one call of a network
``calls.py``    :func:`evaluation`, :func:`checked_output`: call a model and check what it returns
``inputs.py``   :func:`smooth_noise`: images to audit with
=============== =====================================================================================================
"""

from unpose.audit.calls import checked_output, evaluation
from unpose.audit.error import EquivarianceReport, equivariance_error
from unpose.audit.inputs import smooth_noise
from unpose.audit.modules import ModuleReport, NetworkReport, audit_modules

__all__ = [
    "EquivarianceReport",
    "ModuleReport",
    "NetworkReport",
    "audit_modules",
    "checked_output",
    "equivariance_error",
    "evaluation",
    "smooth_noise",
]
