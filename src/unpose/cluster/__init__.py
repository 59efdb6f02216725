"""Clustering up to pose: kernel attention, invariant weights, invariant means, invariant attention."""

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
    "InvariantAttention",
    "InvariantMean",
    "InvariantWeights",
    "invariant_attention",
    "invariant_mean",
    "invariant_weights",
    "kernel_attention",
]
