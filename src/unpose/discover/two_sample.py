"""Can a classifier tell moved images from real ones? A two-sample test with a calibrated classifier."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

PLAUSIBLE = 0.1
"""A moved image could be a real one if its probability to be one is at least this."""
_RIDGE = 1e-3
_BANDWIDTH = 0.5
_OWN_CLASS = 5.0
"""How much more than the others the images of the same class say about an image, if classes are known."""


@dataclass(frozen=True)
class Overlap:
    """How well moved images can be told from real ones.

    Parameters
    ----------
    told_apart : float
        Twice the balanced accuracy of the classifier on images that it was not trained on, minus one: 0 if both sets
        look alike, 1 if every image is recognised. A lower bound on the total variation distance.
    plausible : float
        Share of moved images to which the classifier gives a probability of at least 0.1 to be real.
    standard_error : float
        Of ``told_apart``, if both sets were alike.
    probabilities : Tensor of shape (n,)
        Probability of each moved image to be a real one.

    Examples
    --------
    >>> import torch
    >>> points = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    >>> two_sample_overlap(points, points + 4).told_apart > 0.9
    True
    """

    told_apart: float
    plausible: float
    standard_error: float
    probabilities: Tensor


def two_sample_overlap(real: Tensor, moved: Tensor, *, labels: Tensor | None = None, random_state: int = 0) -> Overlap:
    """Train a classifier on one half of the images to tell moved from real ones, and read it on the other half.

    Parameters
    ----------
    real : Tensor of shape (n, d)
        Descriptions of images.
    moved : Tensor of shape (n, d)
        Descriptions of the same images after a transformation. An image and its moved copy are always in the same
        half.
    labels : Tensor of shape (n,), optional
        Class of each image: what tells a moved image from a real one may differ between classes.
    random_state : int, default 0
        Seed of the halves.

    Returns
    -------
    Overlap

    Notes
    -----
    Kernel ridge regression with a Gaussian kernel, whose squared width is half the median squared distance. Each half
    is scored by the classifier of the other; a logistic function fitted to all scores makes probabilities of them. With
    labels, the kernel of two images of the same class is six times as large.

    Examples
    --------
    >>> import torch
    >>> points = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    >>> round(two_sample_overlap(points, -points).told_apart, 1)
    0.0
    """
    n = len(real)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(random_state))
    halves = order[: n // 2], order[n // 2 :]
    scores = torch.zeros(2, n, dtype=real.dtype)
    for train, test in (halves, halves[::-1]):
        inputs = torch.cat([real[train], moved[train]])
        targets = torch.cat([torch.ones(len(train)), -torch.ones(len(train))]).to(real.dtype)
        distances = torch.cdist(inputs, inputs).square()
        width = (_BANDWIDTH * distances.median()).clamp_min(torch.finfo(real.dtype).tiny)
        known = None if labels is None else labels[train].repeat(2)
        kernel = torch.exp(-distances / width) * _class_kernel(known, known)
        kernel.diagonal().add_(_RIDGE * len(inputs))
        weights = torch.linalg.solve(kernel, targets)
        for side, described in enumerate((real, moved)):
            distances = torch.cdist(described[test], inputs).square()
            own = None if labels is None else labels[test]
            scores[side, test] = (torch.exp(-distances / width) * _class_kernel(own, known)) @ weights
    probability_real = _calibrated(scores.double())  # (2, n)
    # Twice the balanced accuracy minus one; an image on the boundary, such as one that did not move, counts half.
    told_apart = (torch.sign(probability_real[0] - 0.5) - torch.sign(probability_real[1] - 0.5)).mean() / 2
    # Which of the two sides is called moved does not matter: the inverse transformation exchanges them.
    plausible = ((probability_real[1] >= PLAUSIBLE).double() + (probability_real[0] <= 1 - PLAUSIBLE).double()) / 2
    return Overlap(float(told_apart), float(plausible.mean()), math.sqrt(0.5 / n), probability_real[1])


def _class_kernel(labels: Tensor | None, others: Tensor | None) -> Tensor | float:
    """(n, m): the factor of the kernel by classes; 1 if they are not known."""
    if labels is None or others is None:
        return 1.0
    return 1.0 + _OWN_CLASS * (labels[:, None] == others)


def _calibrated(scores: Tensor) -> Tensor:
    """Probabilities from scores, (2, n): a logistic function with two parameters, by Newton's method (Platt)."""
    inputs = torch.stack([scores.flatten(), torch.ones(scores.numel(), dtype=scores.dtype)], dim=1)  # (2 n, 2)
    targets = torch.cat([torch.ones_like(scores[0]), torch.zeros_like(scores[1])])
    weights = torch.zeros(2, dtype=scores.dtype)
    prior = 1e-3 * torch.eye(2, dtype=scores.dtype)  # keeps the slope finite where all images are told apart
    for _ in range(30):
        probability = torch.sigmoid(inputs @ weights)
        curvature = (inputs * (probability * (1 - probability))[:, None]).T @ inputs + prior
        weights = weights + torch.linalg.solve(curvature, inputs.T @ (targets - probability) - prior @ weights)
    return torch.sigmoid(inputs @ weights).view_as(scores)
