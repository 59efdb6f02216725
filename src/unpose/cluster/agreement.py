"""Measure how well clusters agree with given classes. The classes are never used to find the clusters."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score


def agreement_with_classes(classes: Sequence[str], labels: ArrayLike) -> dict[str, float]:
    """Accuracy under the best matching of clusters to classes, purity, and the adjusted Rand index.

    Accuracy matches each class with at most one cluster, so that a class split into two clusters counts as an error.
    Purity gives each cluster its most frequent class, so that it does not. Images without a cluster count as wrong.

    Parameters
    ----------
    classes : sequence of n str
        True classes.
    labels : (n,) array of int
        Clusters from 0; -1 for images without a cluster.

    Returns
    -------
    dict of str to float
        Keys "accuracy", "purity" and "adjusted Rand index".

    Examples
    --------
    >>> agreement_with_classes(["a", "a", "b", "b"], [1, 1, 0, 2])["accuracy"]
    0.75
    """
    found = np.asarray(labels)
    table = _contingency(classes, found)
    matched = linear_sum_assignment(table, maximize=True)
    return {
        "accuracy": float(table[matched].sum() / len(found)),
        "purity": float(table.max(1).sum() / len(found)),
        "adjusted Rand index": float(adjusted_rand_score(list(classes), found)),
    }


def _contingency(classes: Sequence[str], labels: NDArray) -> NDArray:
    """Number of images in each cluster and class, (clusters, classes)."""
    names, class_index = np.unique(np.asarray(classes), return_inverse=True)
    table = np.zeros((int(labels.max(initial=0)) + 1, len(names)), np.int64)
    labelled = labels >= 0
    np.add.at(table, (labels[labelled], class_index[labelled]), 1)
    return table
