"""``unpose evaluate``: the accuracy of a network on upright and rotated images."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from unpose.cli.shared.angle_sweep import N_ANGLES, STEP_DEGREES, sweep_angles, sweep_picture
from unpose.cli.shared.class_report import class_lines, write_confusion
from unpose.cli.shared.inputs import ModelFile, load_data, load_model
from unpose.cli.shared.options import device_option, json_option, root_option
from unpose.cli.shared.output import check_output, check_picture, write_picture

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unpose.data import Dataset, Split
    from unpose.nn import Network

_SPLITS = ("train", "validation", "test")


@click.command(
    epilog="""\b
    Examples:
      unpose evaluate mnist-c8 mnist
      unpose evaluate model.safetensors photos/ -o angles.png
      unpose evaluate c8.safetensors digits --compare c1.safetensors -o angles.png
    """
)
@click.argument("checkpoint", type=ModelFile())
@click.argument("data")
@click.option(
    "--compare", "other", type=ModelFile(),
    help="A second network to compare with, such as one trained with --group c1.",
)  # fmt: skip
@click.option(
    "--split", type=click.Choice(["test", "validation", "train", "all"]), default="test", show_default=True,
    help="Part of the data. Images that the network was trained on are left out of the test part only; for the other "
         "parts a note gives their number.",
)  # fmt: skip
@root_option
@device_option
@json_option
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write a plot (PNG) to this file.")
@click.option("--force", is_flag=True, help="Replace an existing plot.")
def command(
    checkpoint: Path, data: str, other: Path | None, split: str, root: Path | None, device: str, as_json: bool,
    out: Path | None, force: bool,
) -> None:  # fmt: skip
    """Measure the accuracy of a network on images at every 15 degrees of rotation.

    CHECKPOINT is a run of `unpose train`, the network file in it, or a name that `unpose models` lists. DATA is the
    name of a data set, a folder with one subfolder for each class, or an .npz file. Corners that a rotation uncovers
    are filled with the median of the image's border.

    The command prints the accuracy upright, on average and at the worst angle, and how many of the upright images of
    each class are recognised, beside the answer that is right most often. With -o PLOT.png it writes a plot of accuracy
    against angle, and the confusion matrix of the first network to PLOT-confusion.png and PLOT-confusion.csv.

    The file of a network lists the images that it was trained or validated on, if they are at most 50,000. The test
    leaves these out: for a folder or an .npz file it uses all other images, or the others in its test part if it has
    one, and a note gives the number of images left out. If the file has no list, a note says so, and data without a
    test part are divided 70:15:15, as in training. The test parts of named data sets are used as they are.
    """
    from unpose.data import NAMES
    from unpose.train import accuracy_by_angle, class_figures

    if out is not None:
        check_picture(out, force)
        for ending in (".png", ".csv"):
            check_output(out.with_name(f"{out.stem}-confusion{ending}"), force)
    files, models = {checkpoint.name: checkpoint}, {checkpoint.name: load_model(checkpoint, device, "CHECKPOINT")}
    if other is not None:
        label = other.name if other.name != checkpoint.name else f"{other.parent.name}/{other.name}"
        files[label], models[label] = other, load_model(other, device, "--compare")
    size = max(max(network.description["image_size"]) for network, _ in models.values())
    channels = models[checkpoint.name][0].description["in_channels"]
    # For a colour network each image is read as in training: as grey if it is nearly grey.
    dataset = load_data(data, root, size, channels=channels if channels == 1 else None)
    if channels == 3 and dataset.channels == 1 and data not in NAMES and Path(data).is_dir():
        dataset = _grey_as_rgb(dataset)
    records = {name: _training_record(path, models[name][0], dataset) for name, path in files.items()}
    choice = _choose_images(dataset, split, records, is_public=data in NAMES)
    chosen = choice.part
    curves, by_class = {}, {}
    for name, (network, classes) in models.items():
        fitting = _with_network_labels(name, network, classes, dataset, chosen)
        curves[name] = accuracy_by_angle(network, fitting, sweep_angles())
        by_class[name] = class_figures(network, fitting, classes)
    title = f"{dataset.name}, {split}: {len(chosen):,} images"
    if out is not None:
        write_picture(out, sweep_picture(curves, title))
        write_confusion(out.with_name(f"{out.stem}-confusion"), by_class[checkpoint.name], title)
    for note in choice.notes:
        click.echo(f"note: {note}", err=True)
    if as_json:
        tables = {name: figures.as_dictionary() for name, figures in by_class.items()}
        click.echo(json.dumps(_as_dictionary(curves, dataset, split, choice) | {"by_class": tables}, indent=2))
        return
    click.echo(f"{title}; {choice.source}")
    for name, curve in curves.items():
        click.echo(f"{name}: upright {curve[0]:.2%}, rotated {curve.mean():.2%} on average, {curve.min():.2%} at worst")
        click.echo(f"{class_lines(by_class[name])}")
    figures = by_class[checkpoint.name]
    most = int(figures.support.argmax())
    share = figures.support[most] / len(chosen)
    click.echo(f"Always answering {figures.classes[most]} would be right for {share:.2%}.")
    if out is not None:
        click.echo(f"The plot is {out}; the confusion matrix is in {out.stem}-confusion.png and .csv beside it.")


@dataclass(frozen=True)
class _TrainingRecord:
    """What the file of a network says about the images that it was trained or validated on."""

    hashes: frozenset[bytes]
    shape: tuple[int, int]  # height and width of the images
    gap: str = ""  # why images cannot be compared with the record; empty if they can


@dataclass(frozen=True)
class _Choice:
    """The images to measure on."""

    part: "Split"
    source: str  # where the images come from
    learnt: int | None  # number of images that a network was trained on; None if a network has no record
    left_out: int
    notes: tuple[str, ...]


def _training_record(path: Path, network: "Network", dataset: "Dataset") -> _TrainingRecord:
    from unpose.data.splits import decode_fingerprints
    from unpose.train import read_notes

    height, width = network.description["image_size"]
    text = read_notes(path).get("learnt")
    if text is None:
        return _TrainingRecord(frozenset(), (height, width), "its file does not list them")
    if max(dataset.image_size) != max(height, width):
        return _TrainingRecord(frozenset(), (height, width), f"it was trained on images of {height} x {width} pixels")
    try:
        return _TrainingRecord(frozenset(decode_fingerprints(text, path.name)), (height, width))
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _choose_images(dataset: "Dataset", split: str, records: dict[str, _TrainingRecord], *, is_public: bool) -> _Choice:
    """The images of a part; the test part without those that a network was trained or validated on."""
    import numpy as np

    from unpose.data import Split
    from unpose.data.splits import RANDOM_SPLIT

    is_known = not any(record.gap for record in records.values())
    # A test part drawn at random now differs from the one drawn for the training. If all records are complete, the
    # test is every image that no network has seen.
    whole = split == "all" or (split == "test" and dataset.is_random_split and is_known)
    parts = [getattr(dataset, name) for name in (_SPLITS if whole else (split,))]
    part = Split(np.concatenate([each.images for each in parts]), np.concatenate([each.labels for each in parts]))
    source = dataset.source.removesuffix(f", {RANDOM_SPLIT}") if whole else dataset.source
    if is_public and (split == "test" or not is_known):
        return _Choice(part, source, None, 0, ())
    notes = [
        f"whether {name} was trained on these images cannot be checked: {record.gap}"
        for name, record in records.items()
        if record.gap
    ]
    seen = np.any([_seen(part, record) for record in records.values()], axis=0)
    count, total, used = int(seen.sum()), len(part), "used for training or validation"
    if split != "test":
        if is_known or count:
            notes.append(f"{count:,} of {total:,} images were {used}" + (": this is not a test" if count else ""))
        return _Choice(part, source, count if is_known else None, 0, tuple(notes))
    if count == total:
        raise click.UsageError(
            f"all {total:,} images of {dataset.name} were {used}, so there is nothing to test on; give other images, "
            "or another --split"
        )
    if count:
        notes.append(f"{count:,} of {total:,} images were {used} and are left out of the test")
    elif whole:
        notes.append(f"none of the {total:,} images was {used}; the test uses all of them")
    return _Choice(part.take(~seen), source, 0 if is_known else None, count, tuple(notes))


def _seen(part: "Split", record: _TrainingRecord) -> "NDArray":
    """Whether a record lists each image, (n,)."""
    import numpy as np

    from unpose.data.splits import image_fingerprints
    from unpose.images import onto_canvas

    if not record.hashes:
        return np.zeros(len(part), dtype=bool)
    images, frame = part.images, record.shape
    if images.shape[1:3] != frame:
        # With other images in the data set, an image gets another margin on the canvas, but the same scale.
        height, width = min(images.shape[1], frame[0]), min(images.shape[2], frame[1])
        top, left = (images.shape[1] - height) // 2, (images.shape[2] - width) // 2
        inner = images[:, top : top + height, left : left + width]
        images = np.stack([onto_canvas(image, frame) for image in inner])
    # Networks of version 0.1 list integer images of .npz files by the norm of the integers.
    forms = [images] if images.dtype.kind == "f" else [images, images.astype(np.float64)]
    return np.any([[mark in record.hashes for mark in image_fingerprints(form)] for form in forms], axis=0)


def _grey_as_rgb(dataset: "Dataset") -> "Dataset":
    """The same grey images with three equal channels."""
    import numpy as np

    from unpose.data import Split

    train, validation, test = (
        Split(np.repeat(part.images[..., None], 3, axis=-1), part.labels)
        for part in (dataset.train, dataset.validation, dataset.test)
    )
    return replace(dataset, train=train, validation=validation, test=test)


def _with_network_labels(
    name: str, network: "Network", classes: tuple[str, ...], dataset: "Dataset", part: "Split"
) -> "Split":
    """The images with the network's class indices as labels; other classes or channels are an error."""
    import numpy as np

    from unpose.data import Split

    if network.description["in_channels"] != dataset.channels:
        raise click.UsageError(
            f"{name} takes {network.description['in_channels']} channels, the images of {dataset.name} have "
            f"{dataset.channels}"
        )
    if set(dataset.classes) <= set(classes):
        indices = np.array([classes.index(label) for label in dataset.classes])
        return Split(part.images, indices[part.labels])
    raise click.UsageError(
        f"{name} has the classes {', '.join(classes[:12])}; {dataset.name} has {', '.join(dataset.classes[:12])}"
    )


def _as_dictionary(curves: "dict[str, NDArray]", dataset: "Dataset", split: str, choice: _Choice) -> dict[str, object]:
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
        "degrees": [float(step * STEP_DEGREES) for step in range(N_ANGLES)],
        "accuracy": {name: [float(value) for value in curve] for name, curve in curves.items()},
        "upright": {name: float(curve[0]) for name, curve in curves.items()},
        "mean": {name: float(curve.mean()) for name, curve in curves.items()},
        "worst": {name: float(curve.min()) for name, curve in curves.items()},
    }
