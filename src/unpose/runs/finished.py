"""A finished clustering run: written to its folder, read back, and turned into a table and a page."""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import unpose
from unpose.runs.folder import MEANS_FOLDER, RunFolder, cluster_name, final_place, fingerprint
from unpose.runs.settings import RunError, RunSettings
from unpose.runs.tables import csv_lines

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unpose.cluster import InvariantClustering
    from unpose.data import ImageSet
    from unpose.report.page import Results

_COLUMNS = (
    "path", "frame", "cluster", "confidence", "angle", "shift_x", "shift_y", "scale", "mirrored", "distance",
    "copy_of",
)  # fmt: skip
_LARGEST_FILE = 2**33
_REJECTED_SHOWN = 10_000
"""Files that could not be read of which the page says why; rejected.csv lists all."""


@dataclass(frozen=True)
class FinishedRun:
    """The results of a run of ``unpose cluster``, as :func:`read_run` returns them.

    Arrays that belong to images have one entry for each image, in the order of ``names``.

    Attributes
    ----------
    path : Path
        The run folder.
    settings : RunSettings
        The settings that the run was made with.
    model : InvariantClustering
        The fitted estimator, which can also place new images.
    about : dict
        The contents of ``images.json``: where the images came from and how they were read.
    pictures : dict of arrays
        The contents of ``pictures.safetensors``: thumbnails and other arrays that the page shows.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from unpose.cluster import InvariantClustering
    >>> from unpose.data import read_folder
    >>> with tempfile.TemporaryDirectory() as place:
    ...     folder, file = Path(place), Path(place) / "stack.npy"
    ...     np.save(file, np.stack([np.rot90(np.tri(13), k) for k in range(4)]))
    ...     images, settings = read_folder(file), RunSettings(clusters=1)
    ...     _ = write_run(folder, file, images, InvariantClustering(1).fit(images.images), settings, "python")
    ...     run = read_run(folder)
    >>> run.labels, run.poses.shape, run.means.shape, run.settings.clusters
    (array([0, 0, 0, 0]), (4, 3, 3), (1, 13, 13), 1)
    >>> run.rows()[0]["path"]
    'stack.npy[0]'
    """

    path: Path
    settings: RunSettings
    model: "InvariantClustering"
    about: dict[str, Any]
    pictures: "dict[str, NDArray]"

    @property
    def labels(self) -> "NDArray":
        """Cluster of each image, (n,); -1 for a constant image, which belongs to no cluster."""
        return self.model.labels_

    @property
    def confidences(self) -> "NDArray":
        """How far the cluster of each image is found again in random subsets of the images, (n,), between 0 and 1."""
        return self.model.confidences_

    @property
    def poses(self) -> "NDArray":
        """Pose that brings each image onto the mean of its cluster, (n, 3, 3)."""
        return self.model.poses_

    @property
    def means(self) -> "NDArray":
        """Mean of each cluster, (k, h, w) or (k, h, w, 3), float32 in the units of the images.

        They are stored with 16 bits; values outside the range that the page shows are clipped.
        """
        import numpy as np

        low, high = self.display_range
        return (low + self.pictures["means"] * ((high - low) / 65535)).astype(np.float32)

    @property
    def display_range(self) -> tuple[float, float]:
        """The values that the page shows as black and as white."""
        low, high = (float(value) for value in self.pictures["window"])
        return low, high

    def _repr_html_(self) -> str:
        """The averages with the names and sizes of their groups, for notebooks."""
        import numpy as np

        from unpose.report import pictures_html

        sizes = np.bincount(self.labels[self.labels >= 0], minlength=len(self.means))
        titles = [name or str(number) for number, name in enumerate(self.cluster_names)]
        return pictures_html(self.means, [f"{title}: {size} images" for title, size in zip(titles, sizes, strict=True)])

    @property
    def names(self) -> list[str]:
        """Name of each image, relative to the input."""
        return list(self.about["names"])

    @property
    def paths(self) -> list[Path]:
        """File that each image was read from; the images of a stack share one."""
        return [Path(path) for path in self.about["paths"]]

    @property
    def source(self) -> Path:
        """The input of the run: a folder or a stack of images."""
        return Path(self.about["input"])

    @property
    def cluster_names(self) -> list[str]:
        """The names that a person gave to the clusters (``unpose apply``), empty for a cluster without one."""
        return list(self.about.get("cluster_names") or [""] * self.model.n_clusters_)

    @property
    def settled(self) -> "NDArray":
        """Whether a person has accepted the name of each image, (n,) of bool (``unpose apply``)."""
        import numpy as np

        return np.asarray(self.about.get("settled") or [False] * len(self.names), dtype=bool)

    @property
    def rejected_names(self) -> dict[int, list[str | int]]:
        """The names that a person rejected for some images, by image; numbers for clusters without a name."""
        return {int(image): list(names) for image, names in (self.about.get("rejected_names") or {}).items()}

    @property
    def added(self) -> list[dict[str, Any]]:
        """What was added to the run (``unpose update``), oldest first: input, number of images and fingerprint."""
        return list(self.about.get("added") or [])

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the images that were compared, in pixels."""
        height, width = self.about["shape"][:2]
        return int(height), int(width)

    @property
    def canvas_shape(self) -> tuple[int, int]:
        """Height and width of the canvas before its sides were cropped, in pixels."""
        height, width = self.shape
        return height + 2 * int(self.settings.crop), width + 2 * int(self.settings.crop)

    @property
    def source_scale(self) -> float | None:
        """Pixels of the files for one pixel of the canvas; None where the images had several sizes."""
        stored = self.about.get("source_shape")
        return None if stored is None else max(stored) / max(self.canvas_shape)

    @property
    def colour(self) -> Any:
        """``"rgb"`` or ``"grey"``."""
        return "rgb" if len(self.about["shape"]) == 3 else "grey"

    def rows(self) -> list[dict[str, Any]]:
        """The rows of :meth:`iterate_rows` as a list."""
        return list(self.iterate_rows())

    def iterate_rows(self) -> Iterator[dict[str, Any]]:
        """One dictionary for each image: its name, cluster, confidence, pose, distance, and its class folder if any.

        ``copy_of`` is the name of the image that it is a copy of, or None.

        The distance is the RMS difference between the pixels of the aligned image and those of the mean. It is not the
        distance by which ``unpose predict`` decides, which is that of the pose search and ignores light.
        """
        from unpose.groups import pose_parts  # imports torch, which `unpose --help` must not wait for

        classes, names, settled = self.about["classes"], self.cluster_names, self.settled
        refused = self.rejected_names
        for i, name in enumerate(self.about["names"]):
            label = int(self.labels[i])
            row: dict[str, Any] = {"path": name, "frame": int(self.about["frames"][i]), "cluster": label}
            if any(names):
                row |= {"name": names[label] if label >= 0 else "", "settled": bool(settled[i])}
            if refused:
                row["rejected_names"] = json.dumps(refused[i], ensure_ascii=False) if i in refused else None
            row |= {"confidence": float(self.confidences[i])} | pose_parts(self.poses[i])
            row["distance"] = float(self.pictures["distances"][i]) if label >= 0 else None
            first = int(self.model.copies_[i])
            row["copy_of"] = None if first == i else self.about["names"][first]
            if classes is not None:
                row["class"] = classes[i]
            chances, known = self.model.probabilities_, self.model.classes_
            if chances is not None and known is not None and self.about.get("class_names") and label >= 0:
                best = int(chances[i].argmax())
                row["probable_class"] = self.about["class_names"][int(known[best])]
                row["probability"] = float(chances[i, best])
            yield row

    def table(self) -> str:
        """The text of ``labels.csv``: :meth:`rows` for a spreadsheet."""
        return "".join(self.table_lines())

    def table_lines(self) -> Iterator[str]:
        """The lines of ``labels.csv``, one after the other, so that a table of a million images takes no memory."""
        columns: tuple[str, ...] = _COLUMNS if self.about["classes"] is None else (*_COLUMNS, "class")
        if any(self.cluster_names):
            columns = (*columns[:3], "name", "settled", *columns[3:])
        if self.rejected_names:
            columns = (*columns, "rejected_names")
        if self.about.get("class_names"):
            columns += ("probable_class", "probability")
        return csv_lines(columns, self.iterate_rows())

    def clusters(self) -> dict[str, Any]:
        """The contents of ``clusters.json``: size, confidence, exemplar, symmetry and pictures of each cluster."""
        from unpose.cluster.page import symmetry_text

        model = self.model
        clusters = []
        for label in range(model.n_clusters_):
            members = self.labels == label
            clusters.append({
                "cluster": label, "name": self.cluster_names[label], "size": int(members.sum()),
                "confidence": float(self.confidences[members].mean()),
                "exemplar": self.about["names"][int(model.exemplars_[label])], "symmetry": symmetry_text(model, label),
                "mean": f"{MEANS_FOLDER}/{cluster_name(label)}.png",
                "error": f"{MEANS_FOLDER}/{cluster_name(label)}-error.png",
                "largest_error": float(self.pictures["errors"][label].max()),
            })  # fmt: skip
        return {"images": len(self.names), "clusters": clusters, "agreement": self.about["agreement"]}

    def summary(self) -> dict[str, Any]:
        """The main figures of the run, as ``unpose cluster --json`` prints them."""
        inside, is_known = self.labels >= 0, not math.isnan(self.model.stability_)
        return {
            "run": str(self.path), "images": len(self.names), "clusters": self.model.n_clusters_,
            "sizes": [each["size"] for each in self.clusters()["clusters"]], "no_cluster": int((~inside).sum()),
            "confidence": float(self.confidences[inside].mean()) if is_known else None,
            "stability": self.model.stability_ if is_known else None, "remarks": self.model.notes_,
            "rejected": len(self.about["rejected"]),
            "notes": self.about["notes"], "agreement": self.about["agreement"],
            "report": str(self.path / "report.html"),
        }  # fmt: skip

    def page(self) -> str:
        """The HTML of the report, made from the run folder alone."""
        from unpose.report.page import render

        return render(_results(self))

    def write_page(self) -> Path:
        """Write ``report.html`` into the run folder."""
        from unpose.files import Folder

        with Folder(self.path) as folder:
            folder.write_text("report.html", self.page())
        return self.path / "report.html"


def read_run(path: str | os.PathLike[str]) -> FinishedRun:
    """Read the finished run of ``unpose cluster`` in a folder.

    Parameters
    ----------
    path : str or path
        The run folder.

    Returns
    -------
    run : FinishedRun
        Labels, poses, means and everything else that the folder holds; the images themselves are not needed.

    Raises
    ------
    RunError
        If the folder holds no finished run of ``unpose cluster``, or if its files are damaged or do not fit together.

    Examples
    --------
    After ``unpose cluster photos/ -o run``, ``read_run("run").labels`` is the cluster of each image, and
    ``read_run("run").rows()`` is the table as dictionaries. :class:`FinishedRun` shows a whole example.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as empty:
    ...     try:
    ...         read_run(empty)
    ...     except RunError as error:
    ...         print(str(error).removeprefix(empty))
     holds no run of `unpose cluster`
    """
    folder = RunFolder(Path(path))
    for is_last in (False, False, True):
        folder.complete_replacement()
        before = folder.state()
        try:
            run = _read(folder)
        except RunError:
            if is_last or folder.state() == before:
                raise
        else:
            if is_last or folder.state() == before:
                break
    return run  # its files belong together: no other process replaced some of them in the meantime


def check_unchanged(run: FinishedRun) -> None:
    """Raise a :class:`RunError` if a run that will be changed is no longer as it was read: changes would be lost."""
    import numpy as np

    now = read_run(run.path)
    if now.about != json.loads(json.dumps(run.about)) or not np.array_equal(now.labels, run.labels):
        raise RunError(f"{run.path} was changed by another process after it was read; repeat the command")


def _read(run_folder: RunFolder) -> FinishedRun:
    """Read the files of a finished run, and check that they fit together."""
    import safetensors
    import safetensors.numpy

    from unpose.cluster import InvariantClustering
    from unpose.files import Folder

    path = run_folder.path
    try:
        config = run_folder.finished_config()
        if config is None:
            raise RunError(f"{path} holds {_what_else(run_folder)}")
        if config.command != "cluster":
            raise RunError(
                f"{path} holds a run of `unpose {config.command}`, which has no clusters: its results are aligned.npy, "
                "mean.png and poses.csv. This needs a run of `unpose cluster`"
            )
        model = InvariantClustering.load(path)
        with Folder(path) as folder:
            about = folder.read_json("images.json", _LARGEST_FILE)
            pictures = safetensors.numpy.load(folder.read("pictures.safetensors", _LARGEST_FILE))
        run = FinishedRun(path, config.settings, model, about, pictures)
        _check(run)
        run = replace(run, about=_from_run(about, path))
    except RunError:
        raise
    except FileNotFoundError as error:
        raise RunError(f"{path} is not a run of `unpose cluster`: {Path(error.filename).name} is missing") from error
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
        safetensors.SafetensorError,
    ) as error:
        raise RunError(f"{path} cannot be read as a run: {error}") from error
    return run


def _what_else(folder: RunFolder) -> str:
    """What a folder holds that is no finished run."""
    if folder.is_unfinished:
        return "an unfinished run; finish it first"
    if (folder.path / "model.safetensors").is_file() and (folder.path / "result.json").is_file():
        return (
            f"a run of `unpose train`, which has no groups; `unpose predict --model {folder.path} IMAGES` uses its "
            "network"
        )
    return "no run of `unpose cluster`"


def _check(run: FinishedRun) -> None:
    """Raise a ``ValueError`` if the files of a run, which may come from a stranger, do not fit together."""
    n, count = len(run.labels), run.model.n_clusters_
    _check_facts(run.about, n, count)
    shown = run.pictures.get("shown")
    if shown is not None and (
        shown.ndim != 1 or not ((shown[1:] > shown[:-1]).all() and 0 <= shown[0] <= shown[-1] < n)
    ):
        raise ValueError(f"shown in pictures.safetensors must be ascending indices of the {n} images")
    lengths = {
        "images": n if shown is None else len(shown),
        "layout": n,
        "distances": n,
        "means": count,
        "errors": count,
        "film": 3,
        "window": 2,
    }
    for key, length in lengths.items():
        if len(run.pictures[key]) != length:
            raise ValueError(f"{key} in pictures.safetensors must have {length} entries, got {len(run.pictures[key])}")
    names = run.about.get("class_names")
    if names is not None and run.model.classes_ is not None and len(names) < len(run.model.classes_):
        raise ValueError("class_names in images.json do not belong to the model")
    if list(run.model.image_shape_) != run.about["shape"]:
        raise ValueError("the settings do not belong to the model")
    if not isinstance(run.settings.crop, int) or not 0 <= run.settings.crop <= 4096:
        raise ValueError("crop in config.toml is not a number of pixels")


def _check_facts(about: dict[str, Any], n: int, count: int) -> None:
    """Raise a ``ValueError`` unless ``images.json`` describes ``n`` images in ``count`` clusters."""

    def is_list(value: Any, kinds: tuple[type, ...], length: int | None = None) -> bool:
        # Not isinstance: True is no number here.
        return isinstance(value, list) and length in (None, len(value)) and all(type(each) in kinds for each in value)

    def is_table(value: Any, kinds: tuple[type, ...]) -> bool:
        return isinstance(value, dict) and all(type(each) in kinds for each in value.values())

    def is_addition(each: Any) -> bool:
        return (
            isinstance(each, dict) and isinstance(each.get("input"), str) and isinstance(each.get("fingerprint"), str)
            and is_list(each.get("p_values"), (int, float, type(None)), each.get("images"))
        )  # fmt: skip

    text, number = (str,), (int, float)
    rejected = about.get("rejected")
    right = {key: isinstance(about.get(key), str) for key in ("input", "canvas", "version", "fingerprint", "command")}
    right |= {
        "names": is_list(about.get("names"), text, n),
        "paths": is_list(about.get("paths"), text, n),
        "frames": is_list(about.get("frames"), (int,), n) and all(0 <= each < 2**31 for each in about["frames"]),
        "shape": is_list(about.get("shape"), (int,)),
        "rejected": is_list(rejected, (list,)) and all(is_list(pair, text, 2) for pair in rejected or ()),
        "notes": is_list(about.get("notes"), text),
        "agreement": is_table(about.get("agreement"), number),
        "settings": is_table(about.get("settings"), (str, bool, int, float)) and type(about["settings"]["seed"]) is int,
    }  # fmt: skip
    optional = {
        "classes": lambda value: is_list(value, text, n),
        "class_names": lambda value: is_list(value, text),
        "cluster_names": lambda value: is_list(value, text, count),
        "settled": lambda value: is_list(value, (bool,), n),
        "source_shape": lambda value: is_list(value, (int,), 2) and min(value) > 0,
        "rejected_names": lambda value: is_table(value, (list,)) and all(
            image.isdecimal() and int(image) < n and is_list(names, (str, int))
            and all(isinstance(name, str) or 0 <= name < count for name in names)
            for image, names in value.items()
        ),
        "added": lambda value: is_list(value, (dict,)) and all(map(is_addition, value))
        and sum(each["images"] for each in value) < n,
    }  # fmt: skip
    right |= {key: check(about[key]) for key, check in optional.items() if about.get(key) is not None}
    for key, is_right in right.items():
        if not is_right:
            raise ValueError(f"{key} in images.json is missing, of a wrong type, or does not fit {n} images")


def write_run(
    path: Path, source: Path, images: "ImageSet", model: "InvariantClustering", settings: RunSettings, command: str,
    class_names: Sequence[str] | None = None, cluster_names: Sequence[str] | None = None,
    settled: Sequence[bool] | None = None, added: Sequence[dict[str, Any]] | None = None,
    digest: str | None = None, rejected_names: Mapping[int, Sequence[str | int]] | None = None,
) -> FinishedRun:  # fmt: skip
    """Write the results of a fitted clustering as a run folder, without the page.

    Parameters
    ----------
    path : Path
        An existing folder.
    source : Path
        Where the images were read from.
    images : ImageSet
        The images, as :func:`unpose.data.read_folder` returns them.
    model : InvariantClustering
        The estimator, fitted to ``images.images``.
    settings : RunSettings
        The settings that the model was made with.
    command : str
        The command that makes the run again; the page shows it.
    class_names : sequence of str, optional
        Names of the classes that were known of some images, by the numbers that ``fit`` was given.
    cluster_names : sequence of str, optional
        Names that a person gave to the clusters, empty for those without one.
    settled : sequence of bool, optional
        Whether a person has accepted the name of each image.
    added : sequence of dict, optional
        ``FinishedRun.added`` of a run that images were added to; ``images`` are all of them.
    digest : str, optional
        Fingerprint of the images that the run began with; by default that of ``images``.
    rejected_names : mapping of int to sequence of str or int, optional
        Names that a person rejected for some images, by image; numbers for clusters without a name.

    Returns
    -------
    run : FinishedRun
        The same as :func:`read_run` gives; ``run.write_page()`` adds the page.

    Examples
    --------
    The example of :class:`FinishedRun` writes and reads a run.

    >>> callable(write_run)
    True
    """
    from unpose.cluster import agreement_with_classes
    from unpose.cluster.page import page_pictures
    from unpose.files import Folder

    run_folder, digest = RunFolder(path), digest or fingerprint(images)
    pictures = page_pictures(model, images.images, settings.seed)
    about = {
        "input": os.path.abspath(source), "names": images.names,
        "paths": [os.path.abspath(each) for each in images.paths],
        "frames": images.frames.tolist(), "classes": images.labels, "shape": list(images.images.shape[1:]),
        "rejected": images.rejected, "canvas": images.canvas, "source_shape": images.source_shape,
        "notes": images.notes, "settings": settings.decisive(), "version": unpose.__version__,
        "fingerprint": digest, "command": command, "class_names": None if class_names is None else list(class_names),
        "cluster_names": None if cluster_names is None else list(cluster_names),
        "settled": None if settled is None else [bool(each) for each in settled],
        "agreement": {} if images.labels is None else agreement_with_classes(images.labels, model.labels_),
    }  # fmt: skip
    if added:
        about["added"] = list(added)
    if rejected_names:
        about["rejected_names"] = {str(image): list(names) for image, names in sorted(rejected_names.items())}
    run = FinishedRun(path, settings, model, about, pictures)
    write_results(run)
    brightest = float(pictures["errors"].max()) or 1.0
    with Folder(path) as folder, folder.folder(MEANS_FOLDER, create=True) as means:
        for label in range(model.n_clusters_):
            means.write_image(f"{cluster_name(label)}.png", pictures["means"][label] / 65535)
            means.write_image(f"{cluster_name(label)}-error.png", pictures["errors"][label] / brightest)
    run_folder.write_config(settings, source, images, digest)
    return run


def write_results(run: FinishedRun) -> None:
    """Write the estimator, the facts and the tables of a run into its folder: everything but means, page and config."""
    import safetensors.numpy

    from unpose.files import Folder

    run.model.save(run.path)
    with Folder(run.path) as folder:
        folder.write_chunks("pictures.safetensors", [safetensors.numpy.save(run.pictures)])
        folder.write_text("images.json", json.dumps(_as_seen_from_run(run.about, run.path)) + "\n")
        folder.write_chunks("labels.csv", (line.encode() for line in run.table_lines()))
        folder.write_text("clusters.json", json.dumps(run.clusters(), indent=1) + "\n")
    RunFolder(run.path).write_rejected(run.about["rejected"])


def _as_seen_from_run(about: dict[str, Any], path: Path) -> dict[str, Any]:
    """The facts of a run with places as seen from its folder: a run that is shared tells nothing of its author's disk.

    Inputs are relative to the folder of the run, images to the input. A run is found again if it is moved together with
    its images; else ``--images`` names their place.
    """
    home = os.path.realpath(final_place(path))

    def seen(place: str) -> str:
        try:
            return os.path.relpath(place, home)
        except ValueError:  # on another drive of Windows
            return place

    root = about["input"]
    inside = root.rstrip(os.sep) + os.sep
    paths = [each[len(inside) :] if each.startswith(inside) else os.path.relpath(each, root) for each in about["paths"]]
    told = about | {"input": seen(root), "paths": paths}
    if "added" in about:
        told["added"] = [each | {"input": seen(each["input"])} for each in about["added"]]
    return told


def _from_run(about: dict[str, Any], path: Path) -> dict[str, Any]:
    """The facts of a run with places as this process finds them; runs of version 0.2 have absolute ones."""
    home = os.path.realpath(final_place(path))

    def found(place: str, start: str = home) -> str:
        return os.path.normpath(os.path.join(start, place))

    root = found(about["input"])
    told = about | {"input": root, "paths": [found(each, root) for each in about["paths"]]}
    if "added" in about:
        told["added"] = [each | {"input": found(each["input"])} for each in about["added"]]
    return told


def _results(run: FinishedRun) -> "Results":
    """What the page shows, from the run folder alone."""
    from unpose.cluster.page import page_results
    from unpose.files import printable_name
    from unpose.report import Rejected, Reproduction

    about = run.about
    settings = {name.replace("_", " "): value for name, value in about["settings"].items() if name != "seed"}
    settings |= {"canvas": about["canvas"]}
    if about["notes"]:
        settings |= {"input": "; ".join(str(note) for note in about["notes"])}
    return page_results(
        run.model,
        run.pictures,
        run.names,
        question=f"What kinds are there in {Path(printable_name(str(run.source))).name}, if pose does not count?",
        reproduction=Reproduction(about["command"], int(about["settings"]["seed"]), about["version"], settings),
        rejected=[Rejected(name, reason) for name, reason in about["rejected"][:_REJECTED_SHOWN]],
        n_rejected=len(about["rejected"]),
        agreement=about["agreement"],
        group_names=run.cluster_names,
        settled=run.settled,
        rejected_names=run.rejected_names,
    )
