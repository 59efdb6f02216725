"""Section 2.2 and appendix A: what the maximum over poses keeps of a kernel, and what it loses."""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unpose.align import orbit_distances
from unpose.cluster.published import invariant_weights
from unpose.data import drawings
from unpose.groups import parse_continuous, rotation
from unpose.images import as_batch, from_batch, smooth, warp
from unpose.report import figures
from unpose.reproduce.items import Outcome, Settings

_BETA = 0.5
_SIZE = 36


def run(settings: Settings) -> Outcome:
    """Invariance of the maximum kernel over random poses, eigenvalues beside the average kernel, and subsets."""
    images = _images()
    count = 40 if settings.full else 10
    moved = _invariance(images, count, settings)
    definite = _eigenvalues(1000 if settings.full else 200, settings.seed)
    subset = _subset(images)
    numbers = {"invariance": moved, "eigenvalues": definite, "subset": subset}
    rows = [
        {"what": "maximum over SE(2): largest change of a score when both images move", "value": moved["maximum"]},
        {"what": "plain RBF kernel: the same", "value": moved["plain"]},
        {"what": "maximum over quarter turns: least eigenvalue / largest", "value": definite["maximum"]},
        {"what": "average over quarter turns: least eigenvalue / largest", "value": definite["average"]},
        {"what": "kernel matrices of the maximum with a negative eigenvalue", "value": definite["share"]},
        {"what": "maximum over +-65 degrees: change when one image turns by 60", "value": subset["maximum"]},
        {"what": "average over +-65 degrees: the same", "value": subset["average"]},
        {"what": "average over the whole circle: the same", "value": subset["average, circle"]},
    ]
    findings = [
        f"Moving both images changes a score of the maximum kernel by at most {moved['maximum']:.3f}, the error of "
        f"resampling; the plain kernel changes by up to {moved['plain']:.2f}.",
        f"The maximum kernel is not positive definite: of {definite['matrices']} matrices of eight images under exact "
        f"quarter turns, {definite['share']:.0%} have a negative eigenvalue, the least is {definite['maximum']:.3f} of "
        f"the largest. For the average it is {definite['average']:.1e}.",
        "Over a part of the group the average is not invariant: a turn by 60 degrees changes it by "
        f"{subset['average']:.0%}, and the maximum by {subset['maximum']:.1%}.",
    ]
    example = definite.pop("example")
    picture = figures.beside(
        [
            figures.montage(np.array(example), columns=4, title="Eight images of 2 x 2 pixels", scale=24),
            figures.matrix(np.array(definite["example matrix"]), title="Maximum kernel", size=200),
            figures.curve(
                {"maximum": sorted(definite["spectrum"]), "average": sorted(definite["average spectrum"])},
                title="Eigenvalues of both kernels", size=(300, 200),
            ),
            figures.scatter(
                np.array(moved["pairs"]), title="Scores before (x) and after moving (y)", limits=(0, 1, 0, 1),
                colours=np.array(moved["kinds"]),
            ),
        ],
        title="The maximum kernel (2.2)",
    )  # fmt: skip
    return Outcome(numbers, findings, picture, rows)


def _images() -> NDArray:
    """The three drawings in grey, smoothed by a pixel, of norm two: (3, h, w)."""
    grey = smooth(torch.from_numpy(drawings(_SIZE).mean(-1)), 1.0)
    return (2 * grey / grey.flatten(1).norm(dim=1)[:, None, None]).numpy()


def _invariance(images: NDArray, count: int, settings: Settings) -> dict[str, Any]:
    """Scores of all pairs at random poses of either image, with the maximum kernel and with the plain one."""
    generator = torch.Generator().manual_seed(settings.seed)
    wide = as_batch(images)
    wide = torch.nn.functional.pad(wide, [8] * 4)
    before = invariant_weights(from_batch(wide, channels=False), beta=_BETA).gamma
    upper = np.triu_indices(len(images), 1)
    found: dict[str, list[float]] = {"maximum": [], "plain": []}
    for number in range(count):
        settings.report("poses", number, count)
        moved = [
            warp(wide, parse_continuous("se2").random(len(wide), generator=generator, max_shift=4.0)) for _ in range(2)
        ]
        first, second = (from_batch(each, channels=False) for each in moved)
        distances = np.minimum(orbit_distances(first, second)[0], orbit_distances(second, first)[0].T)
        found["maximum"] += np.exp(-_BETA * distances**2)[upper].tolist()
        flat = first.reshape(len(first), 1, -1) - second.reshape(1, len(second), -1)
        found["plain"] += np.exp(-_BETA * (flat**2).sum(-1))[upper].tolist()
    settings.report("poses", 1, 1)
    flat = from_batch(wide, channels=False).reshape(len(images), -1)
    plain = np.exp(-_BETA * ((flat[:, None] - flat) ** 2).sum(-1))
    start = {"maximum": np.tile(before[upper], count), "plain": np.tile(plain[upper], count)}
    pairs = [np.stack([start[name], found[name]], axis=1) for name in ("maximum", "plain")]
    return {
        "poses": count,
        "maximum": float(np.abs(pairs[0][:, 1] - pairs[0][:, 0]).max()),
        "plain": float(np.abs(pairs[1][:, 1] - pairs[1][:, 0]).max()),
        "pairs": np.concatenate(pairs).tolist(),
        "kinds": np.repeat([0, 1], [len(each) for each in pairs]).tolist(),
    }


def quarter_turn_kernels(images: NDArray, beta: float) -> tuple[NDArray, NDArray]:
    """Kernel matrices (n, n) of the maximum and of the average over quarter turns, which are exact on square images."""
    turned = np.stack([np.rot90(images, k, axes=(1, 2)) for k in range(4)]).reshape(4, len(images), -1)
    squared = ((turned[:, :, None] - turned[0]) ** 2).sum(-1)  # (4, n, n)
    scores = np.exp(-beta * squared)
    return scores.max(0), scores.mean(0)


def _eigenvalues(count: int, seed: int) -> dict[str, Any]:
    """Least eigenvalues, relative to the largest, of both kernels of eight random images of 2 x 2 pixels."""
    rng = np.random.default_rng(seed)
    best: dict[str, Any] = {"maximum": math.inf, "average": math.inf}
    negative = 0
    for _ in range(count):
        images = rng.random((8, 2, 2))
        kernels = quarter_turn_kernels(images, beta=1.0)
        spectra = [np.linalg.eigvalsh(kernel) for kernel in kernels]
        least = [float(spectrum[0] / spectrum[-1]) for spectrum in spectra]
        negative += least[0] < -1e-9
        best["average"] = min(best["average"], least[1])
        if least[0] < best["maximum"]:
            best |= {
                "maximum": least[0], "example": images.tolist(), "example matrix": kernels[0].tolist(),
                "spectrum": spectra[0].tolist(), "average spectrum": spectra[1].tolist(),
            }  # fmt: skip
    return best | {"matrices": count, "share": negative / count}


def _subset(images: NDArray) -> dict[str, float]:
    """Footnote 2: relative change of a score under a turn by 60 degrees, for angles up to 65 degrees only."""
    first = torch.nn.functional.pad(as_batch(images[1:2]), [8] * 4)
    second, moved = (warp(first, rotation(torch.tensor(math.radians(angle)))[None]) for angle in (5.0, 60.0))

    def scores(other: torch.Tensor, limit: float) -> NDArray:
        angles = torch.deg2rad(torch.arange(-limit, limit + 1, 5.0)[: 72 if limit == 180 else None])
        turned = warp(first, rotation(angles))
        return torch.exp(-_BETA * (turned - other).square().sum((1, 2, 3))).numpy()

    def change(limit: float, reduce: Any) -> float:
        before, after = reduce(scores(second, limit)), reduce(scores(moved, limit))
        return float(abs(after - before) / before)

    return {
        "maximum": change(65.0, np.max),
        "average": change(65.0, np.mean),
        "average, circle": change(180.0, np.mean),
    }
