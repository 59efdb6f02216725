"""Further measures of an audit: stability without labels, collapse, explanations and completeness.

Those that only read the answers over the orbit are always taken where they apply, and the gradients of a torch network,
which cost few calls. The others are asked for by name.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unpose.audit import (
    OrbitOutputs,
    collapse,
    completeness,
    evaluation,
    explain,
    explanation_agreement,
    instability,
    pose_collapse,
)
from unpose.audit.calls import first_line
from unpose.audit.precision import model_type
from unpose.report import evenly_spaced
from unpose.report.audit import AuditedMeasure
from unpose.runs.remembered_calls import RememberedCalls

MEASURES = ("explanations", "completeness")
"""Measures that are taken only if they are asked for, because they call the model more often."""

EXPLAINED = 8
"""Images whose explanations are compared, evenly chosen."""
_MOST_EMBEDDINGS = 2000
"""Embeddings whose collapse is measured: the singular values of more take long."""
_PAIR_SIDE, _LEAST_SIDE = 32, 16
"""Largest and smallest side of the images of completeness; they are enlarged to what the model takes."""
_INVARIANT = 0.05
"""An invariant changes by at most this between poses, relative to two random images."""
_LEAST_CHANCE = 0.1
"""Below this value for random labels, the collapse index says nothing."""

Progress = Callable[[str, int, int], None]


def further_measures(
    f: RememberedCalls,
    batch: Tensor,
    group: str,
    kind: str,
    orbit: OrbitOutputs | None,
    *,
    network: nn.Module | None = None,
    labels: Sequence[int] | None = None,
    wanted: Sequence[str] = (),
    random_state: int = 0,
    progress: Progress | None = None,
) -> tuple[list[AuditedMeasure], list[str]]:
    """Measure what applies to a model, and say in sentences what was asked for and does not.

    What takes long is kept in the folder of the model ``f``. ``batch`` (n, c, h, w) are the images, ``kind`` is what
    the model returns, ``orbit`` its outputs over the orbits of the images (None for maps), ``network`` the network in
    it, for gradients, and ``wanted`` some of :data:`MEASURES`.
    """
    unknown = [name for name in wanted if name not in MEASURES]
    if unknown:
        raise ValueError(f"measures must be of {', '.join(MEASURES)}, got {unknown[0]!r}")
    rows: list[AuditedMeasure] = []
    remarks: list[str] = []
    if kind == "scores" and orbit is not None:
        rows.append(_stability(orbit))
    if kind == "embedding" and orbit is not None and orbit.upright.ndim == 2 and orbit.upright.shape[1] > 1:
        rows += _collapse(orbit, labels)
    if kind == "scores":
        methods = ["gradients"] * (network is not None)
        if "explanations" in wanted:
            methods = ["gradients", "integrated gradients"] * (network is not None) + ["occlusion"]
        for done, method in enumerate(methods):
            if progress is not None:
                progress("explanations", done, len(methods))
            try:
                rows.append(_explanation(f, network, batch, group, method, random_state))
            except Exception as error:  # networks that torch cannot differentiate raise many kinds of errors
                remarks.append(f"Explanations by {method} failed: {first_line(error).rstrip('.')}.")
    elif "explanations" in wanted:
        remarks.append("Explanations were asked for, but the output is no vector of class scores.")
    if "completeness" in wanted:
        if kind == "image":
            remarks.append("Completeness was asked for, but the output is a map, which is no invariant.")
        else:
            try:
                rows += _completeness(f, batch, group, random_state, progress)
            except ValueError as error:
                remarks.append(f"Completeness could not be measured: {error}.")
    return rows, remarks


def _stability(orbit: OrbitOutputs) -> AuditedMeasure:
    control = OrbitOutputs(orbit.group, (orbit.rows[0], orbit.control), orbit.control)
    return AuditedMeasure(
        "stability", "Change of the class probabilities", float(instability(orbit).mean()),
        float(instability(orbit, returned=True).mean()), float(instability(control).mean()), None,
        "Share of the probability that goes to other classes, on average over the transformations. It needs no labels; "
        "unpose.audit.monitor follows it on a stream of images.",
    )  # fmt: skip


def _collapse(orbit: OrbitOutputs, labels: Sequence[int] | None) -> Iterator[AuditedMeasure]:
    n = len(orbit.upright)
    chosen = evenly_spaced(n, max(2, _MOST_EMBEDDINGS // len(orbit.rows)))
    try:
        found = pose_collapse(orbit.subset(chosen))
    except ValueError:  # too few elements, or equal embeddings
        return
    few = " There are too few images for the dimension of the embedding, so it says nothing."
    yield AuditedMeasure(
        "pose_collapse", "Collapse of pose", found.index, None, None, found.chance,
        "Variability collapse index with images as classes: 0 if all poses of an image have one embedding; random "
        f"labels would give the value by chance.{few if found.chance < _LEAST_CHANCE else ''}",
    )  # fmt: skip
    yield AuditedMeasure(
        "pose_variance", "Variance within orbits", found.within, None, None, None,
        "Share of the variance of the embeddings that is due to the pose.",
    )  # fmt: skip
    yield AuditedMeasure(
        "effective_rank", "Effective rank", found.effective_rank, None, None, None,
        f"Number of directions that the embeddings use, of {found.rank}; 1 if they lie on one line.",
    )  # fmt: skip
    if labels is not None and len(set(labels)) > 1:
        some = evenly_spaced(n, _MOST_EMBEDDINGS)
        classes = collapse(orbit.upright[some].astype(np.float32), np.asarray(labels)[some])
        yield AuditedMeasure(
            "class_collapse", "Collapse of classes", classes.index, None, None, classes.chance,
            "Variability collapse index of the labels: 0 if all images of a class have one embedding."
            + (few if classes.chance < _LEAST_CHANCE else ""),
        )  # fmt: skip


def _explanation(
    f: RememberedCalls, network: nn.Module | None, batch: Tensor, group: str, method: str, seed: int
) -> AuditedMeasure:
    images = batch[evenly_spaced(len(batch), EXPLAINED)]
    model: Callable[[Tensor], Tensor] = f.strict
    if method != "occlusion" and network is not None:
        model = lambda x: network(x.to(device_of(network), model_type(network, x))).to(x)  # noqa: E731

    def measure() -> dict[str, Any]:
        with evaluation(network):
            explainer = explain(model, images, method, patch=max(2, min(images.shape[-2:]) // 4))
            report = explanation_agreement(explainer, images, group, method=method, random_state=seed)
        floor = float(report.floors[1:].mean()) if not report.exact[1:].all() else None
        return {"value": report.score, "floor": floor, "control": report.control_score, "chance": report.between_images}

    digest = hashlib.sha256(images.cpu().numpy().tobytes()).hexdigest()
    found = f.result(f"{method} {group} {seed} {digest}", measure)
    return AuditedMeasure(
        method.replace(" ", "_"), f"Explanations by {method}", **found,
        reading="Cosine of the explanation of the transformed picture and the transformed explanation of the picture, "
        f"on {len(images)} images: 1 if they agree. By chance: explanations of different images.",
    )  # fmt: skip


def _completeness(
    f: RememberedCalls, batch: Tensor, group: str, seed: int, progress: Progress | None
) -> list[AuditedMeasure]:
    channels, side = batch.shape[1], min(batch.shape[-2:])
    # Pixels are repeated and a border is added on both sides: neither breaks a symmetry or changes a pixel value.
    size = next(size for size in range(min(_PAIR_SIDE, side), 0, -1) if (side - side // size * size) % 2 == 0)
    if size < _LEAST_SIDE:
        raise ValueError(f"completeness needs images of at least {_LEAST_SIDE} pixels, got {side}")
    low, high = (each.reshape(1, channels, 1, 1) for each in (batch.amin((0, 2, 3)), batch.amax((0, 2, 3))))
    around = [(length - side // size * size) // 2 for length in batch.shape[-2:]]

    def prepared(images: Tensor) -> Tensor:
        larger = images.repeat_interleave(side // size, -1).repeat_interleave(side // size, -2)
        larger = F.pad(larger, (around[1], around[1], around[0], around[0]))
        return (low + (high - low) * larger).to(batch.dtype)

    missing: list[int] = []

    def distance(one: Tensor, other: Tensor) -> Tensor:
        pairs = torch.stack([one, other])  # (2, n, 1, size, size)
        least, most = pairs.amin((0, 2, 3, 4), keepdim=True), pairs.amax((0, 2, 3, 4), keepdim=True)
        scaled = (pairs - least) / (most - least).clamp(min=1e-12)
        first, second = (f.with_gaps(prepared(each)).double().flatten(1) for each in scaled)
        distances = (first - second).norm(dim=1)
        missing.append(int(distances.isnan().sum()))
        return distances

    if progress is not None:
        progress("completeness", 0, 1)
    report = completeness(distance, group, size=size, random_state=seed)
    moves = ""
    if sum(missing):
        moves = f" {sum(missing)} comparisons are left out, because the model fails on a picture."
        if not any(family.pairs for family in report.families):
            raise ValueError("the model fails on a picture of every pair")
    if report.floor > _INVARIANT:
        moves += (
            f" The output itself changes with the pose, by {report.floor:.2g} of the distance of two random images."
        )
    return [
        AuditedMeasure(
            f"confused_{family.name.replace(' ', '_')}", f"Confused pairs: {family.name}",
            len(family.confused) / family.pairs,
            reading=f"{len(family.confused)} of {family.pairs} pairs that no pose relates get the same output.{moves}",
        )
        for family in report.families
        if family.pairs
    ]  # fmt: skip


def device_of(network: nn.Module) -> torch.device:
    """Where the parameters of a network are."""
    return next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
