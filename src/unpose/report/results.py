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
    """One cluster of images.

    Parameters
    ----------
    mean : (h, w) or (h, w, c) array
        Average of the aligned images, at any resolution.
    confidence : float
        In [0, 1].
    exemplar : int
        Index of a representative image.
    error : array like ``mean``, optional
        Standard error of the mean.
    symmetry : str, default ""
        Such as "4-fold"; empty for a mean without symmetry.

    Examples
    --------
    >>> Cluster(mean=np.zeros((8, 8)), confidence=0.9, exemplar=0).symmetry
    ''
    """

    mean: NDArray
    confidence: float
    exemplar: int
    error: NDArray | None = None
    symmetry: str = ""


@dataclass(frozen=True)
class Round:
    """Some images after one round of invariant attention; the first round shows them as found.

    Parameters
    ----------
    images : (m, h, w) or (m, h, w, c) array
        The images.
    note : str, default ""
        Remark about the round.

    Examples
    --------
    >>> Round(np.zeros((3, 8, 8)), "after averaging").note
    'after averaging'
    """

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
    """All images of a run of which the page shows a sample.

    Parameters
    ----------
    labels, confidences : (n,) arrays
        Cluster and confidence of each image.
    attention : (n, n) scipy sparse matrix
        Attention among all images.

    Examples
    --------
    >>> from scipy import sparse
    >>> len(Whole(np.zeros(3, int), np.ones(3), sparse.csr_array((3, 3))).labels)
    3
    """

    labels: NDArray
    confidences: NDArray
    attention: Any


@dataclass(frozen=True)
class Results:
    """Everything that the page shows.

    Parameters
    ----------
    question : str
        What was asked, in one line.
    images : sequence of n arrays, each (h, w) or (h, w, c), all of one shape
        The images as found. Any object with a length and an index will do; only images that are shown are read.
    names : sequence of n str
        File names. They are untrusted: the page never interprets them as markup.
    labels : (n,) array of int
        Cluster of each image, or -1.
    confidences : (n,) array
        Confidence of each label in [0, 1]: how far its cluster is found again in random subsets of the images.
    poses : (n, 3, 3) array
        Bring each image onto the mean of its cluster.
    layout : (n, 2) array
        Position of each image on the map.
    clusters : sequence of k Cluster
        Cluster c consists of the images labelled c.
    reproduction : Reproduction
        Command, seed, version and settings.
    attention : (n, n) array or scipy sparse matrix, optional
        Row i has the weights that image i gives to the others.
    rounds : sequence of Round, default ()
        Some images over the rounds of attention.
    rejected : sequence of Rejected, default ()
        Files that were not used.
    agreement : mapping of str to float, default {}
        Measures of agreement with given classes.
    stability : float, optional
        Agreement of the groups of random subsets of the images; None if unknown, and then no confidence is shown.
    remarks : sequence of str, default ()
        What a reader must know about the groups, in full sentences.
    copies : (n,) array of int, optional
        The first image with the same content as each image.
    distances : (n,) array, optional
        Distance of each image from the mean of its cluster; NaN for images without one.
    group_names : sequence of str, optional
        Names that a person gave to the clusters, empty for those without one.
    settled : (n,) array of bool, optional
        The images whose name a person has accepted.
    rejected_names : mapping of int to sequence of str or int, default {}
        Names that a person rejected for an image, by the index of the image; numbers for clusters without a name.
    n_rejected : int, optional
        Number of files that were not used, if ``rejected`` does not list all.
    whole : Whole, optional
        All images, if those above are a sample: the page then gives the counts of all, and says that it shows a sample.

    Examples
    --------
    >>> results = Results(
    ...     question="What is in here?", images=np.zeros((2, 8, 8)), names=["a.png", "b.png"], labels=np.array([0, -1]),
    ...     confidences=np.ones(2), poses=np.tile(np.eye(3), (2, 1, 1)), layout=np.eye(2),
    ...     clusters=[Cluster(mean=np.zeros((8, 8)), confidence=1.0, exemplar=0)],
    ...     reproduction=Reproduction("unpose cluster images -o run", seed=0, version="0.1.0"),
    ... )
    >>> len(results.names)
    2
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
    stability: float | None = None
    remarks: Sequence[str] = ()
    copies: NDArray | None = None
    distances: NDArray | None = None
    group_names: Sequence[str] | None = None
    settled: NDArray | None = None
    rejected_names: Mapping[int, Sequence[str | int]] = field(default_factory=dict)
    n_rejected: int | None = None
    whole: Whole | None = None

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
