"""A map of all images: places in the plane where images that attend to each other lie close together.

Links pull and all others push, with the forces of UMAP (McInnes, Healy, Melville 2018), from a start that diffusion
over the graph gives. Nothing but the attention matrix is looked at: groups show on the map only where the
graph has them.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

_A, _B = 1.577, 0.895
"""The curve 1 / (1 + a d^(2b)) that is closest to 1 up to d = 0.1 and falls like exp(0.1 - d) beyond."""
_DIFFUSION = 60
_EPOCHS, _FEWER = 250, 100
_MANY = 5000
_PUSHED = 16
"""Others, drawn anew in each epoch, that push an image away."""
_LONGEST = 4.0


def layout(weights: sparse.csr_array, *, seed: int = 0) -> NDArray:
    """Places (n, 2) of the n images of a sparse, symmetric attention matrix (n, n); the same for the same matrix.

    Images without any link stand in a row below the others.

    Notes
    -----
    Cost: the links plus 16 n, in each of 250 epochs (100 beyond 5,000 images): six seconds for 20,000 images.
    """
    linked = np.asarray(weights.sum(1)).ravel() > 0
    rows = np.flatnonzero(linked)
    places = np.zeros((len(linked), 2))
    if len(rows):
        inner = sparse.csr_array(sparse.csr_array(weights)[rows][:, rows])
        places[rows] = _pulled(inner, _diffused(inner, np.random.default_rng(seed)), np.random.default_rng(seed))
    alone = np.flatnonzero(~linked)
    low, high = (places[rows].min(0), places[rows].max(0)) if len(rows) else (np.zeros(2), np.ones(2))
    below = high[1] + 0.06 * max(high[1] - low[1], 1.0)  # y points down
    places[alone] = np.stack([np.linspace(low[0], high[0], len(alone) + 2)[1:-1], np.full(len(alone), below)], axis=1)
    return places


def _diffused(weights: sparse.csr_array, rng: np.random.Generator) -> NDArray:
    """Noise spread along the links until only the slowest two directions remain: (n, 2), of unit variance."""
    n = weights.shape[0]
    degree = np.asarray(weights.sum(1)).ravel()
    walk = sparse.csr_array(sparse.diags_array(0.5 / degree) @ weights)
    start = rng.standard_normal((n, 2))
    for _ in range(_DIFFUSION):
        start = 0.5 * start + walk @ start  # lazy, so that no direction alternates
        start -= np.average(start, axis=0, weights=degree)
        first, second = start.T
        second = second - first * (first @ second) / max(float(first @ first), 1e-300)
        start = np.stack([first / max(first.std(), 1e-300), second / max(second.std(), 1e-300)], axis=1)
    # Copies of one image start at one place; a little noise lets them part.
    return 5.0 * start + 1e-3 * rng.standard_normal((n, 2))


def _pulled(weights: sparse.csr_array, places: NDArray, rng: np.random.Generator) -> NDArray:
    n = len(places)
    edges = sparse.coo_array(weights)
    pull = edges.data / edges.data.max()
    push = np.bincount(edges.row, pull, minlength=n) * 5 / _PUSHED  # as five random others for every link
    epochs = _EPOCHS if n <= _MANY else _FEWER
    who = np.repeat(np.arange(n), _PUSHED)
    for epoch in range(epochs):
        step = 0.5 * (1 - epoch / epochs)
        apart = places[edges.row] - places[edges.col]  # (e, 2)
        squared = (apart**2).sum(1)
        close = np.maximum(squared, 1e-12)
        near = -2 * _A * _B * close ** (_B - 1) / (1 + _A * close**_B) * pull
        others = rng.integers(0, n, len(who))
        away = places[who] - places[others]  # (16 n, 2)
        squared = (away**2).sum(1)
        far = 2 * _B / ((0.001 + squared) * (1 + _A * squared**_B)) * push[who]
        for axis in range(2):
            force = np.bincount(edges.row, np.clip(near * apart[:, axis], -_LONGEST, _LONGEST), minlength=n)
            force += np.bincount(who, np.clip(far * away[:, axis], -_LONGEST, _LONGEST), minlength=n)
            places[:, axis] += step * np.clip(force, -_LONGEST, _LONGEST)
    return places
