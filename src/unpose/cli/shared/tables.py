"""Tables for people and spreadsheets: what a name contains is never run, and a pose is told in parts."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unpose.cli.shared.output import is_stream, write_output

if TYPE_CHECKING:
    from numpy.typing import NDArray


def as_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """CSV with a header; text that begins like a formula gets an apostrophe, as spreadsheets themselves write it."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in columns])
    return stream.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return str(value)


def pose_parts(pose: "NDArray") -> dict[str, Any]:
    """A pose (3, 3) in parts: a mirror first (x to -x), then a turn in degrees, a scale, a shift in pixels.

    Shear and tilt, where the group has them, are not among the parts; the matrices are in model.safetensors.
    """
    import math

    (a, c, x), (b, d, y) = (pose[:2] / pose[2, 2]).tolist()
    area = a * d - b * c
    if area < 0:
        a, b = -a, -b
    return {
        "angle": math.degrees(math.atan2(c - b, a + d)), "shift_x": x, "shift_y": y, "scale": math.sqrt(abs(area)),
        "mirrored": area < 0,
    }  # fmt: skip


def counted(count: int, what: str) -> str:
    """A number of things in words: 1 image, 2 images."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def deliver(text: str, out: Path | None, count: int, rejected: Sequence[tuple[str, str]]) -> None:
    """A table to stdout or to a file, and what could not be read to stderr."""
    if out is None:
        click.echo(text, nl=False)
    else:
        write_output(out, text.encode())
        click.echo(f"{counted(count, 'image')}, in {out}.", err=is_stream(out))
    for name, reason in rejected:
        click.echo(f"not read: {name} {reason}", err=True)
