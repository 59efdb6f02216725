"""Which files of a folder could be images: a walk that always gives the same order and never leaves the folder."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from unpose.files.frames import Unreadable, printable, unreadable
from unpose.files.star import read_star
from unpose.files.zarr import MARKS

_NOT_IMAGES = {
    ".txt", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".md", ".rst", ".html",
    ".htm", ".pdf", ".log", ".py", ".ipynb", ".star", ".db", ".doc", ".docx", ".xls", ".xlsx", ".sh", ".bat", ".tex",
}  # fmt: skip
"""Endings of what people keep beside their images; these files are not opened."""

_SYSTEM = {"thumbs.db", "desktop.ini", "__macosx"}


@dataclass(frozen=True)
class Found:
    """A file that could hold images."""

    path: Path
    name: str  # relative to the folder, safe to print
    folder: str | None = None  # the first folder on the way to it
    wanted: dict[int, int] | None = None  # frames to read and the row each belongs to; all of them where None


@dataclass
class Listing:
    """What a walk met."""

    files: list[Found] = field(default_factory=list)
    ignored: int = 0  # hidden files and those that are plainly no images
    linked: int = 0  # links to folders, which are not followed
    rejected: list[tuple[str, str]] = field(default_factory=list)  # name, reason


def locate(path: Path) -> tuple[Path, str | None] | None:
    """An input ``FILE`` or ``FILE::NAME`` as the file and the array in it; None where there is no such file."""
    if path.exists():
        return path, None
    before, mark, key = str(path).rpartition("::")
    return (Path(before), key) if mark and Path(before).exists() else None


def list_images(path: Path) -> Listing:
    """The files to read for an input: a folder, one file, a Zarr folder, or a STAR file that lists stacks.

    Files of a folder come in the order of their names, byte by byte, folder after folder. Links to files count as
    files; links to folders, which could lead in circles or anywhere, are counted and not followed.
    """
    if path.suffix.lower() == ".star" and path.is_file():
        return _listed_in_star(path)
    if not path.is_dir() or _is_zarr(path):
        return Listing([Found(path, printable(path.name or str(path)))])
    listing = Listing()
    todo = [path]
    while todo:
        folder = todo.pop()
        try:
            with os.scandir(folder) as entries:
                inside = sorted(entries, key=lambda entry: os.fsencode(entry.name))
        except OSError as error:
            listing.rejected.append((_relative(path, folder), str(unreadable(error))))
            continue
        deeper = []
        for entry in inside:
            if entry.name.startswith(".") or entry.name.lower() in _SYSTEM:
                listing.ignored += 1
            elif entry.is_dir():
                if entry.is_symlink():
                    listing.linked += 1
                elif _is_zarr(Path(entry.path)):
                    listing.files.append(_found(path, Path(entry.path)))
                else:
                    deeper.append(Path(entry.path))
            elif Path(entry.name).suffix.lower() in _NOT_IMAGES:
                listing.ignored += 1
            else:
                listing.files.append(_found(path, Path(entry.path)))
        todo += reversed(deeper)
    return listing


def _found(root: Path, path: Path) -> Found:
    way = path.relative_to(root).parts
    return Found(path, _relative(root, path), printable(way[0]) if len(way) > 1 else None)


def _relative(root: Path, path: Path) -> str:
    return printable(path.relative_to(root).as_posix())


def _is_zarr(path: Path) -> bool:
    return any((path / mark).is_file() for mark in MARKS)


def _listed_in_star(path: Path) -> Listing:
    try:
        rows = read_star(path)
    except (Unreadable, OSError) as error:
        return Listing(rejected=[(printable(path.name), str(unreadable(error)))])
    listing = Listing()
    wanted: dict[Path, dict[int, int]] = {}
    for row, (stack, number) in enumerate(rows):
        if wanted.setdefault(stack, {}).setdefault(number, row) != row:
            listing.rejected.append((f"{printable(stack.name)}[{number}]", "is listed more than once"))
    listing.files += [Found(stack, printable(stack.name), None, rows_of) for stack, rows_of in wanted.items()]
    return listing
