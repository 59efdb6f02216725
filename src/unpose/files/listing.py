"""Lists the files of a folder that could be images, always in the same order and never outside the folder."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from unpose.files.frames import UnreadableError, as_unreadable_error, printable_name
from unpose.files.star import read_star
from unpose.files.zarr import METADATA_FILES

_NOT_IMAGES = {
    ".txt", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".md", ".rst", ".html",
    ".htm", ".pdf", ".log", ".py", ".ipynb", ".star", ".db", ".doc", ".docx", ".xls", ".xlsx", ".sh", ".bat", ".tex",
}  # fmt: skip
"""Endings of files that people keep beside their images; these files are not opened."""

_SYSTEM_FILES = {"thumbs.db", "desktop.ini", "__macosx"}


@dataclass(frozen=True)
class ListedFile:
    """A file that could hold images.

    Parameters
    ----------
    path : Path
        The file.
    name : str
        Its path relative to the input, safe to print.
    folder : str, optional
        The first folder on the way to the file.
    row_of_frame : dict of int to int, optional
        Frames to read, and the row of each in a STAR file; by default all frames are read.
    key : str, optional
        The array to read from a file that holds several.

    Examples
    --------
    >>> ListedFile(Path("cells/a.png"), "a.png").folder is None
    True
    """

    path: Path
    name: str
    folder: str | None = None
    row_of_frame: dict[int, int] | None = None
    key: str | None = None


@dataclass
class Listing:
    """The files found in a folder.

    Parameters
    ----------
    files : list of ListedFile, default []
        Files that could be images.
    ignored : int, default 0
        Number of hidden files, and of files whose ending says that they are not images.
    linked : int, default 0
        Number of links to folders, which are not followed.
    rejected : list of (str, str), default []
        Name and reason of what could not be listed.

    Examples
    --------
    >>> Listing(ignored=2).files
    []
    """

    files: list[ListedFile] = field(default_factory=list)
    ignored: int = 0
    linked: int = 0
    rejected: list[tuple[str, str]] = field(default_factory=list)


def split_array_name(path: Path) -> tuple[Path, str | None] | None:
    """Split an input ``FILE`` or ``FILE::NAME`` into the file and the name of the array in it.

    Parameters
    ----------
    path : Path
        The input as the user gave it.

    Returns
    -------
    (Path, str or None) or None
        None if there is no such file.

    Examples
    --------
    >>> split_array_name(Path("missing.h5::images")) is None
    True
    """
    if path.exists():
        return path, None
    before, separator, key = str(path).rpartition("::")
    return (Path(before), key) if separator and Path(before).exists() else None


def list_images(path: Path) -> Listing:
    """List the files to read for an input.

    Files are sorted by the bytes of their names, folder after folder. Links to files count as files. Links to folders
    are counted and not followed, because they could lead in circles or anywhere.

    Parameters
    ----------
    path : Path
        A folder, one file, a Zarr folder, or a STAR file that lists stacks; ``FILE::NAME`` is one array of a file.

    Returns
    -------
    Listing
        The files, and what was ignored or rejected.

    Examples
    --------
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
    """List the files to read for several inputs, in the order given.

    Parameters
    ----------
    paths : sequence of Path
        Each as for :func:`list_images`.

    Returns
    -------
    Listing
        Names and folders are relative to the folder that all inputs have in common.

    Examples
    --------
    >>> [file.name for file in list_paths([Path("cells/b.png"), Path("cells/a.png")]).files]
    ['b.png', 'a.png']
    """
    listing = Listing()
    root = Path(os.path.commonpath([path.absolute().parent for path in paths])) if paths else Path()
    for path in paths:
        found = list_images(path)
        for file in found.files:
            absolute = file.path.absolute()
            named = (
                _listed_file(root, absolute) if absolute.is_relative_to(root) else file
            )  # a STAR file leads anywhere
            listing.files.append(replace(file, name=named.name, folder=named.folder))
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
