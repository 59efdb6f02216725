"""Which images belong together, such as those of one slide or patient, so that no group is divided among the parts."""

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unpose.data.folders import InputError
from unpose.files import read_file
from unpose.files.arrays import first_existing

PARENT_FOLDER = "parent-folder"
TABLE = "labels.csv"
_NAME_COLUMNS = ("path", "name", "file", "filename", "image")
_LARGEST_TABLE = 64 * 2**20


def groups_of(folder: Path, names: Sequence[str], split_by: str) -> NDArray:
    """The group of each image, (n,) of str; ``names`` are paths relative to the folder.

    ``split_by`` is a column of ``labels.csv`` in the folder, ``"parent-folder"``, or a regular expression that is
    searched in every name, whose first group, or else whose whole match, is the group.
    """
    columns, rows = _read_table(folder)
    if split_by in columns:
        # The table names an image by its path or, if there is only one of the name, by its file name.
        by_file: dict[str, list[str]] = {}
        for name in names:
            if name not in rows:
                by_file.setdefault(name.rpartition("/")[2], []).append(name)
        for name, meant in by_file.items():
            if name in rows and len(meant) > 1:
                raise InputError(
                    f"{TABLE} names {name!r}, which {' and '.join(meant[:2])} are; give their paths, relative "
                    "to the folder"
                )
        found = [rows.get(name) or rows.get(name.rpartition("/")[2]) or {} for name in names]
        groups = [(row.get(split_by) or "").strip() for row in found]
        reason = f"have no entry in the column {split_by} of {TABLE}"
    elif split_by == PARENT_FOLDER:
        groups = [name.rpartition("/")[0] for name in names]
        # CLASS/SLIDE/1.png: the slide is named by its own folder, since one slide may hold several classes.
        groups = [group.rpartition("/")[2] if group.count("/") else "" for group in groups]
        reason = "are in no folder below that of their class: CLASS/SLIDE/NAME.png is needed"
    else:
        try:
            pattern = re.compile(split_by)
        except re.error as error:
            raise InputError(_unknown(split_by, columns, f"no regular expression: {error}")) from error
        matches = [pattern.search(name) for name in names]
        groups = [(match[1] if pattern.groups else match[0]) or "" if match else "" for match in matches]
        reason = f"do not match the regular expression {split_by!r}"
        if not any(groups):
            raise InputError(_unknown(split_by, columns, "a regular expression that no name matches"))
    if missing := [name for name, group in zip(names, groups, strict=True) if not group]:
        raise InputError(f"split by {split_by!r}: {len(missing):,} images {reason}, {missing[0]} first")
    return np.array(groups)


def _unknown(split_by: str, columns: Sequence[str], reason: str) -> str:
    known = f"; columns of {TABLE}: {', '.join(columns)}" if columns else f"; the folder has no {TABLE}"
    return (
        f"split by {split_by!r}: it is {reason}. Give a column of {TABLE}, {PARENT_FOLDER}, or a regular expression "
        f"that matches a part of every file name{known}"
    )


def _read_table(folder: Path) -> tuple[list[str], dict[str, dict[str, str]]]:
    """The columns of the table of a folder, and its rows by the names of images."""
    if (path := first_existing([folder], (TABLE,))) is None:
        return [], {}
    try:
        rows = list(csv.DictReader(io.StringIO(read_file(path, _LARGEST_TABLE).decode("utf-8-sig"), newline="")))
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as CSV in UTF-8: {error}") from error
    columns = [column for column in (rows[0] if rows else {}) if column]
    key = next((column for column in columns if column.lower() in _NAME_COLUMNS), None)
    if key is None:
        raise InputError(f"{path} must have a column of file names, called {' or '.join(_NAME_COLUMNS)}; got {columns}")
    by_name: dict[str, dict[str, str]] = {}
    for row in rows:
        name = (row[key] or "").replace("\\", "/").removeprefix("./")
        if name in by_name:
            raise InputError(f"{path} names {name!r} twice")
        by_name[name] = row
    return columns, by_name


def grouped_split(labels: NDArray, groups: NDArray, shares: Sequence[float], classes: Sequence[str]) -> list[NDArray]:
    """Indices of the images of each part: first the remainder, then one part per share; no group is divided.

    Groups are assigned one by one, the largest first and equal ones in random order, each to the part whose numbers of
    images by class are brought nearest to their shares.
    """
    names, members = np.unique(groups, return_inverse=True)
    wanted = np.array([1 - sum(shares), *shares])
    if len(names) < len(wanted):
        raise InputError(
            f"the images form {len(names)} group{'' if len(names) == 1 else 's'} ({', '.join(names[:3])}), and "
            "training, validation and test need at least one each; split by something else, or not at all"
        )
    counts = np.zeros((len(names), len(classes)))
    np.add.at(counts, (members, labels), 1)
    targets = wanted[:, None] * counts.sum(0) + 1e-9  # (parts, classes)
    order = np.random.default_rng(0).permutation(len(names))
    order = order[np.argsort(-counts[order].sum(1), kind="stable")]
    filled, part_of = np.zeros_like(targets), np.empty(len(names), dtype=np.int64)
    for rank, group in enumerate(order):
        after = filled[None] + np.eye(len(wanted))[:, :, None] * counts[group]  # (choice, parts, classes)
        costs = ((after / targets - 1) ** 2 * targets / counts.sum(0).clip(1)).sum((1, 2))
        # Every part gets a group: the last groups go to parts that are still empty.
        empty = filled.sum(1) == 0
        if empty.sum() >= len(order) - rank:
            costs[~empty] = np.inf
        part_of[group] = int(costs.argmin())
        filled[part_of[group]] += counts[group]
    for number, name in enumerate(classes):
        if not filled[0, number] and counts[:, number].any():
            raise InputError(
                f"class {name!r} has images in {np.count_nonzero(counts[:, number])} groups, none of which is used for "
                "training; give it images of more groups, or leave it out"
            )
    return [np.flatnonzero(part_of[members] == part) for part in range(len(wanted))]
