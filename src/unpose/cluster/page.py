"""The page of a fitted estimator: what it shows, from the estimator and its images.

The page holds up to 24,000 images. Of more images it shows a sample, equally many of each cluster, evenly over the
confidences; counts, averages and the attention matrix are those of all images.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import sparse

import unpose
from unpose.cluster.graph import largest_entries
from unpose.cluster.layout import graph_layout
from unpose.cluster.pictures import attention_frames, group_means
from unpose.files import printable_name, write_chunks
from unpose.images import from_batch
from unpose.report import Rejected, Reproduction, display_range, evenly_spaced, share_equally, thumbnail
from unpose.report.page import Cluster, Results, Round, Whole, render

__all__ = [
    "fitted_images",
    "page_pictures",
    "page_results",
    "page_sample",
    "symmetry_text",
    "thumbnails",
    "write_page",
]

_THUMBNAIL_BYTES = 64 * 2**20
"""Budget of the thumbnails that a run keeps so that its page can be made again without the images."""
_THUMBNAIL_SIDE = 64
_LINKS = 8
"""Links of an image in the sample to others of the sample."""
_FILM_CLUSTERS = 6


def write_page(model: Any, X: Any, path: str | os.PathLike[str], title: str) -> Path:
    """Write the page of a fitted InvariantClustering as one HTML file; ``X`` are the images that were fitted."""
    target = Path(path)
    if target.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"path must be the name of an HTML file, such as groups.html, got {os.fspath(path)!r}")
    images, names = fitted_images(model, X)
    seed = model.random_state if isinstance(model.random_state, int) else 0
    height, width = images.shape[1:3]
    settings = {
        "group": model.range_.group, "light": model.light_,
        "features": "pixels" if model.features_ is None else model.features_.network,
        "size": f"{height} x {width} pixels",
    }  # fmt: skip
    results = page_results(
        model,
        page_pictures(model, images, seed),
        names,
        question=f"What kinds are there in {printable_name(title)}, if pose does not count?",
        reproduction=Reproduction(" ".join(repr(model).split()) + ".fit(images)", seed, unpose.__version__, settings),
        in_run=False,
    )
    write_chunks(target, [render(results).encode()])
    return target


def fitted_images(model: Any, X: Any) -> tuple[NDArray, list[str]]:
    """The images that were fitted, (n, h, w) or (n, h, w, c) with the channels last, and their names."""
    if model._is_vectors:
        raise ValueError("the estimator was fitted to vectors, which have no page; fit images")
    X, names = model._named(X, fitting=False)
    batch = model._given(X, fitting=False)
    n = len(model.labels_)
    if len(batch) != n:
        raise ValueError(f"X must be the {n} images that were fitted, got {len(batch)}")
    return from_batch(batch, channels=model._has_channels), names or model.names_ or [str(i) for i in range(n)]


def page_pictures(model: Any, images: Any, seed: int = 0) -> dict[str, NDArray]:
    """All that the page shows of the images themselves, as small arrays from which it can be made again.

    ``images`` (n, h, w) or (n, h, w, c) are those that the estimator was fitted to.
    """
    count = model.n_clusters_
    counted = np.where(model.copies_ == np.arange(len(images)), model.labels_, -1)  # copies count once
    means, distances = group_means(images, counted, model.poses_, count)
    low, high = display_range(images[:: max(1, len(images) // 256)])
    frames = attention_frames(images, model.neighbours_, model.weights_, _film_images(model))
    shown = page_sample(model.labels_, model.confidences_, model.copies_, model.exemplars_, model._limits.page_images)
    pictures = {
        "images": thumbnails(images, shown, low, high),
        "means": _quantized(means, low, high, 65535),
        "errors": (model.standard_errors_ / (high - low)).astype(np.float32),
        "film": _quantized(np.stack(frames), low, high, 255),
        "layout": graph_layout(model.weights_, random_state=seed, limits=model._limits)[model.copies_],
        "distances": distances[model.copies_],
        "window": np.array([low, high]),
    }
    return pictures if shown is None else pictures | {"shown": shown}


def page_results(
    model: Any, pictures: Mapping[str, NDArray], names: Sequence[str], *, question: str, reproduction: Reproduction,
    rejected: Sequence[Rejected] = (), n_rejected: int = 0, agreement: Mapping[str, float] | None = None,
    group_names: Sequence[str] | None = None, settled: NDArray | None = None,
    rejected_names: Mapping[int, Sequence[str | int]] | None = None, in_run: bool = True,
) -> Results:  # fmt: skip
    """What the page shows, from :func:`page_pictures`; the images themselves are not needed.

    ``names``, ``settled`` and ``rejected_names`` are those of all images, also if the page shows a sample. For the
    others, see :class:`unpose.report.page.Results`.
    """
    labels, confidences, shown = model.labels_, model.confidences_.clip(0, 1), pictures.get("shown")
    rows = np.arange(len(labels)) if shown is None else shown  # images on the page
    clusters = [
        Cluster(
            mean=pictures["means"][label], confidence=float(confidences[labels == label].mean()),
            error=pictures["errors"][label], exemplar=int(np.searchsorted(rows, model.exemplars_[label])),
            symmetry=symmetry_text(model, label),
        )
        for label in range(model.n_clusters_)
    ]  # fmt: skip
    averaged = sum(each.averaged for each in model.history_)
    used = f"after {averaged} such rounds" if averaged else "from the images as found"
    notes = ["", f"for show; the groups were read {used}", "for show"]
    height, width = model.image_shape_[:2]
    return Results(
        question=question,
        images=_Enlarged(pictures["images"], (height, width)),
        names=[names[int(i)] for i in rows],
        labels=labels[rows],
        confidences=confidences[rows],
        poses=model.poses_[rows],
        layout=pictures["layout"][rows],
        clusters=clusters,
        attention=model.weights_ if shown is None else _attended_sample(model.weights_, rows),
        rounds=[Round(frame, note) for frame, note in zip(pictures["film"], notes, strict=True)],
        rejected=rejected,
        reproduction=reproduction,
        agreement=agreement or {},
        stability=None if np.isnan(model.stability_) else model.stability_,
        remarks=model.notes_,
        copies=model.copies_ if shown is None else None,
        distances=pictures["distances"][rows],
        group_names=group_names,
        settled=None if settled is None else settled[rows],
        rejected_names={
            int(np.searchsorted(rows, image)): refused
            for image, refused in (rejected_names or {}).items()
            if image in rows
        },
        n_rejected=n_rejected,
        whole=None if shown is None else Whole(labels, confidences, model.weights_),
        in_run=in_run,
    )


def symmetry_text(model: Any, label: int) -> str:
    """At how many poses the average of a cluster looks the same, in words; empty for an average without symmetry."""
    poses = int(model.symmetries_[label])
    if poses < 2:
        return ""
    return f"the same at {poses} poses" if "mirror" in str(model.range_.group) else f"{poses}-fold"


def page_sample(
    labels: NDArray, confidences: NDArray, copies: NDArray, exemplars: NDArray, most: int
) -> NDArray | None:
    """Ascending indices of the images that the page shows; None for all, if there are no more than ``most``.

    ``labels``, ``confidences`` and ``copies`` are (n,), ``exemplars`` (K,), as in ``InvariantClustering``. Of a larger
    set, every cluster has the same number of images on the page, or all of its images if it has fewer; copies are left
    out.
    """
    if len(labels) <= most:
        return None
    first = np.flatnonzero(copies == np.arange(len(copies)))
    order = first[np.lexsort((-confidences[first], labels[first]))]  # by cluster, then by confidence
    groups = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
    shares = share_equally([len(group) for group in groups], most - len(exemplars))
    chosen = [group[evenly_spaced(len(group), share)] for group, share in zip(groups, shares, strict=True) if share]
    return np.unique(np.concatenate([*chosen, exemplars]))


def thumbnails(images: Any, rows: NDArray | None, low: float, high: float, side: int | None = None) -> NDArray:
    """Small copies of the images ``rows``, or of all, (m, h, w) or (m, h, w, 3) of uint8.

    Without ``side`` they are as large as the budget in bytes allows; ``low`` and ``high`` are the values of black and
    white.
    """
    channels, count = 3 if len(images.shape) == 4 else 1, len(images) if rows is None else len(rows)
    side = side or int(max(8, min(_THUMBNAIL_SIDE, (_THUMBNAIL_BYTES / (count * channels)) ** 0.5)))
    chosen = range(count) if rows is None else rows
    small = [np.asarray(thumbnail(images[i], (low, high), side)) for i in chosen]  # (h, w, 3) each
    return np.stack(small if channels == 3 else [each[..., 0] for each in small])


def _attended_sample(weights: sparse.csr_array, rows: NDArray) -> sparse.csr_array:
    """Attention among the images ``rows`` (m,) of a larger set, directly and by way of one image between: (m, m).

    Few neighbours of an image are in a sample of a large set, but many of the neighbours of its neighbours are.
    """
    matrix = sparse.csr_array(weights)
    some = sparse.csr_array(matrix[rows])
    degree = np.maximum(np.asarray(matrix.sum(1)).ravel(), 1e-300)
    onward = sparse.csr_array(sparse.csc_array(matrix)[:, rows])
    both = sparse.csr_array(some[:, rows] + (some @ sparse.diags_array(1 / degree)) @ onward)
    both.setdiag(0.0)
    both.eliminate_zeros()
    return largest_entries(both, _LINKS)


class _Enlarged(Sequence[Any]):
    """Thumbnails at the size of the canvas, the unit of the poses; each is enlarged when it is read."""

    def __init__(self, small: NDArray, shape: tuple[int, int]) -> None:
        self._small, self._shape = small, shape

    def __len__(self) -> int:
        return len(self._small)

    def __getitem__(self, index: Any) -> Any:
        picture = Image.fromarray(self._small[index])
        return np.asarray(picture.resize(self._shape[::-1], Image.Resampling.NEAREST))


def _film_images(model: Any) -> NDArray:
    """Indices of the images in the film: the exemplar and one of median confidence of each of the largest clusters."""
    chosen = []
    for label in range(min(_FILM_CLUSTERS, model.n_clusters_)):
        members = np.flatnonzero(model.labels_ == label)
        ranked = members[np.argsort(-model.confidences_[members], kind="stable")]
        chosen += [int(model.exemplars_[label]), int(ranked[len(ranked) // 2])]
    return np.array(list(dict.fromkeys(chosen)))


def _quantized(values: NDArray, low: float, high: float, white: int) -> NDArray:
    """Values as integers from 0 (at ``low``) to ``white`` (at ``high``)."""
    unit = np.clip((values - low) / (high - low), 0, 1)
    return (unit * white + 0.5).astype(np.uint8 if white == 255 else np.uint16)
