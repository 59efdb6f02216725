"""A first answer in seconds: fixed invariant statistics of the images and a classifier in closed form.

The classifier is linear discriminant analysis with the covariance of Ledoit and Wolf, on the statistics themselves or
on radial basis functions of them (the Nystroem map). Cross-validation within the training images chooses. The result is
a network, so everything that reads networks reads it too.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unpose.data import Dataset, InputError
from unpose.groups import dihedral
from unpose.images import as_batch
from unpose.images.statistics import count_statistics, image_statistics
from unpose.nn import Network
from unpose.train.evaluation import rotated

_CENTRES = 500
"""Centres of the radial basis functions; more hardly change the result."""
_WIDTHS = (3.0, 10.0)
"""Squared widths of the radial basis functions that are tried, in units of the number of statistics."""
_FOLDS = 4
_BATCH = 256
_MOST_IMAGES = 5_000
"""Training images that are used; more cost time and hardly change the result."""
_TEMPERATURES = np.geomspace(0.02, 2.0, 41)
_NEVER = -50.0
"""Logarithm of the prior of a class without images."""
_SMALL = 1e-6


class QuickNetwork(Network):
    """Statistics of images and a classifier with ``centres`` radial basis functions, or a linear one for 0 centres.

    Parameters
    ----------
    in_channels, n_classes : int
    image_size : (int, int)
        Recorded only: other sizes work as well.
    centres : int, default 0

    Examples
    --------
    >>> QuickNetwork(1, 3, (8, 9))(torch.rand(2, 1, 8, 9)).shape
    torch.Size([2, 3])
    """

    mean: Tensor
    scale: Tensor
    places: Tensor
    width: Tensor

    def __init__(self, in_channels: int, n_classes: int, image_size: tuple[int, int], centres: int = 0) -> None:
        super().__init__(
            dihedral(4), network="quick", in_channels=in_channels, n_classes=n_classes, image_size=image_size,
            centres=centres,
        )  # fmt: skip
        count = count_statistics(in_channels)
        self.register_buffer("mean", torch.zeros(count))
        self.register_buffer("scale", torch.ones(count))
        if centres:
            self.register_buffer("places", torch.zeros(centres, count))
            self.register_buffer("width", torch.ones(()))  # squared
        self.classify = nn.Linear(centres or count, n_classes)

    def forward(self, images: Tensor) -> Tensor:
        """(b, in_channels, h, w) -> (b, n_classes)"""
        standard = (image_statistics(images) - self.mean) / self.scale
        if self.description["centres"]:
            standard = torch.exp(-torch.cdist(standard, self.places).square() / self.width)
        return self.classify(standard)


@dataclass(frozen=True)
class QuickResult:
    """A classifier that was fitted by :func:`train_quick`.

    Attributes
    ----------
    network : QuickNetwork
        In evaluation mode.
    classifier : str
        The classifier that cross-validation chose.
    accuracy : float
        Its accuracy in cross-validation within the training images.
    images : int
        Number of training images that were used.

    Examples
    --------
    >>> QuickResult(QuickNetwork(1, 2, (8, 8)), "linear", 0.9, 70).accuracy
    0.9
    """

    network: QuickNetwork
    classifier: str
    accuracy: float
    images: int

    def _repr_html_(self) -> str:
        """The classifier and its accuracy, for notebooks."""
        from unpose.report import table_html

        columns: dict[str, list] = {
            "classifier": [self.classifier],
            "accuracy in cross-validation": [self.accuracy],
            "training images": [self.images],
        }
        return table_html(columns)


def train_quick(
    dataset: Dataset, *, class_weights: str = "none", random_state: int = 0, device: torch.device | str = "cpu"
) -> QuickResult:
    """Fit a classifier to invariant statistics of the training images, in seconds.

    Parameters
    ----------
    dataset : Dataset
        Only the training part is used, at most 5,000 images of it.
    class_weights : {"none", "balanced"}, default "none"
        With ``"balanced"`` all classes are taken to be equally frequent.
    random_state : int, default 0
        Seed of the folds and of the centres of the radial basis functions.
    device : torch.device or str, default "cpu"
        Where the statistics are computed.

    Returns
    -------
    QuickResult

    Notes
    -----
    Every training image is used as it is and turned by a random angle. Logits are scaled such that the probabilities
    fit the images left out in cross-validation.

    Examples
    --------
    >>> from unpose.data import load
    >>> from unpose.train import accuracy
    >>> digits = load("digits")
    >>> parts = [digits.train.take(np.arange(k, 360, 3)) for k in range(3)]
    >>> few = Dataset("few", digits.source, digits.classes, *parts)
    >>> accuracy(train_quick(few).network, few.test) > 0.7
    True
    """
    if class_weights not in ("none", "balanced"):
        raise ValueError(f"class_weights must be 'none' or 'balanced', got {class_weights!r}")
    rng = np.random.default_rng(random_state)
    part = dataset.train.sample(_MOST_IMAGES, rng)
    if len(np.unique(part.labels)) < 2:
        raise InputError(f"{dataset.name}: all training images are of one class; a classifier needs at least two")
    # A copy of every image at a random angle: interpolation changes the statistics a little, which must not matter.
    angles = np.concatenate([np.zeros(len(part)), rng.uniform(0, 2 * np.pi, len(part))])
    features = statistics_of(np.concatenate([part.images] * 2), angles, device)
    n_classes, labels = len(dataset.classes), np.tile(part.labels, 2)
    weights = image_weights(labels, class_weights)
    folds = np.tile(_folds(part.labels, rng), 2)
    tried = {}  # width -> logits of images left out
    for width in (None, *_WIDTHS):
        tried[width] = np.zeros((len(labels), n_classes))
        for fold in np.unique(folds):
            held = folds == fold
            if held.all():  # of two or three images, all may be in one fold; nothing can be said about them
                continue
            fitted = _fit(features[~held], labels[~held], n_classes, width, class_weights, random_state)
            tried[width][held] = fitted.logits(features[held])
    scores = {width: float(np.average(logits.argmax(1) == labels, weights=weights)) for width, logits in tried.items()}
    # The linear classifier, unless another is better by more than the standard error: it also extrapolates.
    error = (scores[None] * (1 - scores[None]) / len(part)) ** 0.5
    best = max(scores, key=lambda width: scores[width] + error * (width is None))
    factor = _temperature(tried[best], labels, weights)
    fitted = _fit(features, labels, n_classes, best, class_weights, random_state)
    network = QuickNetwork(dataset.channels, n_classes, dataset.image_size, len(fitted.places))
    values = {"mean": fitted.mean, "scale": fitted.scale, "classify.weight": factor * fitted.weight}
    values |= {"classify.bias": factor * fitted.bias}
    if best is not None:
        values |= {"places": fitted.places, "width": np.array(fitted.width)}
    network.load_state_dict({name: torch.as_tensor(value, dtype=torch.float32) for name, value in values.items()})
    classifier = "linear" if best is None else "radial basis functions"
    return QuickResult(network.eval(), classifier, scores[best], len(part))


@torch.no_grad()
def statistics_of(images: NDArray, angles: NDArray, device: torch.device | str = "cpu") -> NDArray:
    """Compute the statistics of images (n, h, w[, c]) turned by angles (n,) in radians: (n, d) float64."""
    found = []
    for start in range(0, len(images), _BATCH):
        batch = as_batch(images[start : start + _BATCH], dtype=torch.float32)
        own = torch.from_numpy(angles[start : start + _BATCH])
        if own.any():
            batch = rotated(batch, own)
        found.append(image_statistics(batch.to(device)).cpu())
    return torch.cat(found).double().numpy()


def image_weights(labels: NDArray, class_weights: str) -> NDArray:
    """Return the weight of each image, of mean one: all ones, or the inverse of the frequency of its class."""
    counts = np.bincount(labels)
    balanced = len(labels) / (np.count_nonzero(counts) * counts[labels])
    return balanced if class_weights == "balanced" else np.ones(len(labels))


def _folds(labels: NDArray, rng: np.random.Generator) -> NDArray:
    """The fold of each image, (n,): every class is spread evenly over the folds."""
    folds = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        folds[members] = (rng.integers(_FOLDS) + np.arange(len(members))) % _FOLDS
    return folds


@dataclass(frozen=True)
class _Classifier:
    """A classifier of statistics (n, d)."""

    mean: NDArray  # (d,)
    scale: NDArray  # (d,)
    places: NDArray  # (m, d) centres of radial basis functions; none for a linear classifier
    width: float  # squared width of the functions
    weight: NDArray  # (classes, m or d)
    bias: NDArray  # (classes,)

    def logits(self, features: NDArray) -> NDArray:
        """(n, d) -> (n, classes)"""
        standard = (features - self.mean) / self.scale
        inputs = _kernel(standard, self.places, self.width) if len(self.places) else standard
        logits: NDArray = inputs @ self.weight.T + self.bias
        return logits


def _fit(
    features: NDArray, labels: NDArray, n_classes: int, width: float | None, class_weights: str, seed: int
) -> _Classifier:
    """Fit a classifier; ``width`` is that of its radial basis functions, None for a linear one."""
    mean, scale = features.mean(0), np.maximum(features.std(0), _SMALL)
    standard = (features - mean) / scale
    if width is None:
        none = np.empty((0, features.shape[1]))
        return _Classifier(mean, scale, none, 1.0, *discriminants(standard, labels, n_classes, class_weights))
    width *= features.shape[1]
    places = standard[np.sort(np.random.default_rng(seed).permutation(len(standard))[:_CENTRES])]
    # The Nystroem map: functions of the centres, whitened by the inverse root of their kernel matrix.
    values, vectors = np.linalg.eigh(_kernel(places, places, width))
    keep = values > 1e-10 * values[-1]
    whitening = vectors[:, keep] / np.sqrt(values[keep])
    weight, bias = discriminants(_kernel(standard, places, width) @ whitening, labels, n_classes, class_weights)
    return _Classifier(mean, scale, places, width, weight @ whitening.T, bias)


def _kernel(one: NDArray, two: NDArray, width: float) -> NDArray:
    squares = (one**2).sum(1)[:, None] + (two**2).sum(1) - 2 * one @ two.T
    kernel: NDArray = np.exp(-np.maximum(squares, 0.0) / width)
    return kernel


def discriminants(
    features: NDArray, labels: NDArray, n_classes: int, class_weights: str = "none"
) -> tuple[NDArray, NDArray]:
    """Linear discriminant analysis with one shrunk covariance: weights (classes, d) and biases (classes,)."""
    from sklearn.covariance import ledoit_wolf  # readers of networks must not wait for this import

    counts = np.bincount(labels, minlength=n_classes)
    means = np.zeros((n_classes, features.shape[1]))
    np.add.at(means, labels, features)
    means /= np.maximum(counts, 1)[:, None]
    covariance, _ = ledoit_wolf(features - means[labels], assume_centered=True)
    covariance[np.diag_indices_from(covariance)] += 1e-9 * np.trace(covariance) / len(covariance) + 1e-12
    weight = np.linalg.solve(covariance, means.T).T
    shares = counts / len(labels) if class_weights == "none" else (counts > 0) / np.count_nonzero(counts)
    priors = np.where(counts > 0, np.log(np.maximum(shares, 1e-12)), _NEVER)
    return weight, priors - 0.5 * (weight * means).sum(1)


def _temperature(logits: NDArray, labels: NDArray, weights: NDArray) -> float:
    """The factor of the logits with the smallest cross entropy."""
    losses = []
    for factor in _TEMPERATURES:
        scaled = factor * (logits - logits.max(1, keepdims=True))
        log_sums = np.log(np.exp(scaled).sum(1))
        losses.append(np.average(log_sums - scaled[np.arange(len(labels)), labels], weights=weights))
    return float(_TEMPERATURES[int(np.argmin(losses))])
