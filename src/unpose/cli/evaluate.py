"""``unpose evaluate``: how many a network gets right, upright and turned."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from unpose.cli.learning import SWEEP, ModelFile, load_data, load_model, sweep_angles, sweep_picture, write_picture

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unpose.data import Dataset, Split
    from unpose.nn import Network


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("checkpoint", type=ModelFile())
@click.argument("data")
@click.option(
    "--twin", type=ModelFile(),
    help="A second network to measure beside it, such as one trained with --group c1.",
)  # fmt: skip
@click.option(
    "--split", type=click.Choice(["test", "validation", "train", "all"]), default="test", show_default=True,
    help="Which part of the data; all where the network has seen none of it.",
)  # fmt: skip
@click.option("--root", type=click.Path(path_type=Path), help="Where the data set lies; downloads go there too.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1, ...")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture (PNG) here.")
def command(
    checkpoint: Path, data: str, twin: Path | None, split: str, root: Path | None, device: str, as_json: bool,
    out: Path | None,
) -> None:  # fmt: skip
    """Measure a network on images as they are and turned by every 15 degrees.

    CHECKPOINT is a file that `unpose train` made, or the name of a network that `unpose models` lists. DATA is the
    name of a data set, a folder with one folder per class, or an .npz file.

    \b
    Examples:
      unpose evaluate runs/digits-c8-seed0/model.safetensors digits
      unpose evaluate mnist-c8 mnist
      unpose evaluate model.safetensors photos/ -o angles.png
      unpose evaluate c8.safetensors digits --twin c1.safetensors -o angles.png
    """
    from unpose.train import accuracy_by_angle

    models = {checkpoint.name: load_model(checkpoint, device, "CHECKPOINT")}
    if twin is not None:
        label = twin.name if twin.name != checkpoint.name else f"{twin.parent.name}/{twin.name}"
        models[label] = load_model(twin, device, "--twin")
    size = max(max(network.description["image_size"]) for network, _ in models.values())
    channels = models[checkpoint.name][0].description["in_channels"]
    dataset = load_data(data, root, size, channels=channels)
    chosen = _part(dataset, split)
    lines = {}
    for name, (network, classes) in models.items():
        fitting = _for_network(name, network, classes, dataset, chosen)
        lines[name] = accuracy_by_angle(network, fitting, sweep_angles())
    if out is not None:
        write_picture(out, sweep_picture(lines, f"{dataset.name}, {split}: {len(chosen):,} images"))
    if as_json:
        click.echo(json.dumps(_numbers(lines, dataset, split), indent=2))
        return
    click.echo(f"{dataset.name}, {split}: {len(chosen):,} images; {dataset.source}")
    for name, line in lines.items():
        click.echo(f"{name}: upright {line[0]:.2%}, turned {line.mean():.2%} on average, {line.min():.2%} at worst")
    if out is not None:
        click.echo(f"The picture is {out}.")


def _part(dataset: "Dataset", name: str) -> "Split":
    import numpy as np

    from unpose.data import Split

    if name != "all":
        part: Split = getattr(dataset, name)
        return part
    parts = (dataset.train, dataset.validation, dataset.test)
    return Split(np.concatenate([part.images for part in parts]), np.concatenate([part.labels for part in parts]))


def _for_network(name: str, network: "Network", classes: tuple[str, ...], dataset: "Dataset", part: "Split") -> "Split":
    """The images with the network's own numbers of their classes; other classes or channels are a wrong call."""
    import numpy as np

    from unpose.data import Split

    if network.description["in_channels"] != dataset.channels:
        raise click.UsageError(
            f"{name} takes {network.description['in_channels']} channels, the images of {dataset.name} have "
            f"{dataset.channels}"
        )
    if set(dataset.classes) <= set(classes):
        numbers = np.array([classes.index(label) for label in dataset.classes])
        return Split(part.images, numbers[part.labels])
    raise click.UsageError(
        f"{name} tells apart {', '.join(classes[:12])}; {dataset.name} has {', '.join(dataset.classes[:12])}"
    )


def _numbers(lines: "dict[str, NDArray]", dataset: "Dataset", split: str) -> dict[str, object]:
    return {
        "data": {"name": dataset.name, "source": dataset.source, "split": split},
        "degrees": [step * 360 / SWEEP for step in range(SWEEP)],
        "accuracy": {name: [float(value) for value in line] for name, line in lines.items()},
        "upright": {name: float(line[0]) for name, line in lines.items()},
        "mean": {name: float(line.mean()) for name, line in lines.items()},
        "worst": {name: float(line.min()) for name, line in lines.items()},
    }
