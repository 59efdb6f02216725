"""Data of the figures and theorems of the invariant attention paper: blobs, drawings, threes, marked stars."""

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
from unpose.groups import parse_continuous, rotation, scaling, transform, translation
from unpose.images import displacements, pixel_grid, sample, smooth, source_points, warp

__all__ = ["LabelledPoints", "blobs", "marked_stars", "one_class", "three_classes", "threes"]


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


def three_classes(random_state: int = 0, *, max_angle: float = math.radians(65)) -> LabelledPoints:
    """A crab, a seven and a creature, each at six random poses (experiment 1): shift up to 10 pixels.

    The images are scaled to a mean energy ``||v||^2`` of 4, for which the paper's bandwidth beta = 2 separates them.
    """
    copies = posed(drawings(64), "se2", copies=6, random_state=random_state, max_angle=max_angle, max_shift=10.0)
    energy = (copies.images**2).sum((1, 2, 3)).mean()
    return LabelledPoints(copies.images * (2 / math.sqrt(energy)), copies.sources, "drawings")


def one_class(
    random_state: int = 0, *, spread: float = 1.0, count: int = 6, kind: int = 1, size: int = 48
) -> LabelledPoints:
    """Images of one class (theorem 4.1): one drawing, each time deformed by ``spread`` pixels and at a random pose.

    Drawing ``kind`` (1 is the seven) in grey, smoothed by a pixel so that resampling changes it little. Deformation and
    pose are one resampling. The mean energy is 4, as in :func:`three_classes`.
    """
    generator = torch.Generator().manual_seed(random_state)
    drawing = smooth(torch.from_numpy(drawings(size)[kind].mean(-1)), 1.0)
    poses = parse_continuous("se2").random(count, generator=generator, max_shift=3.0)
    nodes = spread * torch.randn(count, 4, 4, 2, generator=generator)
    points = source_points(poses.to(drawing), (size, size))
    bends = warp(displacements(nodes, (size, size)).permute(0, 3, 1, 2), poses.to(drawing)).permute(0, 2, 3, 1)
    images = sample(drawing[None, None], points + bends)[:, 0]
    energy = images.square().sum((1, 2)).mean()
    return LabelledPoints((images * 2 / energy.sqrt()).numpy(), np.zeros(count, np.int64), "deformed drawings")


def marked_stars(random_state: int = 0, *, asymmetry: float = 0.0, mark: float = 0.5, size: int = 48) -> LabelledPoints:
    """Two stars of three arms, each with a mark at a place of its own (theorem 3.1), at random poses.

    The arms have the brightness ``1 - asymmetry``, 1 and ``1 + asymmetry``. One mark is between two arms, the other on
    an arm. Without asymmetry the stars fit after every third of a turn; two of the three means are then mirror images
    of each other, equally good, and not the same at any pose. The images are sums of Gaussians of two
    pixels, drawn at their pose without resampling, and have a mean energy of 4.
    """
    generator = torch.Generator().manual_seed(random_state)
    poses = parse_continuous("se2").random(2, generator=generator, max_shift=2.0, dtype=torch.float64)
    angles = torch.arange(3, dtype=torch.float64) * (2 * math.pi / 3)
    directions = torch.stack([angles.cos(), angles.sin()], dim=-1)  # (arms, 2)
    along = torch.arange(0.08, 0.33, 0.04, dtype=torch.float64) * size
    arms = directions[:, None] * along[:, None]  # (arms, dots, 2)
    brightness = torch.tensor([1 - asymmetry, 1.0, 1 + asymmetry], dtype=torch.float64)
    stars = []
    for place, pose in zip((0.3 * -directions[2:], 0.2 * directions[2:]), poses, strict=True):
        dots = transform(pose, torch.cat([arms.flatten(0, 1), place * size]))  # (dots, 2)
        heights = torch.cat([brightness.repeat_interleave(len(along)), torch.tensor([4 * mark], dtype=torch.float64)])
        squared = (pixel_grid((size, size), torch.float64) - dots[:, None, None]).square().sum(-1)  # (dots, h, w)
        stars.append(torch.einsum("d,dhw->hw", heights, torch.exp(-squared / (2 * 2.0**2))))
    images = torch.stack(stars).float()
    return LabelledPoints(
        (images * 2 / images.square().sum((1, 2)).mean().sqrt()).numpy(), np.zeros(2, np.int64), "marked stars"
    )


def threes(random_state: int = 0) -> LabelledPoints:
    """Ten handwritten threes rotated by U[0, 90] degrees and shifted (experiment 2).

    The paper gives the shift as "the tuple of maximum absolute fraction for horizontal and vertical translations": up
    to 0.1 of the width and 0.2 of the height, in either direction. The digits are those of MNIST if the folder named by
    ``UNPOSE_DATA`` holds ``mnist.npz``, otherwise scikit-learn's smaller digits, enlarged.
    """
    rng, count = np.random.default_rng(random_state), 10
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
