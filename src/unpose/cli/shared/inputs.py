"""What a command line names: images, data sets, networks and devices, with errors that say what to change."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from unpose.cli.shared.auto_group import AUTO, discovered
from unpose.cli.shared.errors import UserError, parameter_errors
from unpose.cli.shared.progress import Report, progress
from unpose.runs.settings import is_users_mistake

if TYPE_CHECKING:
    import torch

    from unpose.data import Dataset, ImageSet
    from unpose.nn import Network
    from unpose.runs import FinishedRun, RunSettings
    from unpose.runs.folder import RunFolder
    from unpose.runs.settings import RunConfig

NO_CLASSES = (
    "{} is an encoder or another network whose outputs are no scores of classes; give a classifier. An encoder serves "
    "`unpose cluster --features` and `unpose audit --kind embedding`"
)
_COLOURS: "dict[int | None, Literal['grey', 'rgb']]" = {1: "grey", 3: "rgb"}
_NOTES_SHOWN = 10
_MEMORY_SHARE = 0.8
"""Share of the free memory that a run may use unless told otherwise."""
_DISCOVERY_SAMPLE = 5000
"""Images by which the group is found, of more evenly spaced ones."""
_SMALLEST_SIDE = 8
"""Pixels that must remain of the canvas after cropping."""


def pick_device(name: str) -> "torch.device":
    """The device of a name; ``auto`` is a GPU if there is one, and under ``torchrun`` one for each process."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if gpus else "cpu"
    available = ["cpu", *(["cuda"] if gpus else []), *(f"cuda:{index}" for index in range(gpus))]
    if name not in available:
        raise click.BadParameter(
            f"{name!r} cannot be used here; available: {', '.join(available)}", param_hint="--device"
        )
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        first_line = str(error).partition("\n")[0]
        raise click.BadParameter(f"{name!r} cannot be used here: {first_line}", param_hint="--device") from error
    return device


class ImagesPath(click.Path):
    """Images: a folder, a file, or FILE::NAME. A path that does not exist is refused before PyTorch is imported."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click."""
        from unpose.files import printable_name
        from unpose.files.listing import split_array_name

        if split_array_name(Path(value)) is None:
            self.fail(
                f"{printable_name(str(value))} does not exist; give a folder of images, a stack or an array file",
                param, ctx,
            )  # fmt: skip
        return super().convert(value, param, ctx)


class ModelFile(click.ParamType):
    """A network: a run of `unpose train`, the network file in it, or the name of a network in the package."""

    name = "model"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        from unpose.train import pretrained_file, pretrained_names

        known = str(value) in pretrained_names()
        if os.path.isfile(value):
            if known:
                click.echo(f"{value}: using the file of this name, not the network of the package", err=True)
            return Path(value)
        if os.path.isdir(value) and not known:
            return self._of_run(Path(value), param, ctx)
        try:
            return pretrained_file(str(value))
        except ValueError as error:
            self.fail(f"there is no file {value!r} and no network of this name: {error}", param, ctx)

    def _of_run(self, folder: Path, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        from unpose.files import Folder
        from unpose.runs.folder import RunFolder

        config = RunFolder(folder).finished_config()
        if config is not None and config.command == "cluster":
            self.fail(f"{folder} is a run of unpose cluster, which has groups and no network; "
                      f"`unpose predict {folder} IMAGES` sorts images into them", param, ctx)  # fmt: skip
        network = folder / "model.safetensors"
        with Folder(folder) as run:
            if not run.has(network.name):
                self.fail(f"{folder} is a folder without {network.name}; give a run of unpose train, or the file of a "
                          "network", param, ctx)  # fmt: skip
            with run.open(network.name):  # an error if it is a link
                return network


def load_model(path: Path, device: str, hint: str) -> "tuple[Network, tuple[str, ...]]":
    """A saved classifier and the names of its classes; ``hint`` is the option or argument that errors name."""
    from unpose.train import load_network, read_classes

    with parameter_errors(hint, (ValueError, OSError)):
        network, classes = load_network(path, device=pick_device(device)), read_classes(path)
        if not classes:
            raise ValueError(NO_CLASSES.format(path))
    return network, classes


def use_features(run: "FinishedRun", features: str | None) -> None:
    """Compare new images by the network that ``--features`` names; it is found equal when the images are compared."""
    if features is None:
        return
    if run.model.features_ is None:
        raise click.BadParameter(f"the images of {run.path} were compared by pixels alone", param_hint="--features")
    run.model.set_params(features=features)


def load_data(
    name: str, root: Path | None, size: int | None = None, *, channels: int | None = None,
    split_by: str | None = None, quiet: bool = False,
) -> "Dataset":  # fmt: skip
    """Load a data set, and list on stderr what could not be read."""
    from unpose.data import load
    from unpose.runs.folder import RunFolder

    config = RunFolder(Path(name)).finished_config() if os.path.isdir(name) else None
    if config is not None and config.command == "cluster":
        return _load_named(Path(name), size, channels, quiet)
    with progress(quiet=quiet) as report:
        try:
            dataset = load(
                name, root, size=size, colour=_COLOURS.get(channels, "auto"), split_by=split_by, progress=report
            )
        except (ValueError, OSError) as error:
            if isinstance(error, ValueError) and not is_users_mistake(error):
                raise
            raise click.UsageError(str(error)) from error
    if not quiet:
        for line in dataset.notes[:_NOTES_SHOWN]:
            click.echo(line, err=True)
        if len(dataset.notes) > _NOTES_SHOWN:
            click.echo(f"and {len(dataset.notes) - _NOTES_SHOWN:,} more", err=True)
    return dataset


def _load_named(path: Path, size: int | None, channels: int | None, quiet: bool) -> "Dataset":
    """The settled images of a run, with their names as classes."""
    from unpose.runs import joined, named_dataset, read_run

    run = read_run(path)
    if lost := [each for each in (run.source, *(Path(each["input"]) for each in run.added)) if not _is_there(each)]:
        raise click.UsageError(f"the images of the run are not at {lost[0]}; move a run and its images together")
    shape = run.canvas_shape
    if size is not None:
        shape = (round(shape[0] * size / max(shape)), round(shape[1] * size / max(shape)))
    in_colour = run.colour == "rgb" if channels is None else channels == 3
    try:
        with progress(quiet=quiet) as report:
            memory = memory_budget(run.settings.memory)
            parts = [_read_on(run, run.source, shape, in_colour, memory=memory, progress=report)]
            for each in run.added:
                part = _read_on(run, Path(each["input"]), shape, in_colour, min_images=1, progress=report)
                parts.append(replace(part, names=[f"{Path(each['input']).name}/{name}" for name in part.names]))
        return named_dataset(run, joined(parts))
    except ValueError as error:
        if not is_users_mistake(error):
            raise
        raise click.UsageError(str(error)) from error


def _is_there(source: Path) -> bool:
    """Whether an input exists: a folder, a file, or FILE::NAME."""
    from unpose.files.listing import split_array_name

    return Path((split_array_name(source) or (source, None))[0]).exists()


def read_run_again(run: "FinishedRun", moved: Path | None) -> "ImageSet":
    """The images as the run read them; an error if they have changed, because results would be wrong."""
    from unpose.runs import joined
    from unpose.runs.folder import fingerprint

    source = moved or run.source
    try:
        with progress() as report:
            shape, in_colour, memory = run.canvas_shape, run.colour == "rgb", memory_budget(run.settings.memory)
            parts = [_read_on(run, source, shape, in_colour, memory=memory, pieces=True, progress=report)]
            parts += [read_on_canvas(run, Path(each["input"]), report) for each in run.added]
    except ValueError as error:
        if not is_users_mistake(error):
            raise
        raise UserError(
            f"the images of the run cannot be read again: {error}; give their place with --images"
        ) from error
    wanted = [(source, run.about["fingerprint"]), *((each["input"], each["fingerprint"]) for each in run.added)]
    for part, (place, digest) in zip(parts, wanted, strict=True):
        if fingerprint(part) != digest:
            raise UserError(f"the images in {place} have changed since the run, or other files can be read now")
    if len(parts) == 1:
        return parts[0]
    named = [
        replace(part, names=[f"{Path(each['input']).name}/{name}" for name in part.names])
        for part, each in zip(parts[1:], run.added, strict=True)
    ]
    return joined([parts[0], *named])


def read_on_canvas(run: "FinishedRun", source: Path, report: Report) -> "ImageSet":
    """New images on the canvas of a run, cropped as the run was."""
    return _read_on(run, source, run.canvas_shape, run.colour == "rgb", min_images=1, progress=report)


def _read_on(run: "FinishedRun", source: Path, shape: tuple[int, int], in_colour: bool, **options: Any) -> "ImageSet":
    """Images on a canvas (height, width), as a run read them that found colour in its images or none, and cropped.

    A run reads with ``colour="auto"``, which takes images whose channels are nearly equal for grey. So do these images
    in a run that is in colour, where they have equal channels. What the run cut off at every side is a part of the
    canvas: of one of another size, as large a part is cut off.
    """
    import numpy as np

    from unpose.data import read_folder
    from unpose.files import ImagesInPieces, store_images

    images = read_folder(source, size=shape, colour="auto" if in_colour else "grey", **options)
    if in_colour and images.images.ndim == 3:
        if isinstance(images.images, ImagesInPieces):
            coloured: Any = store_images(np.repeat(each[..., None], 3, axis=-1) for each in images.images.pieces())
        else:
            coloured = np.repeat(images.images[..., None], 3, axis=-1)
        images = replace(images, images=coloured)
    return cropped(images, round(int(run.settings.crop) * max(shape) / max(run.canvas_shape)))


def read_run_images(
    source: Path, settings: "RunSettings", pieces: bool | Path = False
) -> "tuple[ImageSet, RunSettings]":
    """Read the images of a run, and replace settings that are ``auto`` by the values chosen for them.

    ``pieces`` is that of :func:`unpose.data.read_folder`.
    """
    import torch

    from unpose.data import read_folder
    from unpose.groups import CONTINUOUS, parse_continuous

    if settings.jobs != "auto":
        torch.set_num_threads(int(settings.jobs))
    settings = replace(settings, device=str(pick_device(settings.device)))
    try:
        group = settings.group if settings.group == AUTO else repr(parse_continuous(settings.group))
    except ValueError as error:
        raise UserError(
            f"--group must be one of the continuous groups {', '.join(CONTINUOUS)}, one of them with +mirror, or auto, "
            f"got {settings.group!r}"
        ) from error
    with progress() as report:
        images = read_folder(
            source, size=value_or_none(settings.size), memory=memory_budget(settings.memory),
            pieces=pieces, n_jobs=value_or_none(settings.jobs), progress=report,
        )  # fmt: skip
    size, margin = max(images.images.shape[1:3]), _margin(settings.crop, images)
    images = cropped(images, margin)
    if group == AUTO:
        found = discovered(images.images[:: max(1, len(images) // _DISCOVERY_SAMPLE)])
        group = found.group
        settings = replace(settings, max_angle=found.max_angle, max_scale=found.max_scale)
    shift = max(images.images.shape[1:3]) / 4 if settings.max_shift == "auto" else settings.max_shift
    return images, replace(settings, group=group, size=size, max_shift=shift, crop=margin)


def _margin(crop: float, images: "ImageSet") -> int:
    """What ``--crop`` cuts off at every side, in pixels."""
    shorter = min(images.images.shape[1:3])
    if 0.5 <= crop < 1:
        raise UserError(f"--crop must be a share below 0.5, or at least 1 pixel, got {crop:g}")
    margin = round(crop if crop >= 1 else crop * shorter)
    if shorter - 2 * margin < _SMALLEST_SIDE:
        raise UserError(
            f"--crop {crop:g} leaves {max(0, shorter - 2 * margin)} of {shorter} pixels; at least {_SMALLEST_SIDE} "
            "must remain"
        )
    return margin


def cropped(images: "ImageSet", margin: int) -> "ImageSet":
    """The images without ``margin`` pixels at every side."""
    if margin == 0:
        return images
    from unpose.files import ImagesInPieces

    height, width = images.images.shape[1:3]
    if isinstance(images.images, ImagesInPieces):
        inside: Any = images.images.cropped(margin)
    else:
        inside = images.images[:, margin : height - margin, margin : width - margin]
    rule = f"{images.canvas}; {margin} pixels are cut off at every side"
    return replace(images, images=inside, canvas=rule)


def finished_run(command: str, source: Path, folder: "RunFolder", settings: "RunSettings") -> "RunConfig | None":
    """The configuration of this very run if the folder holds it finished; a different finished run is an error."""
    if (config := folder.finished_config()) is None:
        return None
    images, settings = read_run_images(source, settings, pieces=command == "cluster")
    folder.check_same(config, command, settings, images)
    folder.remove_leftovers()
    click.echo(f"{folder.path} holds this run, already finished.", err=True)
    return config


def memory_budget(memory: int | str) -> int | None:
    """A memory budget in bytes; ``auto`` is a share of the memory that is free, None if that is unknown."""
    from unpose.files import available_memory

    if memory != "auto":
        return int(memory)
    return None if (free := available_memory()) is None else int(_MEMORY_SHARE * free)


def value_or_none(value: Any) -> Any:
    """None for ``auto``, as the functions of the library expect it; any other value unchanged."""
    return None if value == "auto" else value
