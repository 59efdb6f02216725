"""The images of an audit: read, brought to the size that a model takes, with their classes."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unpose.cli.shared.errors import UserError, parameter_errors
from unpose.cli.shared.output import counted
from unpose.cli.shared.progress import progress

if TYPE_CHECKING:
    from torch import Tensor

    from unpose.cli.shared.any_model import AnyModel
    from unpose.data import ImageSet
    from unpose.runs.audits import AuditedImages

DEFAULT_COUNT, DEFAULT_NOISE = 200, 4
_COPIES = 8
"""Copies of the images that an audit holds at once: as given, faded, moved, moved back, and in float64."""


def noise_images(model: "AnyModel", count: int | None, size: int | None, seed: int) -> "AuditedImages":
    """Smooth noise of the size that a model takes."""
    from unpose.audit import smooth_noise
    from unpose.runs.audits import AuditedImages

    channels, height, width = model.expects
    height, width = height or size, width or size
    if height is None or width is None:
        raise click.UsageError(f"{model.name} does not say which images it takes; give --images, or --size for noise")
    side = (height, width) if model.own is not None else (min(height, width),) * 2
    batch = smooth_noise(count or DEFAULT_NOISE, channels or 3, side, random_state=seed)
    return AuditedImages(batch, [f"noise {i}" for i in range(len(batch))], source="smooth noise")


def read_audited(
    path: Path, model: "AnyModel", *, count: int | None, size: int | None, mean: str, std: str, labels: Path | None,
    classes: Path | None, memory: int | None, quiet: bool,
) -> "tuple[AuditedImages, list[tuple[str, str]], list[str]]":  # fmt: skip
    """Evenly spaced images of those at ``path``, the files that could not be read, and remarks."""
    import torch

    from unpose.data import read_folder
    from unpose.images import as_batch
    from unpose.report import evenly_spaced
    from unpose.runs.audits import AuditedImages

    channels, height, width = model.expects
    if channels not in (None, 1, 3):
        raise click.BadParameter(
            f"the network takes {channels} channels, and images have 1 or 3; leave out --images to use noise",
            param_hint="--images",
        )
    side = min(height, width) if height and width else size
    colour: Any = "auto" if channels is None else "grey" if channels == 1 else "rgb"
    with parameter_errors("--images"), progress(quiet=quiet) as report:
        found = read_folder(path, size=side, colour=colour, min_images=2, memory=memory, progress=report)
    chosen = evenly_spaced(len(found), count or DEFAULT_COUNT)
    batch = _square(as_batch(found.images[chosen], dtype=torch.float32), side)
    offset, scale = (numbers(text, name, batch.shape[1]) for text, name in ((mean, "--mean"), (std, "--std")))
    batch = normalised(batch, offset, scale)
    texts = labels_of(labels, found)
    names, truth, remarks = _classes(classes, texts, model.class_names)
    audited = AuditedImages(
        batch, [found.names[i] for i in chosen], None if truth is None else [truth[i] for i in chosen], names,
        f"{path.name or path} ({len(chosen)} of {len(found)} images)", tuple(offset), tuple(scale),
    )  # fmt: skip
    return audited, found.rejected, [*(f"{note}." for note in found.notes), *remarks]


def read_pairs(table: Path, like: "AuditedImages") -> "tuple[AuditedImages, list[str], list[float]]":
    """Photographs that a table lists, prepared as ``like``: the images, the thing and the angle of each, or NaN."""
    import torch

    from unpose.data import read_folder
    from unpose.images import as_batch
    from unpose.runs.audits import AuditedImages

    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows or any(name not in rows[0] for name in ("image", "thing")):
        raise click.BadParameter(
            f"{table} must have the columns image and thing, and angle where it is known", param_hint="--pairs"
        )
    with parameter_errors("--pairs"):
        degrees = [float(row.get("angle") or "nan") for row in rows]
        side = max(like.batch.shape[-2:])
        paths = [table.parent / row["image"] for row in rows]
        found = read_folder(paths, size=side, colour="grey" if like.batch.shape[1] == 1 else "rgb", min_images=2)
    if found.rejected:
        name, reason = found.rejected[0]
        raise click.BadParameter(f"{name} cannot be read: {reason}", param_hint="--pairs")
    batch = normalised(_square(as_batch(found.images, dtype=torch.float32), side), like.offset, like.scale)
    images = AuditedImages(batch, [row["image"] for row in rows], class_names=like.class_names)
    return images, [row["thing"] for row in rows], degrees


def check_memory(batch: "Tensor", memory: int | None) -> None:
    """Refuse an audit that needs more memory than the budget, before it starts."""
    from unpose.files import readable_bytes

    needed = _COPIES * batch.nbytes
    if memory is not None and needed > memory:
        fitting = max(2, len(batch) * memory // needed)
        raise UserError(
            f"about {readable_bytes(needed)} are needed for {len(batch)} images of {tuple(batch.shape[1:])}, more than "
            f"the budget of {readable_bytes(memory)}; give --memory {readable_bytes(needed)}, or --count {fitting}"
        )


def read_class_names(path: Path | None) -> tuple[str, ...]:
    """The names of classes in a file, one per line."""
    if path is None:
        return ()
    return tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())


def class_folders(images: Path, labels: Path | None) -> tuple[str, ...]:
    """The classes in a table of labels, or the folders of the images if there are at least two; sorted."""
    if labels is not None:
        with labels.open(newline="", encoding="utf-8") as file:
            return tuple(sorted({row[1].strip() for row in csv.reader(file) if len(row) >= 2}))
    folders = sorted(each.name for each in images.iterdir() if each.is_dir()) if images.is_dir() else []
    return tuple(folders) if len(folders) > 1 else ()


def _square(batch: "Tensor", side: int | None) -> "Tensor":
    """Images whose sides are equal, so that they can be turned: the longer side, or ``side`` where it is given.

    The border of the image is repeated where pixels are missing.
    """
    import torch

    height, width = batch.shape[-2:]
    target = max(side or 0, height, width)
    down, across = target - height, target - width
    if not down and not across:
        return batch
    around = (across // 2, across - across // 2, down // 2, down - down // 2)
    return torch.nn.functional.pad(batch, around, mode="replicate")


def normalised(batch: "Tensor", mean: Sequence[float], std: Sequence[float]) -> "Tensor":
    """Images (n, c, h, w) with the mean subtracted and divided by the deviation: one number, or one per channel."""
    import torch

    offset, scale = (torch.tensor(values).reshape(1, -1, 1, 1) for values in (mean, std))
    return (batch - offset) / scale


def numbers(text: str, option: str, channels: int | None = None) -> list[float]:
    """Read one number, or one for each channel, from the text of ``--mean`` or ``--std``."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise click.BadParameter(f"numbers separated by commas are needed, got {text!r}", param_hint=option) from error
    if channels is not None and len(values) not in (1, channels):
        raise click.BadParameter(f"give 1 or {channels} numbers, got {len(values)}", param_hint=option)
    if option == "--std" and not all(value > 0 for value in values):
        raise click.BadParameter(f"must be above zero, got {text!r}", param_hint=option)
    return values


def labels_of(path: Path | None, found: "ImageSet") -> list[str] | None:
    """The class of each image as text: from a table, or from its folder."""
    if path is None:
        return found.labels
    with path.open(newline="", encoding="utf-8-sig") as file:  # Excel writes the mark
        table = {row[0].strip(): row[1].strip() for row in csv.reader(file) if len(row) >= 2}
    missing = [name for name in found.names if name not in table]
    if missing:
        raise click.BadParameter(
            f"{path} has no line for {counted(len(missing), 'image')}, {missing[0]} first", param_hint="--labels"
        )
    return [table[name] for name in found.names]


def _classes(
    path: Path | None, texts: Sequence[str] | None, known: Sequence[str]
) -> tuple[tuple[str, ...], list[int] | None, list[str]]:
    """The names of the model's classes, the class of each image as a number, and remarks."""
    names = read_class_names(path) or tuple(known)
    if texts is None:
        return names, None, []
    if not names and all(text.isdecimal() for text in texts):
        return (), [int(text) for text in texts], []
    if not names:
        names = tuple(sorted(set(texts)))
    unknown = sorted(set(texts) - set(names))
    if unknown:
        if path is not None:
            raise click.BadParameter(f"the class {unknown[0]!r} of an image is not in {path}", param_hint="--classes")
        return names, None, [
            f"The labels are not used: {unknown[0]!r} is no class of the model. Name its classes with --classes."
        ]  # fmt: skip
    return names, [names.index(text) for text in texts], []
