"""Theorem 4.1: rounds of Invariant Attention contract one class, measured beside the bound and beside its failure."""

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unpose.align import orbit_distances
from unpose.cluster.published import invariant_attention, kernel_attention
from unpose.cluster.theorems import combination_reach, contraction, contraction_bound, radius
from unpose.data.experiments import LabelledPoints, one_class
from unpose.images import as_batch, from_batch, warp
from unpose.report import figures
from unpose.reproduce.items import Outcome, Settings

_MEAN_STEPS = 10
"""Descent steps of a mean; they start from the poses of the search and converge quickly."""


def run(settings: Settings) -> Outcome:
    """R and the contraction ratio by round, for several bandwidths and spreads, with the bound and two controls."""
    spreads = (0.5, 1.0, 2.0) if settings.full else (0.5, 2.0)
    products = (0.25, 1.0, 4.0, 16.0)
    size, count, rounds = (48, 8, 3) if settings.full else (36, 5, 2)
    floor = _distances(one_class(settings.seed, spread=0.0, count=count, size=size).points).max()
    rows, panels, sheets, series = [], [], [], []
    for at, spread in enumerate(spreads):
        data = one_class(settings.seed, spread=spread, count=count, size=size)
        distances = _distances(data.points)
        start = radius(distances)
        reach = combination_reach(_aligned(data.points, distances), count=2)
        lines: dict[str, Any] = {}
        for number, product in enumerate(products):
            settings.report("rounds", at * len(products) + number, len(spreads) * len(products))
            beta = product / start**2
            found = invariant_attention(data.points, beta=beta, n_iter=rounds, mean_steps=_MEAN_STEPS)
            radii = [radius(each) for each in found.distances]
            lines[f"beta R^2 = {product:g}"] = radii
            plain = kernel_attention(data.points, beta, rounds)
            control = _distances(plain[1])
            ratios = [contraction(*pair, floor=floor) for pair in itertools.pairwise(found.distances)]
            bounds = [contraction_bound(beta, each) for each in radii[:-1]]
            rows.append(
                {
                    "spread": spread, "R / rho": start / reach, "beta R^2": product,
                    "ratio, round 1": ratios[0], "beta R^2 / 2": bounds[0],
                    f"R after {rounds} rounds / R": radii[-1] / start,
                    "plain attention: ratio": contraction(distances, control),
                    "plain: energy kept": float((plain[-1] ** 2).sum() / (data.points**2).sum()),
                    "energy kept": float((found.images[-1] ** 2).sum() / (data.points**2).sum()),
                }
            )  # fmt: skip
            series.append(
                {"spread": spread, "beta": beta, "R": radii, "ratio": [_or_none(each) for each in ratios],
                 "bound": bounds}
            )  # fmt: skip
            if number == 1:
                sheets.append(_sheet(data, found.images[-1], plain[-1], spread))
        lines["resampling floor"] = [float(floor)] * (rounds + 1)
        panels.append(figures.curve(lines, title=f"Largest distance R, spread {spread:g}", x_label="round"))
    settings.report("rounds", 1, 1)
    two = _two_classes(settings.seed, size)
    numbers = {
        "resampling floor": float(floor), "rows": rows, "series": series, "two classes": two,
    }  # fmt: skip
    small = [row for row in rows if row["beta R^2 / 2"] < 1]
    near, far = ([row for row in small if (row["R / rho"] < 1) is is_near] for is_near in (True, False))
    kept, kept_far = (sum(row["ratio, round 1"] <= row["beta R^2 / 2"] for row in part) for part in (near, far))
    findings = [
        f"Where R < rho and beta R^2 / 2 < 1, the ratio of the first round keeps that bound in {kept} of {len(near)} "
        f"cases. Where R > rho it keeps it in {kept_far} of {len(far)}, although the class still contracts.",
        f"With beta R^2 = 16 a class hardly contracts: the ratio is "
        f"{max(row['ratio, round 1'] for row in rows if row['beta R^2'] == 16):.2f}.",
        f"Over all pairs of two classes the ratio is {two['all pairs']:.2f}, within them "
        f"{two['within classes']:.2f}: the theorem is about one class.",
        f"Resampling alone keeps copies of one image {floor:.3f} apart (their norm is 2).",
    ]
    sheet = figures.above([*sheets, figures.beside(panels)], title="Theorem 4.1: one class contracts")
    return Outcome(numbers, findings, sheet, rows)


def _distances(images: NDArray) -> NDArray:
    """Orbit distances of all pairs, the better of both directions."""
    found = orbit_distances(images, images)[0]
    np.fill_diagonal(found, 0.0)
    return np.minimum(found, found.T)


def _aligned(images: NDArray, distances: NDArray) -> NDArray:
    """All images, aligned with the one that is nearest to all others."""
    middle = int(distances.sum(1).argmin())
    _, poses = orbit_distances(images, images[middle : middle + 1])
    batch = as_batch(images)
    return from_batch(warp(batch, batch.new_tensor(poses[:, 0])), channels=False)


def _two_classes(seed: int, size: int) -> dict[str, float]:
    """The ratio of one round within two classes and over all pairs, at a bandwidth that suits a class."""
    parts = [one_class(seed, spread=0.5, count=3, size=size, kind=kind).points for kind in (0, 1)]
    images, classes = np.concatenate(parts), np.repeat([0, 1], 3)
    start = _distances(images)
    found = invariant_attention(images, beta=1 / radius(start, classes) ** 2, n_iter=1, mean_steps=_MEAN_STEPS)
    before, after = found.distances
    return {"within classes": contraction(before, after, classes), "all pairs": contraction(before, after)}


def _sheet(data: LabelledPoints, invariant: NDArray, plain: NDArray, spread: float) -> Any:
    bright = 1 / data.points.max()
    return figures.beside(
        [
            figures.montage(images * bright, columns=len(images), title=title, scale=1)
            for images, title in (
                (data.points, f"One class, spread {spread:g} pixels"),
                (invariant, "Invariant Attention, beta R^2 = 1"),
                (plain, "Plain kernel attention, same beta"),
            )
        ]
    )


def _or_none(value: float) -> float | None:
    """JSON has no NaN."""
    return None if np.isnan(value) else value
