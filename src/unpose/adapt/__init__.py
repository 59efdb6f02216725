"""Make a model that one already has stop caring about pose: wrappers around any model.

Either the answers are averaged over the orbit of each image (:func:`symmetrize`), or each image is first brought to its
canonical pose (:func:`canonicalize`). The model can be a torch module, an ONNX file, a scikit-learn estimator or any
function on images; nothing of it is changed. Files, by what you want to change:

===================== ===============================================================================================
``symmetrize.py``     :func:`symmetrize`: the mean over a finite group, or over a frame of poses
``canonicalize.py``   :func:`canonicalize`: a canonicalizer and a gate in front of a model
``canonicalizers.py`` canonicalizers without training: moments, search, energy; iterate
``coordinates.py``    polar and log-polar coordinates, in which the group is a shift
``learned.py``        canonicalizers that are trained: an equivariant scorer, a regression
``fitting.py``        :func:`fit_canonicalizer`: their training
``poses.py``          :class:`Pose`, what every canonicalizer returns, and :func:`restore` for dense answers
``frames.py``         moments of images and the frames they define
``views.py``          images resampled by poses
``trials.py``         :func:`try_adaptations`: measure what applies to a model, and :func:`recommend` one
``onnx_files.py``     :func:`to_onnx`: a wrapped model as one ONNX file
===================== ===============================================================================================
"""

from unpose.adapt.canonicalize import Canonicalized, canonicalize, gate_threshold
from unpose.adapt.canonicalizers import Canonicalizer, energy, iterate, moments, search
from unpose.adapt.coordinates import coordinates, polar
from unpose.adapt.fitting import fit_canonicalizer
from unpose.adapt.learned import Learned, Regress, learned, regress
from unpose.adapt.onnx_files import to_onnx
from unpose.adapt.poses import Pose, restore
from unpose.adapt.symmetrize import Symmetrized, most_certain, symmetrize
from unpose.adapt.trials import Trial, Trials, recommend, try_adaptations
from unpose.audit import ImageModel, as_model, check_model

__all__ = [
    "Canonicalized",
    "Canonicalizer",
    "ImageModel",
    "Learned",
    "Pose",
    "Regress",
    "Symmetrized",
    "Trial",
    "Trials",
    "as_model",
    "canonicalize",
    "check_model",
    "coordinates",
    "energy",
    "fit_canonicalizer",
    "gate_threshold",
    "iterate",
    "learned",
    "moments",
    "most_certain",
    "polar",
    "recommend",
    "regress",
    "restore",
    "search",
    "symmetrize",
    "to_onnx",
    "try_adaptations",
]
