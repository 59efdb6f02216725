"""The card of a trained network: what it was made from and what was measured, inside its own file.

The file is the one source: a card is written into its notes together with the weights, and every table or page is made
from there.
"""

import hashlib
import os
import textwrap
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from unpose.images.light import Light
from unpose.nn import Network, count_parameters
from unpose.train.checkpoint import load_network, read_classes, read_notes, save_network

_WIDTH = 120


@dataclass(frozen=True)
class Card:
    """What a network's file says about how it was made and measured."""

    title: str
    data: str  # name of the data set
    citation: str
    licence: str  # of the data
    command: str  # that trains it again
    version: str  # of unpose and torch, when it was measured
    train_images: int
    validation_images: int
    test_images: int
    training_seconds: float
    chosen_epoch: int
    epochs: int
    validation: float  # share of right answers
    upright: float  # of the test images, as they are
    turned_images: int  # test images that a sweep turns
    turned: float  # of these, mean over the angles of the sweep
    worst: float  # of these, at the worst of the angles
    angles: int  # of the sweep, evenly over the circle
    audited: int  # test images that the audit looked at
    exact_error: float  # largest relative change of the output under elements that only move pixels
    turn_error: float  # largest under the group's other elements; zero where it has none
    turn_floor: float  # what interpolation alone does at that element
    control: str  # a transformation outside the group
    control_error: float
    limits: tuple[str, ...]


@dataclass(frozen=True)
class Described:
    """A network's file: what it is, and what its card says."""

    path: Path
    description: dict[str, Any]  # of the network, as :func:`unpose.nn.rebuild` takes it
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
    """Write a network with its card; only what is needed to run it and to say what it is."""
    notes = {"recipe": recipe, "light": asdict(light), "card": asdict(card)}
    return save_network(path, network, classes=classes, notes=notes)


def describe(path: str | os.PathLike[str]) -> Described:
    """What the file of a network says about itself; ``ValueError`` where it has no card."""
    source = Path(path)
    notes = read_notes(source)
    given = notes.get("card")
    wanted = {field.name for field in fields(Card)}
    if not isinstance(given, dict) or set(given) != wanted:
        differing = sorted(wanted ^ set(given)) if isinstance(given, dict) else []
        raise ValueError(f"{source} has no card" + (f" that can be read: {', '.join(differing)}" if differing else ""))
    content = source.read_bytes()
    network = load_network(source)
    return Described(
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
    """How light falls in the images that a saved network learnt from, where its file says so."""
    given = read_notes(path).get("light")
    if given is None:
        return None
    names = [field.name for field in fields(Light)]
    if not isinstance(given, dict) or set(given) != set(names):
        raise ValueError(f"{path}: its note about light must name {', '.join(names)}, got {given!r}")
    for name in names:
        if not isinstance(given[name], int | float) or not abs(given[name]) <= 1e6:
            raise ValueError(f"{path}: light.{name} must be a number, got {given[name]!r}")
    return Light(**given)


def card_markdown(model: Described) -> str:
    """The card as Markdown."""
    card, description = model.card, model.description
    height, width = description["image_size"]
    colour = {1: "grey", 3: "colour"}.get(description["in_channels"], f"{description['in_channels']} channels")
    light = (
        f"{model.light}" if model.light is not None and model.light.is_common else "as in the data, no common ground"
    )
    rows = {
        "tells apart": ", ".join(model.classes),
        "takes": f"{height} x {width} pixels, {colour}, values from 0 to 1, {light}",
        "network": f"`{description['network']}`, group `{description['group']}`, {model.parameters:,} parameters",
        "right answers, as they are": f"{card.upright:.2%} of {card.test_images:,} test images",
        "right answers, turned": f"{card.turned:.2%} of {card.turned_images:,} test images on average over "
        f"{card.angles} angles, {card.worst:.2%} at worst",
        "change of the output": _audited(model),
        "trained with": f"`{card.command}`, {card.train_images:,} images, {card.training_seconds / 60:.0f} minutes",
        "kept": f"epoch {card.chosen_epoch} of {card.epochs}, {card.validation:.2%} of {card.validation_images:,} "
        "validation images right",
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


def _audited(model: Described) -> str:
    card = model.card
    told = f"{card.exact_error:.1g} under what only moves pixels"
    if card.turn_error:
        told += f", {card.turn_error:.2g} at worst under other turns (interpolation alone: {card.turn_floor:.2g})"
    return f"{told}, {card.control_error:.2g} under a {card.control}; `unpose audit`, {card.audited} test images"
