"""``unpose predict --model``: what a trained network says about every image of a folder."""

import csv
import io
import json
from pathlib import Path

import click

from unpose.cli.learning import load_model
from unpose.cli.tables import deliver


def predict_network(model: Path, images: Path, out: Path | None, as_json: bool, device: str = "auto") -> None:
    """Write the class and the probabilities of every image, as CSV or JSON, to a file or to stdout.

    Images that cannot be read are listed on stderr with their reasons.
    """
    from unpose.data import read_images
    from unpose.train import logits_of

    network, classes = load_model(model, device, "--model")
    channels, size = network.description["in_channels"], max(network.description["image_size"])
    if channels not in (1, 3):
        raise click.BadParameter(f"it takes {channels} channels, and pictures have 1 or 3", param_hint="--model")
    try:
        found = read_images(images, size=size, color="grey" if channels == 1 else "rgb", fewest=1)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="IMAGES") from error
    probabilities = logits_of(network, found.images).double().softmax(1).tolist()
    rows = [
        {"name": name, "class": classes[max(range(len(line)), key=line.__getitem__)], "probabilities": line}
        for name, line in zip(found.names, probabilities, strict=True)
    ]
    text = _json(rows, classes, found.rejected) if as_json else _csv(rows, classes)
    deliver(text, out, len(rows), found.rejected)


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


def _json(rows: list[dict], classes: tuple[str, ...], rejected: list[tuple[str, str]]) -> str:
    images = [row | {"probabilities": dict(zip(classes, row["probabilities"], strict=True))} for row in rows]
    not_read = [{"name": name, "reason": reason} for name, reason in rejected]
    return json.dumps({"images": images, "not_read": not_read}, indent=2) + "\n"
