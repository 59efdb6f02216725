"""Moves of files that can be undone: every move is written to a journal before it is made. Nothing is deleted.

A journal may come from a stranger. Undoing moves files only between the folders that the user names, follows no link
below them, and only files whose content is the one that was moved.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unpose.runs.settings import RunError

if TYPE_CHECKING:
    from unpose.files import Folder

__all__ = ["move_files", "undo_moves"]

_LARGEST_JOURNAL = 2**30


def move_files(files: Sequence[tuple[Path, Path]], journal: Path) -> list[tuple[Path, str]]:
    """Move each file to its place, writing the move and the checksum of the file to a journal of JSON lines first.

    Paths must be absolute. If a name is taken, a number is added. Returns the files that could not be moved, and why.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     folder = Path(name).resolve()
    ...     _ = (folder / "a.txt").write_text("a")
    ...     failed = move_files([(folder / "a.txt", folder / "there" / "a.txt")], folder / "journal.jsonl")
    ...     moved = (folder / "there" / "a.txt").exists()
    ...     undone = undo_moves(folder / "journal.jsonl", [folder], folder / "there")
    ...     failed, moved, len(undone[0]), (folder / "a.txt").read_text()
    ([], True, 1, 'a')
    """
    from unpose.files import Folder, FolderError

    failed = []
    with Folder(journal.parent, create=True) as place:
        for source, wanted in files:
            try:
                with Folder(source.parent) as start:
                    line = {"from": str(source), "sha256": _checksum(start, source.name)}
                    with Folder(wanted.parent, create=True) as end:
                        name = _free_name(end, wanted.name)
                        place.append(journal.name, json.dumps(line | {"to": str(wanted.with_name(name))}) + "\n")
                        with place.open(journal.name) as stream, suppress(OSError):  # Windows syncs no reader
                            os.fsync(stream.fileno())
                        _move(start, source.name, end, name)
            except (OSError, FolderError) as error:
                failed.append((source, getattr(error, "strerror", None) or str(error)))
    return failed


def undo_moves(journal: Path, sources: Sequence[Path], moved_to: Path) -> tuple[list[Path], list[tuple[Path, str]]]:
    """Move the files of a journal back, the last one first; the journal keeps what could not be moved back.

    Nothing is moved, and a :class:`RunError` says why, unless every line of the journal leads from ``moved_to`` into
    one of the folders ``sources`` and names a plain file that has not changed since it was moved.

    Returns the files that are back at their place, and those that are not, with the reason.
    """
    from unpose.files import Folder, FolderError

    restored, failed, left = [], [], []
    with ExitStack() as opened:
        place = opened.enter_context(Folder(journal.parent))
        spare = opened.enter_context(Folder(os.path.realpath(moved_to)))
        folders = [opened.enter_context(Folder(os.path.realpath(each))) for each in sources]
        moves = [_checked(line, journal, folders, spare) for line in _lines(place, journal.name)]
        for move in reversed(moves):
            if not spare.has(move.moved):
                if move.folder.has(move.name):
                    continue  # never moved, or moved back already
                failed.append((move.source, f"is no longer at {spare.path / move.moved}"))
            elif move.folder.has(move.name):
                failed.append((move.source, f"exists again; the moved file stays at {spare.path / move.moved}"))
            else:
                try:
                    _move(spare, move.moved, move.folder, move.name)
                    restored.append(move.source)
                    continue
                except (OSError, FolderError) as error:
                    failed.append((move.source, getattr(error, "strerror", None) or str(error)))
            left.append(move.line)
        place.write_text(journal.name, "".join(json.dumps(line) + "\n" for line in reversed(left)))
    return restored, failed


@dataclass(frozen=True)
class _Move:
    """A move of a journal that may be undone."""

    line: dict[str, Any]
    source: Path  # where the file was
    folder: "Folder"  # one of those that the user names
    name: str  # where the file was, relative to that folder
    moved: str  # where it is, relative to the folder of moved files


def _checked(line: dict[str, Any], journal: Path, folders: "list[Folder]", spare: "Folder") -> _Move:
    """A line of a journal, or an error if it names anything that its own run has not moved."""
    from unpose.files import FolderError

    why = "Nothing was moved back. Give the folders of that run, or remove this line from the journal"
    if not all(isinstance(line.get(key), str) for key in ("from", "to", "sha256")):
        raise RunError(f"{journal} has a line without from, to and sha256, which this version writes. {why}")
    source, target = Path(line["from"]), Path(line["to"])
    moved = _inside(target, spare)
    found = [(folder, name) for folder in folders if (name := _inside(source, folder)) is not None]
    if moved is None or not found:
        where = str(spare.path) if moved is None else " or ".join(str(folder.path) for folder in folders)
        raise RunError(f"{journal} names {target if moved is None else source}, which is not inside {where}. {why}")
    try:
        if spare.has(moved) and _checksum(spare, moved) != line["sha256"]:
            raise RunError(f"{target} has not the content that was moved there. {why}")
        found[0][0].has(found[0][1])  # an error if a link is on the way
    except FolderError as error:
        raise RunError(f"{journal}: {error}. {why}") from error
    return _Move(line, source, *found[0], moved)


def _inside(path: Path, folder: "Folder") -> str | None:
    """The name of a path relative to a folder; None if the path is outside."""
    root = folder.path
    try:
        for shown in (path, Path(os.path.realpath(path.parent)) / path.name):
            if shown.is_absolute() and shown != root and shown.is_relative_to(root) and ".." not in shown.parts:
                return shown.relative_to(root).as_posix()
    except ValueError:  # a null byte
        pass
    return None


def _move(start: "Folder", name: str, end: "Folder", new_name: str) -> None:
    """Move a plain file, also onto another disk, where its time of change is kept."""
    try:
        start.move(name, end, new_name)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with start.open(name) as stream, end.write(new_name) as copy:
            shutil.copyfileobj(stream, copy)
            copy.flush()
            if os.utime in os.supports_fd:
                status = os.fstat(stream.fileno())
                os.utime(copy.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))
        start.remove(name)


def _checksum(folder: "Folder", name: str) -> str:
    digest = hashlib.sha256()
    with folder.open(name) as stream:
        while chunk := stream.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()


def _lines(place: "Folder", name: str) -> list[dict[str, Any]]:
    """The moves of a journal; a last line that was cut short belongs to a move that was never made."""
    found = []
    for text in place.read_text(name, _LARGEST_JOURNAL).splitlines():
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict):
            found.append(line)
    return found


def _free_name(folder: "Folder", name: str) -> str:
    path, number, free = Path(name), 2, name
    while folder.has(free):
        free, number = f"{path.stem} ({number}){path.suffix}", number + 1
    return free
