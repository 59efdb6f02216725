"""A two-dimensional map of all images, on which images that attend to each other are close together.

Linked images attract and random pairs repel each other, with the forces of UMAP (McInnes, Healy, Melville 2018). The
initial positions come from diffusion over the graph. The layout depends on the attention matrix alone, so clusters are
visible on the map only if the graph has them. The graph of many images is contracted first
(:mod:`unpose.cluster.coarsening`), and each image is placed between the groups that it attends to.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from unpose.cluster.coarsening import contract
from unpose.cluster.limits import DEFAULT, Limits
from unpose.cluster.modularity import aggregate

_A, _B = 1.577, 0.895
"""Parameters of 1 / (1 + a d^(2b)), fitted to 1 for d < 0.1 and exp(0.1 - d) beyond."""
_DIFFUSION_STEPS = 60
_EPOCHS, _EPOCHS_LARGE = 250, 100
_LARGE = 5000
"""Number of images from which ``_EPOCHS_LARGE`` epochs are run."""
_NEGATIVE_SAMPLES = 16
"""Random images that repel an image in each epoch."""
_MAX_FORCE = 4.0


def graph_layout(weights: sparse.csr_array, *, random_state: int = 0, limits: Limits = DEFAULT) -> NDArray:
    """Compute positions in the plane for the images of an attention matrix.

    Parameters
    ----------
    weights : (n, n) sparse array
        Symmetric attention matrix, such as ``InvariantClustering.weights_``.
    random_state : int, default 0
        Seed; the same matrix and seed give the same positions.
    limits : unpose.cluster.limits.Limits, optional
        From which number of images on the graph is contracted, and to how many groups.

    Returns
    -------
    (n, 2) array
        Positions, y downwards. Images without links are in a row below the others.

    Notes
    -----
    Cost: the number of links plus 16 n, in each of 250 epochs (100 for more than 5,000 images). 20,000 images take
    about six seconds. More than 24,000 images are placed by the layout of at most 16,000 groups of them.

    Examples
    --------
    >>> pairs = sparse.csr_array(np.kron(np.eye(2), [[0.0, 1.0], [1.0, 0.0]]))  # two pairs of linked images
    >>> graph_layout(pairs).shape
    (4, 2)
    """
    linked = np.asarray(weights.sum(1)).ravel() > 0
    rows = np.flatnonzero(linked)
    positions = np.zeros((len(linked), 2))
    if len(rows):
        inner = sparse.csr_array(sparse.csr_array(weights)[rows][:, rows])
        positions[rows] = _layout(inner, random_state, limits)
    isolated = np.flatnonzero(~linked)
    low, high = (positions[rows].min(0), positions[rows].max(0)) if len(rows) else (np.zeros(2), np.ones(2))
    x = np.linspace(low[0], high[0], len(isolated) + 2)[1:-1]
    y = high[1] + 0.06 * max(high[1] - low[1], 1.0)  # y points down
    positions[isolated] = np.stack([x, np.full(len(isolated), y)], axis=1)
    return positions


def _layout(weights: sparse.csr_array, random_state: int, limits: Limits) -> NDArray:
    """Positions (n, 2) of the images of a graph in which each has a link."""
    if weights.shape[0] > limits.large_graph:
        weights.sort_indices()
        member = contract(weights, np.random.RandomState(random_state), limits.groups)
        groups = _layout_whole(_without_diagonal(aggregate(weights, member)), random_state)
        rng = np.random.default_rng(random_state)
        spread = 0.3 * np.ptp(groups, axis=0).max() / np.sqrt(len(groups))  # images of one group are not at one point
        start = groups[member] + spread * rng.standard_normal((len(member), 2))
        degree = np.asarray(weights.sum(1)).ravel()
        return 0.5 * start + 0.5 * (weights @ start) / degree[:, None]
    return _layout_whole(weights, random_state)


def _layout_whole(weights: sparse.csr_array, random_state: int) -> NDArray:
    start = _diffusion_layout(weights, np.random.default_rng(random_state))
    return _force_layout(weights, start, np.random.default_rng(random_state))


def _without_diagonal(weights: sparse.csr_array) -> sparse.csr_array:
    """A graph without the links of nodes to themselves, except where a node has no other."""
    links = sparse.coo_array(weights)
    alone = np.bincount(links.row[links.row != links.col], minlength=weights.shape[0]) == 0
    kept = (links.row != links.col) | alone[links.row]
    return sparse.csr_array((links.data[kept], (links.row[kept], links.col[kept])), shape=weights.shape)


def _diffusion_layout(weights: sparse.csr_array, rng: np.random.Generator) -> NDArray:
    """The two slowest modes of a random walk on the graph, by power iteration from noise: (n, 2)."""
    n = weights.shape[0]
    degree = np.asarray(weights.sum(1)).ravel()
    walk = sparse.csr_array(sparse.diags_array(0.5 / degree) @ weights)
    start = rng.standard_normal((n, 2))
    for _ in range(_DIFFUSION_STEPS):
        start = 0.5 * start + walk @ start  # a lazy walk has no negative eigenvalues
        start -= np.average(start, axis=0, weights=degree)
        first, second = start.T
        second = second - first * (first @ second) / max(float(first @ first), 1e-300)
        start = np.stack([first / max(first.std(), 1e-300), second / max(second.std(), 1e-300)], axis=1)
    # Copies of one image would start at one position; a little noise separates them.
    return 5.0 * start + 1e-3 * rng.standard_normal((n, 2))


def _force_layout(weights: sparse.csr_array, positions: NDArray, rng: np.random.Generator) -> NDArray:
    """Move positions (n, 2), in place, by attraction along links and repulsion from random images."""
    n = len(positions)
    edges = sparse.coo_array(weights)
    attraction = edges.data / edges.data.max()
    repulsion = np.bincount(edges.row, attraction, minlength=n) * 5 / _NEGATIVE_SAMPLES  # five samples per link
    epochs = _EPOCHS if n <= _LARGE else _EPOCHS_LARGE
    sampled = np.repeat(np.arange(n), _NEGATIVE_SAMPLES)
    for epoch in range(epochs):
        step = 0.5 * (1 - epoch / epochs)
        along_link = positions[edges.row] - positions[edges.col]  # (e, 2)
        squared = np.maximum((along_link**2).sum(1), 1e-12)
        attract = -2 * _A * _B * squared ** (_B - 1) / (1 + _A * squared**_B) * attraction
        others = rng.integers(0, n, len(sampled))
        to_other = positions[sampled] - positions[others]  # (16 n, 2)
        squared = (to_other**2).sum(1)
        repel = 2 * _B / ((0.001 + squared) * (1 + _A * squared**_B)) * repulsion[sampled]
        for axis in range(2):
            force = np.bincount(edges.row, np.clip(attract * along_link[:, axis], -_MAX_FORCE, _MAX_FORCE), minlength=n)
            force += np.bincount(sampled, np.clip(repel * to_other[:, axis], -_MAX_FORCE, _MAX_FORCE), minlength=n)
            positions[:, axis] += step * np.clip(force, -_MAX_FORCE, _MAX_FORCE)
    return positions
