"""``unpose adapt``: make a model that one already has invariant, and say what that costs and gains."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unpose.cli.shared.audited_images import labels_of, normalised, numbers
from unpose.cli.shared.auto_group import AUTO, discovered
from unpose.cli.shared.errors import UserError, parameter_errors
from unpose.cli.shared.inputs import NO_CLASSES, ImagesPath, ModelFile
from unpose.cli.shared.options import json_option
from unpose.cli.shared.output import check_results_folder, counted, write_output
from unpose.cli.shared.progress import progress
from unpose.runs.folder import LOCK, folder_lock

if TYPE_CHECKING:
    from torch import Tensor

    from unpose.adapt import ImageModel, Trial
    from unpose.audit import EquivarianceReport
    from unpose.data import ImageSet

_FILES = ("adapted.onnx", "recipe.py", "canonicalizer.safetensors", "card.json", "card.md")
_RECIPE = '''"""Builds the adapted model; needs unpose and the files beside this one. Made by `unpose adapt`."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from unpose.adapt import as_model, canonicalize, learned, symmetrize
from unpose.train import load_network

here = Path(__file__).parent
source = str(here / {source!r})
is_onnx = source.lower().endswith(".onnx")
model = as_model(source if is_onnx else load_network(source).float().eval(), output={output!r}, gives={gives!r})
{build}


def prepare(images: torch.Tensor) -> torch.Tensor:
    """Images (n, c, h, w) with pixels in [0, 1] as the model takes them."""
    return (images - torch.tensor({mean}).reshape(1, -1, 1, 1)) / torch.tensor({std}).reshape(1, -1, 1, 1)


# Call it as `adapted(prepare(images))`.
'''


@click.command(
    epilog="""\b
    Examples:
      unpose adapt model.onnx --images photos/ --group c8 -o adapted/
      unpose adapt model.onnx --images photos/ --labels classes.csv --mean 0.5 --std 0.5 -o adapted/
      unpose adapt model.safetensors --images scans/ --group d4 -o adapted/
    """
)
@click.argument("model")
@click.option("--images", required=True, type=ImagesPath(), help="Upright images: a folder, a stack or .npy file.")
@click.option(
    "--labels", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CSV file with the name of each image and the number of its class, counted from 0.",
)  # fmt: skip
@click.option("--group", default="c8", show_default=True, help="Transformations to ignore: c4, c8, d4, ...; auto finds "
              "them from the images and their classes, as unpose discover does.")  # fmt: skip
@click.option("-o", "--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder to write.")
@click.option("--size", type=click.IntRange(8, 4096), help="Longer side of the images, where the model does not say.")
@click.option(
    "--mean", default="0", show_default=True, help="Subtracted from pixels in [0, 1]; one per channel or one."
)
@click.option("--std", default="1", show_default=True, help="Pixels are then divided by this.")
@click.option(
    "--border", type=click.Choice(["reflect", "replicate", "zero"]), default="reflect", show_default=True,
    help="What lies outside the image when it is rotated.",
)  # fmt: skip
@click.option("--output", help="Name of the model's output that has the scores, if it has several.")
@click.option("--probabilities", is_flag=True, help="The model's outputs are probabilities, not logits.")
@click.option(
    "--steps", default=600, show_default=True, type=click.IntRange(0),
    help="Training steps of the canonicalizer; 0 trains none.",
)  # fmt: skip
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Random seed.")
@click.option("--force", is_flag=True, help="Replace the files in the folder.")
@json_option
def command(
    model: str, images: Path, labels: Path | None, group: str, out: Path, size: int | None, mean: str, std: str,
    border: str, output: str | None, probabilities: bool, steps: int, seed: int, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Make a model that one already has ignore rotations and mirrors.

    MODEL is an ONNX file, a run of `unpose train` or the network file in it, or a name that `unpose models` lists.

    The model is measured on the images as they are and after every element of the group. Then the mean over all
    elements is tried and, if turned images lose and from 60 images on, a canonicalizer that is trained on every second
    image and measured on the others; of those that train, every fourth only sets its gate. Without labels, the model's
    answers to the upright images count as right, and the table gives agreement.

    The folder gets the recommended model as adapted.onnx, or as a Python recipe where it cannot be written as one ONNX
    file, with a card. Nothing is recommended that loses more on upright images than it gains on turned ones; then only
    the card is written.
    """
    from unpose.adapt import recommend, try_adaptations
    from unpose.audit import equivariance_error
    from unpose.groups import FiniteGroup, parse

    with parameter_errors("--group"):
        parsed = parse("c1" if group == AUTO else group)
    if not isinstance(parsed, FiniteGroup) or not parsed.is_group:
        raise click.BadParameter(f"a finite group such as c4, c8 or d4 is needed, got {parsed}", param_hint="--group")
    check_results_folder(out, "adapt", _holds_adapted, [images])
    click.get_current_context().with_resource(folder_lock(out))
    if not force and (out / "card.json").exists():
        raise UserError(f"{out} already holds an adapted model; give another folder, or --force to replace it")
    gives = "probabilities" if probabilities else None
    wrapped, source, names = _load(model, output, gives)
    scaling = {"mean": numbers(mean, "--mean"), "std": numbers(std, "--std")}
    found, batch = _read(images, wrapped, size, **scaling)
    classes = _classes(labels, found, names)
    if group == AUTO:
        named = discovered(found.images, found.labels, quiet=as_json).finite_group
        if named == "c1":
            raise UserError("no turn or mirror was found that these images obey; name one with --group, such as c8")
        parsed = parse(named)
    with progress(quiet=as_json) as report:
        trials = try_adaptations(
            wrapped, batch, classes, parsed, border=border, steps=steps, random_state=seed, progress=report
        )
    chosen, why = recommend(trials)
    measured = equivariance_error(wrapped, batch[:4], parsed) if len(batch) > 1 else None
    call = {"source": str(Path(source).resolve()), "output": output, "gives": gives, **scaling}
    written = [] if chosen.name == "plain" else _write(chosen, call, batch, out)
    shape = {"channels": batch.shape[1], "height": batch.shape[2], "width": batch.shape[3], **scaling}
    summary = _summary(
        source, parsed.name, trials, chosen, why, classes is not None, len(batch), shape, measured, written
    )
    write_output(out / "card.json", json.dumps(summary, indent=2).encode())
    write_output(out / "card.md", _card(summary).encode())
    click.echo(json.dumps(summary, indent=2) if as_json else f"{_table(summary)}\n\n{why}\n{_where(out, summary)}")


def _holds_adapted(folder: Path) -> bool:
    """Whether a folder holds the results of this command."""
    try:
        return "recommended" in json.loads((folder / "card.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):  # it may have been killed before it wrote the card
        names = {file.name for file in folder.iterdir() if file.suffix != ".tmp"}
        return LOCK in names and names <= {LOCK, *_FILES}


def _load(model: str, output: str | None, gives: str | None) -> "tuple[ImageModel, str, tuple[str, ...]]":
    """The model, the path it was read from, and the names of its classes as far as they are known."""
    from unpose.adapt import as_model
    from unpose.train import load_network, read_classes

    with parameter_errors("MODEL", (ValueError, OSError)):
        if Path(model).suffix.lower() == ".onnx":
            if not Path(model).is_file():
                raise ValueError(f"there is no file {model!r}")
            return as_model(model, output=output, gives=gives), model, ()
        path = ModelFile().convert(model, None, None)
        network, names = load_network(path).float().eval(), read_classes(path)
        if not names:
            raise ValueError(NO_CLASSES.format(path))
        wrapped = as_model(network, output=output, gives=gives)
        wrapped.expects = (network.description["in_channels"], *network.description["image_size"])
        return wrapped, str(path), names


def _read(
    path: Path, model: "ImageModel", size: int | None, mean: list[float], std: list[float]
) -> "tuple[ImageSet, Tensor]":
    """The images, and the batch that the model takes."""
    import torch

    from unpose.data import read_folder
    from unpose.images import as_batch

    channels, height, width = model.expects
    if height is not None and width is not None:
        size = max(height, width)
    if channels not in (None, 1, 3):
        raise click.BadParameter(f"the model takes {channels} channels, and images have 1 or 3", param_hint="MODEL")
    with parameter_errors("--images"):
        found = read_folder(path, size=size, colour="grey" if channels == 1 else "rgb", min_images=2)
    batch = as_batch(found.images, dtype=torch.float32)
    if height is not None and batch.shape[-2:] != (height, width):
        raise click.BadParameter(
            f"the model takes images of {height} x {width} pixels, these are {batch.shape[-2]} x {batch.shape[-1]}; "
            "crop them to the same shape", param_hint="--images",
        )  # fmt: skip
    for name, values in (("--mean", mean), ("--std", std)):
        if len(values) not in (1, batch.shape[1]):
            raise click.BadParameter(f"give 1 or {batch.shape[1]} numbers, got {len(values)}", param_hint=name)
    return found, normalised(batch, mean, std)


def _classes(labels: Path | None, found: "ImageSet", names: tuple[str, ...]) -> list[int] | None:
    """The class of each image: from a table, or from folders that are named like the classes of the model."""
    texts = labels_of(labels, found)
    if texts is None:
        return None
    if labels is None:
        return [names.index(text) for text in texts] if set(texts) <= set(names) else None
    try:
        return [int(text) for text in texts]
    except ValueError as error:
        raise click.BadParameter(f"classes must be whole numbers: {error}", param_hint="--labels") from error


def _write(chosen: "Trial", call: dict[str, Any], batch: "Tensor", out: Path) -> list[str]:
    """Write the adapted model, as one ONNX file or as a recipe that calls the model so; returns the files' names."""
    from unpose.adapt import Canonicalized, Symmetrized, to_onnx

    adapted = chosen.model
    if not isinstance(adapted, Symmetrized | Canonicalized):
        return []
    try:
        source = Path(call["source"])
        file = source.read_bytes() if source.suffix.lower() == ".onnx" else None
        write_output(out / "adapted.onnx", to_onnx(adapted, batch[:2], file))
        return ["adapted.onnx"]
    except ValueError as error:
        click.echo(f"No adapted.onnx: {error}. Writing a Python recipe instead.", err=True)
    return _write_recipe(adapted, call, out)


def _write_recipe(adapted: Any, call: dict[str, Any], out: Path) -> list[str]:
    from safetensors.torch import save

    from unpose.adapt import Learned, Symmetrized

    written = ["recipe.py"]
    if isinstance(adapted, Symmetrized):
        build = f"adapted = symmetrize(model, {adapted.group.name!r}, border={adapted.border!r}).eval()"
    else:
        scorer: Learned = adapted.canonicalizer
        write_output(out / "canonicalizer.safetensors", save(scorer.state_dict()))
        written.append("canonicalizer.safetensors")
        build = (
            f"scorer = learned({scorer.group.name!r}, {scorer.in_channels}, size={scorer.size}, width={scorer.width}, "
            f"stages={scorer.stages}).eval()\n"
            'scorer.load_state_dict(load_file(here / "canonicalizer.safetensors"))\n'
            f"adapted = canonicalize(model, scorer, {adapted.gate}, views={adapted.views}, "
            f"border={adapted.border!r}).eval()"
        )
    try:  # a path of this machine would say where its owner keeps files
        source = os.path.relpath(call["source"], out.resolve())
    except ValueError:  # on another drive of Windows
        source = call["source"]
    write_output(out / "recipe.py", _RECIPE.format(build=build, **call | {"source": Path(source).as_posix()}).encode())
    return written


def _summary(
    source: str, group: str, trials: "list[Trial]", chosen: "Trial", why: str, labelled: bool, count: int,
    shape: dict[str, Any], measured: "EquivarianceReport | None", written: list[str],
) -> dict[str, Any]:  # fmt: skip
    rows = [
        {"method": trial.name, "upright": trial.upright, "turned": trial.turned, "passes": trial.passes}
        for trial in trials
    ]
    audit = None if measured is None else {
        "element": measured.elements[measured.worst], "error": float(measured.errors[measured.worst]),
        "discrimination": measured.discrimination,
    }  # fmt: skip
    return {
        "model": Path(source).name,
        "group": group,
        "images": count,
        "measured_images": count // 2 if any(trial.name.startswith("learned") for trial in trials) else count,
        "input": shape,
        "measures": "accuracy" if labelled else "agreement",
        "trials": rows,
        "recommended": chosen.name,
        "why": why,
        "worst_change_of_the_model": audit,
        "files": written,
    }


def _table(summary: dict[str, Any]) -> str:
    title = f"{summary['measures']} in %"
    width = max(len(title), *(len(row["method"]) for row in summary["trials"]))
    lines = [f"{title:{width}} {'upright':>8} {'turned':>8} {'calls':>7}"]
    lines += [
        f"{row['method']:{width}} {row['upright']:8.1f} {row['turned']:8.1f} {row['passes']:7g}"
        for row in summary["trials"]
    ]
    lines += [f"turned: mean over the other elements of {summary['group']}; calls: of the model, for each image"]
    return "\n".join(lines)


def _card(summary: dict[str, Any]) -> str:
    audit, measured = summary["worst_change_of_the_model"], summary["measured_images"]
    lines = [
        f"# {summary['model']} and {summary['group']}: {summary['recommended']}",
        "",
        f"    {_table(summary)}".replace("\n", "\n    "),
    ]
    others = summary["images"] - measured
    trained = f"; the other {others} trained the canonicalizer and set its gate" if others else ""
    lines += ["", f"{summary['why']} Measured on {counted(measured, 'image')}{trained}."]
    lines += [
        "mean: of the model's answers to all turned copies. learned: a small network brings each image upright first; "
        "with a gate it leaves images alone that look upright, with 2 views the model sees the two best orientations."
    ]
    if summary["measures"] == "agreement":
        lines += ["There were no labels: an answer counts as right if the plain model gives it to the upright image."]
    if audit is not None:
        lines += [f"The plain model's answers change by up to {audit['error']:.2g} of their size ({audit['element']})."]
    shape = summary["input"]
    lines += [
        "",
        f"Input: {counted(shape['channels'], 'channel')} of {shape['height']} x {shape['width']} pixels in [0, 1], "
        f"minus {_listed(shape['mean'])}, divided by {_listed(shape['std'])}.",
        "Files: " + (", ".join(summary["files"]) or "none") + ".",
    ]
    return "\n".join(lines) + "\n"


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _where(out: Path, summary: dict[str, Any]) -> str:
    wrote = f"Wrote {', '.join([*summary['files'], 'card.md', 'card.json'])} to {out}."
    return wrote + f" Call adapted.onnx as you call {summary['model']}." * ("adapted.onnx" in summary["files"])
