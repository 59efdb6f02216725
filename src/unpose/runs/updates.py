"""Images that are added to a finished run: assigned to its clusters, without searching among the old images again."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unpose.runs.finished import FinishedRun, check_unchanged, read_run, write_results, write_run
from unpose.runs.folder import MEANS_FOLDER, RunFolder, fingerprint
from unpose.runs.settings import RunError
from unpose.runs.tables import csv_lines

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unpose.cluster import Assignment
    from unpose.data import ImageSet

LEAST_P_VALUE = 0.05
"""An image fits its cluster if at least so many of its members are as far from their neighbours."""
_COLUMNS = ("path", "frame", "cluster", "confidence", "fits", "p_value")


@dataclass(frozen=True)
class Update:
    """What :func:`update_run` did.

    Parameters
    ----------
    run : FinishedRun
        The run as it is now.
    rows : list of dict
        For each image that was added: path, frame, cluster, confidence, whether it fits and its p-value. The last two
        are None for clusters of fewer than five different images.

    Examples
    --------
    >>> Update.__name__
    'Update'
    """

    run: FinishedRun
    rows: list[dict[str, Any]]

    @property
    def n_foreign(self) -> int:
        """Number of images that were added and fit no cluster."""
        return sum(row["fits"] is False for row in self.rows)


def update_run(
    run: FinishedRun, source: Path, new: "ImageSet", *, old: "ImageSet | None" = None,
    progress: "Callable[..., None] | None" = None,
) -> Update:  # fmt: skip
    """Add images to a finished run: their clusters, poses and rows in the tables, and a new page.

    The nearest images of the run vote for the cluster of each new image, as in ``unpose predict``. All files are
    written again in one step: a process that is killed changes nothing. ``added.csv`` lists the new images with their
    p-values; those below 0.05 fit no cluster. Images that an earlier update has added are not added again: the result
    is then what that update found.

    Parameters
    ----------
    run : FinishedRun
        The run.
    source : Path
        Where the new images were read from.
    new : ImageSet
        The new images, on the canvas of the run.
    old : ImageSet, optional
        The images of the run. With them averages and all poses are computed again; by default they stay.
    progress : callable, optional
        Called as ``progress(stage, done, total)``.

    Returns
    -------
    Update
        The run as it is now, and what was found for each new image.

    Raises
    ------
    RunError
        If the run was made from these images, if they are not of its size, or if another process is changing the run or
        has changed it since it was read.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from unpose.cluster import InvariantClustering
    >>> from unpose.data import read_folder
    >>> from unpose.runs import RunSettings
    >>> with tempfile.TemporaryDirectory() as place:
    ...     file, folder = Path(place) / "stack.npy", Path(place) / "run"
    ...     np.save(file, np.stack([np.rot90(np.tri(13), k) for k in range(4)]))
    ...     folder.mkdir()
    ...     images = read_folder(file)
    ...     run = write_run(folder, file, images, InvariantClustering(1).fit(images.images), RunSettings(), "python")
    ...     later = Path(place) / "later.npy"
    ...     np.save(later, np.rot90(np.tri(13), 2)[None])
    ...     update = update_run(run, later, read_folder(later, min_images=1))
    >>> update.run.labels.tolist(), update.rows[0]["path"]
    ([0, 0, 0, 0, 0], 'later.npy/later.npy')
    """
    digest = fingerprint(new)
    if digest == run.about["fingerprint"]:
        raise RunError(f"the images of {source} are those that {run.path} was made from")
    if (rows := _added_before(run, digest)) is not None:
        return Update(run, rows)
    if tuple(new.images.shape[1:]) != tuple(run.about["shape"]):
        raise RunError(f"new images must be {tuple(run.about['shape'])}, as in the run, got {new.images.shape[1:]}")
    folder = RunFolder(run.path)
    with folder.changing():
        check_unchanged(run)
        _add(run, folder, source, new, digest, old, progress)
        folder.log(f"{len(new)} images added from {source}")
    again = read_run(run.path)
    return Update(again, added_rows(again)[-len(new) :])


def _added_before(run: FinishedRun, digest: str) -> list[dict[str, Any]] | None:
    """The rows of images that an earlier update has added, by their fingerprint; None if none has."""
    rows = added_rows(run)
    for each in run.added:
        mine, rows = rows[: len(each["p_values"])], rows[len(each["p_values"]) :]
        if each["fingerprint"] == digest:
            return mine
    return None


def _add(
    run: FinishedRun, folder: RunFolder, source: Path, new: "ImageSet", digest: str, old: "ImageSet | None",
    progress: "Callable[..., None] | None",
) -> None:  # fmt: skip
    """Replace the files of the run by those with the new images."""
    from unpose.files import Folder

    model = run.model.partial_fit(new.images, progress=progress)
    found = model.added_
    new = replace(new, names=[f"{source.name}/{name}" for name in new.names])
    added = [*run.added, {
        "input": os.path.abspath(source), "images": len(new), "fingerprint": digest,
        "p_values": [None if math.isnan(value) else float(value) for value in found.p_values],
    }]  # fmt: skip
    with folder.replacing() as place:
        if old is None:
            written = replace(_extended(run, new, found), path=place)
            written.about["added"] = added
            write_results(written)
        else:
            model.regroup(joined([old, new]).images, model.labels_, progress=progress)
            settled = [*run.settled.tolist(), *[False] * len(new)]
            written = write_run(
                place, run.source, joined([old, new]), model, run.settings, run.about["command"],
                run.about.get("class_names"), run.cluster_names, settled, added, run.about["fingerprint"],
                run.rejected_names,
            )  # fmt: skip
        written.write_page()
        with Folder(run.path) as before, Folder(place) as after:
            names = before.folder_names(MEANS_FOLDER, "cluster-*.png") if old is None else []
            for name in ["config.toml", *(f"{MEANS_FOLDER}/{each}" for each in names)]:
                before.copy(name, after)
            after.write_chunks("added.csv", (line.encode() for line in csv_lines(_COLUMNS, added_rows(written))))


def added_rows(run: FinishedRun) -> list[dict[str, Any]]:
    """The rows of ``added.csv``: every image that was added to a run, and whether it fits its cluster."""
    p_values = [value for each in run.added for value in each["p_values"]]
    first = len(run.names) - len(p_values)
    return [
        {
            "path": run.about["names"][first + k], "frame": int(run.about["frames"][first + k]),
            "cluster": int(run.labels[first + k]), "confidence": float(run.confidences[first + k]),
            "fits": None if value is None else value >= LEAST_P_VALUE, "p_value": value,
        }
        for k, value in enumerate(p_values)
    ]  # fmt: skip


def joined(parts: "Sequence[ImageSet]") -> "ImageSet":
    """Join several sets of images of one size into one, in their order.

    Parameters
    ----------
    parts : sequence of ImageSet
        Sets as :func:`unpose.data.read_folder` returns them, on canvases of one size.

    Returns
    -------
    ImageSet
        All images, with the settings of the first set.

    Examples
    --------
    >>> import numpy as np
    >>> import tempfile
    >>> from unpose.data import read_folder
    >>> with tempfile.TemporaryDirectory() as place:
    ...     np.save(f"{place}/stack.npy", np.zeros((2, 8, 8)))
    ...     part = read_folder(place)
    >>> len(joined([part, part]))
    4
    """
    import numpy as np

    from unpose.files import ImagesInPieces, store_images

    first = parts[0]
    if any(isinstance(each.images, ImagesInPieces) for each in parts):
        step = 1024
        pieces = (each.images[k : k + step] for each in parts for k in range(0, len(each), step))
        images: Any = store_images(pieces)
    else:
        images = np.concatenate([each.images for each in parts])
    labels = None
    if first.labels is not None:
        labels = [label for each in parts for label in (each.labels or [""] * len(each))]
    return replace(
        first, images=images, names=[name for each in parts for name in each.names],
        paths=[path for each in parts for path in each.paths],
        frames=np.concatenate([each.frames for each in parts]), labels=labels,
        rejected=[pair for each in parts for pair in each.rejected],
    )  # fmt: skip


def _extended(run: FinishedRun, new: "ImageSet", found: "Assignment") -> FinishedRun:
    """The run with new images, whose estimator knows them already; averages, film and old distances stay."""
    import numpy as np

    from unpose.cluster import agreement_with_classes, graph_layout

    n, m = len(run.names), len(new)
    low, high = run.display_range
    about = run.about | {
        "names": [*run.about["names"], *new.names],
        "paths": [*run.about["paths"], *(os.path.abspath(path) for path in new.paths)],
        "frames": [*run.about["frames"], *new.frames.tolist()], "rejected": [*run.about["rejected"], *new.rejected],
        "settled": [*run.settled.tolist(), *[False] * m] if run.about.get("settled") else None,
    }  # fmt: skip
    if run.about["classes"] is not None:
        about["classes"] = [*run.about["classes"], *(new.labels or [""] * m)]
        known = np.array([bool(name) for name in about["classes"]])
        classes = [name for name in about["classes"] if name]
        about["agreement"] = agreement_with_classes(classes, run.labels[known])
    shown, small = _sample(run, new, low, high)
    pictures = run.pictures | {
        "images": small,
        "layout": graph_layout(run.model.weights_, random_state=run.settings.seed)[run.model.copies_],
        "distances": np.concatenate([run.pictures["distances"][:n], _distances(run, new, found)]),
    }
    if shown is not None:
        pictures["shown"] = shown
    return replace(run, about=about, pictures=pictures)


def _sample(run: FinishedRun, new: "ImageSet", low: float, high: float) -> "tuple[NDArray | None, NDArray]":
    """Which images the page shows, and their thumbnails: those it showed before and the new ones, or a sample."""
    import numpy as np

    from unpose.cluster.page import page_sample, thumbnails

    model, old, n = run.model, run.pictures["images"], len(run.names)
    rows = np.concatenate([run.pictures.get("shown", np.arange(n)), np.arange(n, n + len(new))])
    chosen = np.arange(len(rows))
    if len(rows) > model._limits.page_images:
        exemplars = np.searchsorted(rows, model.exemplars_)
        labels, confidences = model.labels_[rows], model.confidences_[rows]
        sampled = page_sample(labels, confidences, chosen, exemplars, model._limits.page_images)
        chosen = chosen if sampled is None else sampled
    fresh = chosen[chosen >= len(old)] - len(old)
    small = old[chosen[chosen < len(old)]]
    if len(fresh):
        small = np.concatenate([small, thumbnails(new.images, fresh, low, high, max(old.shape[1:3]))])
    everything = len(chosen) == len(rows) == n + len(new)
    return None if everything else rows[chosen], small


def _distances(run: FinishedRun, new: "ImageSet", found: "Assignment") -> "NDArray":
    """RMS difference of the pixels of the aligned new images from the means of their clusters, (m,); NaN for none."""
    import numpy as np

    from unpose.cluster import apply_poses

    means, distances = run.means, np.full(len(new), np.nan)
    inside = np.flatnonzero(found.labels >= 0)
    for rows in np.array_split(inside, len(inside) // 256 + 1):
        if len(rows):
            difference = apply_poses(new.images[rows], found.poses[rows]) - means[found.labels[rows]]
            distances[rows] = np.sqrt((difference.reshape(len(rows), -1).astype(np.float64) ** 2).mean(1))
    return distances
