"""``unpose register``: the rigid motion between two point clouds."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from unpose.cli.shared.options import json_option
from unpose.cli.shared.output import check_output, finite, write_lines

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unpose.points import Registration


@click.command(
    epilog="""\b
    Examples:
      unpose register scan1.ply scan2.ply           the motion that brings scan1 onto scan2
      unpose register a.xyz b.xyz --mirrors         mirror images are allowed
      unpose register a.npy b.npy -o moved.xyz      write the moved points of a
      unpose register a.ply b.ply --json            for scripts
    """
)
@click.argument("a", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("b", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--mirrors", is_flag=True, help="Try motions with a mirror, too.")
@click.option("--seed", default=0, show_default=True, help="Seed of the samples that are drawn from large clouds.")
@click.option(
    "-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the moved points of A as text."
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@json_option
def command(a: Path, b: Path, mirrors: bool, seed: int, out: Path | None, force: bool, as_json: bool) -> None:
    """Find the rigid motion that brings the point cloud A onto the point cloud B.

    A and B are PLY files, text files with one point in a line, or .npy arrays (n, 2) or (n, 3). Nobody needs to say
    which points correspond, and the clouds may be at any angle to each other. They should share half of their points or
    more, and be in the same unit.

    \b
    Exit status:
      0  found, and nothing speaks against it
      1  found, but doubtful; the output says why
      2  the call is wrong, or a file cannot be read
    """
    from unpose.files import read_points
    from unpose.points import register

    if out is not None:
        check_output(out, force)
    clouds = read_points(a), read_points(b)
    found = register(*clouds, mirrors=mirrors, random_state=seed)
    if out is not None:
        moved = clouds[0] @ found.pose[:-1, :-1].T + found.pose[:-1, -1]
        write_lines(out, (" ".join(f"{value:.9g}" for value in point) + "\n" for point in moved))
    degrees, mirrored = _angle(found.pose[:-1, :-1])
    if as_json:
        click.echo(json.dumps(_as_dictionary(found, degrees, mirrored), indent=2))
    else:
        click.echo(_describe(found, degrees, mirrored))
    if not found.reliable:
        raise click.exceptions.Exit(1)


def _angle(linear: "NDArray") -> tuple[float, bool]:
    """The angle of a motion in degrees, less a mirror, and whether it has one."""
    import numpy as np

    mirrored = bool(np.linalg.det(linear) < 0)
    if mirrored:
        linear = linear * np.array([-1.0] + [1.0] * (len(linear) - 1))
    chord = float(np.linalg.norm(linear - np.eye(len(linear)))) / math.sqrt(8)
    return math.degrees(2 * math.asin(min(1.0, chord))), mirrored


def _describe(found: "Registration", degrees: float, mirrored: bool) -> str:
    rows = "\n".join("  ".join(f"{value:12.6f}" for value in row) for row in found.pose)
    lines = [
        "b_from_a, the motion that brings A onto B:",
        rows,
        f"rotation {degrees:.3f} degrees{' with a mirror' if mirrored else ''}; residual {found.residual:.4g}; "
        f"{found.overlap:.0%} of B explained; margin {found.margin:.2f}",
    ]
    return "\n".join([*lines, *(f"doubtful: {note}" for note in found.notes)])


def _as_dictionary(found: "Registration", degrees: float, mirrored: bool) -> dict[str, object]:
    return {
        "b_from_a": found.pose.tolist(),
        "degrees": degrees,
        "mirrored": mirrored,
        "residual": found.residual,
        "overlap": found.overlap,
        "margin": finite(found.margin),
        "alternatives": found.alternatives.tolist(),
        "reliable": found.reliable,
        "notes": list(found.notes),
    }
