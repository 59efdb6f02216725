"""Groups and names that a person gave on the page: read from ``labels.csv`` and written into the run."""

import csv
import io
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unpose.runs.finished import FinishedRun, check_unchanged, read_run, write_run
from unpose.runs.folder import RunFolder, fingerprint
from unpose.runs.settings import RunError
from unpose.runs.tables import plain_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from unpose.data import Dataset, ImageSet

UNSORTED = "unsorted"
"""Name of the group of all images that were taken out of their group and put into no other."""


@dataclass(frozen=True)
class NamedGroups:
    """The groups in a ``labels.csv`` that the page saved.

    Parameters
    ----------
    labels : (n,) array of int
        Group of each image, largest group first; -1 for constant images.
    names : list of str
        Name of each group, empty for a group without a name.
    settled : (n,) array of bool
        Whether a person has accepted the name of the image.
    unknown : list of str
        Paths in the table that are not in the run.
    rejected : dict of int to list of str or int, default {}
        Names that a person rejected for some images, by image; the group's number if it has no name.

    Examples
    --------
    >>> import numpy as np
    >>> NamedGroups(np.array([0, 0]), ["cat"], np.array([True, False]), []).names
    ['cat']
    """

    labels: "NDArray"
    names: list[str]
    settled: "NDArray"
    unknown: list[str]
    rejected: dict[int, list[str | int]] = field(default_factory=dict)


def read_names(text: str, run: FinishedRun) -> NamedGroups:
    """Read a table of names for the images of a run.

    Parameters
    ----------
    text : str
        CSV with the columns ``path`` and ``name``. The page also writes ``cluster``, by which it numbers groups,
        ``named`` (false if the name is only a number) and ``settled``; without that column, every named image is
        settled. ``rejected_names`` are names that an image does not have, as a list in JSON, in which a number is a
        group without a name; an image that is not settled leaves a group that it was rejected for. Images that are not
        in the table, or in it without a name and a cluster, keep their cluster.
    run : FinishedRun
        The run that the table belongs to.

    Returns
    -------
    NamedGroups
        The group of every image of the run.

    Examples
    --------
    :func:`apply_names` shows how a table is applied.

    >>> callable(read_names)
    True
    """
    import numpy as np

    rows = list(csv.DictReader(io.StringIO(text.removeprefix("\ufeff"), newline="")))
    if not rows or not {"path", "name"} <= rows[0].keys():
        raise RunError("the table must be a CSV file with the columns path and name, and at least one row")
    places: dict[str, list[int]] = {}
    for i, name in reversed(list(enumerate(run.names))):
        places.setdefault(name.encode("utf-8", "replace").decode(), []).append(i)
    names = run.cluster_names
    # The key of a group is a name, or the number of a cluster.
    keys = [(names[label], -1) if label >= 0 and names[label] else ("", label) for label in run.labels.tolist()]
    settled, unknown, named = run.settled.copy(), [], np.zeros(len(run.names), bool)
    rejected = {
        image: [(names[given], -1) if isinstance(given, int) and names[given] else _key_of(given) for given in refused]
        for image, refused in run.rejected_names.items()
    }
    for row in rows:
        found = places.get(row["path"] or "") or places.get(plain_text(row["path"] or ""))
        if not found:
            unknown.append(row["path"] or "")
            continue
        image, name = found.pop(), plain_text((row["name"] or "").strip())
        number = row.get("cluster") or ""
        is_named = bool(name) and row.get("named") != "false"
        if is_named:
            keys[image] = (name, -1)
        elif number.lstrip("-").isdigit():
            keys[image] = ("", int(number))
        named[image] = True
        settled[image] = is_named and row.get("settled", "yes") in ("yes", "true", "1")
        if row.get("rejected_names") is not None:
            rejected[image] = [_key_of(given) for given in _listed(plain_text(row["rejected_names"]))]
    if len(unknown) == len(rows):
        raise RunError(f"none of the {len(rows)} paths in the table is an image of {run.path}, {unknown[0]!r} first")
    if "shown" in run.pictures:
        _follow_sample(run, keys, settled, named)
    for image, refused in rejected.items():
        if keys[image] in refused and not settled[image]:
            keys[image] = ("", -1)
    constant = run.labels < 0
    keys = [(UNSORTED, -1) if key == ("", -1) else key for key in keys]
    first = [keys[int(copy)] for copy in run.model.copies_]  # a copy has the group of the first
    counts = Counter(key for key, is_constant in zip(first, constant, strict=True) if not is_constant)
    order = sorted(counts, key=lambda key: (-counts[key], key))
    number_of = {key: label for label, key in enumerate(order)}
    labels = [-1 if is_constant else number_of[key] for key, is_constant in zip(first, constant, strict=True)]
    settled &= ~constant
    kept: dict[int, list[str | int]] = {}
    for image, refused in sorted(rejected.items()):
        given = [name or number_of[name, number] for name, number in refused if name or (name, number) in number_of]
        if settled[image]:  # what was accepted later is not rejected
            given = [each for each in given if each != keys[image][0]]
        if given:
            kept[image] = given
    return NamedGroups(np.array(labels), [name for name, _ in order], settled, unknown, kept)


def _key_of(given: str | int) -> tuple[str, int]:
    """The key of a group in :func:`read_names`, from its name or from its number."""
    return ("", given) if isinstance(given, int) else (given, -1)


def _listed(cell: str) -> list[str | int]:
    """The names and numbers in a cell of ``rejected_names``: a list in JSON, or a single name that somebody typed."""
    try:
        found = json.loads(cell)
    except ValueError:
        found = None
    if not isinstance(found, list):
        return [cell.strip()] if cell.strip() else []
    return [each for each in found if isinstance(each, (str, int)) and not isinstance(each, bool) and each != ""]


def _follow_sample(run: FinishedRun, keys: list[tuple[str, int]], settled: "NDArray", listed: "NDArray") -> None:
    """Give the images that are not in the table the group of those of their cluster that are, if these agree.

    The page of a large run shows a sample, so its table lists only some images of a cluster. ``keys`` and ``settled``
    are changed in place.
    """
    import numpy as np

    for cluster in range(run.model.n_clusters_):
        members = np.flatnonzero(run.labels == cluster)
        groups = {keys[i] for i in members[listed[members]]}
        if len(groups) == 1:
            (group,) = groups
            agreed = bool(settled[members[listed[members]]].all())
            for i in members[~listed[members]]:
                keys[i], settled[i] = group, settled[i] or agreed


def apply_names(
    run: FinishedRun, groups: NamedGroups, images: "ImageSet", *, progress: "Callable[..., None] | None" = None
) -> FinishedRun:
    """Write groups that a person made into the run: labels, names, averages and poses, and the page.

    Only the run folder is written to. If an error occurs, the run stays as it was.

    Parameters
    ----------
    run : FinishedRun
        The run.
    groups : NamedGroups
        What :func:`read_names` returned.
    images : ImageSet
        The images as the run read them.
    progress : callable, optional
        Called as ``progress(stage, done, total)``.

    Returns
    -------
    FinishedRun
        The run as it is now.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from unpose.cluster import InvariantClustering
    >>> from unpose.data import read_folder
    >>> from unpose.runs import RunSettings
    >>> with tempfile.TemporaryDirectory() as place:
    ...     file = Path(place) / "stack.npy"
    ...     np.save(file, np.stack([np.rot90(np.tri(13), k) for k in range(4)]))
    ...     images, folder = read_folder(file), Path(place) / "run"
    ...     folder.mkdir()
    ...     model = InvariantClustering(1).fit(images.images)
    ...     run = write_run(folder, file, images, model, RunSettings(clusters=1), "python")
    ...     table = "path,name\\nstack.npy[0],sail\\nstack.npy[1],sail\\n"
    ...     after = apply_names(run, read_names(table, run), images)
    >>> after.cluster_names, after.labels.tolist()
    (['', 'sail'], [1, 1, 0, 0])
    """
    if list(images.names) != run.names or (not run.added and fingerprint(images) != run.about["fingerprint"]):
        raise RunError(f"the images of {run.path} have changed since the run, or other files can be read now")
    folder = RunFolder(run.path)
    with folder.changing():
        check_unchanged(run)
        model = run.model.regroup(images.images, groups.labels, progress=progress)
        model.confidences_[groups.settled] = 1.0
        with folder.replacing() as new:
            written = write_run(
                new, run.source, images, model, run.settings, run.about["command"], run.about.get("class_names"),
                groups.names, groups.settled.tolist(), run.added,
                run.about["fingerprint"], groups.rejected,
            )  # fmt: skip
            written.write_page()
        named = sum(bool(name) for name in groups.names)
        folder.log(
            f"{len(groups.names)} groups applied, {named} of them named; {int(groups.settled.sum())} images settled"
        )
    return read_run(run.path)


def named_dataset(run: FinishedRun, images: "ImageSet") -> "Dataset":
    """The settled images of a run as a data set whose classes are their names.

    Parameters
    ----------
    run : FinishedRun
        A run with names (``unpose apply``).
    images : ImageSet
        The images of the run, at any size.

    Returns
    -------
    Dataset
        Divided 70:15:15 within each class.

    Examples
    --------
    After ``unpose apply run labels.csv``, ``unpose train run`` trains on this data set.

    >>> callable(named_dataset)
    True
    """
    import numpy as np

    from unpose.data import Dataset, Split
    from unpose.data.splits import RANDOM_SPLIT, random_split

    if list(images.names) != run.names:
        raise RunError(f"the images of {run.path} have changed since the run, or other files can be read now")
    names = run.cluster_names
    rows = np.array([i for i, label in enumerate(run.labels) if run.settled[i] and names[label]], dtype=np.int64)
    classes = tuple(sorted({names[run.labels[i]] for i in rows}))
    if len(classes) < 2:
        raise RunError(
            f"{run.path} has {len(classes)} named classes and needs two: name groups on its page, save labels.csv, and "
            f"give `unpose apply {run.path} labels.csv`"
        )
    rows = rows[run.model.copies_[rows] == rows]  # a copy must not be in two parts
    labels = np.array([classes.index(names[run.labels[i]]) for i in rows], dtype=np.int64)
    train, validation, test = random_split(Split(images.images[rows], labels), (0.15, 0.15), classes)
    source = f"{len(rows):,} settled images of the run {run.path}, {RANDOM_SPLIT}"
    return Dataset(run.path.resolve().name, source, classes, train, validation, test, is_random_split=True)
