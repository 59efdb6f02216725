"""What the page shows, as plain values and arrays, so that this room depends on no other.

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
    """One cluster of images."""

    mean: NDArray  # (h, w) or (h, w, c), average of the aligned images, at any resolution
    confidence: float  # in [0, 1]
    exemplar: int  # index of a representative image
    error: NDArray | None = None  # standard error of the mean
    symmetry: str = ""  # such as "4-fold"; empty for a mean without symmetry


@dataclass(frozen=True)
class Round:
    """Some images (m, h, w) or (m, h, w, c) after one round of attention; the first round shows them as found."""

    images: NDArray
    note: str = ""


@dataclass(frozen=True)
class Rejected:
    """A file that was not used, and why.

    Parameters
    ----------
    name, reason : str
        Name of the file, and why it was rejected.

    Examples
    --------
    >>> Rejected("notes.txt", "not an image").reason
    'not an image'
    """

    name: str
    reason: str


@dataclass(frozen=True)
class Reproduction:
    """What is needed to reproduce the results.

    Parameters
    ----------
    command : str
        The command line.
    seed : int
        Seed of all random choices.
    version : str
        Version of unpose.
    settings : mapping of str to any, default {}
        All settings of the run.

    Examples
    --------
    >>> Reproduction("unpose cluster images -o run", seed=0, version="0.1.0").seed
    0
    """

    command: str
    seed: int
    version: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Whole:
    """All images of a run of which the page shows a sample."""

    labels: NDArray  # (n,), the cluster of each image
    confidences: NDArray  # (n,)
    attention: Any  # (n, n) scipy sparse matrix


@dataclass(frozen=True)
class Results:
    """Everything that the page shows: n images in k clusters."""

    question: str  # what was asked, in one line
    # The images as found, (h, w) or (h, w, c), all of one shape. Any object with a length and an index will do; only
    # images that are shown are read.
    images: Sequence[NDArray] | NDArray
    names: Sequence[str]  # of the files; untrusted: the page never interprets them as markup
    labels: NDArray  # (n,) of int, the cluster of each image, or -1
    confidences: NDArray  # (n,) in [0, 1]: how far the cluster of an image is found again in random subsets of images
    poses: NDArray  # (n, 3, 3), bring each image onto the mean of its cluster
    layout: NDArray  # (n, 2), position of each image on the map
    clusters: Sequence[Cluster]  # cluster c consists of the images labelled c
    reproduction: Reproduction
    attention: Any = None  # (n, n) array or sparse matrix; row i has the weights that image i gives to the others
    rounds: Sequence[Round] = ()
    rejected: Sequence[Rejected] = ()
    agreement: Mapping[str, float] = field(default_factory=dict)  # measures of agreement with given classes
    stability: float | None = None  # agreement of the groups of random subsets; if unknown, no confidence is shown
    remarks: Sequence[str] = ()  # what a reader must know about the groups, in full sentences
    copies: NDArray | None = None  # (n,) of int, the first image with the same content as each image
    distances: NDArray | None = None  # (n,), from the mean of the cluster; NaN for images without one
    group_names: Sequence[str] | None = None  # that a person gave to the clusters, empty for those without one
    settled: NDArray | None = None  # (n,) of bool, the images whose name a person has accepted
    # Names that a person rejected, by the index of the image; numbers for clusters without a name.
    rejected_names: Mapping[int, Sequence[str | int]] = field(default_factory=dict)
    n_rejected: int | None = None  # number of files that were not used, if ``rejected`` does not list all
    whole: Whole | None = None  # all images, if those above are a sample: the page gives the counts of all, and says so
    in_run: bool = True  # whether the page lies in a run folder, of whose tables and commands it then tells

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
                raise ValueError(f"{name} must be finite, got {int((~np.isfinite(values)).sum())} entries that are not")
        if not np.asarray(self.poses)[:, 2, 2].all():
            raise ValueError("poses must have a nonzero last entry: others map the image centre to infinity")
        labels = np.asarray(self.labels)
        if not np.issubdtype(labels.dtype, np.integer) or labels.min() < NO_CLUSTER or labels.max() >= k:
            raise ValueError(f"labels must be integers from -1 to {k - 1}, got {np.unique(labels)[[0, -1]].tolist()}")
        confidences = np.append(np.asarray(self.confidences), [cluster.confidence for cluster in self.clusters])
        low, high = confidences.min(), confidences.max()
        if not (low >= 0 and high <= 1):
            raise ValueError(f"confidences must be between 0 and 1, got {low:g} to {high:g}")
        if wrong := [c for c, cluster in enumerate(self.clusters) if not 0 <= cluster.exemplar < n]:
            raise ValueError(f"exemplars must be indices of the {n} images, those of clusters {wrong} are not")
        if self.copies is not None and not all(0 <= first <= i for i, first in enumerate(self.copies)):
            raise ValueError("copies must be indices of the same or of earlier images")
        if self.group_names is not None and len(self.group_names) != k:
            raise ValueError(f"group_names must be as many as clusters ({k}), got {len(self.group_names)}")
        if self.settled is not None and np.shape(self.settled) != (n,):
            raise ValueError(f"settled must have shape {(n,)}, got {np.shape(self.settled)}")
        if wrong := [i for i in self.rejected_names if not 0 <= i < n]:
            raise ValueError(f"rejected_names must be given for indices of the {n} images, got {wrong[0]}")
        if self.attention is not None and self.attention.shape != (n, n):
            raise ValueError(f"attention must have shape {(n, n)}, got {self.attention.shape}")
