"""``unpose discover``: which symmetries images obey, and how far."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from unpose.cli.shared.errors import UserError
from unpose.cli.shared.inputs import ImagesPath
from unpose.cli.shared.options import json_option
from unpose.cli.shared.output import check_output, list_unread, write_output
from unpose.cli.shared.progress import progress

if TYPE_CHECKING:
    from unpose.data import ImageSet
    from unpose.discover import Discovery, Finding
    from unpose.report.symmetry_page import SymmetryFamily, SymmetryResults


@click.command(
    epilog="""\b
    Examples:
      unpose discover plankton/                      one folder for each class, if there are classes
      unpose discover cells/ -o symmetries.html      a page with curves and the images that say no
      unpose discover cells/ --no-labels --json      for scripts, from the images alone
    """
)
@click.argument("source", type=ImagesPath())
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write a page, one HTML file.")
@click.option(
    "--labels/--no-labels", default=True,
    help="Whether folder names, or the array y of an .npz file, are classes; they are by default.",
)  # fmt: skip
@click.option("--try", "families", multiple=True, metavar="NAME",
              help="Try only this transformation; may be given several times: turns, mirror, half turn, quarter turn, "
                   "scale, shift, stretch, shear, perspective, brightness.")  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Seed of the images that are drawn.")
@click.option("--force", is_flag=True, help="Replace an existing page.")
@json_option
def command(
    source: Path, out: Path | None, labels: bool, families: tuple[str, ...], seed: int, force: bool, as_json: bool
) -> None:
    """Find out which transformations images obey, and how far.

    SOURCE is a folder of images, a stack or an array file, or FILE::NAME for one of several arrays. For turns, mirrors,
    changes of size and others, a classifier tries to tell moved images from real ones. If images lie in one folder for
    each class, or in an .npz file with the arrays x and y, the command also measures whether moved copies mislead a
    nearest-neighbour classifier, as a 6 turned by 180 degrees does. It takes about a minute.

    \b
    Verdicts:
      holds           moved images are like the others
      holds up to     ... up to this strength
      does not hold   moved images do not occur, or are taken for another class
      cannot tell     too few images, or moved images occur less often and there are no labels
    """
    from unpose.data import labels_in_file, read_folder
    from unpose.discover import discover

    if out is not None:
        if out.suffix.lower() != ".html":
            raise UserError(f"the page is an HTML file; give a name that ends with .html, got {out}")
        check_output(out, force)
    with progress(quiet=as_json) as report:
        images = read_folder(source, progress=report)
        if not labels:
            images = replace(images, labels=None)
        elif images.labels is None:
            images = replace(images, labels=labels_in_file(source, images.frames))
        found = discover(images.images, images.labels, families=families or None, random_state=seed, progress=report)
    list_unread(images.rejected, 5)
    if out is not None:
        from unpose.report.symmetry_page import render_symmetry

        words = ["unpose", "discover", str(source), "-o", str(out)] + [
            word for name in families for word in ("--try", name)
        ]
        words += ([] if labels else ["--no-labels"]) + (["--seed", str(seed)] if seed else [])
        write_output(out, render_symmetry(_page(source, images, found, shlex.join(words), seed)).encode())
    if as_json:
        not_read = [{"path": name, "reason": reason} for name, reason in images.rejected]
        click.echo(json.dumps({"source": str(source)} | found.to_dict() | {"not_read": not_read}, indent=2))
        return
    click.echo(str(found))
    for note in images.notes:
        click.echo(f"{note}.")
    if labels and images.labels is None:
        click.echo(
            "There are no labels: put images into one folder for each class, or into an .npz file as x and y, to let "
            "classes decide, too."
        )
    if out is not None:
        click.echo(f"The page is {out}.")


def _page(source: Path, images: "ImageSet", found: "Discovery", command: str, seed: int) -> "SymmetryResults":
    import unpose
    from unpose.report import Reproduction
    from unpose.report.symmetry_page import SymmetryResults

    safe = [each.family for each in found.findings if each.verdict == "holds"]
    return SymmetryResults(
        str(source),
        found.n_images,
        found.labelled,
        f"Safe: {', '.join(safe)}." if safe else "No symmetry holds fully.",
        found.advice,
        [_family(each, images) for each in found.findings],
        Reproduction(command, seed=seed, version=unpose.__version__),
    )


def _family(finding: "Finding", images: "ImageSet") -> "SymmetryFamily":
    from unpose.discover import moved_example
    from unpose.report.symmetry_page import SymmetryFamily

    pictures = []
    for objection in finding.objections[:4]:
        pair, named = moved_example(images.images, finding.family, objection), ""
        if objection.resembles is not None and images.labels is not None:
            named = f"{images.labels[objection.image]}, like a moved {images.labels[objection.resembles]}"
        pictures.append((pair, named or images.names[objection.image]))
    misled = bool(finding.objections) and finding.objections[0].resembles is not None
    return SymmetryFamily(
        finding.family, finding.answer, finding.verdict, finding.why,
        [finding.written(reading.strength) for reading in finding.readings],
        [reading.plausible for reading in finding.readings],
        [reading.told_apart for reading in finding.readings],
        [] if not finding.readings or finding.readings[0].gain is None
        else [f"{reading.gain:+.3f} ± {reading.gain_error:.3f}" for reading in finding.readings],
        "Left an image, right the moved image of another class that is nearest to it." if misled
        else "Left an image, right the same moved: no real image looks like that.",
        pictures,
    )  # fmt: skip
