"""``unpose evaluate``: how many a network gets right, upright and turned."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from unpose.cli.shared.networks import (
    SWEEP,
    ModelFile,
    load_data,
    load_model,
    sweep_angles,
    sweep_picture,
    write_picture,
)
from unpose.cli.shared.output import check_picture

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unpose.data import Dataset, Split
    from unpose.nn import Network

_PARTS = ("train", "validation", "test")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("checkpoint", type=ModelFile())
@click.argument("data")
@click.option(
    "--twin", type=ModelFile(),
    help="A second network to measure beside it, such as one trained with --group c1.",
)  # fmt: skip
@click.option(
    "--split", type=click.Choice(["test", "validation", "train", "all"]), default="test", show_default=True,
    help="Which part of the data. Images learnt from are left out of test only; elsewhere their number is said.",
)  # fmt: skip
@click.option("--root", type=click.Path(path_type=Path), help="Where the data set lies; downloads go there too.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1, ...")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture (PNG) here.")
@click.option("--force", is_flag=True, help="Replace the picture that is there.")
def command(
    checkpoint: Path, data: str, twin: Path | None, split: str, root: Path | None, device: str, as_json: bool,
    out: Path | None, force: bool,
) -> None:  # fmt: skip
    """Measure a network on images as they are and turned by every 15 degrees, the corners as light as the border.

    CHECKPOINT is a file that `unpose train` made, or the name of a network that `unpose models` lists. DATA is the
    name of a data set, a folder with one folder per class, or an .npz file.

    The file of a network lists the images that it learnt from or was validated on, where they are at most 50,000. None
    of them is tested: of a folder or an .npz file the test is all others, or all others in its test part where it has
    one. A note says how many are left out. Where the file has no list, a note says so, and data without a test part are
    divided 70:15:15, as in training. Named data sets are tested as they are.

    \b
    Examples:
      unpose evaluate runs/digits-c8-seed0/model.safetensors digits
      unpose evaluate mnist-c8 mnist
      unpose evaluate model.safetensors photos/ -o angles.png
      unpose evaluate c8.safetensors digits --twin c1.safetensors -o angles.png
    """
    from unpose.data import NAMES
    from unpose.train import accuracy_by_angle

    if out is not None:
        check_picture(out, force)
    files, models = {checkpoint.name: checkpoint}, {checkpoint.name: load_model(checkpoint, device, "CHECKPOINT")}
    if twin is not None:
        label = twin.name if twin.name != checkpoint.name else f"{twin.parent.name}/{twin.name}"
        files[label], models[label] = twin, load_model(twin, device, "--twin")
    size = max(max(network.description["image_size"]) for network, _ in models.values())
    channels = models[checkpoint.name][0].description["in_channels"]
    # In colour, each image is read as in training: grey where it is nearly grey.
    dataset = load_data(data, root, size, channels=channels if channels == 1 else None)
    if channels == 3 and dataset.channels == 1 and data not in NAMES and Path(data).is_dir():
        dataset = _in_colour(dataset)
    records = {name: _record(path, models[name][0], dataset) for name, path in files.items()}
    choice = _choose(dataset, split, records, is_public=data in NAMES)
    chosen = choice.part
    lines = {}
    for name, (network, classes) in models.items():
        fitting = _for_network(name, network, classes, dataset, chosen)
        lines[name] = accuracy_by_angle(network, fitting, sweep_angles())
    if out is not None:
        write_picture(out, sweep_picture(lines, f"{dataset.name}, {split}: {len(chosen):,} images"))
    for note in choice.notes:
        click.echo(f"note: {note}", err=True)
    if as_json:
        click.echo(json.dumps(_numbers(lines, dataset, split, choice), indent=2))
        return
    click.echo(f"{dataset.name}, {split}: {len(chosen):,} images; {choice.source}")
    for name, line in lines.items():
        click.echo(f"{name}: upright {line[0]:.2%}, turned {line.mean():.2%} on average, {line.min():.2%} at worst")
    if out is not None:
        click.echo(f"The picture is {out}.")


@dataclass(frozen=True)
class _Record:
    """What the file of a network says about the images it learnt from."""

    known: frozenset[bytes]  # marks of the images
    frame: tuple[int, int]  # their height and width
    gap: str = ""  # why images cannot be compared with them


@dataclass(frozen=True)
class _Choice:
    """The images to measure, and what was learnt before."""

    part: "Split"
    source: str  # where they come from, in a sentence
    learnt: int | None  # of these images, as far as the networks say; None where one does not
    left_out: int
    notes: tuple[str, ...]


def _record(path: Path, network: "Network", dataset: "Dataset") -> _Record:
    from unpose.data.splits import unpacked
    from unpose.train import read_notes

    height, width = network.description["image_size"]
    text = read_notes(path).get("learnt")
    if text is None:
        return _Record(frozenset(), (height, width), "its file does not list them")
    if max(dataset.image_size) != max(height, width):
        return _Record(frozenset(), (height, width), f"it learnt from images of {height} x {width} pixels")
    try:
        return _Record(frozenset(unpacked(text, path.name)), (height, width))
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _choose(dataset: "Dataset", split: str, records: dict[str, _Record], *, is_public: bool) -> _Choice:
    """The images of a part; for a test, without those that a network learnt from or was validated on."""
    import numpy as np

    from unpose.data import Split
    from unpose.data.splits import DRAWN

    sure = not any(record.gap for record in records.values())
    # A part that is drawn anew says nothing about the training: where all is known, what was not seen is the test.
    whole = split == "all" or (split == "test" and dataset.is_drawn and sure)
    parts = [getattr(dataset, name) for name in (_PARTS if whole else (split,))]
    part = Split(np.concatenate([each.images for each in parts]), np.concatenate([each.labels for each in parts]))
    source = dataset.source.removesuffix(f", {DRAWN}") if whole else dataset.source
    if is_public and (split == "test" or not sure):
        return _Choice(part, source, None, 0, ())
    notes = [
        f"whether {name} learnt from these images cannot be checked: {record.gap}"
        for name, record in records.items()
        if record.gap
    ]
    seen = np.any([_seen(part, record) for record in records.values()], axis=0)
    count, total, learnt = int(seen.sum()), len(part), "learnt from or validated on"
    if split != "test":
        if sure or count:
            notes.append(f"{count:,} of {total:,} images were {learnt}" + (": this is no test" if count else ""))
        return _Choice(part, source, count if sure else None, 0, tuple(notes))
    if count == total:
        raise click.UsageError(
            f"all {total:,} images of {dataset.name} were {learnt}, so there is no test; give other images, or another "
            "--split"
        )
    if count:
        notes.append(f"{count:,} of {total:,} images were {learnt} and are left out of the test")
    elif whole:
        notes.append(f"none of {total:,} images was {learnt}; all are the test")
    return _Choice(part.take(~seen), source, 0 if sure else None, count, tuple(notes))


def _seen(part: "Split", record: _Record) -> "NDArray":
    """Which images a record lists: (n,)."""
    import numpy as np

    from unpose.data.splits import marks
    from unpose.images.canvas import onto_canvas

    if not record.known:
        return np.zeros(len(part), dtype=bool)
    images, frame = part.images, record.frame
    if images.shape[1:3] != frame:
        # Among images of other shapes the same image has another margin, and no other scale.
        height, width = min(images.shape[1], frame[0]), min(images.shape[2], frame[1])
        top, left = (images.shape[1] - height) // 2, (images.shape[2] - width) // 2
        inner = images[:, top : top + height, left : left + width]
        images = np.stack([onto_canvas(image, frame) for image in inner])
    return np.array([mark in record.known for mark in marks(images)])


def _in_colour(dataset: "Dataset") -> "Dataset":
    """Grey images in three channels that are the same."""
    import numpy as np

    from unpose.data import Split

    train, validation, test = (
        Split(np.repeat(part.images[..., None], 3, axis=-1), part.labels)
        for part in (dataset.train, dataset.validation, dataset.test)
    )
    return replace(dataset, train=train, validation=validation, test=test)


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


def _numbers(lines: "dict[str, NDArray]", dataset: "Dataset", split: str, choice: _Choice) -> dict[str, object]:
    return {
        "data": {
            "name": dataset.name,
            "source": choice.source,
            "split": split,
            "images": len(choice.part),
            "learnt": choice.learnt,
            "left_out": choice.left_out,
        },
        "notes": list(choice.notes),
        "degrees": [step * 360 / SWEEP for step in range(SWEEP)],
        "accuracy": {name: [float(value) for value in line] for name, line in lines.items()},
        "upright": {name: float(line[0]) for name, line in lines.items()},
        "mean": {name: float(line.mean()) for name, line in lines.items()},
        "worst": {name: float(line.min()) for name, line in lines.items()},
    }
