"""How well groups agree with classes that somebody gave: for a report, never for finding the groups."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score


def agreement(classes: Sequence[str], labels: ArrayLike) -> dict[str, float]:
    """Accuracy under the best matching of groups to classes, purity, and the adjusted Rand index.

    Accuracy gives each class one group at most, so that splitting a class costs; purity gives each group its most
    frequent class, so that it does not. Images of no group (-1) count as wrong in both.

    Examples
    --------
    >>> agreement(["a", "a", "b", "b"], [1, 1, 0, 2])["accuracy"]
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
    """(groups, classes): how many images of each group are of each class."""
    names, of_class = np.unique(np.asarray(classes), return_inverse=True)
    table = np.zeros((int(labels.max(initial=0)) + 1, len(names)), np.int64)
    inside = labels >= 0
    np.add.at(table, (labels[inside], of_class[inside]), 1)
    return table
