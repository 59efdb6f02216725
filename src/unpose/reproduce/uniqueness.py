"""Theorem 3.1: the invariant mean is unique where orbits are close compared with their reach, and elsewhere not."""

import math
from typing import Any

import numpy as np
import scipy.sparse.csgraph
import torch
from numpy.typing import NDArray

from unpose.align import align, orbit_distances
from unpose.cluster.theorems import combination_reach
from unpose.data.experiments import LabelledPoints, marked_stars, one_class, threes
from unpose.groups import rotation
from unpose.images import as_batch, from_batch, warp
from unpose.report import figures
from unpose.reproduce.items import Outcome, Settings

_SAME = 0.1
"""Means that are nearer than this share of their norm are the same: resampling alone moves them by a few per cent."""
_EQUALLY_GOOD = 0.02
"""Means whose objective is within this share of the best solve the problem (3.3) equally well."""


def run(settings: Settings) -> Outcome:
    """Means from different starts, for sets of images whose orbits are nearer or farther compared with their reach."""
    sets = _sets(settings)
    rows: list[dict[str, Any]] = []
    sheets = []
    for at, (name, data) in enumerate(sets.items()):
        settings.report("means", at, len(sets))
        aligned, distance = _aligned(data.points)
        reach = combination_reach(aligned, count=2)
        starts = 12 if settings.full else 6
        means, objectives = means_from_starts(aligned, starts)
        kinds = _kinds(means)
        best = objectives <= objectives.min() * (1 + _EQUALLY_GOOD)
        n_best = len(set(kinds[best]))
        rows.append(
            {
                "images": name, "R": distance, "rho": reach, "R / rho": distance / reach, "starts": starts,
                "means reached": len(set(kinds)), "solutions of (3.3)": n_best,
                "best objective": float(objectives.min()), "worst objective": float(objectives.max()),
            }
        )  # fmt: skip
        shown = [int(np.flatnonzero(kinds == kind)[0]) for kind in dict.fromkeys(kinds[np.argsort(objectives)])][:4]
        bright = 1 / aligned.max()
        title = f"{name}: R / rho = {distance / reach:.2f}"
        sheets.append(
            figures.beside(
                [
                    figures.montage(aligned[:5] * bright, columns=5, title=title, scale=2),
                    figures.montage(means[shown] * bright, columns=4, title="means reached, best first", scale=2),
                ]
            )
        )
    settings.report("means", 1, 1)
    inside = [row for row in rows if row["R / rho"] < 1]
    outside = [row for row in rows if row["solutions of (3.3)"] > 1]
    unique = sum(row["solutions of (3.3)"] == 1 for row in inside)
    findings = [
        f"Of {len(inside)} sets with R < rho, {unique} have one solution; all starts reach it in "
        f"{sum(row['means reached'] == 1 for row in inside)}. Elsewhere some starts stop at worse means, local minima "
        "that the theorem does not exclude.",
        *(
            f"{row['images']} (R / rho = {row['R / rho']:.2f}): {row['solutions of (3.3)']} different means solve "
            "(3.3) equally well."
            for row in outside
        ),
    ]
    return Outcome({"rows": rows}, findings, figures.above(sheets, title="Theorem 3.1: is the mean unique?"), rows)


def _sets(settings: Settings) -> dict[str, LabelledPoints]:
    """The sets of images, by name."""
    size = 48 if settings.full else 36
    seed = settings.seed
    sets = {
        f"deformed drawing, spread {spread:g}": one_class(seed, spread=spread, count=5, size=size)
        for spread in (0.3, 1.0)
    }
    sets |= {
        f"stars, asymmetry {asymmetry:g}, mark {mark:g}": marked_stars(seed, asymmetry=asymmetry, mark=mark, size=size)
        for asymmetry, mark in ((0.8, 0.1), (0.4, 0.5), (0.0, 0.5))
    }
    if settings.full:
        sets["handwritten threes"] = threes(seed)
    return sets


def means_from_starts(aligned: NDArray, count: int) -> tuple[NDArray, NDArray]:
    """Minimise (3.3) from several starts: means (count, h, w) and their objectives (count,).

    Start s is the mean of the images rotated against each other, image i by ``s i`` times a ``count``-th of a turn; it
    starts at s = 0 with the aligned images. Then images are aligned with the mean by a search over all poses and
    averaged, in turn, until the objective falls no more.
    """
    batch = as_batch(aligned, dtype=torch.float64)
    means, objectives = [], []
    for start in range(count):
        angles = torch.arange(len(batch)) * (2 * math.pi * start / count)
        mean, objective = warp(batch, rotation(angles.double())).mean(0), math.inf
        for _ in range(30):
            found = align(aligned, from_batch(mean[None], channels=False), max_shift=0.25 * aligned.shape[-1])
            moved = warp(batch, torch.from_numpy(found.poses).double())
            average = moved.mean(0)
            now = float((moved - average).square().sum((1, 2, 3)).mean())
            if now > objective * (1 - 1e-4):
                break
            mean, objective = average, now
        means.append(from_batch(mean[None], channels=False)[0])
        objectives.append(objective)
    return np.stack(means), np.array(objectives)


def _kinds(means: NDArray) -> Any:
    """Which means are the same up to pose: one number for each."""
    distances = orbit_distances(means)[0]
    same = distances < _SAME * np.linalg.norm(means[0])
    return scipy.sparse.csgraph.connected_components(same, directed=False)[1]


def _aligned(images: NDArray) -> tuple[NDArray, float]:
    """The images aligned with the one nearest to all others, and the largest orbit distance."""
    distances, poses = orbit_distances(images)
    middle = int(distances.sum(1).argmin())
    batch = as_batch(images)
    moved = warp(batch, batch.new_tensor(poses[:, middle]))
    return from_batch(moved, channels=False), float(distances.max())
