"""Graphs whose right division is known."""

import numpy as np
from scipy import sparse


def planted(sizes, *, inside=0.6, outside=0.02, seed=0):
    """A graph with more edges within groups than between them, as a sparse array, and the group of each node.

    ``outside`` is the chance of an edge between two groups, one for all or a matrix (groups, groups).
    """
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(len(sizes)), sizes)
    between = np.broadcast_to(outside, (len(sizes), len(sizes)))[truth[:, None], truth]
    chance = np.where(truth[:, None] == truth, inside, between)
    edges = np.triu(rng.random(chance.shape) < chance, 1)
    return sparse.csr_array((edges | edges.T).astype(float)), truth


def planted_neighbours(n=1501, groups=5, k=9, wrong=0.1, seed=0):
    """Neighbours (n, k) of points on a circle in each group, some of them anywhere, their distances, and the groups."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, groups, n)
    indices = np.empty((n, k), np.int64)
    for group in range(groups):
        members = np.flatnonzero(labels == group)
        steps = rng.integers(1, 30, (len(members), k)) * rng.choice([-1, 1], (len(members), k))
        indices[members] = members[(np.arange(len(members))[:, None] + steps) % len(members)]
    strays = rng.random((n, k)) < wrong
    indices[strays] = rng.integers(0, n, strays.sum())
    return indices, np.sort(rng.gamma(20, 0.05, (n, k)), axis=1), labels
