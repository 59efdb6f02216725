"""``unpose reproduce``: the figures of the Invariant Attention paper, and the numbers behind them."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unpose.cli.shared.progress import progress

if TYPE_CHECKING:
    from PIL.Image import Image

_Result = tuple["Image", dict[str, Any]]


@click.command(
    epilog="""\b
    Examples:
      unpose reproduce experiment1 --out demo
      unpose reproduce experiment1 --out circle --max-angle 180                    where gradient descent fails
      unpose reproduce experiment1 --out circle --max-angle 180 --solver search    and a global search does not
    """
)
@click.argument("experiment", type=click.Choice(["figure2", "experiment1", "experiment2"]))
@click.option(
    "--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder for the figure and numbers."
)
@click.option("--seed", default=4, show_default=True, help="Seed of the random data and poses.")
@click.option(
    "--max-angle", default=65.0, show_default=True, metavar="DEG",
    help="experiment1: largest rotation in either direction, in degrees; 180 is the full circle.",
)  # fmt: skip
@click.option(
    "--solver", type=click.Choice(["descent", "search"]), default="descent", show_default=True,
    help="experiment1: the published gradient descent from the identity, or a global search over all poses.",
)  # fmt: skip
def command(experiment: str, out: Path, seed: int, max_angle: float, solver: str) -> None:
    """Reproduce the figures of Invariant Attention, the paper behind `unpose cluster`.

    \b
    figure2      Kernel attention (2.1) contracts Gaussian blobs: before, after two and after four rounds.
    experiment1  Three drawn classes at six random poses each: attention weights and means of rounds 1 and 2,
                 compared with plain kernel attention. About two minutes on two cores.
    experiment2  Ten handwritten threes at random poses: their invariant mean after 0, 25 and 50 iterations.

    The command writes EXPERIMENT.png and numbers.json.
    """
    if not 0 < max_angle <= 180:
        raise click.BadParameter(
            f"must be above 0 and at most 180 degrees, got {max_angle:g}", param_hint="--max-angle"
        )
    from unpose.files import write_image, write_text

    out.mkdir(parents=True, exist_ok=True)
    if experiment == "figure2":
        figure, numbers = _figure2(seed)
    elif experiment == "experiment1":
        figure, numbers = _experiment1(seed, math.radians(max_angle), solver)
    else:
        figure, numbers = _experiment2(seed)
    write_image(out / f"{experiment}.png", figure)
    write_text(out / "numbers.json", json.dumps({"experiment": experiment, "seed": seed} | numbers, indent=2) + "\n")
    for line in _findings(numbers):
        click.echo(line)
    click.echo(f"The figure is {out / f'{experiment}.png'}; the numbers are in {out / 'numbers.json'}.")


def _figure2(seed: int) -> _Result:
    import numpy as np

    from unpose.cluster.published import kernel_attention
    from unpose.data.experiments import blobs
    from unpose.report import figures

    data = blobs(seed)
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
    return figures.beside(panels), {
        "beta": 0.5,
        "mean distance to the blob's mean, largest blob": spread,
    }


def _experiment1(seed: int, max_angle: float, solver: str) -> _Result:
    import numpy as np
    from sklearn.metrics import adjusted_rand_score

    from unpose.cluster.published import invariant_attention, kernel_attention
    from unpose.data.experiments import three_classes
    from unpose.report import figures

    data = three_classes(seed, max_angle=max_angle)
    with progress() as report:

        def report_round(stage: str, done: int, rounds: int) -> None:
            report("attention", 2 * done + (stage == "means"), 2 * rounds + 1, f"{stage}, round {done + 1}")

        found = invariant_attention(data.points, "se2", beta=2.0, n_iter=2, solver=solver, progress=report_round)
        report("attention", 5, 5)
    plain = kernel_attention(data.points, beta=2.0, n_iter=2)
    brightness = 1 / data.points.max()

    def row(images: Any, title: str, labels: Any = None) -> "Image":
        frames = None if labels is None else [figures.PALETTE[label % len(figures.PALETTE)] for label in labels]
        return figures.montage(images * brightness, columns=6, title=title, frames=frames, scale=1)

    degrees = math.degrees(max_angle)
    sheet = figures.above(
        [
            figures.beside(
                [
                    row(found.images[0], f"18 images, rotated by up to {degrees:.0f} degrees"),
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
        + ("with the published descent" if solver == "descent" else "with a global search"),
    )
    numbers = {
        "max_angle": degrees,
        "solver": solver,
        "beta": 2.0,
        "classes": data.labels.tolist(),
        "labels": found.labels.tolist(),
        "clusters": int(found.labels.max()) + 1,
        "agreement with the classes (adjusted Rand index)": float(adjusted_rand_score(data.labels, found.labels)),
        "largest orbit distance R before and after each round": found.radii.tolist(),
        "largest ratio of distances (4.1) per round": found.contractions.tolist(),
    }
    return sheet, numbers


def _experiment2(seed: int) -> _Result:
    from unpose.cluster.published import invariant_mean
    from unpose.data.experiments import threes
    from unpose.report import figures

    data = threes(seed)
    found = invariant_mean(data.points, group="se2", n_iter=50, snapshots=(0, 25, 50))
    panels = [figures.montage(data.points, columns=5, title=f"Ten threes ({data.source})")]
    panels += [figures.montage(found.snapshots[k][None], columns=1, title=f"Mean, {k}", scale=4) for k in (0, 25, 50)]
    panels.append(figures.curve(found.objective, title="Objective (2.3)", x_label="iteration", size=(300, 200)))
    return figures.beside(panels), {
        "digits": data.source,
        "objective": found.objective.tolist(),
        "poses": found.poses.tolist(),
    }


def _findings(numbers: dict[str, Any]) -> list[str]:
    """The main numbers, in sentences."""
    lines = []
    if "clusters" in numbers:
        agreement = numbers["agreement with the classes (adjusted Rand index)"]
        lines.append(
            f"{numbers['clusters']} clusters in 18 images of 3 classes; agreement {agreement:.2f} (1 is perfect)."
        )
    if "objective" in numbers:
        first, last = numbers["objective"][0], numbers["objective"][-1]
        lines.append(
            f"The objective fell from {first:.1f} to {last:.1f} in {len(numbers['objective']) - 1} iterations."
        )
    return lines
