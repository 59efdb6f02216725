"""Lists the files of a folder that could be images, always in the same order.

Links to files are listed as files, wherever they lead; links to folders are not followed.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from unpose.files.frames import UnreadableError, as_unreadable_error, printable_name
from unpose.files.star import read_star
from unpose.files.zarr import METADATA_FILES

__all__ = ["ListedFile", "Listing", "list_images", "list_paths", "split_array_name"]

_NOT_IMAGES = {
    ".txt", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".md", ".rst", ".html",
    ".htm", ".pdf", ".log", ".py", ".ipynb", ".star", ".db", ".doc", ".docx", ".xls", ".xlsx", ".sh", ".bat", ".tex",
}  # fmt: skip
"""Endings of files that people keep beside their images; these files are not opened."""

_SYSTEM_FILES = {"thumbs.db", "desktop.ini", "__macosx"}


@dataclass(frozen=True)
class ListedFile:
    """A file that could hold images."""

    path: Path
    name: str  # its path relative to the input, safe to print
    folder: str | None = None  # the first folder on the way to the file
    row_of_frame: dict[int, int] | None = None  # frames to read, with the row of each in a STAR file; None for all
    key: str | None = None  # the array to read from a file that holds several
    place: int = 0  # of the input that names the file, in a list of inputs


@dataclass
class Listing:
    """The files found in a folder."""

    files: list[ListedFile] = field(default_factory=list)  # that could be images
    ignored: int = 0  # hidden files, and files whose ending says that they are not images
    linked: int = 0  # links to folders, which are not followed
    rejected: list[tuple[str, str]] = field(default_factory=list)  # name and reason of what could not be listed


def split_array_name(path: Path) -> tuple[Path, str | None] | None:
    """Split an input ``FILE`` or ``FILE::NAME`` into the file and the name of the array; None if there is no such file.

    >>> split_array_name(Path("missing.h5::images")) is None
    True
    """
    if path.exists():
        return path, None
    before, separator, key = str(path).rpartition("::")
    file = Path(before)
    return (file, key) if separator and (file.is_file() or _is_zarr(file)) else None


def list_images(path: Path) -> Listing:
    """List the files to read for an input.

    The input is a folder, one file, a Zarr folder, or a STAR file that lists stacks; ``FILE::NAME`` is one array of a
    file. Files are sorted by the bytes of their names, folder after folder. Links to files count as files. Links to
    folders are counted and not followed, because they could lead in circles or anywhere.

    >>> [file.name for file in list_images(Path("cells.png")).files]
    ['cells.png']
    """
    path, key = split_array_name(path) or (path, None)
    if path.suffix.lower() == ".star" and path.is_file():
        return _listed_in_star(path)
    if not path.is_dir() or _is_zarr(path):
        return Listing([ListedFile(path, printable_name(path.name or str(path)), key=key)])
    listing = Listing()
    todo = [path]
    while todo:
        folder = todo.pop()
        try:
            with os.scandir(folder) as entries:
                inside = sorted(entries, key=lambda entry: os.fsencode(entry.name))
        except OSError as error:
            listing.rejected.append((_relative_name(path, folder), str(as_unreadable_error(error))))
            continue
        subfolders = []
        for entry in inside:
            if entry.name.startswith(".") or entry.name.lower() in _SYSTEM_FILES:
                listing.ignored += 1
                continue
            inner = Path(entry.path)
            try:
                is_folder = entry.is_dir()
            except OSError as error:  # links that lead in a circle
                listing.rejected.append((_relative_name(path, inner), str(as_unreadable_error(error))))
                continue
            if is_folder and entry.is_symlink():
                listing.linked += 1
            elif is_folder and not _is_zarr(inner):
                subfolders.append(inner)
            elif not is_folder and inner.suffix.lower() in _NOT_IMAGES:
                listing.ignored += 1
            else:
                listing.files.append(_listed_file(path, inner))
        todo += reversed(subfolders)
    return listing


def list_paths(paths: Sequence[Path]) -> Listing:
    """List the files to read for several inputs of :func:`list_images`, in the order given.

    Names and folders are relative to the folder that all inputs have in common.

    >>> [file.name for file in list_paths([Path("cells/b.png"), Path("cells/a.png")]).files]
    ['b.png', 'a.png']
    """
    listing = Listing()
    root = Path(os.path.commonpath([path.absolute().parent for path in paths])) if paths else Path()
    for place, path in enumerate(paths):
        found = list_images(path)
        for file in found.files:
            absolute = file.path.absolute()
            # The stacks of a STAR file may be anywhere.
            named = _listed_file(root, absolute) if absolute.is_relative_to(root) else file
            listing.files.append(replace(file, name=named.name, folder=named.folder, place=place))
        listing.ignored += found.ignored
        listing.linked += found.linked
        listing.rejected += found.rejected
    return listing


def _listed_file(root: Path, path: Path) -> ListedFile:
    parts = path.relative_to(root).parts
    return ListedFile(path, _relative_name(root, path), printable_name(parts[0]) if len(parts) > 1 else None)


def _relative_name(root: Path, path: Path) -> str:
    return printable_name(path.relative_to(root).as_posix())


def _is_zarr(path: Path) -> bool:
    return any(os.path.isfile(path / name) for name in METADATA_FILES)  # False, not an error, without permission


def _listed_in_star(path: Path) -> Listing:
    try:
        rows = read_star(path)
    except (UnreadableError, OSError) as error:
        return Listing(rejected=[(printable_name(path.name), str(as_unreadable_error(error)))])
    listing = Listing()
    rows_of_stack: dict[Path, dict[int, int]] = {}
    for row, (stack, index) in enumerate(rows):
        if rows_of_stack.setdefault(stack, {}).setdefault(index, row) != row:
            listing.rejected.append((f"{printable_name(stack.name)}[{index}]", "is listed more than once"))
    listing.files += [
        ListedFile(stack, printable_name(stack.name), None, row_of_frame)
        for stack, row_of_frame in rows_of_stack.items()
    ]
    return listing
