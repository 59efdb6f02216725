"""Moves of files that can be undone: every move is written to a journal before it is made. Nothing is deleted."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

__all__ = ["move_files", "undo_moves"]


def move_files(files: Sequence[tuple[Path, Path]], journal: Path) -> list[tuple[Path, str]]:
    """Move each file to its place, writing the move to a journal of JSON lines first.

    If a name is taken, a number is added. Returns the files that could not be moved, and why.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     folder = Path(name)
    ...     _ = (folder / "a.txt").write_text("a")
    ...     failed = move_files([(folder / "a.txt", folder / "there" / "a.txt")], folder / "journal.jsonl")
    ...     moved = (folder / "there" / "a.txt").exists()
    ...     undone = undo_moves(folder / "journal.jsonl")
    ...     failed, moved, len(undone[0]), (folder / "a.txt").read_text()
    ([], True, 1, 'a')
    """
    failed = []
    journal.parent.mkdir(parents=True, exist_ok=True)
    with journal.open("a", encoding="utf-8") as stream:
        for source, wanted in files:
            target = _free_name(wanted)
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                stream.write(json.dumps({"from": str(source), "to": str(target)}) + "\n")
                stream.flush()
                os.fsync(stream.fileno())
                shutil.move(source, target)
            except OSError as error:
                failed.append((source, error.strerror or str(error)))
    return failed


def undo_moves(journal: Path) -> tuple[list[Path], list[tuple[Path, str]]]:
    """Move the files of a journal back, the last one first; the journal keeps what could not be moved back.

    Returns the files that are back at their place, and those that are not, with the reason.
    """
    from unpose.files import write_text

    restored, failed, left = [], [], []
    for line in reversed(_lines(journal)):
        source, target = Path(line["from"]), Path(line["to"])
        if not os.path.lexists(target):
            if os.path.lexists(source):
                continue  # never moved, or moved back already
            failed.append((source, f"is no longer at {target}"))
        elif os.path.lexists(source):
            failed.append((source, f"exists again; the moved file stays at {target}"))
        else:
            try:
                source.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(target, source)
                restored.append(source)
                continue
            except OSError as error:
                failed.append((source, error.strerror or str(error)))
        left.append(line)
    if journal.exists():
        write_text(journal, "".join(json.dumps(line) + "\n" for line in reversed(left)))
    return restored, failed


def _lines(journal: Path) -> list[dict[str, str]]:
    """The moves of a journal; a last line that was cut short belongs to a move that was never made."""
    found = []
    for text in journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("from"), str) and isinstance(line.get("to"), str):
            found.append(line)
    return found


def _free_name(path: Path) -> Path:
    if not os.path.lexists(path):
        return path
    number = 2
    while os.path.lexists(other := path.with_name(f"{path.stem} ({number}){path.suffix}")):
        number += 1
    return other
