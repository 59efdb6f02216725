"""Data of the figures of the invariant attention paper: Gaussian blobs, three drawings, handwritten threes."""

import math
import os
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from unpose.data.datasets import load
from unpose.data.posed import posed
from unpose.data.public import MissingDataError
from unpose.data.stroke_drawings import drawings
from unpose.groups import rotation, scaling, translation
from unpose.images import warp

__all__ = ["LabelledPoints", "blobs", "three_classes", "threes"]


@dataclass(frozen=True)
class LabelledPoints:
    """Points (n, d) or images (n, h, w[, c]), their class labels (n,), and where they come from."""

    points: NDArray
    labels: NDArray
    source: str


def blobs(random_state: int = 0, per_blob: int = 60) -> LabelledPoints:
    """Isotropic Gaussian blobs in the plane (figure 2): five means, at least 4 standard deviations apart."""
    rng = np.random.default_rng(random_state)
    means = np.array([[0.0, 0.0], [5.0, 1.0], [1.5, 5.0], [-4.0, 3.5], [5.5, 6.0]])
    labels = np.repeat(np.arange(len(means)), per_blob)
    return LabelledPoints(means[labels] + rng.normal(size=(len(labels), 2)), labels, "isotropic Gaussian blobs")


def three_classes(
    random_state: int = 0, *, per_class: int = 6, max_angle: float = math.radians(65), size: int = 64
) -> LabelledPoints:
    """A crab, a seven and a creature, each at ``per_class`` random poses (experiment 1): shift up to 10 pixels.

    The images are scaled to a mean energy ``||v||^2`` of 4, for which the paper's bandwidth beta = 2 separates them.
    """
    images = drawings(size)
    copies = posed(images, "se2", copies=per_class, random_state=random_state, max_angle=max_angle, max_shift=10.0)
    energy = (copies.images**2).sum((1, 2, 3)).mean()
    return LabelledPoints(copies.images * (2 / math.sqrt(energy)), copies.sources, "drawings")


def threes(random_state: int = 0, count: int = 10) -> LabelledPoints:
    """Handwritten threes rotated by U[0, 90] degrees and shifted (experiment 2).

    The paper gives the shift as "the tuple of maximum absolute fraction for horizontal and vertical translations": up
    to 0.1 of the width and 0.2 of the height, in either direction. The digits are those of MNIST if the folder named by
    ``UNPOSE_DATA`` holds ``mnist.npz``, otherwise scikit-learn's smaller digits, enlarged.
    """
    rng = np.random.default_rng(random_state)
    digits, source = _threes()
    chosen = digits[rng.choice(len(digits), count, replace=False)]
    canvas = torch.nn.functional.pad(torch.from_numpy(chosen), [8] * 4)  # a margin for the rotation
    height, width = canvas.shape[-2:]
    angles = torch.from_numpy(rng.uniform(0, math.pi / 2, count))
    shifts = torch.from_numpy(rng.uniform(-1, 1, (count, 2)) * [0.1 * 28, 0.2 * 28])
    poses = translation(shifts) @ rotation(angles)
    rotated = warp(canvas, poses.to(canvas), (height, width))
    return LabelledPoints(rotated.numpy(), np.full(count, 3), source)


def _threes() -> tuple[NDArray, str]:
    """Threes (n, 28, 28) in [0, 1], and the name of the data set."""
    if folder := os.environ.get("UNPOSE_DATA"):
        with suppress(MissingDataError):
            test = load("mnist", folder, download=False).test
            return test.images[test.labels == 3].astype(np.float32) / 255, "MNIST"
    from sklearn.datasets import load_digits  # slow to import, and only needed here

    digits = load_digits()
    small = torch.from_numpy(digits.images[digits.target == 3].astype(np.float32) / 16)
    enlarged = warp(small, scaling(torch.tensor(2.75)), (28, 28)).clamp(0, 1)
    return enlarged.numpy(), "scikit-learn digits"
