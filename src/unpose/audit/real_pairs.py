"""Turned by resampling against turned in the world: photographs of the same things at several angles."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from unpose.audit.actions import Kind, act, disc_window, round_trip
from unpose.audit.calls import evaluation
from unpose.audit.elements import Element
from unpose.audit.measurement import check_inputs, checked_numbers
from unpose.audit.orbit import spread
from unpose.audit.results import Plain
from unpose.groups import rotation

_SAME_ANGLE = math.radians(1)
"""Photographs whose angles differ by less show the same pose."""

_IMAGE = Kind(image=True)


@dataclass(frozen=True)
class RealPairsReport(Plain):
    """The result of :func:`digital_against_real`; ``print`` it to see the table.

    Parameters
    ----------
    pairs : (p, 2) array of int
        Indices of the photographs of each pair: the reference of the thing, and one of the same thing turned.
    degrees : (p,) array
        Angle from the one to the other.
    real, digital, resampled : (p,) array
        Distance of the output for the reference to that for the photograph of the turned thing, for the reference
        turned by resampling, and for the reference turned there and back; relative to the distance of two things.
    retakes : float
        The same distance for photographs of one thing at the same angle, which is due to anything but pose; NaN if
        there are none.
    flips_real, flips_digital, flips_resampled : float
        Share of the pairs whose largest output entry changes, for each of the three.

    Examples
    --------
    >>> images = torch.rand(3, 1, 9, 9, generator=torch.Generator().manual_seed(0))
    >>> photographs = torch.cat([images, torch.rot90(images, 1, (2, 3))])
    >>> report = digital_against_real(lambda x: x.flatten(1), photographs, [0, 1, 2] * 2, [0] * 3 + [math.pi / 2] * 3)
    >>> bool(np.allclose(report.real, report.digital))
    True
    """

    pairs: NDArray[np.int64]
    degrees: NDArray[np.float64]
    real: NDArray[np.float64]
    digital: NDArray[np.float64]
    resampled: NDArray[np.float64]
    retakes: float
    flips_real: float
    flips_digital: float
    flips_resampled: float

    @property
    def gap(self) -> float:
        """Mean change that the digital audit states above (below, if negative) what really happens."""
        return float(self.digital.mean() - self.real.mean())

    @property
    def is_artefact(self) -> bool:
        """Whether resampling without any turn changes the output at least half as much as the digital turn does."""
        return bool(self.resampled.mean() > 0.5 * self.digital.mean() > 0)

    def __str__(self) -> str:
        lines = [f"{'':22} {'change':>8} {'answers changed':>16}"]
        for name, values, flips in (
            ("turned in the world", self.real, self.flips_real),
            ("turned by resampling", self.digital, self.flips_digital),
            ("turned there and back", self.resampled, self.flips_resampled),
        ):
            lines.append(f"{name:22} {values.mean():8.3f} {flips:16.1%}")
        lines.append(f"{'the same angle again':22} {self.retakes:8.3f}")
        word = "over" if self.gap > 0 else "under"
        lines.append(f"The digital audit {word}states the change by {abs(self.gap):.3f}, on {len(self.pairs)} pairs.")
        if self.is_artefact:
            lines.append("note: most of the digital change is due to resampling, not to the turn")
        return "\n".join(lines)


def digital_against_real(
    f: Callable[[Tensor], Any], images: Tensor, things: ArrayLike, angles: ArrayLike
) -> RealPairsReport:
    """Compare what a turn in the world does to the output of f with what a turn by resampling does.

    Parameters
    ----------
    f : callable
        Function from images (n, c, h, w) to outputs with one entry per image.
    images : (n, c, h, w) tensor
        Photographs of at least two things, each in the middle of its frame; float32 or float64.
    things : (n,) array
        Which thing each shows.
    angles : (n,) array
        By how much it is turned there, in radians counter-clockwise. The photograph of a thing with the angle nearest
        to zero is its reference.

    Returns
    -------
    RealPairsReport

    Notes
    -----
    All images fade to zero inside the inscribed disc, so that no corner is missing after a turn.

    Examples
    --------
    >>> images = torch.rand(2, 1, 9, 9, generator=torch.Generator().manual_seed(0))
    >>> photographs = torch.cat([images, torch.rot90(images, 1, (2, 3))])
    >>> digital_against_real(lambda x: x.mean((2, 3)), photographs, [0, 1, 0, 1], [0, 0, math.pi / 2, math.pi / 2]).gap
    0.0
    """
    check_inputs(images, _IMAGE, Kind(), 0)
    which, turned = np.asarray(things), np.asarray(angles, dtype=np.float64)
    if which.shape != (len(images),) or turned.shape != (len(images),) or not np.isfinite(turned).all():
        raise ValueError(
            f"things and angles must be ({len(images)},), one finite entry per photograph, "
            f"got {which.shape} and {turned.shape}"
        )
    pairs, retakes = _pair_up(which, turned)
    if not len(pairs) or len(np.unique(which)) < 2:
        raise ValueError(
            "at least two things are needed, and one of them at two angles that differ by a degree or more"
        )
    frame = (images.shape[-2], images.shape[-1])
    images = images * disc_window(frame, min(frame) / 2, images)
    relative = [float(turned[j] - turned[i]) for i, j in pairs]
    elements = [_element(angle) for angle in relative]
    references = images[pairs[:, 0]]
    with evaluation(f):
        outputs = _call(f, images)
        digital = _call(f, _each(act, references, elements, frame))
        resampled = _call(f, _each(round_trip, references, elements, frame))
    unit = spread(outputs[[_reference(which, turned, thing) for thing in np.unique(which)]])
    if not unit:
        raise ValueError("f returns the same for every thing: whether it changes with the pose means nothing")
    start = outputs[pairs[:, 0]]

    def distance(after: NDArray, before: NDArray = start) -> NDArray:
        gap: NDArray = np.linalg.norm((after - before).reshape(len(after), -1), axis=1) / unit
        return gap

    def flips(after: NDArray) -> float:
        flat, other = start.reshape(len(start), -1), after.reshape(len(start), -1)
        return float((flat.argmax(1) != other.argmax(1)).mean())

    again = distance(outputs[retakes[:, 1]], outputs[retakes[:, 0]]) if len(retakes) else np.array([math.nan])
    return RealPairsReport(
        pairs=pairs,
        degrees=np.degrees(_wrapped(np.array(relative))),
        real=distance(outputs[pairs[:, 1]]),
        digital=distance(digital),
        resampled=distance(resampled),
        retakes=float(again.mean()),
        flips_real=flips(outputs[pairs[:, 1]]),
        flips_digital=flips(digital),
        flips_resampled=flips(resampled),
    )


def _pair_up(things: NDArray, angles: NDArray) -> tuple[NDArray, NDArray]:
    """Pairs (reference, turned photograph) and pairs of photographs at the same angle, both (p, 2)."""
    turned: list[tuple[int, int]] = []
    same: list[tuple[int, int]] = []
    for thing in np.unique(things):
        members, reference = np.flatnonzero(things == thing), _reference(things, angles, thing)
        for other in members[members != reference]:
            is_same = abs(_wrapped(angles[other] - angles[reference])) < _SAME_ANGLE
            (same if is_same else turned).append((reference, other))
    return np.array(turned, dtype=np.int64).reshape(-1, 2), np.array(same, dtype=np.int64).reshape(-1, 2)


def _reference(things: NDArray, angles: NDArray, thing: Any) -> int:
    """The photograph of a thing whose angle is nearest to zero."""
    members = np.flatnonzero(things == thing)
    return int(members[np.abs(_wrapped(angles[members])).argmin()])


def _wrapped(angles: Any) -> Any:
    """Angles in (-pi, pi]."""
    return -((-np.asarray(angles) + math.pi) % (2 * math.pi) - math.pi)


def _element(angle: float) -> Element:
    quarters = angle / (math.pi / 2)
    pose = rotation(torch.tensor(angle, dtype=torch.float64))
    return Element(f"turn {math.degrees(angle):.4g}", pose.round() if abs(quarters - round(quarters)) < 1e-6 else pose)


def _each(move: Callable[..., Tensor], images: Tensor, elements: list[Element], frame: tuple[int, int]) -> Tensor:
    extra = (_IMAGE,) if move is act else ()
    return torch.cat([move(images[i : i + 1], element, *extra, frame) for i, element in enumerate(elements)])


def _call(f: Callable[[Tensor], Any], images: Tensor) -> NDArray:
    numbers: NDArray = checked_numbers(f(images.clone()), len(images)).numpy()
    return numbers
