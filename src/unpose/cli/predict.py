"""``unpose predict``: what a run or a network says about new images."""

from pathlib import Path

import click


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("given", nargs=-1, required=True, metavar="[RUN] IMAGES", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--model", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A network that `unpose train` made, instead of a run.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="JSON instead of CSV.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1, ...")
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write here instead of stdout.")
def command(given: tuple[Path, ...], model: Path | None, as_json: bool, device: str, out: Path | None) -> None:
    """Say for every image which cluster of a run it belongs to, or which class a network takes it for.

    RUN is a folder that `unpose cluster` made: every image is brought onto every mean, over all poses, and belongs to
    the nearest. The table holds its cluster, its angle, shift (in pixels of the run's canvas), scale and handedness,
    and how far the nearest and the second mean are. With --model there is no RUN, and the table holds the probability
    of each class.

    \b
    Examples:
      unpose predict run new/ -o new.csv
      unpose predict run new/ --json | jq '.images[].cluster'
      unpose predict --model runs/photos-c8-seed0/model.safetensors new/ -o new.csv
    """
    if len(given) != (2 if model is None else 1):
        wanted = "a run and images: unpose predict RUN IMAGES" if model is None else "images alone besides --model"
        raise click.UsageError(f"give {wanted} ({len(given)} given)")
    if model is not None:
        from unpose.cli.predict_network import predict_network

        predict_network(model, given[0], out, as_json, device)
    else:
        from unpose.cli.predict_run import predict_run

        predict_run(given[0], given[1], out, as_json, device)
