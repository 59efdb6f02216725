"""``unpose predict``: what a run or a network says about new images."""

from pathlib import Path

import click

from unpose.cli.shared.networks import ModelFile
from unpose.cli.shared.output import check_output


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("given", nargs=-1, required=True, metavar="[RUN] IMAGES", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--model", type=ModelFile(),
    help="A network instead of a run: a file that `unpose train` made, or the name of one that `unpose models` lists.",
)  # fmt: skip
@click.option(
    "--match-light", is_flag=True,
    help="Bring ground and contrast of every image to those that the network learnt from.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="JSON instead of CSV.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1, ...")
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write here instead of stdout.")
@click.option("--force", is_flag=True, help="Replace the file that is there.")
def command(
    given: tuple[Path, ...], model: Path | None, match_light: bool, as_json: bool, device: str, out: Path | None,
    force: bool,
) -> None:  # fmt: skip
    """Say for every image which cluster of a run it belongs to, or which class a network takes it for.

    RUN is a folder that `unpose cluster` made: every image is brought onto every mean, over all poses, and belongs to
    the nearest. The table holds its cluster, its angle, shift (in pixels of the run's canvas), scale and handedness,
    and how far the nearest and the second mean are. With --model there is no RUN, and the table holds the probability
    of each class.

    These distances, by which the nearest is chosen, are those of the search: at the best pose, blind to light where the
    run was. The distance in the run's own labels.csv is another: the RMS difference of pixels.

    A network sees every image at the size it learnt: scaled until it just fits, its aspect kept, the rest filled with
    the median of its border. A network for grey images sees the brightness of coloured ones. Images that are dark on
    light where the network learnt light on dark (a pen on paper, say) are noticed; --match-light turns them round.

    \b
    Examples:
      unpose predict run new/ -o new.csv
      unpose predict run new/ --json | jq '.images[].cluster'
      unpose predict --model mnist-c8 digits/            a network that comes along
      unpose predict --model mnist-c8 scans/ --match-light
      unpose predict --model runs/photos-c8-seed0/model.safetensors new/ -o new.csv
    """
    if match_light and model is None:
        raise click.UsageError("--match-light goes with --model; runs do not look at light")
    if len(given) != (2 if model is None else 1):
        wanted = "a run and images: unpose predict RUN IMAGES" if model is None else "images alone besides --model"
        raise click.UsageError(f"give {wanted} ({len(given)} given)")
    if out is not None:
        check_output(out, force)
    if model is not None:
        from unpose.cli.commands.predict_network import predict_network

        predict_network(model, given[0], out, as_json, device, match_light)
    else:
        from unpose.cli.commands.predict_run import predict_run

        predict_run(given[0], given[1], out, as_json, device)
