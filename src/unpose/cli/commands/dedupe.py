"""``unpose dedupe``: find photographs that are the same, whatever was done to the copies."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unpose.cli.shared.errors import UserError
from unpose.cli.shared.inputs import ImagesPath
from unpose.cli.shared.options import MOST_JOBS, FiniteRange, json_option
from unpose.cli.shared.output import check_results_folder, counted, writing
from unpose.cli.shared.progress import progress
from unpose.runs.folder import folder_lock
from unpose.runs.tables import csv_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unpose.files import Folder
    from unpose.report.duplicates import ShownSet
    from unpose.runs.duplicates import Duplicates, DuplicateSet, Photograph, Relation

_SHOWN_SETS = 300
"""Sets on the page, which holds their pictures; the tables have all of them."""
_PAGE_SIDE = 128
"""Photographs are read at about twice this size for the page."""


@click.command(
    epilog="""\b
    Examples:
      unpose dedupe photos/                                  look at duplicates/report.html; nothing is moved
      unpose dedupe photos/ phone/ -o found --move-to spare          move the copies to spare/
      unpose dedupe photos/ phone/ -o found --move-to spare --undo   move them back
    """
)
@click.argument("photos", nargs=-1, type=ImagesPath())
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("duplicates"), show_default=True,
    help="Folder for the results and for what later runs need not do again.",
)  # fmt: skip
@click.option(
    "--threshold", type=FiniteRange(0.5, 1), default=0.95, show_default=True, metavar="P",
    help="Least probability that two photographs are the same.",
)  # fmt: skip
@click.option(
    "--move-to", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
    help="Move all but the one to keep of every set into this folder. Nothing is deleted or replaced.",
)  # fmt: skip
@click.option(
    "--undo",
    is_flag=True,
    help="Move back what --move-to moved, by the journal in --out. Give "
    "PHOTOS and --move-to as before: nothing outside of them is touched.",
)
@click.option(
    "--jobs", type=click.IntRange(1, MOST_JOBS), metavar="N", help="Threads that read files; all cores by default."
)
@json_option
def command(
    photos: tuple[Path, ...], out: Path, threshold: float, move_to: Path | None, undo: bool, jobs: int | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Find photographs that are the same though turned by any angle, mirrored, scaled, slightly cropped, recompressed,
    brightened, framed or stamped.

    PHOTOS are files and folders. Every photograph gets a signature that turns and mirrors do not change; pairs with
    similar signatures are aligned and compared pixel against pixel, and only those that agree are called duplicates.
    Sources are only read, unless --move-to is given.

    A run that was stopped continues when the command is given again. A later run reads only new and changed files.
    Symbolic links are left alone; two names of one file (hard links) are one photograph. A file with several images (a
    stack, an animation) is compared by its bytes only.

    \b
    The folder of results contains:
      report.html       every pair as found, aligned and subtracted; which one to keep, and why
      duplicates.csv    a row for each photograph of a set: keep, angle, scale, mirrored, overlap, probability
      duplicates.json   the same with the poses as matrices
      left-alone.csv    files that could not be read, links and second names
      journal.jsonl     what --move-to moved
      index/, state.json   what later runs need not do again
    """
    if undo:
        if not photos or move_to is None:
            raise UserError(
                "--undo moves files only between folders that you name: give the PHOTOS and --move-to of the run, too"
            )
        _undo(photos, move_to, out, as_json)
        return
    if not photos:
        raise UserError("give the photographs to compare: unpose dedupe photos/")
    from unpose.runs.duplicates import DuplicateSearch, holds_search
    from unpose.runs.moves import move_files

    check_results_folder(out, "dedupe", holds_search, photos)
    with folder_lock(out) as folder, progress(quiet=as_json) as report:
        found = DuplicateSearch(out, jobs).run(
            photos, threshold=threshold, exclude=[move_to] if move_to is not None else [], progress=report
        )
        with writing(out):
            _write_results(folder, found)
        failed, moves = [], []
        if move_to is not None:
            moves = [(other.path, move_to.absolute() / _inside(other)) for each in found.sets for other in each.others]
            failed = move_files(moves, out.absolute() / "journal.jsonl")
    summary: dict[str, Any] = {
        "photographs": found.photographs, "read": found.read, "sets": len(found.sets),
        "copies": sum(len(each.others) for each in found.sets), "rejected": len(found.rejected),
        "links": len(found.links), "second_names": len(found.names), "page": str(out / "report.html"),
    }  # fmt: skip
    if move_to is not None:
        summary |= {"moved": len(moves) - len(failed), "not_moved": [[str(path), reason] for path, reason in failed]}
    if as_json:
        click.echo(json.dumps(summary, indent=2))
        return
    for sentence in _sentences(found):
        click.echo(sentence)
    click.echo(f"{counted(found.read, 'photograph')} {'was' if found.read == 1 else 'were'} read in this run.")
    if move_to is not None:
        folders = dict.fromkeys(str(each if each.is_dir() else each.parent) for each in photos)
        again = shlex.join(["unpose", "dedupe", *folders, "-o", str(out), "--move-to", str(move_to), "--undo"])
        back = f"; `{again}` moves them back" if summary["moved"] else ""
        click.echo(f"{counted(summary['moved'], 'file')} moved to {move_to}{back}.")
    for path, reason in failed:
        click.echo(f"not moved: {path} {reason}", err=True)
    click.echo(f"Look at {out / 'report.html'}.")


def _inside(photograph: "Photograph") -> Path:
    """Where a photograph goes below --move-to: its name relative to the input, without steps upwards."""
    parts = [part for part in Path(photograph.name).parts[:-1] if part not in ("..", "/")]
    return Path(*parts, photograph.path.name)


def _undo(photos: tuple[Path, ...], move_to: Path, out: Path, as_json: bool) -> None:
    from unpose.runs.moves import undo_moves

    if not (out / "journal.jsonl").exists():
        raise UserError(f"{out} has no journal of moves; give the folder of the run with -o")
    if not move_to.is_dir():
        raise UserError(f"--move-to {move_to} does not exist; give the folder that the files were moved to")
    folders = [each if each.is_dir() else each.parent for each in photos]
    with folder_lock(out):
        restored, failed = undo_moves(out.absolute() / "journal.jsonl", folders, move_to)
    if as_json:
        click.echo(json.dumps({"restored": len(restored), "failed": [[str(path), why] for path, why in failed]}))
        return
    click.echo(f"{counted(len(restored), 'file')} moved back.")
    for path, reason in failed:
        click.echo(f"not moved back: {path} {reason}", err=True)


def _sentences(found: "Duplicates") -> list[str]:
    """What was found, in words; the same for the same photographs, however often the search was stopped."""
    copies = sum(len(each.others) for each in found.sets)
    same = sum(relation.exact for each in found.sets for relation in each.relations)
    lines = [
        f"{counted(found.photographs, 'photograph')} compared.",
        f"{counted(len(found.sets), 'set')} of duplicates with {counted(copies, 'photograph')} more than needed; "
        f"{counted(same, 'file')} of the same bytes." if found.sets else "No duplicates were found.",
    ]  # fmt: skip
    if found.names:
        lines.append(f"{counted(len(found.names), 'second name')} of the same file (hard links), counted once.")
    if found.links:
        lines.append(f"{counted(len(found.links), 'symbolic link')} left alone.")
    if found.rejected:
        lines.append(f"{counted(len(found.rejected), 'file')} could not be read; left-alone.csv says why.")
    return lines


def _left_alone(found: "Duplicates") -> list[tuple[str, str]]:
    return [
        *found.rejected,
        *((name, "is a symbolic link") for name in found.links),
        *((name, f"is another name of {first}") for name, first in found.names),
    ]


def _write_results(folder: "Folder", found: "Duplicates") -> None:
    """Write the tables and the page."""
    import unpose
    from unpose.report.duplicates import render_duplicates

    rows = [row for number, each in enumerate(found.sets) for row in _rows(number + 1, each)]
    columns = ["set", "path", "keep", "why", "compared_with", "same_bytes", "probability", "angle", "scale", "mirrored",
               "overlap", "agreement", "width", "height", "bytes"]  # fmt: skip
    folder.write_text("duplicates.csv", csv_text(columns, rows))
    folder.write_text("duplicates.json", json.dumps([_as_json(each) for each in found.sets], indent=1))
    folder.write_text("left-alone.csv", csv_text(["path", "reason"], _left_alone(found)))
    shown = [_shown(each) for each in found.sets[:_SHOWN_SETS]]
    sentences = _sentences(found)
    if len(found.sets) > len(shown):
        sentences.append(f"The first {len(shown)} sets are shown; duplicates.csv has all of them.")
    page = render_duplicates(shown, sentences, _left_alone(found)[:1000], unpose.__version__)
    folder.write_text("report.html", page)


def _relation_of(each: "DuplicateSet", photograph: "Photograph") -> "tuple[Relation, Photograph, NDArray]":
    """The pair that put a photograph into its set, the other of the pair, and the pose that brings the first onto it.

    The photograph to keep is preferred, then what is most probable.
    """
    import numpy as np

    mine = [relation for relation in each.relations if photograph in (relation.one, relation.two)]
    best = max(mine, key=lambda relation: (each.keep in (relation.one, relation.two), relation.probability))
    if best.two == photograph:
        return best, best.one, best.pose
    return best, best.two, np.linalg.inv(best.pose)


def _rows(number: int, each: "DuplicateSet") -> list[dict[str, Any]]:
    """The rows of a set in the table, that of the photograph to keep first."""
    from unpose.groups import pose_parts

    def about(photograph: "Photograph") -> dict[str, Any]:
        return {
            "set": number, "path": photograph.name, "width": photograph.width, "height": photograph.height,
            "bytes": photograph.size,
        }  # fmt: skip

    rows = [{**about(each.keep), "keep": True, "why": each.reason}]
    for other in each.others:
        relation, beside, pose = _relation_of(each, other)
        parts, seen = pose_parts(pose), relation.comparison
        rows.append({
            **about(other), "keep": False, "compared_with": beside.name, "same_bytes": relation.exact,
            "probability": relation.probability, "angle": parts["angle"], "scale": parts["scale"],
            "mirrored": parts["mirrored"], "overlap": 1.0 if seen is None else seen.overlap,
            "agreement": 1.0 if seen is None else seen.agreement,
        })  # fmt: skip
    return rows


def _as_json(each: "DuplicateSet") -> dict[str, Any]:
    others = []
    for other in each.others:
        relation, beside, pose = _relation_of(each, other)
        seen = relation.comparison
        others.append({
            "path": str(other.path), "compared_with": str(beside.path), "same_bytes": relation.exact,
            "probability": relation.probability, "pose": pose.tolist(),
            "comparison": None if seen is None else vars(seen),
        })  # fmt: skip
    return {"keep": str(each.keep.path), "why": each.reason, "others": others}


def _shown(each: "DuplicateSet") -> "ShownSet":
    """The pictures and facts of a set for the page."""
    from unpose.report.duplicates import ShownPair, ShownSet

    pairs = []
    for other in each.others:
        relation, beside, pose = _relation_of(each, other)
        pairs.append(ShownPair(other.name, beside.name, _facts(relation, other, pose), _pictures(beside, other, pose)))
    return ShownSet(each.keep.name, each.reason, pairs)


def _facts(relation: "Relation", other: "Photograph", pose: "NDArray") -> list[str]:
    from unpose.groups import pose_parts

    size = f"{other.width} x {other.height} pixels, {other.size:,} bytes"
    if relation.exact or relation.comparison is None:
        return ["the same bytes", size]
    parts = pose_parts(pose)
    facts = [f"probability {relation.probability:.3f}"]
    if angle := round(parts["angle"], 1) % 360:
        facts.append(f"turned by {angle if angle <= 180 else angle - 360:.1f} degrees")
    if parts["mirrored"]:
        facts.append("mirrored")
    facts += [f"scale {parts['scale']:.3g}", f"overlap {relation.comparison.overlap:.0%}",
              f"{relation.comparison.agreement:.0%} of the tiles agree", size]  # fmt: skip
    return facts


def _pictures(beside: "Photograph", other: "Photograph", pose: "NDArray") -> "list[tuple[str, NDArray | None]]":
    """Both photographs as found, the copy brought onto the other, and their difference."""
    import numpy as np
    import torch

    from unpose.images import downscale, warp

    one, two = _read(beside), _read(other)
    captions = ("the one compared with", "as found", "aligned", "difference")
    if one is None or two is None:
        return list(zip(captions, (one, two, None, None), strict=True))
    to_one = max(one.shape[:2]) / max(beside.height, beside.width)
    to_two = max(two.shape[:2]) / max(other.height, other.width)
    small = np.diag([to_one, to_one, 1]) @ pose @ np.diag([1 / to_two, 1 / to_two, 1])
    scale = float(abs(np.linalg.det(small[:2, :2]))) ** 0.5
    moving = torch.from_numpy(np.ascontiguousarray(two)).movedim(-1, 0)[None]  # (1, 3, h, w)
    if scale < 1:
        moving = downscale(moving, 1 / scale)
        small = small @ np.diag([1 / scale, 1 / scale, 1])
    shape = (one.shape[0], one.shape[1])
    aligned = warp(moving, torch.from_numpy(small).float(), shape)[0].movedim(0, -1).numpy().clip(0, 1)
    inside = warp(torch.ones_like(moving[:, :1]), torch.from_numpy(small).float(), shape)[0, 0].numpy() > 0.99
    difference = np.zeros_like(one)
    if inside.any():
        # The mean and the contrast of the copy are matched first, so that a brighter copy shows no difference.
        ours, theirs = one[inside], aligned[inside]
        matched = (theirs - theirs.mean(0)) * (ours.std(0) / np.maximum(theirs.std(0), 1e-3)) + ours.mean(0)
        difference[inside] = np.abs(ours - matched)
    return list(zip(captions, (one, two, aligned, difference.clip(0, 1)), strict=True))


def _read(photograph: "Photograph") -> "NDArray | None":
    """A photograph in colour, at a size for the page: (h, w, 3), or None if it can no longer be read."""
    import numpy as np

    from unpose.files import UnreadableError
    from unpose.files.formats import decoder_limits, read_frames
    from unpose.images import onto_canvas

    try:
        with decoder_limits():
            frame = next(iter(read_frames(photograph.path, _PAGE_SIDE)))[1]
    except (UnreadableError, StopIteration):
        return None
    if isinstance(frame, UnreadableError):
        return None
    frame = np.repeat(frame[..., None], 3, axis=-1) if frame.ndim == 2 else frame
    factor = min(1.0, 2 * _PAGE_SIDE / max(frame.shape[:2]))
    shape = (max(2, round(frame.shape[0] * factor)), max(2, round(frame.shape[1] * factor)))
    return np.asarray(onto_canvas(frame, shape), dtype=np.float32).clip(0, 1)
