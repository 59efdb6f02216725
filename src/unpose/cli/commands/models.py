"""``unpose models``: the trained networks that come with the package."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from unpose.train import Described


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
def command(name: str | None, as_json: bool) -> None:
    """List the trained networks that come along, or show the card of one.

    Wherever a command takes the file of a network, it takes one of these names too.

    \b
    Examples:
      unpose models                            a table: what they tell apart, how often they are right
      unpose models mnist-c8                   its card: input, data, training, measurements, limits
      unpose predict --model mnist-c8 digits/
      unpose evaluate mnist-c8 mnist
      unpose audit mnist-c8
    """
    from unpose.train import card_markdown, describe, pretrained_file, pretrained_names

    try:
        models = [describe(pretrained_file(each)) for each in ([name] if name else pretrained_names())]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="NAME") from error
    if as_json:
        told = [_numbers(model) for model in models]
        click.echo(json.dumps(told[0] if name else told, indent=2))
    elif name:
        click.echo(card_markdown(models[0]), nl=False)
    else:
        click.echo(_table(models))


def _table(models: "list[Described]") -> str:
    rows = [("name", "group", "parameters", "as is", "turned", "size", "what")]
    for model in models:
        card = model.card
        rows.append(
            (model.name, model.description["group"], f"{model.parameters:,}", f"{card.upright:.2%}",
             f"{card.turned:.2%}", f"{model.size / 1000:.0f} kB", card.title)
        )  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    numbers = (2, 3, 4, 5)
    return "\n".join(
        "  ".join(
            cell.rjust(w) if i in numbers else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _numbers(model: "Described") -> dict[str, Any]:
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
