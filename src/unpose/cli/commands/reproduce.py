"""``unpose reproduce``: the paper's pictures and the numbers behind them."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from PIL.Image import Image

Result = tuple[dict[str, "Image"], dict[str, Any]]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("experiment", type=click.Choice(["figure2", "experiment1", "experiment2"]))
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder for the pictures.")
@click.option("--seed", default=4, show_default=True, help="Of the random poses; another seed, another data set.")
@click.option(
    "--max-angle", default=65.0, show_default=True, help="experiment1: degrees either way; 180 is the circle."
)
@click.option(
    "--solver", type=click.Choice(["descent", "search"]), default="descent", show_default=True,
    help="experiment1: the published descent from the identity, or the orbit engine in its place.",
)  # fmt: skip
def command(experiment: str, out: Path, seed: int, max_angle: float, solver: str) -> None:
    """Make the pictures of Invariant Attention, the paper behind `find`.

    \b
    figure2      Kernel attention (2.1) draws Gaussian blobs together: before, after two and after four rounds.
    experiment1  Three drawn classes at six random poses each: attention weights and means of rounds 1 and 2,
                 beside plain kernel attention. About two minutes on two cores.
    experiment2  Ten handwritten threes at random poses: their invariant mean after 0, 25 and 50 iterations.

    \b
    Writes EXPERIMENT.png and numbers.json into the folder:
      unpose reproduce experiment1 --out demo
      unpose reproduce experiment1 --out circle --max-angle 180                    where descent fails
      unpose reproduce experiment1 --out circle --max-angle 180 --solver search    and a whole search does not
    """
    if not 0 < max_angle <= 180:
        raise click.BadParameter(
            f"must be above 0 and at most 180 degrees, got {max_angle:g}", param_hint="--max-angle"
        )
    from unpose.files.atomic import write_image, write_text

    out.mkdir(parents=True, exist_ok=True)
    if experiment == "figure2":
        pictures, numbers = _figure2(seed)
    elif experiment == "experiment1":
        pictures, numbers = _experiment1(seed, math.radians(max_angle), solver)
    else:
        pictures, numbers = _experiment2(seed)
    for name, picture in pictures.items():
        write_image(out / f"{name}.png", picture)
    write_text(out / "numbers.json", json.dumps({"experiment": experiment, "seed": seed} | numbers, indent=2) + "\n")
    for line in _spoken(numbers):
        click.echo(line)
    click.echo(f"The picture is {out / f'{experiment}.png'}; the numbers are in {out / 'numbers.json'}.")


def _figure2(seed: int) -> Result:
    import numpy as np

    from unpose.cluster import kernel_attention
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
    return {"figure2": figures.beside(panels)}, {
        "beta": 0.5,
        "mean distance to the blob's mean, largest blob": spread,
    }


def _experiment1(seed: int, max_angle: float, solver: str) -> Result:
    import numpy as np
    from sklearn.metrics import adjusted_rand_score

    from unpose.cluster import invariant_attention, kernel_attention
    from unpose.data.experiments import three_classes
    from unpose.report import figures

    data = three_classes(seed, max_angle=max_angle)
    with _progress() as report:
        found = invariant_attention(data.points, "se2", beta=2.0, n_iter=2, solver=solver, progress=report)
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
                    row(found.images[0], f"18 images, turned up to {degrees:.0f} degrees either way"),
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
        + ("with the published descent" if solver == "descent" else "with the orbit engine"),
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
    return {"experiment1": sheet}, numbers


def _experiment2(seed: int) -> Result:
    from unpose.cluster import invariant_mean
    from unpose.data.experiments import threes
    from unpose.report import figures

    data = threes(seed)
    found = invariant_mean(data.points, group="se2", n_iter=50, snapshots=(0, 25, 50))
    panels = [figures.montage(data.points, columns=5, title=f"Ten threes ({data.source})")]
    panels += [figures.montage(found.snapshots[k][None], columns=1, title=f"Mean, {k}", scale=4) for k in (0, 25, 50)]
    panels.append(figures.curve(found.objective, title="Objective (2.3)", x_label="iteration", size=(300, 200)))
    return {"experiment2": figures.beside(panels)}, {
        "digits": data.source,
        "objective": found.objective.tolist(),
        "poses": found.poses.tolist(),
    }


def _spoken(numbers: dict[str, Any]) -> list[str]:
    """The numbers a person wants to hear."""
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


class _progress:
    """A progress bar on stderr, by stages of rounds."""

    def __enter__(self) -> Callable[[str, int, int], None]:
        from rich.console import Console
        from rich.progress import Progress, TextColumn, TimeElapsedColumn

        self._bar = Progress(*Progress.get_default_columns()[:2], TextColumn("{task.percentage:>3.0f}%"),
                             TimeElapsedColumn(), console=Console(stderr=True))  # fmt: skip
        self._bar.start()
        task = self._bar.add_task("weights, round 1", total=5)

        def report(stage: str, done: int, rounds: int) -> None:
            step = 2 * done + (1 if stage == "means" else 0)
            self._bar.update(task, completed=step, total=2 * rounds + 1, description=f"{stage}, round {done + 1}")

        return report

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
