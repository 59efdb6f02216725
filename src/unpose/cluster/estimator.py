"""Groups, one clean average each, and every image's pose, from images at unknown pose: a scikit-learn estimator."""

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClusterMixin, TransformerMixin
from sklearn.metrics import pairwise_distances
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data
from torch import Tensor

from unpose.align import Neighbours, align, coarse, nearest
from unpose.align.checkpoints import Chapter, Pieces
from unpose.cluster import saving
from unpose.cluster.averaging import average, moved
from unpose.cluster.graph import NEIGHBOURS
from unpose.cluster.light import CONTRAST, check_shown, prepared, show_something
from unpose.cluster.readout import read_out
from unpose.cluster.rounds import MOST, Round, attend, look
from unpose.groups import parse_continuous
from unpose.images import as_batch, from_batch, smooth

Progress = Callable[[str, int, int], None]

_WORKING = 48
"""Larger side of the images that neighbours are looked for among; averages are made at full size."""
_TOLERANCE = math.radians(10)
"""Turn that neighbours of images that may only shift are allowed, as a small difference between two things."""
_EXHAUSTIVE = 4000
"""Up to so many images every pair is searched over all poses on the CPU; beyond, the best of a cheaper search."""
_CANDIDATES = 250


class InvariantClustering(TransformerMixin, ClusterMixin, BaseEstimator):
    """Cluster images whose pose is unknown: turned, shifted, scaled or mirrored each in its own way.

    Parameters
    ----------
    n_clusters : int or None
        Exactly so many groups; None finds the number from the data (see Notes).
    group : which poses count as nothing: translation, se2, similarity, affine or perspective, each also with
        ``+mirror``.
    image_shape : (h, w) or (h, w, c)
        Says how the pixels of rows ``(n, pixels)`` lie in a picture. Rows without it are plain vectors, which have no
        pose: they are clustered by their distances as they are.
    max_angle, max_shift, max_scale : bounds of the search in radians, pixels (a quarter of the larger side by default)
        and as a factor.
    light : {"ignore", "keep"}
        "ignore" takes away brightness, contrast and a sloping background; "keep" lets them count.
    mask : None or "disc"
        Where to look.
    random_state : seed of the read-out; the same seed gives the same labels for any ``n_jobs`` and ``memory``.
    device, n_jobs, memory, progress, pieces : as for :func:`unpose.align.nearest`.

    Attributes
    ----------
    labels_ : (n,) from 0, largest group first; -1 for images that show nothing.
    means_ : (K, h, w) or (K, h, w, c), the average of each group's aligned images, at full size.
    standard_errors_ : like ``means_``, the standard error of every pixel.
    poses_ : (n, 3, 3), brings each image onto its mean.
    confidences_ : (n,) share of an image's attention that stays in its own group.
    exemplars_ : (K,) the image of each group that its group attends to most.
    symmetries_ : (K,) at how many poses the mean looks the same; 1 for an object without symmetry.
    weights_ : sparse (n, n), the attention matrix the groups were read from.
    neighbours_ : the nearest neighbours it was made from.
    n_clusters_, n_iter_ : groups, and rounds of attention.
    history_ : what each round saw, see :class:`unpose.cluster.rounds.Round`.

    Notes
    -----
    1. Neighbours over the whole orbit (:func:`unpose.align.nearest`) on images of at most 48 pixels, twelve each, with
       a small projective change let pass: two things of a kind are never quite the same.
    2. Invariant attention: images are replaced by means of their neighbours while what separates neighbours looks
       like noise (:mod:`unpose.cluster.rounds`).
    3. A self-tuned attention matrix over the eight nearest (:mod:`unpose.cluster.graph`).
    4. Groups by modularity at resolution 2 (:mod:`unpose.cluster.readout`); their number too where it is not given.
    5. Averages at full size, by turns with alignment (:mod:`unpose.cluster.averaging`).

    No rule looks at labels, and none is set per data set. Cost is that of the neighbours: quadratic with a small
    factor, nearly linear beyond some thousand images, where a cheaper search picks the candidates.

    Examples
    --------
    >>> from unpose.data import posed
    >>> things = np.zeros((3, 20, 20)); things[0, 4:16, 9:11] = 1; things[1, 6:14, 6:14] = 1
    >>> things[2, 5:15, 8:10] = things[2, 13:15, 8:15] = 1
    >>> turned = posed(things, copies=8, max_shift=2.0)
    >>> model = InvariantClustering(n_clusters=3).fit(turned.images)
    >>> len({(a, b) for a, b in zip(turned.sources.tolist(), model.labels_.tolist())})
    3
    """

    def __init__(
        self,
        n_clusters: int | None = None,
        *,
        group: str = "se2",
        image_shape: tuple[int, ...] | None = None,
        max_angle: float = math.pi,
        max_shift: float | None = None,
        max_scale: float = 1.5,
        light: str = "ignore",
        mask: str | None = None,
        random_state: int | np.random.RandomState | None = 0,
        device: str = "cpu",
        n_jobs: int | None = None,
        memory: int | str | None = None,
        progress: Progress | None = None,
        pieces: Pieces | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.group = group
        self.image_shape = image_shape
        self.max_angle = max_angle
        self.max_shift = max_shift
        self.max_scale = max_scale
        self.light = light
        self.mask = mask
        self.random_state = random_state
        self.device = device
        self.n_jobs = n_jobs
        self.memory = memory
        self.progress = progress
        self.pieces = pieces

    def fit(self, X: ArrayLike, y: object = None) -> "InvariantClustering":
        """Find the groups of images ``X``: (n, h, w), (n, h, w, c), or (n, pixels) with ``image_shape``."""
        batch, seen = self._read(X, fitting=True)
        rng = check_random_state(self.random_state)
        n = len(batch)
        rows = np.flatnonzero(seen)
        check_shown(seen)
        self._check_count(n, len(rows))
        if self._plain:
            neighbours, history = _plain_neighbours(batch), list[Round]()
        else:
            neighbours, history = self._neighbours(batch[rows])
        if neighbours is None:  # one image
            labels, weights = np.zeros(1, np.int64), sparse.csr_array((1, 1))
        else:
            self._report("read out", 0, 1)
            labels, weights = read_out(neighbours.indices, neighbours.distances, self.n_clusters, rng)
            self._report("read out", 1, 1)
        self.n_clusters_ = int(labels.max()) + 1
        inside = _within(weights, labels)
        most_attended = np.lexsort((-inside, labels))  # group by group, the most attended first
        exemplars = most_attended[np.unique(labels[most_attended], return_index=True)[1]]
        self._average(batch, rows, labels, exemplars)
        total = np.asarray(weights.sum(1)).ravel()
        self.labels_, self.confidences_ = np.full(n, -1), np.zeros(n)
        self.labels_[rows], self.exemplars_ = labels, rows[exemplars]
        self.confidences_[rows] = np.where(total > 0, inside / np.maximum(total, 1e-300), 1.0)
        self.weights_ = _spread(weights, rows, n)
        self.neighbours_ = _scattered(neighbours, rows, n)
        self.history_, self.n_iter_ = history, max(1, len(history))
        return self

    def transform(self, X: ArrayLike) -> NDArray:
        """The orbit distance of each image to every mean, (n, K); infinite for images that show nothing."""
        return self.place(X)[0]

    def place(self, X: ArrayLike) -> tuple[NDArray, NDArray]:
        """The orbit distance of each image to every mean, (n, K), and the pose that brings it there, (n, K, 3, 3).

        For an image that shows nothing the distances are infinite and the poses the identity.
        """
        check_is_fitted(self)
        batch, seen = self._read(X, fitting=False)
        poses = np.tile(np.eye(3), (len(batch), self.n_clusters_, 1, 1))
        if self._plain:
            return pairwise_distances(batch[:, 0, 0].numpy(), self.means_), poses
        distances = np.full((len(batch), self.n_clusters_), np.inf)
        rows = np.flatnonzero(seen)
        if len(rows):
            means = self.means_ if self.means_.ndim == 4 else self.means_[..., None]
            found = align(batch[rows].movedim(1, -1), means, every=True, group=self.group, **self._settings())
            distances[rows], poses[rows] = found.distances, found.poses
        return distances, poses

    def predict(self, X: ArrayLike) -> NDArray:
        """The nearest mean over the orbit of each image, (n,); -1 for images that show nothing."""
        distances = self.transform(X)
        return np.where(np.isfinite(distances).any(1), distances.argmin(1), -1)

    def fit_transform(self, X: ArrayLike, y: object = None) -> NDArray:
        """Fit, then the distances of the same images to every mean."""
        return self.fit(X).transform(X)

    def score(self, X: ArrayLike, y: object = None) -> float:
        """Minus the mean squared orbit distance to the nearest mean: higher is better."""
        nearest_mean = self.transform(X).min(1)
        seen = np.isfinite(nearest_mean)
        check_shown(seen)
        return -float((nearest_mean[seen] ** 2).mean())

    def aligned(self, X: ArrayLike, cluster: int) -> NDArray:
        """The images of one group, of those that were fitted, brought onto its mean: (m, h, w) or (m, h, w, c)."""
        check_is_fitted(self)
        batch, _ = self._read(X, fitting=False)
        if len(batch) != len(self.labels_):
            raise ValueError(f"X must be the {len(self.labels_)} images that were fitted, got {len(batch)}")
        if not 0 <= cluster < self.n_clusters_:
            raise ValueError(f"cluster must be one of 0 to {self.n_clusters_ - 1}, got {cluster}")
        rows = np.flatnonzero(self.labels_ == cluster)
        stack = batch[rows] if self._plain else moved(batch[rows], self.poses_[rows])
        return stack[:, 0, 0].numpy() if self._plain else from_batch(stack, channels=self._channels)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``model.json`` and ``model.safetensors`` into a folder; nothing in them is executed on loading."""
        check_is_fitted(self)
        saving.save(self, folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "InvariantClustering":
        """The fitted estimator that :meth:`save` wrote."""
        model: InvariantClustering = saving.load(cls, folder)
        return model

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _read(self, X: ArrayLike, *, fitting: bool) -> tuple[Tensor, NDArray]:
        """Checked input as (n, c, h, w), prepared, and which images show something."""
        X = X.detach() if isinstance(X, Tensor) else X
        if _ndim(X) <= 2:
            # whole numbers of 8 and 16 bits are left to `as_batch`, which knows their full scale
            rows = validate_data(self, X, reset=fitting, dtype=[np.float64, np.float32, np.uint8, np.uint16])
            if fitting:
                self._plain, self._channels = self.image_shape is None, False
            if self._plain:
                numbers = rows if rows.dtype.kind == "f" else rows.astype(np.float64)
                return torch.tensor(numbers)[:, None, None], np.ones(len(rows), bool)
            X = _pictures(rows, self.image_shape_ if self.image_shape is None else self.image_shape)
        elif not fitting and self._plain:
            raise ValueError(f"vectors of {self.means_.shape[1]} numbers were fitted, got images; fit images instead")
        batch = as_batch(X, dtype=torch.float32).detach()
        if fitting:
            self._plain, self._channels = False, _ndim(X) == 4
            self.n_features_in_ = math.prod(batch.shape[1:])
        channels, height, width = batch.shape[1:]
        shape = (height, width, channels) if _ndim(X) == 4 else (height, width)
        if not fitting and shape != self.image_shape_:
            raise ValueError(f"images must be of the shape that was fitted, {self.image_shape_}, got {shape}")
        self.image_shape_: tuple[int, ...] = shape
        work = prepared(batch, self.light)
        return work, show_something(work)

    def _check_count(self, n: int, seen: int) -> None:
        wanted = self.n_clusters
        if wanted is None:
            return
        if not isinstance(wanted, int | np.integer) or wanted < 1:
            raise ValueError(f"n_clusters must be a whole number of at least 1, or None, got {wanted!r}")
        if wanted > seen:
            raise ValueError(
                f"n_clusters must be at most the number of images that show something ({seen} of {n}), got {wanted}"
            )

    def _settings(self) -> dict[str, Any]:
        return {
            "max_angle": self.max_angle, "max_shift": self.max_shift, "max_scale": self.max_scale, "mask": self.mask,
            "contrast": CONTRAST[self.light], "device": self.device, "n_jobs": self.n_jobs, "memory": self.memory,
            "progress": self.progress,
        }  # fmt: skip

    def _report(self, stage: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(stage, done, total)

    def _neighbours(self, images: Tensor) -> tuple[Neighbours | None, list[Round]]:
        """Neighbours of images (n, c, h, w) at working size, after as many rounds of attention as help."""
        n = len(images)
        if n == 1:
            return None, []
        factor = max(1.0, max(images.shape[-2:]) / _WORKING)
        small = coarse.reduce(images, factor)
        settings = self._settings()
        if settings["max_shift"] is not None:
            settings["max_shift"] /= factor
        searched = parse_continuous(self.group)
        if not searched.scales:
            settings["max_scale"] = 1.0
        if not searched.shifts:
            settings["max_shift"] = _TOLERANCE * max(small.shape[-2:]) / 2  # at the edge of the frame
        settings["max_angle"] = max(self.max_angle, _TOLERANCE) if searched.turns else _TOLERANCE
        on_cpu = torch.device(self.device).type == "cpu"
        settings |= {
            "group": "perspective" + "+mirror" * searched.mirrored,
            "candidates": _CANDIDATES if on_cpu and n > _EXHAUSTIVE else None,
            # A closer look costs seconds on a GPU; where scales are searched too, shapes fit in more ways than one.
            "quick": on_cpu and not searched.scales,
        }
        history: list[Round] = []
        while True:
            kept = None if self.pieces is None else Chapter(self.pieces, f"round{len(history)}")
            found = nearest(small.movedim(1, -1), min(NEIGHBOURS, n - 1), pieces=kept, **settings)
            history.append(look(small, found, may_average=len(history) < MOST))
            if not history[-1].averaged:
                return found, history
            small = attend(small, found)

    def _average(self, batch: Tensor, rows: NDArray, labels: NDArray, exemplars: NDArray) -> None:
        """Set means, their errors, poses and symmetries."""
        self.poses_ = np.tile(np.eye(3), (len(batch), 1, 1))
        self.symmetries_ = np.ones(self.n_clusters_, np.int64)
        if self._plain:
            X = batch[:, 0, 0].numpy()
            groups = [X[labels == k] for k in range(self.n_clusters_)]
            self.means_ = np.stack([group.mean(0) for group in groups])
            self.standard_errors_ = np.stack(
                [group.std(0, ddof=min(1, len(group) - 1)) / math.sqrt(len(group)) for group in groups]
            )
            return
        found = average(batch[rows], labels, exemplars, pieces=self.pieces, group=self.group, **self._settings())
        self.means_ = from_batch(found.means, channels=self._channels)
        self.standard_errors_ = from_batch(found.standard_errors, channels=self._channels)
        self.poses_[rows] = found.poses
        # Resampling roughens a mean a little; softened, it is its own equal at every pose of its symmetry.
        selves = smooth(found.means, 1.0).movedim(1, -1)
        same = align(selves, selves, group=self.group, **(self._settings() | {"progress": None}))
        self.symmetries_ += np.array([len(poses) for poses in same.alternatives])


def _ndim(X: Any) -> int:
    """Axes of whatever people hold: arrays, data frames, lists of rows, lists of images that may differ in size."""
    if hasattr(X, "shape"):
        return len(X.shape)
    if isinstance(X, list | tuple) and len(X) and hasattr(X[0], "shape"):
        return 1 + len(X[0].shape)
    return np.asarray(X).ndim


def _pictures(rows: NDArray, shape: tuple[int, ...]) -> NDArray:
    if len(shape) not in (2, 3) or any(int(side) < 1 for side in shape) or math.prod(shape) != rows.shape[1]:
        raise ValueError(
            f"image_shape must be (h, w) or (h, w, c) with {rows.shape[1]} pixels in all, as X has columns; got {shape}"
        )
    return rows.reshape(-1, *shape)


def _plain_neighbours(batch: Tensor) -> Neighbours | None:
    X = batch[:, 0, 0].numpy()
    if len(X) == 1:
        return None
    distances, indices = NearestNeighbors(n_neighbors=min(NEIGHBOURS, len(X) - 1)).fit(X).kneighbors()
    return Neighbours(indices, distances, np.tile(np.eye(3), (*indices.shape, 1, 1)))


def _within(weights: sparse.csr_array, labels: NDArray) -> NDArray:
    """Attention of each image to its own group, (n,)."""
    edges = weights.tocoo()
    own = labels[edges.row] == labels[edges.col]
    return np.bincount(edges.row[own], edges.data[own], minlength=len(labels))


def _spread(weights: sparse.csr_array, rows: NDArray, n: int) -> sparse.csr_array:
    """A matrix over some images as one over all."""
    edges = weights.tocoo()
    return sparse.csr_array((edges.data, (rows[edges.row], rows[edges.col])), shape=(n, n))


def _scattered(neighbours: Neighbours | None, rows: NDArray, n: int) -> Neighbours:
    """Neighbours of some images as those of all; -1 and infinity where there are none."""
    k = 0 if neighbours is None else neighbours.indices.shape[1]
    indices, distances = np.full((n, k), -1), np.full((n, k), np.inf)
    poses = np.tile(np.eye(3), (n, k, 1, 1))
    if neighbours is not None:
        indices[rows], distances[rows], poses[rows] = rows[neighbours.indices], neighbours.distances, neighbours.poses
    return Neighbours(indices, distances, poses)
