"""Clustering up to pose: kernel attention, invariant weights, invariant means, invariant attention."""

from unpose.cluster.averaging import AlignedStack, align_stack
from unpose.cluster.estimator import InvariantClustering
from unpose.cluster.published import (
    InvariantAttention,
    InvariantMean,
    InvariantWeights,
    invariant_attention,
    invariant_mean,
    invariant_weights,
    kernel_attention,
)

__all__ = [
    "AlignedStack",
    "InvariantAttention",
    "InvariantClustering",
    "InvariantMean",
    "InvariantWeights",
    "align_stack",
    "invariant_attention",
    "invariant_mean",
    "invariant_weights",
    "kernel_attention",
]
