"""What a finished run holds: written here, read back here, and made into the table and the page."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import unpose
from unpose.cli.shared.errors import Refused
from unpose.cli.shared.settings import Settings, as_toml
from unpose.cli.shared.tables import as_csv, pose_parts
from unpose.runs.folder import MEANS, PIECES, fingerprint, finished

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unpose.cluster import InvariantClustering
    from unpose.data import ImageSet
    from unpose.report.results import Results

COLUMNS = (
    "path", "frame", "cluster", "confidence", "angle", "shift_x", "shift_y", "scale", "mirrored", "distance",
)  # fmt: skip
_PICTURES = 64 * 2**20
"""Bytes of thumbnails that a run keeps, so that its page can be made again without the images."""
_SIDE = 64
_LARGEST = 2**31
_FILM_GROUPS, _FILM_EACH = 6, 2


@dataclass(frozen=True)
class FinishedRun:
    """A run read back from its folder."""

    path: Path
    model: "InvariantClustering"
    about: dict[str, Any]  # images.json
    pictures: "dict[str, NDArray]"  # thumbnails, means, film, layout, distances

    @property
    def names(self) -> list[str]:
        return list(self.about["names"])

    @property
    def source(self) -> Path:
        return Path(self.about["input"])

    @property
    def shape(self) -> tuple[int, int]:
        height, width = self.about["shape"][:2]
        return int(height), int(width)

    @property
    def source_scale(self) -> float | None:
        """Pixels of the files for one of the canvas, where all images had one size."""
        stored = self.about.get("source_shape")
        return None if stored is None else max(stored) / max(self.shape)

    @property
    def color(self) -> Any:
        return "rgb" if len(self.about["shape"]) == 3 else "grey"


def read_run(path: Path) -> FinishedRun:
    """The finished `unpose cluster` run in a folder."""
    import safetensors
    import safetensors.numpy

    from unpose.cluster import InvariantClustering
    from unpose.files.atomic import read_file

    if (made := finished(path)) is None:
        unfinished = (path / PIECES / "begun.json").exists()
        wrong = "an unfinished run; finish it first" if unfinished else "no run of `unpose cluster`"
        raise Refused(f"{path} holds {wrong}")
    if made.kind != "cluster":
        raise Refused(
            f"{path} holds a run of `unpose {made.kind}`, which has no groups: aligned.npy, mean.png and poses.csv in "
            "it are the results; this command needs a run of `unpose cluster`"
        )
    try:
        model = InvariantClustering.load(path)
        about = json.loads(read_file(path / "images.json", _LARGEST))
        pictures = safetensors.numpy.load(read_file(path / "pictures.safetensors", _LARGEST))
        run = FinishedRun(path, model, about, pictures)
        _check(run)
    except FileNotFoundError as error:
        raise Refused(f"{path} is not a run of `unpose cluster`: {Path(error.filename).name} is missing") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, safetensors.SafetensorError) as error:
        raise Refused(f"{path} cannot be read as a run: {error}") from error
    return run


def _check(run: FinishedRun) -> None:
    """A ``ValueError`` where the files of a run, which a stranger may have made, do not fit together."""
    kinds = {
        "input": str, "names": list, "paths": list, "frames": list, "shape": list, "rejected": list, "canvas": str,
        "settings": dict, "version": str, "agreement": dict, "fingerprint": str, "command": str, "notes": list,
    }  # fmt: skip
    for key, kind in kinds.items():
        if not isinstance(run.about.get(key), kind):
            raise ValueError(f"{key} in images.json is missing or no {kind.__name__}")
    n, count = len(run.model.labels_), run.model.n_clusters_
    told = [run.about["names"], run.about["paths"], run.about["classes"] or run.names]
    if any(len(each) != n or not all(isinstance(text, str) for text in each) for each in told):
        raise ValueError(f"images.json must name {n} images, as the model has")
    lengths = {"images": n, "layout": n, "distances": n, "means": count, "errors": count, "film": 3, "window": 2}
    for key, length in lengths.items():
        if len(run.pictures[key]) != length:
            raise ValueError(f"{key} in pictures.safetensors must be {length}, got {len(run.pictures[key])}")
    stored = run.about.get("source_shape")
    if stored is not None and (len(stored) != 2 or not all(isinstance(side, int) and side > 0 for side in stored)):
        raise ValueError("source_shape in images.json is no size of an image")
    if len(run.about["frames"]) != n or not all(len(pair) == 2 for pair in run.about["rejected"]):
        raise ValueError("images.json does not belong to the model")
    if list(run.model.image_shape_) != run.about["shape"] or not isinstance(run.about["settings"]["seed"], int):
        raise ValueError("the settings do not belong to the model")


def write_run(
    path: Path, source: Path, images: "ImageSet", model: "InvariantClustering", settings: Settings, command: str
) -> FinishedRun:
    """Write everything but the page, each file whole; ``command`` is what makes the run again."""
    import numpy as np
    import safetensors.numpy

    from unpose.cluster.agreement import agreement
    from unpose.cluster.layout import layout
    from unpose.cluster.pictures import averages, film
    from unpose.files.atomic import write_chunks, write_image, write_text
    from unpose.report.thumbnails import window

    count = model.n_clusters_
    means, distances = averages(images.images, model.labels_, model.poses_, count)
    low, high = window(images.images[:: max(1, len(images) // 256)])
    frames = film(images.images, model.neighbours_, model.weights_, _shown(model))
    pictures = {
        "images": _thumbnails(images.images, low, high),
        "means": _levels(means, low, high, 65535),
        "errors": (model.standard_errors_ / (high - low)).astype(np.float32),
        "film": _levels(np.stack(frames), low, high, 255),
        "layout": layout(model.weights_, seed=settings.seed),
        "distances": distances,
        "window": np.array([low, high]),
    }
    about = {
        "input": os.path.abspath(source), "names": images.names,
        "paths": [os.path.abspath(each) for each in images.paths],
        "frames": images.frames.tolist(), "classes": images.labels, "shape": list(images.images.shape[1:]),
        "rejected": images.rejected, "canvas": images.canvas, "source_shape": images.source_shape,
        "notes": images.notes, "settings": settings.decisive(), "version": unpose.__version__,
        "fingerprint": fingerprint(images), "command": command,
        "agreement": {} if images.labels is None else agreement(images.labels, model.labels_),
    }  # fmt: skip
    model.save(path)
    write_chunks(path / "pictures.safetensors", [safetensors.numpy.save(pictures)])
    write_text(path / "images.json", json.dumps(about) + "\n")
    run = FinishedRun(path, model, about, pictures)
    write_text(path / "labels.csv", table(run))
    reasons = [{"path": name, "reason": reason} for name, reason in images.rejected]
    write_text(path / "rejected.csv", as_csv(("path", "reason"), reasons))
    write_text(path / "clusters.json", json.dumps(_clusters(run), indent=1) + "\n")
    (path / MEANS).mkdir(exist_ok=True)
    brightest = float(pictures["errors"].max()) or 1.0
    for number in range(count):
        write_image(path / MEANS / f"{cluster_name(number)}.png", (means[number] - low) / (high - low))
        write_image(path / MEANS / f"{cluster_name(number)}-error.png", pictures["errors"][number] / brightest)
    told = {
        "version": unpose.__version__, "input": printable_path(source), "canvas": images.canvas,
        "fingerprint": about["fingerprint"],
    }  # fmt: skip
    write_text(path / "config.toml", as_toml(settings, told))
    return run


def cluster_name(number: int) -> str:
    """The name of a group in files and folders."""
    return f"cluster-{number:03d}" if number >= 0 else "no-cluster"


def printable_path(path: Path) -> str:
    from unpose.files.frames import printable

    return printable(str(path))


def rows(run: FinishedRun) -> list[dict[str, Any]]:
    """One row for each image: where it came from, its group, its pose, the RMS difference of its pixels from the mean.

    `unpose predict` has another distance, by which it decides: over the orbit, without light.
    """
    model, about = run.model, run.about
    found = []
    for i, name in enumerate(about["names"]):
        label = int(model.labels_[i])
        row: dict[str, Any] = {"path": name, "frame": int(about["frames"][i]), "cluster": label}
        row |= {"confidence": float(model.confidences_[i])} | pose_parts(model.poses_[i])
        row["distance"] = float(run.pictures["distances"][i]) if label >= 0 else None
        if about["classes"] is not None:
            row["class"] = about["classes"][i]
        found.append(row)
    return found


def table(run: FinishedRun) -> str:
    """labels.csv: :func:`rows` for a spreadsheet."""
    return as_csv(COLUMNS if run.about["classes"] is None else (*COLUMNS, "class"), rows(run))


def results(run: FinishedRun) -> "Results":
    """What the page shows, from the run folder alone."""
    from unpose.report.results import Cluster, Rejected, Reproduction, Results, Round

    model, pictures, about = run.model, run.pictures, run.about
    told = _clusters(run)
    clusters = [
        Cluster(
            mean=pictures["means"][number], confidence=each["confidence"], exemplar=int(model.exemplars_[number]),
            error=pictures["errors"][number], symmetry=each["symmetry"],
        )
        for number, each in enumerate(told["clusters"])
    ]  # fmt: skip
    averaged = sum(each.averaged for each in model.history_)
    used = f"after {averaged} such rounds" if averaged else "from the images as found"
    notes = ["", f"for show; the groups were read {used}", "for show"]
    settings = {name.replace("_", " "): value for name, value in about["settings"].items() if name != "seed"}
    settings |= {"canvas": about["canvas"]}
    if about["notes"]:
        settings |= {"input": "; ".join(str(note) for note in about["notes"])}
    return Results(
        question=f"What kinds are there in {Path(printable_path(run.source)).name}, if pose does not count?",
        images=_Restored(pictures["images"], run.shape),
        names=run.names,
        labels=model.labels_,
        confidences=model.confidences_.clip(0, 1),
        poses=model.poses_,
        layout=pictures["layout"],
        clusters=clusters,
        attention=model.weights_,
        rounds=[Round(frame, note) for frame, note in zip(pictures["film"], notes, strict=True)],
        rejected=[Rejected(name, reason) for name, reason in about["rejected"]],
        reproduction=Reproduction(about["command"], int(about["settings"]["seed"]), about["version"], settings),
        agreement=about["agreement"],
    )


def write_page(run: FinishedRun) -> Path:
    """report.html into the run's folder."""
    from unpose.files.atomic import write_text
    from unpose.report.page import render

    return write_text(run.path / "report.html", render(results(run)))


def summary(run: FinishedRun) -> dict[str, Any]:
    """The answer, for scripts."""
    inside = run.model.labels_ >= 0
    return {
        "run": str(run.path), "images": len(run.names), "clusters": run.model.n_clusters_,
        "sizes": [each["size"] for each in _clusters(run)["clusters"]], "no_cluster": int((~inside).sum()),
        "confidence": float(run.model.confidences_[inside].mean()), "rejected": len(run.about["rejected"]),
        "notes": run.about["notes"], "agreement": run.about["agreement"], "report": str(run.path / "report.html"),
    }  # fmt: skip


def _clusters(run: FinishedRun) -> dict[str, Any]:
    """clusters.json."""
    model = run.model
    told = []
    for number in range(model.n_clusters_):
        members = model.labels_ == number
        told.append({
            "cluster": number, "size": int(members.sum()), "confidence": float(model.confidences_[members].mean()),
            "exemplar": run.names[int(model.exemplars_[number])], "symmetry": _symmetry(model, number),
            "mean": f"{MEANS}/{cluster_name(number)}.png", "error": f"{MEANS}/{cluster_name(number)}-error.png",
            "largest_error": float(run.pictures["errors"][number].max()),
        })  # fmt: skip
    return {"images": len(run.names), "clusters": told, "agreement": run.about["agreement"]}


def _symmetry(model: "InvariantClustering", number: int) -> str:
    poses = int(model.symmetries_[number])
    if poses < 2:
        return ""
    return f"the same at {poses} poses" if "mirror" in model.group else f"{poses}-fold"


def _shown(model: "InvariantClustering") -> "NDArray":
    """Images for the film: of the largest groups the exemplar and one of middling confidence."""
    import numpy as np

    chosen = []
    for number in range(min(_FILM_GROUPS, model.n_clusters_)):
        members = np.flatnonzero(model.labels_ == number)
        ranked = members[np.argsort(-model.confidences_[members], kind="stable")]
        chosen += [int(model.exemplars_[number]), int(ranked[len(ranked) // 2])][:_FILM_EACH]
    return np.array(list(dict.fromkeys(chosen)))


def _levels(values: "NDArray", low: float, high: float, white: int) -> "NDArray":
    """Values as whole numbers from 0 (black) to ``white``."""
    import numpy as np

    unit = np.clip((values - low) / (high - low), 0, 1)
    return (unit * white + 0.5).astype(np.uint8 if white == 255 else np.uint16)


def _thumbnails(images: "NDArray", low: float, high: float) -> "NDArray":
    """Small copies of all images, (n, h, w) or (n, h, w, 3) of bytes, as large as their budget lets them be."""
    import numpy as np

    from unpose.report.thumbnails import picture

    channels = 3 if images.ndim == 4 else 1
    side = int(max(8, min(_SIDE, (_PICTURES / (len(images) * channels)) ** 0.5)))
    small = [np.asarray(picture(image, (low, high), side)) for image in images]  # (h, w, 3) each
    return np.stack(small if channels == 3 else [each[..., 0] for each in small])


class _Restored(Sequence[Any]):
    """Thumbnails at the size of the canvas, which poses are measured in; only those asked for are scaled."""

    def __init__(self, small: "NDArray", shape: tuple[int, int]) -> None:
        self._small, self._shape = small, shape

    def __len__(self) -> int:
        return len(self._small)

    def __getitem__(self, index: Any) -> Any:
        import numpy as np
        from PIL import Image

        picture = Image.fromarray(self._small[index])
        return np.asarray(picture.resize(self._shape[::-1], Image.Resampling.NEAREST))
