"""Measure how invariant or equivariant any function is, and find the module that breaks equivariance.

Any callable can be audited: a layer, a network, an embedding, an explanation. Every error is reported beside the error
of interpolation alone and the error of a control outside the group. Files, by what you want to change:

==================== ================================================================================================
``model_audit.py``   :func:`audit_model`: everything about one model: outputs, actions, verdict, cause
``assertion.py``     :func:`assert_equivariant`: the same as one line of a test
``error.py``         :func:`equivariance_error`: the error of every group element, its floor, the control
``measurement.py``   the calls on transformed inputs, and the comparison of outputs
``*_report.py``      what these functions return
``modules.py``       :func:`audit_modules`: the same question for every module of a network, on its own
``elements.py``      which group elements are tried, and which control
``actions.py``       how an element acts on images, on group axes and on feature maps
``worlds.py``        how an element acts on point clouds, contours and images of the sphere
``trace.py``         records the inputs and outputs of all modules during one call of a network
``models.py``        :func:`as_model`: one way to call any model: torch module, ONNX file, estimator, function
``commands.py``      :class:`Command`: a program that reads and writes files as a model
``calls.py``         :func:`evaluation`: call a model and check what it returns (a door of its own)
``probes.py``        :func:`smooth_noise`, :func:`probe_images`, and inputs for a model of which nothing is known
``outputs.py``       dictionaries and tuples of outputs as named tensors (a door of its own)
``finding.py``       which action explains best how an output transforms
``precision.py``     in which type a model computes, and what rounding does to it (a door of its own)
``call_checks.py``   :func:`check_calls`: is the model random, does it keep state, does it mix the images of a batch?
==================== ================================================================================================

:func:`orbit_outputs` (``orbit.py``) calls a model once over the orbits of its inputs. What it returned is read by:

===================== ===============================================================================================
``answers.py``        :func:`answer_changes`: changed answers by element, class and image; calibration
``embeddings.py``     :func:`neighbour_agreement`: nearest neighbours kept; :func:`relative_embedding`
``collapse.py``       :func:`collapse`, :func:`pose_collapse`: variability within classes or orbits, rank, spanning tree
``monitor.py``        :func:`monitor`: a stream without labels
``transfer.py``       :func:`needed_invariances`: which invariance a task needs
``comparison.py``     :func:`shared_invariances` of two models, :func:`version_diff` of two versions
===================== ===============================================================================================

Measures that call the model in other ways:

===================== ===============================================================================================
``lie_derivative.py`` :func:`lie_derivative`: the reaction to infinitesimal motions, by module
``explanations.py``   :func:`explanation_agreement`: are explanations of moved images moved? :func:`explain`
``completeness.py``   :func:`completeness`: pairs that an invariant confuses although no pose relates them
``invariant_sets.py`` :func:`invariant_set`: images that a unit does not tell apart
``real_pairs.py``     :func:`digital_against_real`: turned by resampling against turned in the world
===================== ===============================================================================================
"""

from unpose.audit.answers import AnswerReport, ClassAnswers, answer_changes, as_probabilities
from unpose.audit.assertion import assert_equivariant
from unpose.audit.call_checks import CallChecks, check_calls
from unpose.audit.calls import evaluation
from unpose.audit.collapse import (
    CollapseReport,
    collapse,
    effective_rank,
    pose_collapse,
    spanning_tree_length,
    variability_collapse,
)
from unpose.audit.commands import Command
from unpose.audit.comparison import SharedInvariances, SharedRow, VersionDiff, shared_invariances, version_diff
from unpose.audit.completeness import CompletenessReport, PairFamily, completeness, descriptor_distance
from unpose.audit.embeddings import NeighbourReport, neighbour_agreement, relative_embedding
from unpose.audit.equivariance_report import EquivarianceReport
from unpose.audit.error import equivariance_error
from unpose.audit.explanations import ExplanationReport, explain, explanation_agreement
from unpose.audit.invariant_sets import InvariantSet, invariant_set
from unpose.audit.lie_derivative import LieReport, LieRow, lie_derivative
from unpose.audit.model_audit import audit_model
from unpose.audit.model_report import ModelAudit, ModelCallError, OutputAudit
from unpose.audit.models import ImageModel, ModelCall, as_model, check_model
from unpose.audit.modules import ModuleReport, NetworkReport, audit_modules
from unpose.audit.monitor import MonitorReading, instability, monitor
from unpose.audit.orbit import OrbitOutputs, OrbitRow, orbit_outputs
from unpose.audit.probes import probe_images, smooth_noise
from unpose.audit.real_pairs import RealPairsReport, digital_against_real
from unpose.audit.transfer import NeededInvariances, NeededRow, needed_invariances

__all__ = [
    "AnswerReport",
    "CallChecks",
    "ClassAnswers",
    "CollapseReport",
    "Command",
    "CompletenessReport",
    "EquivarianceReport",
    "ExplanationReport",
    "ImageModel",
    "InvariantSet",
    "LieReport",
    "LieRow",
    "ModelAudit",
    "ModelCall",
    "ModelCallError",
    "ModuleReport",
    "MonitorReading",
    "NeededInvariances",
    "NeededRow",
    "NeighbourReport",
    "NetworkReport",
    "OrbitOutputs",
    "OrbitRow",
    "OutputAudit",
    "PairFamily",
    "RealPairsReport",
    "SharedInvariances",
    "SharedRow",
    "VersionDiff",
    "answer_changes",
    "as_model",
    "as_probabilities",
    "assert_equivariant",
    "audit_model",
    "audit_modules",
    "check_calls",
    "check_model",
    "collapse",
    "completeness",
    "descriptor_distance",
    "digital_against_real",
    "effective_rank",
    "equivariance_error",
    "evaluation",
    "explain",
    "explanation_agreement",
    "instability",
    "invariant_set",
    "lie_derivative",
    "monitor",
    "needed_invariances",
    "neighbour_agreement",
    "orbit_outputs",
    "pose_collapse",
    "probe_images",
    "relative_embedding",
    "shared_invariances",
    "smooth_noise",
    "spanning_tree_length",
    "variability_collapse",
    "version_diff",
]
