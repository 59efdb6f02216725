"""A few known classes go far: spread them over the attention matrix, and say which images to label next."""

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from unpose.cluster.graph import largest_entries, symmetric_walk
from unpose.cluster.readout import by_size

_MEMORY = 0.95
"""Share of an image's score that comes from its neighbours in every step of the spreading."""
_STEPS = 60
"""``0.95^60`` of the score is left when the spreading ends."""
_REACH = 64
"""Images that one labelled image can teach, in the choice of what to label next."""
_POINT_SCALE = 3.0
"""Norm of the points that a linear classifier is fitted to with the penalty ``C = 1``."""
_TAKEN_AS_KNOWN = 0.5
"""Share of the images of each class, the most certain ones, that the classifier is fitted to again."""
_TRUST = 0.2
"""Weight of such an image beside an image whose class is known."""
_LEAST = 1e-3
"""Share of a probability that is equal for all classes: neither the graph nor any other judge can exclude a class."""


def spread_labels(weights: sparse.csr_array, classes: NDArray, n_classes: int) -> NDArray:
    """Probability of every class for each image, (n, C), from the classes (n,) of some images, -1 for unknown.

    Scores diffuse over the attention matrix (Zhou et al., 2004, Learning with local and global consistency):
    ``F <- a S F + (1 - a) Y`` with ``S = D^-1/2 W D^-1/2``. Every class starts with the same total, whatever the number
    of its labelled images. Known images keep their class; images that no label reaches have equal probabilities. Of
    several classes none is certain where no label was given, even if labels of one class alone reach the image.
    """
    probabilities = (1 - _LEAST) * _diffused_labels(weights, classes, n_classes) + _LEAST / n_classes
    return _with_known(probabilities, classes)


def _diffused_labels(weights: sparse.csr_array, classes: NDArray, n_classes: int) -> NDArray:
    """The probabilities of :func:`spread_labels` as the scores alone give them, which may be one for any image."""
    known = np.flatnonzero(classes >= 0)
    start = np.zeros((len(classes), n_classes))
    start[known, classes[known]] = 1.0
    start /= np.maximum(start.sum(0), 1.0)
    walk = symmetric_walk(weights)
    scores = start
    for _ in range(_STEPS):
        scores = _MEMORY * (walk @ scores) + (1 - _MEMORY) * start
    total = scores.sum(1, keepdims=True)
    return _with_known(np.where(total > 1e-300, scores / np.maximum(total, 1e-300), 1 / n_classes), classes)


def _with_known(probabilities: NDArray, classes: NDArray) -> NDArray:
    """Set the probabilities (n, C) of images whose class (n,) is known, which are not -1, to one and zero."""
    known = np.flatnonzero(classes >= 0)
    probabilities[known] = 0.0
    probabilities[known, classes[known]] = 1.0
    return probabilities


def class_probabilities(
    weights: sparse.csr_array, classes: NDArray, n_classes: int, points: NDArray, point_share: float
) -> NDArray:
    """Probability of every class for each image, (n, C), from the attention matrix and from points of a feature space.

    A graph of few neighbours loses directions of the space (n, r) in which classes differ and neighbours do not; a
    linear classifier finds them with ten images of each class. The probabilities of :func:`spread_labels` and of the
    classifier are multiplied, with the exponents 1 and ``2 point_share`` (normalised), where ``point_share`` is the
    weight of the points in the joined graph: where pixels tell the classes apart, the graph decides. The classifier is
    then fitted once more, also to the half of the images of each class that is most certain.
    """
    if len(np.unique(classes[classes >= 0])) < 2:  # a class may have constant images only, which are not in the graph
        return spread_labels(weights, classes, n_classes)
    spread = _diffused_labels(weights, classes, n_classes)
    scaled, exponent = _POINT_SCALE * points, 2 * point_share
    targets, trust = classes, np.ones(len(classes))
    for is_last in (False, True):
        # Thrice, with a third of the weight: of fewer than two images per class scikit-learn warns that they may be a
        # regression problem.
        rows = np.tile(np.flatnonzero(targets >= 0), 3)
        with threadpool_limits(1):  # threads would sum in another order
            linear = LogisticRegression(tol=1e-3, max_iter=200).fit(scaled[rows], targets[rows], trust[rows] / 3)
            judged = np.zeros(spread.shape)
            judged[:, linear.classes_] = linear.predict_proba(scaled)
        scores = np.log(spread + _LEAST) + exponent * np.log(judged + _LEAST)
        probabilities = np.exp((scores - scores.max(1, keepdims=True)) / (1 + exponent))
        probabilities /= probabilities.sum(1, keepdims=True)
        probabilities[classes >= 0] = spread[classes >= 0]  # known images keep their class
        if not is_last:
            targets = np.where(classes >= 0, classes, _most_certain(probabilities))
            trust = np.where(classes >= 0, 1.0, _TRUST)
    return probabilities


def _most_certain(probabilities: NDArray) -> NDArray:
    """The most probable class of each image (n,), -1 for the half of every class whose lead over the second is less."""
    best = probabilities.argmax(1)
    ordered = np.partition(probabilities, -2, axis=1)
    lead = ordered[:, -1] - ordered[:, -2]
    order = np.lexsort((-lead, best))
    sizes = np.bincount(best, minlength=probabilities.shape[1])
    rank = np.arange(len(best)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    certain = np.full(len(best), -1)
    kept = order[rank < _TAKEN_AS_KNOWN * sizes[best[order]]]
    certain[kept] = best[kept]
    return certain


def known_classes(y: object, n: int) -> tuple[NDArray, NDArray] | None:
    """The distinct classes in ``y`` (n,) and the index of each image's class, -1 for unknown; None if nothing is known.

    ``y`` without any -1 is ignored, as scikit-learn's conventions for clustering demand: there is nothing to find out.
    """
    if y is None:
        return None
    given = np.asarray(y)
    if given.dtype.kind == "f" and not (given == -1).any():
        return None
    if given.shape != (n,) or given.dtype.kind not in "iu":
        raise ValueError(
            f"Unknown label type: y must be {n} integers, one for each image, with -1 for images of unknown class, got "
            f"shape {given.shape} of {given.dtype}"
        )
    if (given < -1).any():
        raise ValueError(f"classes in y must be at least 0, or -1 for unknown, got {int(given.min())}")
    if (given >= 0).all() or (given == -1).all():
        return None
    classes = np.unique(given[given >= 0])
    return classes, np.where(given >= 0, np.searchsorted(classes, given), -1)


def respect_classes(labels: NDArray, known: NDArray, probabilities: NDArray) -> NDArray:
    """Clusters (n,) that contradict no known class (n,): known images are together if and only if their classes agree.

    Every cluster with a known image is dissolved, and its images join their most probable class, (n, C). Clusters
    without a known image stay: they may be kinds that nobody has labelled yet. Clusters are numbered by size.
    """
    dissolved = np.isin(labels, np.unique(labels[known >= 0]))
    return by_size(np.where(dissolved, probabilities.argmax(1), labels + probabilities.shape[1]))


def most_instructive(weights: sparse.csr_array, known: NDArray, uncertainty: NDArray, count: int) -> NDArray:
    """The ``count`` images whose label would teach most about the others, best first.

    An image teaches the images that a random walk from it reaches. The choice is greedy: each image that is chosen adds
    most to the reach of all known and chosen images, counted by the ``uncertainty`` (n,) of what is reached.
    """
    reach = _reach(weights)
    columns = sparse.csc_array(reach)
    covered = np.zeros(reach.shape[0])
    for image in known:
        rows = columns.indices[columns.indptr[image] : columns.indptr[image + 1]]
        covered[rows] = np.maximum(covered[rows], columns.data[columns.indptr[image] : columns.indptr[image + 1]])
    owner = np.repeat(np.arange(reach.shape[0]), np.diff(columns.indptr))
    chosen: list[int] = []
    taken = np.zeros(reach.shape[0], bool)
    taken[known] = True
    while len(chosen) < min(count, int((~taken).sum()) + len(chosen)):
        added = np.maximum(columns.data - covered[columns.indices], 0.0) * uncertainty[columns.indices]
        gain = np.bincount(owner, added, minlength=reach.shape[0])
        gain[taken] = -1.0
        best = int(gain.argmax())
        chosen.append(best)
        taken[best] = True
        rows = slice(columns.indptr[best], columns.indptr[best + 1])
        covered[columns.indices[rows]] = np.maximum(covered[columns.indices[rows]], columns.data[rows])
    return np.array(chosen, dtype=np.int64)


def _reach(weights: sparse.csr_array) -> sparse.csr_array:
    """How far a walk of a few steps from each image (column) reaches the others (row): (n, n), the largest entries."""
    n = weights.shape[0]
    walk = symmetric_walk(weights)
    reach = sparse.csr_array(sparse.eye_array(n))
    total = reach
    for _ in range(4):
        reach = largest_entries(_MEMORY * (walk @ reach), _REACH)
        total = total + reach
    return sparse.csr_array(total)
