"""``unpose predict --model``: what a trained network says about every image of a folder."""

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from unpose.cli.shared.networks import load_model
from unpose.cli.shared.tables import deliver

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unpose.data import ImageSet
    from unpose.images.light import Light

_FEW = 0.1
"""Share of images that may look strange without a word."""


def predict_network(
    model: Path, images: Path, out: Path | None, as_json: bool, device: str = "auto", match_light: bool = False
) -> None:
    """Write the class and the probabilities of every image, as CSV or JSON, to a file or to stdout.

    Images that cannot be read are listed on stderr with their reasons, as is what was done to fit the others.
    """
    from unpose.data import read_images
    from unpose.images.light import match_light as matched
    from unpose.train import logits_of, read_light

    network, classes = load_model(model, device, "--model")
    height, width = network.description["image_size"]
    channels = network.description["in_channels"]
    if channels not in (1, 3):
        raise click.BadParameter(f"it takes {channels} channels, and pictures have 1 or 3", param_hint="--model")
    try:
        light = read_light(model)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--model") from error
    if match_light and (light is None or not light.is_common):
        raise click.UsageError("--match-light: the network's file does not tell of one ground that its images share")
    try:
        found = read_images(images, size=max(height, width), color="auto" if channels == 1 else "rgb", fewest=1)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="IMAGES") from error
    pixels, notes = _fitted(found, channels, (height, width))
    if match_light and light is not None:
        pixels = matched(pixels, light)
    elif light is not None and (unlike := _unlike(pixels, light)):
        notes.append(unlike)
    probabilities = logits_of(network, pixels).double().softmax(1).tolist()
    rows = [
        {"name": name, "class": classes[max(range(len(line)), key=line.__getitem__)], "probabilities": line}
        for name, line in zip(found.names, probabilities, strict=True)
    ]
    text = _json(rows, classes, found.rejected, notes) if as_json else _csv(rows, classes)
    deliver(text, out, len(rows), found.rejected)
    for note in notes:
        click.echo(f"note: {note}", err=True)


def _fitted(found: "ImageSet", channels: int, frame: tuple[int, int]) -> "tuple[NDArray, list[str]]":
    """The images in the frame and the colours that a network learnt, and what was done to them."""
    import numpy as np

    from unpose.files.frames import LUMINANCE
    from unpose.images.canvas import onto_canvas

    pixels, notes = found.images, []
    if found.source_shape != frame:
        notes.append(
            f"images are scaled to fit the network's {frame[0]} x {frame[1]} pixels, their aspect kept, and padded "
            "with the median of their border"
        )
    if pixels.shape[1:3] != frame:
        pixels = np.stack([onto_canvas(image, frame) for image in pixels])
    if channels == 1 and pixels.ndim == 4:
        notes.append("some images are coloured; the network sees their brightness only")
        pixels = pixels @ LUMINANCE
    return pixels, notes


def _unlike(pixels: "NDArray", light: "Light") -> str | None:
    """A warning where more than a few images look unlike those the network learnt from; None where they do not."""
    from unpose.images.light import light_of, unlike

    strange = unlike(pixels, light)
    if not light.is_common or strange.mean() <= _FEW:
        return None
    here = light_of(pixels[strange])
    ratio = here.contrast / light.contrast
    weaker = f", {ratio:.1f} times that contrast" if 0 < ratio < 1 else ""
    return (
        f"the network learnt images that are {light}, and {strange.sum():,} of {len(strange):,} here are "
        f"{here}{weaker}. Expect wrong answers; --match-light brings all to what it learnt"
    )


def _csv(rows: list[dict], classes: tuple[str, ...]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["name", "class", *classes])
    for row in rows:
        # A name that begins like a formula would be run by a spreadsheet.
        writer.writerow([_tame(row["name"]), _tame(row["class"]), *(f"{p:.6g}" for p in row["probabilities"])])
    return stream.getvalue()


def _tame(text: str) -> str:
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def _json(rows: list[dict], classes: tuple[str, ...], rejected: list[tuple[str, str]], notes: list[str]) -> str:
    images = [row | {"probabilities": dict(zip(classes, row["probabilities"], strict=True))} for row in rows]
    not_read = [{"name": name, "reason": reason} for name, reason in rejected]
    return json.dumps({"images": images, "not_read": not_read, "notes": notes}, indent=2) + "\n"
