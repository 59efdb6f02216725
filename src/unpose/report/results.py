"""What the page shows: plain values and arrays, filled in by whoever ran the clustering.

Convention
----------
Images are ``(h, w)`` or ``(h, w, c)``. A pose is a 3x3 matrix in pixels from the image centre, x right and y down;
``poses[i]`` brings image i onto the mean of its cluster.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

NO_CLUSTER = -1
"""The label of an image that belongs to no cluster."""


@dataclass(frozen=True)
class Cluster:
    """One group of images."""

    mean: NDArray  # (h, w) or (h, w, c), at any resolution
    confidence: float  # in [0, 1]
    exemplar: int  # index of the image that stands for the group
    error: NDArray | None = None  # standard error of the mean, shaped like it
    symmetry: str = ""  # such as "4-fold" or "mirror"; empty where the mean looks the same at one pose only


@dataclass(frozen=True)
class Round:
    """A few images as they are after one round of invariant attention; the first round shows them as found."""

    images: NDArray  # (m, h, w) or (m, h, w, c)
    note: str = ""


@dataclass(frozen=True)
class Rejected:
    """A file that was left out, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Reproduction:
    """What makes the same results again."""

    command: str
    seed: int
    version: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """Everything the page shows.

    Parameters
    ----------
    question : str
        What was asked, in one line.
    images : sequence of n arrays, each (h, w) or (h, w, c), all of one shape
        As found. Anything with a length and an index will do; only images that are shown are read.
    names : n str
        As the user knows the images. They may be hostile: nothing in them is ever taken for markup.
    labels, confidences, poses, layout : (n,) int, (n,), (n, 3, 3), (n, 2)
        Cluster of each image or -1, how sure that is in [0, 1], the pose onto the cluster's mean, a place on a map.
    clusters : k clusters
        Cluster c holds the images labelled c.
    attention : (n, n) array or scipy sparse matrix, optional
        Row i holds the weights image i gives to the others.
    agreement : mapping of str to float
        Measures of agreement with classes that were given, where they were.
    """

    question: str
    images: Sequence[NDArray] | NDArray
    names: Sequence[str]
    labels: NDArray
    confidences: NDArray
    poses: NDArray
    layout: NDArray
    clusters: Sequence[Cluster]
    reproduction: Reproduction
    attention: Any = None
    rounds: Sequence[Round] = ()
    rejected: Sequence[Rejected] = ()
    agreement: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n, k = len(self.images), len(self.clusters)
        if n == 0:
            raise ValueError("a page needs at least one image, got none")
        if len(self.names) != n:
            raise ValueError(f"names must be as many as images ({n}), got {len(self.names)}")
        shapes = {"labels": (n,), "confidences": (n,), "poses": (n, 3, 3), "layout": (n, 2)}
        for name, shape in shapes.items():
            values = np.asarray(getattr(self, name))
            if values.shape != shape:
                raise ValueError(f"{name} must have shape {shape}, got {values.shape}")
            if not np.isfinite(values).all():
                raise ValueError(f"{name} must be finite, got {int((~np.isfinite(values)).sum())} that are not")
        if not np.asarray(self.poses)[:, 2, 2].all():
            raise ValueError("poses must have a last entry other than zero: such a pose sends the image centre away")
        labels = np.asarray(self.labels)
        if not np.issubdtype(labels.dtype, np.integer) or labels.min() < NO_CLUSTER or labels.max() >= k:
            raise ValueError(f"labels must be integers from -1 to {k - 1}, got {np.unique(labels)[[0, -1]].tolist()}")
        sure = np.append(np.asarray(self.confidences), [cluster.confidence for cluster in self.clusters])
        if not (sure.min() >= 0 and sure.max() <= 1):
            raise ValueError(f"confidences must be between 0 and 1, got {sure.min():g} to {sure.max():g}")
        if wrong := [c for c, cluster in enumerate(self.clusters) if not 0 <= cluster.exemplar < n]:
            raise ValueError(f"exemplars must be indices of the {n} images, got others in clusters {wrong}")
        if self.attention is not None and self.attention.shape != (n, n):
            raise ValueError(f"attention must have shape {(n, n)}, got {self.attention.shape}")
