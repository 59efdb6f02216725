"""Write results as one self-contained HTML page, which loads no other file and works without a server.

File names are untrusted. They are in the page only as JSON in a block that is not executed, and the page's script
inserts them only as text. The content security policy forbids all other scripts, styles and addresses.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image
from scipy import sparse

from unpose.report.attention import AttentionPicture, attention_picture
from unpose.report.documents import asset, rendered
from unpose.report.figures import PALETTE
from unpose.report.results import NO_CLUSTER, Cluster, Results, Round, Whole
from unpose.report.thumbnails import (
    MARGIN,
    DisplayRange,
    Sheet,
    border_colour,
    display_range,
    evenly_spaced,
    share_equally,
    sheet,
    thumbnail,
    webp,
)

__all__ = ["Cluster", "PageLimits", "Results", "Round", "Whole", "render"]

THUMBNAIL_SIDE, MEAN_SIDE, ERROR_SIDE, FILM_SIDE = 64, 192, 96, 96
PER_SHEET = 512  # a sheet is decoded as a whole when its first picture is shown
FILM_IMAGES = 24
"""Images shown in the film of rounds."""
_MATRIX_SIDE = 512
"""The picture of the attention matrix is enlarged to between half this many pixels and this many."""
_SCRIPTS = (
    "base", "edits", "graph", "questions", "tiles", "story", "cards", "members", "map", "attention", "film", "table",
    "bench", "keep", "main",
)  # fmt: skip


@dataclass(frozen=True)
class PageLimits:
    """How large a page may be.

    Parameters
    ----------
    page : int, default 14_000_000
        Bytes of the page; thumbnails use what the rest leaves.
    thumbnails : int, default 7_500_000
        Bytes of all thumbnails in base64.
    """

    page: int = 14_000_000
    thumbnails: int = 7_500_000


def render(results: Results, *, limits: PageLimits | None = None) -> str:
    """Write the results of a clustering as an HTML page; the same results give the same text.

    Every image of ``results`` is in the page's table and on its map. As many images as fit into 7.5 MB have a
    thumbnail, divided equally among the clusters and evenly over their confidences; the page says how many have none.

    >>> from unpose.report import Reproduction
    >>> results = Results(
    ...     question="What is in here?", images=np.zeros((2, 8, 8)), names=["a.png", "b.png"], labels=np.array([0, 0]),
    ...     confidences=np.ones(2), poses=np.tile(np.eye(3), (2, 1, 1)), layout=np.eye(2),
    ...     clusters=[Cluster(mean=np.zeros((8, 8)), confidence=1.0, exemplar=0)],
    ...     reproduction=Reproduction("unpose cluster images -o run", seed=0, version="0.1.0"),
    ... )
    >>> render(results)[:15]
    '<!doctype html>'
    """
    limits = limits or PageLimits()
    sample = [results.images[i] for i in evenly_spaced(len(results.images), 256)]
    shown_range = display_range(sample)
    data, sheets = _page_data(results, shown_range)
    spent = sum(len(each.data) for each in sheets.values()) + len(_json(data)) + 9 * len(results.names)
    shown, thumbnails = _thumbnails(results, shown_range, min(limits.thumbnails, max(0, limits.page - spent)))
    data["shown"] = shown
    data["fills"] = [border_colour(results.images[i], shown_range) for i in shown]
    data["perSheet"] = PER_SHEET
    sheets |= {f"thumbnails-{i}": each for i, each in enumerate(thumbnails)}
    data["sheets"] = {name: {"columns": s.columns, "size": s.size, "count": s.count} for name, s in sheets.items()}

    style = asset("page.css")
    script = '(() => {\n"use strict";\n' + "\n".join(asset(f"{name}.js") for name in _SCRIPTS) + "})();\n"
    labels, confidences = _all_labels(results)
    inside = labels != NO_CLUSTER
    rejected = len(results.rejected) if results.n_rejected is None else results.n_rejected
    return rendered(
        "page.html.j2",
        style,
        script,
        data=Markup(_json(data)),
        sheets={name: Markup(each.data) for name, each in sheets.items()},
        question=results.question,
        command=results.reproduction.command,
        version=results.reproduction.version,
        seed=results.reproduction.seed,
        settings={str(key): str(value) for key, value in results.reproduction.settings.items()},
        agreement={str(key): value for key, value in results.agreement.items()},
        n=len(labels),
        k=len(results.clusters),
        outside=int((~inside).sum()),
        confidence=float(confidences[inside].mean()) if inside.any() else None,
        stability=results.stability,
        remarks=results.remarks,
        copies=len(data["copies"]),
        attention=data["attention"],
        graph=data["graph"] is not None,
        rounds=data["rounds"],
        rejected=rejected,
        pictured=len(shown),
        on_page=len(results.names),
        in_run=results.in_run,
    )


def _page_data(results: Results, shown_range: DisplayRange) -> tuple[dict[str, Any], dict[str, Sheet]]:
    """The data for the page's JSON and the sprite sheets by name, without the thumbnails."""
    labels, confidences = np.asarray(results.labels), np.asarray(results.confidences)
    height, width = np.shape(results.images[0])[:2]
    poses = np.asarray(results.poses, dtype=np.float64)
    poses = (poses / poses[:, 2:, 2:]).reshape(-1, 9)[:, :8]  # the last entry is 1
    whole = results.whole
    if whole is not None:
        attention: AttentionPicture | None = attention_picture(whole.attention, whole.labels, whole.confidences)
    else:
        attention = None if results.attention is None else attention_picture(results.attention, labels, confidences)
    all_labels, _ = _all_labels(results)
    totals = None if whole is None else np.bincount(all_labels + 1, minlength=len(results.clusters) + 1).tolist()
    sizes = np.bincount(all_labels[all_labels >= 0], minlength=len(results.clusters))
    means, errors, worst = _cluster_sheets(results.clusters, shown_range)
    film = [np.asarray(each.images)[evenly_spaced(len(each.images), FILM_IMAGES)] for each in results.rounds]
    sheets = {"means": means, "errors": errors}
    sheets |= {f"round-{i}": _sheet(images, shown_range, FILM_SIDE) for i, images in enumerate(film)}
    if attention is not None:
        sheets["attention"] = _opacity_picture(attention.density)
    data = {
        "names": list(results.names),
        "labels": labels.tolist(),
        "confidences": np.round(confidences.astype(np.float64), 3).tolist(),
        "poses": np.round(poses[:, :6], 4).tolist(),
        "tilts": np.round(poses[:, 6:], 7).tolist() if np.any(poses[:, 6:]) else None,
        "layout": _unit_square(np.asarray(results.layout, dtype=np.float64)).tolist(),
        "image": [width, height],
        "margin": MARGIN,
        "outside": round(255 * float(np.clip(-shown_range[0] / (shown_range[1] - shown_range[0]), 0, 1))),
        "palette": PALETTE,
        "clusters": [
            {
                "size": int(size),
                "confidence": round(float(cluster.confidence), 4),
                "exemplar": int(cluster.exemplar),
                "symmetry": cluster.symmetry,
                "error": None if cluster.error is None else float(f"{np.nanmax(cluster.error):.3g}"),
            }
            for cluster, size in zip(results.clusters, sizes, strict=True)
        ],
        "totals": totals,  # images without a cluster, then those of each cluster, if the page shows a sample
        "worstError": worst,
        "attention": None if attention is None else _attention_numbers(attention),
        "graph": None if results.attention is None else _graph(results.attention),
        "groupNames": None if results.group_names is None else list(results.group_names),
        "settled": None if results.settled is None else np.asarray(results.settled, np.int64).tolist(),
        "rejectedNames": [[i, name] for i, names in results.rejected_names.items() for name in names],
        "rounds": [each.note for each in results.rounds],
        "copies": [] if results.copies is None else _pairs(np.asarray(results.copies)),
        "distances": None if results.distances is None
        else np.round(np.nan_to_num(np.asarray(results.distances, np.float64)), 5).tolist(),
        "stability": results.stability,
        "inRun": results.in_run,
        "rejected": [[each.name, each.reason] for each in results.rejected],
        "run": {"command": results.reproduction.command, "seed": results.reproduction.seed,
                "version": results.reproduction.version, "key": _key(results)},
    }  # fmt: skip
    return data, sheets


def _all_labels(results: Results) -> tuple[NDArray, NDArray]:
    """Labels and confidences of all images, whether or not they are on the page, (n,) each."""
    source = results if results.whole is None else results.whole
    return np.asarray(source.labels), np.asarray(source.confidences)


def _graph(attention: Any) -> dict[str, str] | None:
    """The attention matrix (n, n), made symmetric, as typed arrays in base64; None if it has no weights.

    Only entries above the diagonal are kept, row by row: how many there are in each row, their columns and weights.
    """
    weights = sparse.csr_array(attention)
    upper = sparse.csr_array(sparse.triu(weights.maximum(weights.T), k=1, format="csr"))
    upper.eliminate_zeros()
    upper.sort_indices()
    if upper.nnz == 0:
        return None
    index = "<u4" if upper.shape[0] > 65535 else "<u2"
    parts = {
        "counts": np.diff(upper.indptr).astype(index), "columns": upper.indices.astype(index),
        "weights": upper.data.astype("<f4"),
    }  # fmt: skip
    return {name: base64.b64encode(part.tobytes()).decode("ascii") for name, part in parts.items()}


def _key(results: Results) -> str:
    """What the browser keeps the work on this page under: the same for the same images and clusters."""
    digest = hashlib.sha256(json.dumps(list(results.names)).encode("ascii"))
    digest.update(np.asarray(results.labels, "<i8").tobytes())
    return digest.hexdigest()[:16]


def _pairs(copies: NDArray) -> list[list[int]]:
    """The images that are copies of another one, each with that image."""
    images = np.flatnonzero(copies != np.arange(len(copies)))
    return np.stack([images, copies[images]], axis=1).tolist()


def _attention_numbers(attention: AttentionPicture) -> dict[str, Any]:
    return {
        "order": attention.order.tolist(),
        "edges": np.round(attention.edges, 5).tolist(),
        "shares": np.round(attention.shares, 4).tolist(),
        "inside": round(attention.inside, 4),
    }


def _thumbnails(results: Results, shown_range: DisplayRange, budget: int) -> tuple[list[int], list[Sheet]]:
    """The indices of the images with a thumbnail, by cluster, and the sprite sheets in this order."""
    labels, confidences = np.asarray(results.labels), np.asarray(results.confidences)
    groups = [np.flatnonzero(labels == label) for label in range(NO_CLUSTER, len(results.clusters))]
    ranked = [group[np.argsort(-confidences[group], kind="stable")] for group in groups]
    sizes = [len(group) for group in ranked]
    trial = evenly_spaced(len(labels), PER_SHEET // 2)
    bytes_each = len(_thumbnail_sheet(results, trial, shown_range).data) / len(trial)
    total = int(0.95 * budget / bytes_each)
    while True:
        shares = zip(ranked, share_equally(sizes, total), strict=True)
        shown = np.concatenate([group[evenly_spaced(len(group), share)] for group, share in shares])
        sheets = [
            _thumbnail_sheet(results, shown[start : start + PER_SHEET], shown_range)
            for start in range(0, len(shown), PER_SHEET)
        ]
        n_bytes = sum(len(each.data) for each in sheets)
        if n_bytes <= budget:
            return shown.tolist(), sheets
        total = int(len(shown) * 0.95 * budget / n_bytes)


def _thumbnail_sheet(results: Results, indices: NDArray, shown_range: DisplayRange) -> Sheet:
    return _sheet([results.images[i] for i in indices], shown_range, THUMBNAIL_SIDE, quality=75)


def _sheet(images: Sequence[NDArray] | NDArray, shown_range: DisplayRange, side: int, quality: int = 85) -> Sheet:
    return sheet([thumbnail(image, shown_range, side) for image in images], quality=quality)


def _cluster_sheets(clusters: Sequence[Cluster], shown_range: DisplayRange) -> tuple[Sheet, Sheet, float]:
    """Sprite sheets of means and of error maps on one common scale, and the largest error."""
    # More than 200 clusters get smaller pictures, so that their total size stays the same.
    shrink = min(1.0, (200 / max(1, len(clusters))) ** 0.5)
    # Averages have less contrast than the images, so that the brightest mean may use the whole range.
    brightest = max((float(np.nanpercentile(cluster.mean, 99.9)) for cluster in clusters), default=1.0)
    low, high = shown_range
    mean_range = (low, min(high, brightest)) if brightest > low + 0.1 * (high - low) else shown_range
    means = _sheet([cluster.mean for cluster in clusters], mean_range, int(MEAN_SIDE * shrink), quality=90)
    maps = [np.zeros(np.shape(c.mean)[:2]) if c.error is None else np.nan_to_num(c.error) for c in clusters]
    maps = [each.mean(2) if each.ndim == 3 else each for each in maps]  # (h, w)
    worst = max((float(each.max()) for each in maps), default=0.0)
    ramp = np.array([1.9, 0.95, 0.35])  # from black through red to yellow
    coloured = [np.clip(each[..., None] / (worst or 1.0) * ramp, 0, 1) for each in maps]  # (h, w, 3)
    return means, _sheet(coloured, (0.0, 1.0), int(ERROR_SIDE * shrink)), worst


def _opacity_picture(density: NDArray[np.uint8]) -> Sheet:
    """A picture with opacity only, which the page draws in the colour of its text."""
    # A browser would blur a small matrix when it enlarges it; blocks of equal pixels stay sharp.
    block = np.ones((max(1, _MATRIX_SIDE // len(density)),) * 2, np.uint8)
    large = np.kron(density, block)
    alpha = np.zeros((*large.shape, 4), np.uint8)
    alpha[..., 3] = large
    return Sheet(webp(Image.fromarray(alpha), lossless=True), 1, 1, (large.shape[1], large.shape[0]))


def _unit_square(layout: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shift and scale positions (n, 2) into [0, 1] x [0, 1], with equal scale in both directions."""
    low, high = layout.min(0), layout.max(0)
    extent = float((high - low).max()) or 1.0
    return np.round((layout - (low + high) / 2) / extent + 0.5, 4)


def _json(data: Any) -> str:
    """Write JSON that cannot end its script block: ASCII, with <, > and & escaped."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
