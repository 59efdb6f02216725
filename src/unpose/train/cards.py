"""Model cards: what a network was trained on and what was measured, stored inside the network's own file.

The file is the single source; every table and page about a network is generated from its card.
"""

import hashlib
import os
import textwrap
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from unpose.images import Light
from unpose.nn import Network, count_parameters
from unpose.train.checkpoint import load_network, read_classes, read_notes, save_network

__all__ = ["Card", "NetworkInfo", "card_markdown", "describe", "read_light", "save_with_card"]

_WIDTH = 120


@dataclass(frozen=True)
class Card:
    """How a network was trained and what was measured."""

    title: str
    data: str  # name of the data set
    citation: str
    licence: str  # of the data
    command: str  # that repeats the training
    version: str  # of unpose and torch, when it was measured
    train_images: int
    validation_images: int
    test_images: int
    training_seconds: float
    chosen_epoch: int
    epochs: int
    validation: float  # accuracy
    upright: float  # test accuracy
    turned_images: int  # test images used in the rotation sweep
    turned: float  # mean accuracy over the angles of the sweep
    worst: float  # accuracy at the worst angle
    angles: int  # number of angles of the sweep, evenly over the circle
    audited: int  # test images used in the audit
    exact_error: float  # largest relative change of the output under elements that permute pixels
    turn_error: float  # largest change under the group's other elements; zero if there are none
    turn_floor: float  # change due to interpolation alone at that element
    control: str  # a transformation outside the group
    control_error: float
    limits: tuple[str, ...]
    mean_recall: float = 0.0  # over the classes of the test images; zero if it was not measured
    worst_class: str = ""  # a sentence about the class that is recognised worst


@dataclass(frozen=True)
class NetworkInfo:
    """A network's file: description, classes, size and card."""

    path: Path
    description: dict[str, Any]  # for :func:`unpose.nn.rebuild`
    classes: tuple[str, ...]
    parameters: int
    size: int  # bytes
    sha256: str
    light: Light | None
    card: Card

    @property
    def name(self) -> str:
        return self.path.stem


def save_with_card(
    path: str | os.PathLike[str], network: Network, classes: tuple[str, ...], recipe: dict[str, Any], light: Light,
    card: Card,
) -> Path:  # fmt: skip
    """Write a network with its recipe, the light of its training images and its card."""
    notes = {"recipe": recipe, "light": asdict(light), "card": asdict(card)}
    return save_network(path, network, classes=classes, notes=notes)


def describe(path: str | os.PathLike[str]) -> NetworkInfo:
    """Read description and card of a network's file; raises ``ValueError`` if it has no card."""
    source = Path(path)
    notes = read_notes(source)
    given = notes.get("card")
    wanted = {field.name for field in fields(Card)}
    optional = {"mean_recall", "worst_class"}  # older cards lack them
    if not isinstance(given, dict) or set(given) | optional != wanted:
        differing = sorted(wanted ^ (set(given) | optional)) if isinstance(given, dict) else []
        raise ValueError(f"{source} has no card" + (f" that can be read: {', '.join(differing)}" if differing else ""))
    content = source.read_bytes()
    network = load_network(source)
    return NetworkInfo(
        source,
        network.description,
        read_classes(source),
        count_parameters(network),
        len(content),
        hashlib.sha256(content).hexdigest(),
        read_light(source),
        Card(**given | {"limits": tuple(given["limits"])}),
    )


def read_light(path: str | os.PathLike[str]) -> Light | None:
    """Read the brightness statistics of the training images from a network's file, or None if it has none."""
    given = read_notes(path).get("light")
    if given is None:
        return None
    names = [field.name for field in fields(Light)]
    if not isinstance(given, dict) or set(given) not in (set(names), set(names[:3])):  # older files have no ranges
        raise ValueError(f"{path}: its note `light` must have the entries {', '.join(names)}, got {given!r}")
    for name, value in given.items():
        is_range = name.endswith("_range")
        numbers = value if is_range and isinstance(value, list) and len(value) == 2 else [value]
        if (is_range and len(numbers) != 2) or not all(
            isinstance(each, int | float) and abs(each) <= 1e6 for each in numbers
        ):
            wanted = "two numbers" if is_range else "a number"
            raise ValueError(f"{path}: light.{name} must be {wanted}, got {value!r}")
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return Light(**values)


def card_markdown(model: NetworkInfo) -> str:
    """Format the card as Markdown."""
    card, description = model.card, model.description
    height, width = description["image_size"]
    colour = {1: "grey", 3: "colour"}.get(description["in_channels"], f"{description['in_channels']} channels")
    light = f"{model.light}" if model.light is not None and model.light.is_common else "brightness as in the data"
    rows = {
        "classes": ", ".join(model.classes),
        "input": f"{height} x {width} pixels, {colour}, values from 0 to 1, {light}",
        "network": f"`{description['network']}`, group `{description['group']}`, {model.parameters:,} parameters",
        "accuracy, upright": f"{card.upright:.2%} of {card.test_images:,} test images",
        **({"by class": f"mean recall {card.mean_recall:.2%}; {card.worst_class}"} if card.worst_class else {}),
        "accuracy, rotated": f"{card.turned:.2%} of {card.turned_images:,} test images on average over "
        f"{card.angles} angles, {card.worst:.2%} at the worst angle",
        "relative change of the output": _audit_summary(model),
        "trained with": f"`{card.command}`, {card.train_images:,} images, {card.training_seconds / 60:.0f} minutes",
        "epoch kept": f"{card.chosen_epoch} of {card.epochs}, validation accuracy {card.validation:.2%} of "
        f"{card.validation_images:,} images",
        "data": f"{card.data}. {card.citation}. Licence: {card.licence}",
        "measured with": card.version,
        "file": f"`{model.path.name}`, {model.size:,} bytes, SHA-256 `{model.sha256}`",
    }
    lines = [f"## {model.name}", "", f"{card.title}.", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {text} |" for name, text in rows.items()]
    lines += ["", "Limits:", ""]
    for limit in card.limits:
        lines += textwrap.wrap(limit, _WIDTH - 2, initial_indent="- ", subsequent_indent="  ")
    return "\n".join(lines) + "\n"


def _audit_summary(model: NetworkInfo) -> str:
    card = model.card
    text = f"{card.exact_error:.1g} under elements that permute pixels"
    if card.turn_error:
        text += f", {card.turn_error:.2g} at most under other rotations (interpolation alone: {card.turn_floor:.2g})"
    return f"{text}, {card.control_error:.2g} under a {card.control}; `unpose audit`, {card.audited} test images"
