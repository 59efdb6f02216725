"""The items of Invariant Attention: Provable Clustering Under Transformations.

Functions import what they need when they run, so that listing the items takes no time. The theorems have files of their
own.
"""

import math
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from unpose.reproduce.items import Item, Option, Outcome, Settings

if TYPE_CHECKING:
    from PIL.Image import Image

_PAPER = "Invariant Attention"


def figure2(settings: Settings) -> Outcome:
    """Kernel attention (2.1) contracts Gaussian blobs to their means."""
    import numpy as np

    from unpose.cluster.published import kernel_attention
    from unpose.data.experiments import blobs
    from unpose.report import figures

    data = blobs(settings.seed)
    trace = kernel_attention(data.points, beta=0.5, n_iter=4)
    means = np.stack([data.points[data.labels == k].mean(0) for k in range(data.labels.max() + 1)])
    span = (*(data.points[:, 0].min() - 0.5, data.points[:, 0].max() + 0.5),
            *(data.points[:, 1].min() - 0.5, data.points[:, 1].max() + 0.5))  # fmt: skip
    titles = {0: "Blobs and their means", 2: "After two rounds", 4: "After four rounds"}
    panels = [
        figures.scatter(trace[k], colours=data.labels, marks=means, title=title, limits=span)
        for k, title in titles.items()
    ]
    spread = {
        k: max(float(np.linalg.norm(trace[k][data.labels == c] - means[c], axis=1).mean()) for c in range(len(means)))
        for k in titles
    }
    finding = f"The mean distance to the blob's mean falls from {spread[0]:.2f} to {spread[4]:.2f} in four rounds."
    numbers = {"beta": 0.5, "mean distance to the blob's mean, largest blob": spread}
    return Outcome(numbers, [finding], figures.beside(panels))


def experiment1(settings: Settings, *, max_angle: float, solver: str) -> Outcome:
    """Three drawn classes at six random poses each: weights and means of two rounds, beside plain kernel attention."""
    import numpy as np
    from sklearn.metrics import adjusted_rand_score

    from unpose.cluster.published import invariant_attention, kernel_attention
    from unpose.data.experiments import three_classes
    from unpose.report import figures

    data = three_classes(settings.seed, max_angle=math.radians(max_angle))

    def report_round(stage: str, done: int, rounds: int) -> None:
        settings.report("attention", 2 * done + (stage == "means"), 2 * rounds + 1, f"{stage}, round {done + 1}")

    found = invariant_attention(data.points, "se2", beta=2.0, n_iter=2, solver=solver, progress=report_round)
    settings.report("attention", 5, 5)
    plain = kernel_attention(data.points, beta=2.0, n_iter=2)
    brightness = 1 / data.points.max()

    def row(images: Any, title: str, labels: Any = None) -> "Image":
        frames = None if labels is None else [figures.PALETTE[label % len(figures.PALETTE)] for label in labels]
        return figures.montage(images * brightness, columns=6, title=title, frames=frames, scale=1)

    sheet = figures.above(
        [
            figures.beside(
                [
                    row(found.images[0], f"18 images, rotated by up to {max_angle:.0f} degrees"),
                    row(found.images[1], "Invariant means, round 1"),
                    row(found.images[2], "Invariant means, round 2; frames: clusters", found.labels),
                ]
            ),
            figures.beside(
                [
                    figures.matrix(
                        found.weights[0], title="Invariant weights W, round 1", size=230, labels=data.labels
                    ),
                    figures.matrix(
                        found.weights[1], title="Invariant weights W, round 2", size=230, labels=data.labels
                    ),
                    row(plain[2], "Plain kernel attention, round 2: nothing moves"),
                    figures.montage(
                        np.stack([data.points[data.labels == k].mean(0) for k in range(3)]) * brightness * 2,
                        columns=3,
                        title="Plain means of the classes, twice as bright",
                    ),
                ]
            ),
        ],
        title="Invariant Attention, experiment 1, "
        + ("with our reading of the published descent" if solver == "descent" else "with a global search"),
    )
    agreement = float(adjusted_rand_score(data.labels, found.labels))
    clusters = int(found.labels.max()) + 1
    numbers = {
        "max_angle": max_angle,
        "solver": solver,
        "beta": 2.0,
        "classes": data.labels.tolist(),
        "labels": found.labels.tolist(),
        "clusters": clusters,
        "agreement with the classes (adjusted Rand index)": agreement,
    }
    finding = f"{clusters} clusters in 18 images of 3 classes; agreement {agreement:.2f} (1 is perfect)."
    return Outcome(numbers, [finding], sheet)


def experiment2(settings: Settings) -> Outcome:
    """Ten handwritten threes at random poses: their invariant mean after 0, 25 and 50 iterations."""
    from unpose.cluster.published import invariant_mean
    from unpose.data.experiments import threes
    from unpose.report import figures

    data = threes(settings.seed)
    found = invariant_mean(data.points, group="se2", n_iter=50, snapshots=(0, 25, 50))
    panels = [figures.montage(data.points, columns=5, title=f"Ten threes ({data.source})")]
    panels += [figures.montage(found.snapshots[k][None], columns=1, title=f"Mean, {k}", scale=4) for k in (0, 25, 50)]
    panels.append(figures.curve(found.objective, title="Objective (2.3)", x_label="iteration", size=(300, 200)))
    numbers = {"digits": data.source, "objective": found.objective.tolist(), "poses": found.poses.tolist()}
    finding = f"The objective fell from {found.objective[0]:.1f} to {found.objective[-1]:.1f} in 50 iterations."
    return Outcome(numbers, [finding], figures.beside(panels))


def _from_file(name: str) -> Callable[..., Outcome]:
    """The function ``run`` of a file of this room, which is imported when it is called."""

    def run(settings: Settings, **options: Any) -> Outcome:
        outcome: Outcome = import_module(f"unpose.reproduce.{name}").run(settings, **options)
        return outcome

    return run


INVARIANT_ATTENTION: tuple[Item, ...] = (
    Item(
        "figure1", _PAPER, "Figure 1", "The orbits of three images of one class come together, round by round",
        _from_file("figure1"), seconds=20,
        description="Orbits under rotation, projected onto the two directions in which they differ most.",
    ),
    Item(
        "figure2", _PAPER, "Figure 2", "Kernel attention (2.1) contracts Gaussian blobs to their means", figure2,
        seconds=5, seed=4, description="The points before the first, after two and after four rounds.",
    ),
    Item(
        "kernel", _PAPER, "Section 2.2, appendix A, footnote 2",
        "The maximum kernel is invariant but not positive definite; the average over the group is both",
        _from_file("kernel"), seconds=30, full_seconds=120,
        description="Scores of pairs when either image moves, over random poses; least eigenvalues of kernel matrices "
        "of images under exact quarter turns; and what averages over a part of the group do.",
    ),
    Item(
        "uniqueness", _PAPER, "Theorem 3.1",
        "The invariant mean is unique where orbits are near compared with their reach; a counterexample elsewhere",
        _from_file("uniqueness"), seconds=90, full_seconds=600,
        description="Largest orbit distance R, an estimate of the reach rho, and the means from different starts.",
    ),
    Item(
        "contraction", _PAPER, "Theorem 4.1", "A round contracts one class if beta R^2 is small, not if it is large",
        _from_file("contraction"), seconds=90, full_seconds=600,
        description="Largest distance R and contraction ratio within a class by round, for several bandwidths and "
        "spreads, beside the bound beta R^2 / 2, plain kernel attention and the floor that resampling sets.",
    ),
    Item(
        "experiment1", _PAPER, "Experiment 1, figures 3 and 4",
        "Three drawn classes at six random poses each: weights and means of two rounds", experiment1, seconds=120,
        seed=4,
        description="Attention weights and means of rounds 1 and 2, compared with plain kernel attention.",
        options=(
            Option(
                "max-angle", 65.0, "Largest rotation in either direction, in degrees; 180 is the full circle.",
                bounds=(0, 180),
            ),
            Option(
                "solver", "descent",
                "Our reading of the published gradient descent from the identity, or a global search over all poses.",
                choices=("descent", "search"),
            ),
        ),
    ),
    Item(
        "experiment2", _PAPER, "Experiment 2, figure 5",
        "Ten handwritten threes at random poses: their invariant mean after 0, 25 and 50 iterations", experiment2,
        seconds=10, seed=4,
        description="The digits are those of MNIST if the folder named by UNPOSE_DATA has them, otherwise "
        "scikit-learn's.",
    ),
)  # fmt: skip
