"""Results -> one HTML page that needs nothing else: no network, no other file, no script but its own.

File names come from strangers. They reach the page only as JSON in a block that is never run, and the page's script
writes them only as text; the content-security policy lets no other script, style or address in.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from unpose.report.attention import AttentionPicture, attention_picture
from unpose.report.figures import PALETTE
from unpose.report.results import NO_CLUSTER, Cluster, Results, Round
from unpose.report.thumbnails import MARGIN, Sheet, Window, allot, picture, sheet, spread, webp, window

PAGE_BYTES = 14_000_000
"""What a page may weigh; thumbnails take what the rest leaves."""
THUMBNAIL_BYTES = 7_500_000
"""What all thumbnails may weigh, in base64."""
THUMBNAIL_SIDE, MEAN_SIDE, ERROR_SIDE, FILM_SIDE = 64, 192, 96, 96
PER_SHEET = 512  # a sheet is decoded whole, when the first picture on it is looked at
FILM_IMAGES = 24
_MATRIX_SIDE = 512
"""Pixels along the attention matrix, at least half of them: what it takes on a screen."""
_SCRIPTS = ("base", "edits", "tiles", "story", "cards", "members", "map", "attention", "film", "table", "main")

_templates = Environment(loader=PackageLoader("unpose.report", "assets"), autoescape=True, trim_blocks=True)


def render(results: Results) -> str:
    """The page as text; the same results give the same text.

    Notes
    -----
    Every image is in the page's table and on its map. As many images as fit into :data:`THUMBNAIL_BYTES` have a
    thumbnail, shared fairly among the clusters and spread over their confidences; the page says how many have none.
    """
    sample = [results.images[i] for i in spread(len(results.images), 256)]
    black_white = window(sample)
    data, sheets = _described(results, black_white)
    spent = sum(len(each.data) for each in sheets.values()) + len(_json(data))
    shown, thumbnails = _thumbnails(results, black_white, min(THUMBNAIL_BYTES, max(0, PAGE_BYTES - spent)))
    data["shown"] = shown
    data["perSheet"] = PER_SHEET
    sheets |= {f"thumbnails-{i}": each for i, each in enumerate(thumbnails)}
    data["sheets"] = {name: {"columns": s.columns, "size": s.size, "count": s.count} for name, s in sheets.items()}

    style = _source("page.css")
    script = '(() => {\n"use strict";\n' + "\n".join(_source(f"{name}.js") for name in _SCRIPTS) + "})();\n"
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    labels = np.asarray(results.labels)
    inside = labels != NO_CLUSTER
    return _templates.get_template("page.html.j2").render(
        policy=policy,
        style=Markup(style),
        script=Markup(script),
        data=Markup(_json(data)),
        sheets={name: Markup(each.data) for name, each in sheets.items()},
        question=_encodable(results.question),
        command=_encodable(results.reproduction.command),
        version=_encodable(results.reproduction.version),
        seed=results.reproduction.seed,
        settings={_encodable(str(key)): _encodable(str(value)) for key, value in results.reproduction.settings.items()},
        agreement={_encodable(str(key)): value for key, value in results.agreement.items()},
        n=len(labels),
        k=len(results.clusters),
        outside=int((~inside).sum()),
        sure=float(np.asarray(results.confidences)[inside].mean()) if inside.any() else None,
        attention=data["attention"],
        rounds=data["rounds"],
        rejected=len(results.rejected),
        pictured=len(shown),
    )


def _described(results: Results, black_white: Window) -> tuple[dict[str, Any], dict[str, Sheet]]:
    """Everything but the thumbnails: what goes into the page's JSON, and its sheets of pictures by name."""
    labels, confidences = np.asarray(results.labels), np.asarray(results.confidences)
    height, width = np.shape(results.images[0])[:2]
    poses = np.asarray(results.poses, dtype=np.float64)
    poses = (poses / poses[:, 2:, 2:]).reshape(-1, 9)[:, :8]  # the last entry is 1
    attention = None if results.attention is None else attention_picture(results.attention, labels, confidences)
    sizes = np.bincount(labels[labels >= 0], minlength=len(results.clusters))
    means, errors, worst = _cluster_sheets(results.clusters, black_white)
    film = [_few(each) for each in results.rounds]
    sheets = {"means": means, "errors": errors}
    sheets |= {f"round-{i}": _sheet(images, black_white, FILM_SIDE) for i, images in enumerate(film)}
    if attention is not None:
        sheets["attention"] = _shade(attention.density)
    data = {
        "names": list(results.names),
        "labels": labels.tolist(),
        "confidences": np.round(confidences.astype(np.float64), 3).tolist(),
        "poses": np.round(poses[:, :6], 4).tolist(),
        "tilts": np.round(poses[:, 6:], 7).tolist() if np.any(poses[:, 6:]) else None,
        "layout": _unit_square(np.asarray(results.layout, dtype=np.float64)).tolist(),
        "image": [width, height],
        "margin": MARGIN,
        "outside": round(255 * float(np.clip(-black_white[0] / (black_white[1] - black_white[0]), 0, 1))),
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
        "worstError": worst,
        "attention": None if attention is None else _attention_numbers(attention),
        "rounds": [each.note for each in results.rounds],
        "rejected": [[each.name, each.reason] for each in results.rejected],
        "run": {"command": results.reproduction.command, "seed": results.reproduction.seed,
                "version": results.reproduction.version},
    }  # fmt: skip
    return data, sheets


def _attention_numbers(attention: AttentionPicture) -> dict[str, Any]:
    return {
        "order": attention.order.tolist(),
        "edges": np.round(attention.edges, 5).tolist(),
        "shares": np.round(attention.shares, 4).tolist(),
        "inside": round(attention.inside, 4),
    }


def _thumbnails(results: Results, black_white: Window, budget: int) -> tuple[list[int], list[Sheet]]:
    """Which images have a thumbnail, cluster by cluster, and the sheets that hold them in this order."""
    labels, confidences = np.asarray(results.labels), np.asarray(results.confidences)
    groups = [np.flatnonzero(labels == label) for label in range(NO_CLUSTER, len(results.clusters))]
    ranked = [group[np.argsort(-confidences[group], kind="stable")] for group in groups]
    sizes = [len(group) for group in ranked]
    trial = spread(len(labels), PER_SHEET // 2)
    each = len(_thumbnail_sheet(results, trial, black_white).data) / len(trial)  # bytes
    total = int(0.95 * budget / each)
    while True:
        chosen = [group[spread(len(group), places)] for group, places in zip(ranked, allot(sizes, total), strict=True)]
        shown = np.concatenate(chosen)
        sheets = [
            _thumbnail_sheet(results, shown[start : start + PER_SHEET], black_white)
            for start in range(0, len(shown), PER_SHEET)
        ]
        weight = sum(len(each.data) for each in sheets)
        if weight <= budget:
            return shown.tolist(), sheets
        total = int(len(shown) * 0.95 * budget / weight)


def _thumbnail_sheet(results: Results, indices: NDArray, black_white: Window) -> Sheet:
    return _sheet([results.images[i] for i in indices], black_white, THUMBNAIL_SIDE, quality=75)


def _sheet(images: Sequence[NDArray] | NDArray, black_white: Window, side: int, quality: int = 85) -> Sheet:
    return sheet([picture(image, black_white, side) for image in images], quality=quality)


def _cluster_sheets(clusters: Sequence[Cluster], black_white: Window) -> tuple[Sheet, Sheet, float]:
    """Means, error maps on one common scale, and the value of that scale's end."""
    # Thousands of clusters share the room that two hundred need.
    shrink = min(1.0, (200 / max(1, len(clusters))) ** 0.5)
    # An average is paler than what it averages: the brightest mean may use the whole range.
    brightest = max((float(np.nanpercentile(cluster.mean, 99.9)) for cluster in clusters), default=1.0)
    low, high = black_white
    bright = (low, min(high, brightest)) if brightest > low + 0.1 * (high - low) else black_white
    means = _sheet([cluster.mean for cluster in clusters], bright, int(MEAN_SIDE * shrink), quality=90)
    maps = [np.zeros(np.shape(c.mean)[:2]) if c.error is None else np.nan_to_num(c.error) for c in clusters]
    maps = [each.mean(2) if each.ndim == 3 else each for each in maps]  # (h, w)
    worst = max((float(each.max()) for each in maps), default=0.0)
    ramp = np.array([1.9, 0.95, 0.35])  # from black through ember to amber
    glowing = [np.clip(each[..., None] / (worst or 1.0) * ramp, 0, 1) for each in maps]  # (h, w, 3)
    return means, _sheet(glowing, (0.0, 1.0), int(ERROR_SIDE * shrink)), worst


def _few(each: Round) -> NDArray:
    return np.asarray(each.images)[spread(len(each.images), FILM_IMAGES)]


def _shade(density: NDArray[np.uint8]) -> Sheet:
    """A picture that is only opacity: the page gives it the colour of its ink."""
    # A browser would blur the few pixels of a small matrix as it makes them large; blocks of equal ones stay sharp.
    block = np.ones((max(1, _MATRIX_SIDE // len(density)),) * 2, np.uint8)
    large = np.kron(density, block)
    alpha = np.zeros((*large.shape, 4), np.uint8)
    alpha[..., 3] = large
    return Sheet(webp(Image.fromarray(alpha), lossless=True), 1, 1, (large.shape[1], large.shape[0]))


def _unit_square(layout: NDArray[np.float64]) -> NDArray[np.float64]:
    """Places moved and scaled into [0, 1] x [0, 1], proportions kept."""
    low, high = layout.min(0), layout.max(0)
    extent = float((high - low).max()) or 1.0
    return np.round((layout - (low + high) / 2) / extent + 0.5, 4)


def _json(data: Any) -> str:
    """JSON that cannot end the block it stands in: ASCII, and without <, > and &."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _encodable(text: str) -> str:
    """Text that UTF-8 can write: bytes of a name that were no UTF-8 are spelled out."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _source(name: str) -> str:
    """An asset with the line ends a browser will see, so that its hash is the browser's."""
    loader = _templates.loader
    text = loader.get_source(_templates, name)[0] if loader else ""
    return text.replace("\r\n", "\n")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"
