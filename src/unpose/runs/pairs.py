"""Photographs of the same things at several angles, against the same turns made by resampling.

Angles that are not known are estimated by the search over the orbit, at several resolutions: where these disagree, the
angle is uncertain, and where they disagree by more than a few degrees the photograph is left out.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unpose.align import align
from unpose.audit import digital_against_real
from unpose.images import smooth
from unpose.report.audit import RealPairs
from unpose.runs.audited_images import AuditedImages

_SMOOTHED = (0.0, 1.0, 2.0)
"""Standard deviations in pixels by which photographs are smoothed before they are aligned."""
_LARGEST_SHIFT = 1 / 16
"""Largest shift between two photographs of a thing, as a share of the side."""
_UNCLEAR = math.radians(5)
"""Angles that differ by more than this between the resolutions are not used."""


@dataclass(frozen=True)
class EstimatedTurns:
    """Angles of n photographs; the result of :func:`estimated_turns`.

    ``radians`` say by how much the thing is turned, counter-clockwise, relative to its first photograph if no angle was
    known. ``uncertainty`` is the largest difference between the angles at several resolutions, in radians; in trials
    with a simulated camera most errors were within twice this.

    >>> EstimatedTurns(np.zeros(2), np.array([0.01, 0.2]), np.array([True, True])).is_clear.tolist()
    [True, False]
    """

    radians: NDArray[np.float64]
    uncertainty: NDArray[np.float64]  # 0 for known angles
    estimated: NDArray[np.bool_]  # whether the angle was not known

    @property
    def is_clear(self) -> NDArray[np.bool_]:
        """Whether an angle is known or certain to a few degrees."""
        clear: NDArray[np.bool_] = self.uncertainty < _UNCLEAR
        return clear


def estimated_turns(batch: Tensor, things: Sequence[str], degrees: Sequence[float]) -> EstimatedTurns:
    """Estimate the angles that are not known from the photographs (n, c, h, w), whose light may differ.

    ``things`` (n,) says which thing each photograph shows, ``degrees`` (n,) by how much it is turned,
    counter-clockwise; NaN if that is not known.

    >>> image = smooth(torch.rand(1, 1, 16, 16, generator=torch.Generator().manual_seed(0)), 1.0)
    >>> found = estimated_turns(torch.cat([image, image.rot90(1, (2, 3))]), ["coin", "coin"], [0, math.nan])
    >>> np.degrees(found.radians).round().tolist()
    [0.0, 90.0]
    """
    radians = np.radians(np.asarray(degrees, dtype=np.float64))
    which = np.asarray(things)
    references = np.zeros(len(radians), dtype=np.int64)
    for thing in np.unique(which):
        members = np.flatnonzero(which == thing)
        known = members[np.isfinite(radians[members])]
        first = known[np.abs(_wrapped(radians[known])).argmin()] if len(known) else members[0]
        radians[first] = np.nan_to_num(radians[first])
        references[members] = first
    unknown = np.flatnonzero(np.isnan(radians))
    uncertainty = np.zeros(len(radians))
    if len(unknown):
        turns, uncertainty[unknown] = _turns(batch.mean(1), references[unknown], unknown)
        radians[unknown] = _wrapped(radians[references[unknown]] + turns)
    return EstimatedTurns(radians, uncertainty, np.isin(np.arange(len(radians)), unknown))


def _turns(grey: Tensor, references: NDArray, others: NDArray) -> tuple[NDArray, NDArray]:
    """Angles (p,) that bring photographs (n, h, w) onto others, and how much they differ between resolutions."""
    side, found = min(grey.shape[-2:]), []
    for sigma in _SMOOTHED:
        pictures = (smooth(grey[:, None], sigma)[:, 0] if sigma else grey).float().cpu().numpy()
        poses = align(
            pictures[references], pictures[others], group="se2", contrast="affine", max_shift=_LARGEST_SHIFT * side
        ).poses
        found.append(np.arctan2(poses[:, 0, 1], poses[:, 0, 0]))
    angles = np.stack(found)  # (resolutions, p)
    apart = _wrapped(angles - angles[0])
    middle = np.median(apart, axis=0)
    spread: NDArray = np.abs(apart - middle).max(0)
    return angles[0] + middle, spread


def real_pairs(
    model: Callable[[Tensor], Any], images: AuditedImages, things: Sequence[str], degrees: Sequence[float], kind: str
) -> RealPairs:
    """Compare photographs of the same things at several angles with the same turns made by resampling.

    ``things`` (n,) says which thing each photograph shows, ``degrees`` (n,) by how much it is turned there,
    counter-clockwise; NaN if that is not known and must be estimated. ``kind`` is that of :func:`run_audit`.

    >>> batch = torch.rand(2, 1, 9, 9, generator=torch.Generator().manual_seed(0))
    >>> images = AuditedImages(torch.cat([batch, batch.rot90(1, (2, 3))]), list("abcd"))
    >>> real_pairs(lambda x: x.mean((2, 3)), images, list("xyxy"), [0, 0, 90, 90], "embedding").count
    2
    """
    turns = estimated_turns(images.batch, things, degrees)
    kept = np.flatnonzero(turns.is_clear)
    if len(kept) < len(images) and len(np.unique(np.asarray(things)[kept])) < 2:
        raise ValueError("the angles of too few photographs are clear; give them in the column angle")
    unclear = [name for name, clear in zip(images.names, turns.is_clear, strict=True) if not clear]
    images, which = images.subset(kept), np.asarray(things)[kept]
    report = digital_against_real(model, images.batch, which, turns.radians[kept])
    estimated = turns.estimated[kept][report.pairs[:, 1]]
    uncertainty = np.degrees(turns.uncertainty[kept][report.pairs[:, 1]][estimated])
    found = RealPairs(
        len(report.pairs), float(report.real.mean()), float(report.digital.mean()), float(report.resampled.mean()),
        estimated=int(estimated.sum()), uncertainty=float(np.median(uncertainty)) if len(uncertainty) else None,
        unclear=unclear,
    )  # fmt: skip
    if kind != "scores":
        return found
    scores = np.asarray(torch.as_tensor(model(images.batch)))
    names = list(images.class_names) if len(images.class_names) == scores.shape[1] else range(scores.shape[1])
    said = [str(names[i]) for i in scores.argmax(1)]
    differ = [(images.names[i], images.names[j], said[i], said[j]) for i, j in report.pairs if said[i] != said[j]]
    return replace(
        found, changed=report.flips_real, digital_changed=report.flips_digital,
        resampled_changed=report.flips_resampled, pairs=differ,
    )  # fmt: skip


def _wrapped(angles: Any) -> Any:
    """Angles in [-pi, pi)."""
    return (np.asarray(angles) + math.pi) % (2 * math.pi) - math.pi
