"""``unpose models``: the trained networks of the package."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from unpose.cli.shared.errors import parameter_errors
from unpose.cli.shared.options import json_option
from unpose.cli.shared.output import aligned

if TYPE_CHECKING:
    from unpose.train.cards import NetworkInfo


@click.command(
    epilog="""\b
    Examples:
      unpose models                            a table: what each network recognizes, and its accuracy
      unpose models mnist-c8                   one card: input, data, training, measurements, limits
      unpose predict --model mnist-c8 digits/  use one of them
    """
)
@click.argument("name", required=False)
@json_option
def command(name: str | None, as_json: bool) -> None:
    """List the trained networks of the package, or show the card of one.

    The command only prints. Wherever another command takes the file of a network, it also takes one of these names.
    """
    from unpose.train import pretrained_file, pretrained_names
    from unpose.train.cards import card_markdown, describe

    with parameter_errors("NAME"):
        models = [describe(pretrained_file(each)) for each in ([name] if name else pretrained_names())]
    if as_json:
        described = [_as_dictionary(model) for model in models]
        click.echo(json.dumps(described[0] if name else described, indent=2))
    elif name:
        click.echo(card_markdown(models[0]), nl=False)
    else:
        click.echo(_table(models))


def _table(models: "list[NetworkInfo]") -> str:
    rows = [("name", "group", "parameters", "as is", "rotated", "size", "what")]
    for model in models:
        card = model.card
        rows.append(
            (model.name, model.description["group"], f"{model.parameters:,}", f"{card.upright:.2%}",
             f"{card.turned:.2%}", f"{model.size / 1000:.0f} kB", card.title)
        )  # fmt: skip
    return aligned(rows, right=(2, 3, 4, 5))


def _as_dictionary(model: "NetworkInfo") -> dict[str, Any]:
    return {
        "name": model.name,
        "path": str(model.path),
        "network": model.description,
        "classes": list(model.classes),
        "parameters": model.parameters,
        "size": model.size,
        "sha256": model.sha256,
        "light": None if model.light is None else asdict(model.light),
        "card": asdict(model.card),
    }
