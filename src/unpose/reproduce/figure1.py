"""Figure 1: the orbits of three images of one class come together."""

import math

import numpy as np
import torch

from unpose.cluster.published import invariant_attention
from unpose.cluster.theorems import radius
from unpose.data.experiments import one_class
from unpose.groups import rotation
from unpose.images import as_batch, warp
from unpose.report import figures
from unpose.reproduce.items import Outcome, Settings

_ANGLES = 120


def run(settings: Settings) -> Outcome:
    """Orbits under rotation of three images, before the first round and after each of two."""
    data = one_class(settings.seed, spread=1.0, count=3, size=36)
    distances = invariant_attention(data.points, "so2", n_iter=0).distances[0]
    beta = 2 / radius(distances) ** 2
    found = invariant_attention(data.points, "so2", beta=beta, n_iter=2, mean_steps=10)
    turns = rotation(torch.arange(_ANGLES) * (2 * math.pi / _ANGLES))
    orbits = np.stack(
        [
            np.stack([warp(as_batch(image[None]), turns.to(torch.float32)).numpy().ravel() for image in images])
            for images in found.images
        ]
    ).reshape(3, 3, _ANGLES, -1)  # (rounds, images, angles, pixels)
    plane = _plane(orbits[0])
    flat = orbits @ plane  # (rounds, images, angles, 2)
    low, high = flat.min((0, 1, 2)) - 0.1, flat.max((0, 1, 2)) + 0.1
    limits = (float(low[0]), float(high[0]), float(low[1]), float(high[1]))
    colours = np.repeat(np.arange(3), _ANGLES)
    titles = ("Three orbits of one class", "After one round", "After two rounds")
    panels = [
        figures.scatter(places.reshape(-1, 2), colours=colours, title=title, limits=limits)
        for places, title in zip(flat, titles, strict=True)
    ]
    bright = 1 / data.points.max()
    sheets = [figures.montage(images * bright, columns=3, scale=2) for images in found.images]
    radii = [radius(each) for each in found.distances]
    finding = f"The largest distance between two orbits falls from {radii[0]:.2f} to {radii[1]:.2f} and {radii[2]:.2f}."
    columns = [figures.above(pair) for pair in zip(panels, sheets, strict=True)]
    return Outcome({"beta": beta, "R": radii}, [finding], figures.beside(columns))


def _plane(orbits: np.ndarray) -> np.ndarray:
    """Two directions (pixels, 2): along the mean orbit, and the one in which the orbits differ most."""
    along = np.linalg.svd(orbits.mean(0) - orbits.mean((0, 1)), full_matrices=False)[2][0]
    apart = (orbits - orbits.mean(0)).reshape(-1, orbits.shape[-1])
    apart = apart - np.outer(apart @ along, along)
    return np.stack([along, np.linalg.svd(apart, full_matrices=False)[2][0]], axis=1)
