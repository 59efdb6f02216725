"""Whether an invariant throws away too much: pairs of images that it confuses although no pose relates them.

An invariant descriptor must not change with the pose. It is complete if it changes with everything else. The pairs here
are equal in what common invariants keep: autocorrelation, each ring about the centre, pixel values, handedness.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unpose.audit.actions import Kind, act, disc_window
from unpose.audit.calls import evaluation
from unpose.audit.elements import Element, exact_elements
from unpose.audit.measurement import checked_numbers
from unpose.audit.probes import smooth_noise
from unpose.audit.results import Plain
from unpose.groups import Group, parse, reflection, rotation
from unpose.images import mirror, pixel_grid, quarter_turn, warp

Distance = Callable[[Tensor, Tensor], Tensor]
"""Takes two batches of images (n, 1, h, w) and returns the distances (n,) of their pairs."""

_CONFUSED, _INVARIANT, _UNRELATED = 0.02, 0.05, 0.2
"""Distances of confused pairs, of copies moved by an invariant's group and of unrelated pairs, relative to that of two
random images."""

_ANGLES = 72


@dataclass(frozen=True)
class PairFamily:
    """How an invariant treats one family of pairs.

    Parameters
    ----------
    name : str
        What the two images of a pair have in common.
    pairs : int
        Number of pairs that no pose relates.
    confused : tuple of int
        Indices of those that the invariant confuses.
    distance, related : float
        Median distance of the pairs by the invariant, and over all poses, both relative to two random images; NaN
        if all pairs of the family are related by a pose.

    Examples
    --------
    >>> PairFamily("equal autocorrelation", 3, (0, 2), 0.0, 0.8).confused
    (0, 2)
    """

    name: str
    pairs: int
    confused: tuple[int, ...]
    distance: float
    related: float


@dataclass(frozen=True)
class CompletenessReport(Plain):
    """The result of :func:`completeness`; ``print`` it to see the table.

    Parameters
    ----------
    group : str
        Name of the group.
    families : tuple of PairFamily
    floor : float
        Distance of an image to its copies moved by quarter turns and mirrors of the group, relative to two random
        images; 0 for an invariant.
    control : float
        Distance of random images, divided by itself: 1, or NaN if the invariant is constant.

    Examples
    --------
    >>> report = completeness(descriptor_distance(lambda x: x.flatten(1).sort().values), "d4", n_pairs=3, size=16)
    >>> report.is_complete, [family.name for family in report.families if family.confused]
    (False, ['independent rings', 'equal pixel values'])
    """

    group: str
    families: tuple[PairFamily, ...]
    floor: float
    control: float

    @property
    def is_complete(self) -> bool:
        """Whether no pair is confused; other pairs may be."""
        return not any(family.confused for family in self.families) and math.isfinite(self.control)

    def __str__(self) -> str:
        title = f"pairs that {self.group} does not relate"
        width = max(len(title), *(len(family.name) for family in self.families))
        lines = [f"{title:{width}} {'confused':>9} {'distance':>9} {'over poses':>11}"]
        for family in self.families:
            count = f"{len(family.confused)}/{family.pairs}"
            lines.append(f"{family.name:{width}} {count:>9} {family.distance:9.2g} {family.related:11.2g}")
        lines.append(f"{'moved copies (floor)':{width}} {'':9} {self.floor:9.2g}")
        if self.floor > _INVARIANT:
            lines.append(f"note: the descriptor changes under {self.group}, so it is no invariant")
        if not math.isfinite(self.control):
            lines.append("note: the invariant is the same for all images")
        return "\n".join(lines)


def completeness(
    distance: Distance,
    group: str | Group,
    *,
    related: Distance | None = None,
    n_pairs: int = 16,
    size: int = 32,
    random_state: int = 0,
) -> CompletenessReport:
    """Look for pairs of images that an invariant confuses although no pose relates them.

    Parameters
    ----------
    distance : callable
        The invariant, as a distance: takes two batches of images (n, 1, size, size) and returns (n,) numbers, NaN where
        it fails on an image; such pairs do not count. See :func:`descriptor_distance` for a function that describes
        single images.
    group : str or Group
        The poses that the invariant is meant to ignore.
    related : callable, optional
        Distance of two images over all poses, which decides whether a pose relates a pair. By default the smallest
        distance over 72 rotations, all whole-pixel shifts and, if the group has one, the mirror.
    n_pairs : int, default 16
        Pairs of every family.
    size : int, default 32
        Side of the images.
    random_state : int, default 0
        Seed of the images.

    Returns
    -------
    CompletenessReport

    Notes
    -----
    A pair is confused if its distance is at most 2 % of that of two random images, or twice the floor if that is more,
    up to 10 %.
    A pair counts only if it stays 20 % of that apart over all poses. For *equal autocorrelation* the images are a * b
    and a * b', where b' is b turned by half a turn and * is convolution: their spectra have equal magnitudes. For
    *independent rings* the centre is turned against the rest, for *equal pixel values* pixels are shuffled within a
    disc, for *mirror images* one of them is mirrored.

    Examples
    --------
    >>> power = descriptor_distance(lambda x: torch.fft.rfft2(x).abs())
    >>> len(completeness(power, "translation", n_pairs=3, size=16).families[0].confused)
    3
    """
    if size < 16 or n_pairs < 2:
        raise ValueError(f"completeness needs images of at least 16 pixels and 2 pairs, got {size} and {n_pairs}")
    group = parse(group)
    mirrored = [element for element in exact_elements(group) if element.quarter_turns and element.quarter_turns[1]]
    truth = related if related is not None else lambda a, b: brute_force_distance(a, b, bool(mirrored))
    families, floors = [], []
    with evaluation(distance):
        for name, (one, other) in _pairs(n_pairs, size, random_state).items():
            apart = _numbers(truth, one, other) / np.median(_numbers(truth, one, one.roll(1, 0)))
            unit = _middle(_numbers(distance, one, one.roll(1, 0)))
            moved = [_moved(distance, one, element) for element in exact_elements(group)]
            floor = max((each for each in moved if math.isfinite(each)), default=0.0) / unit if unit else 0.0
            given = _numbers(distance, one, other) / (unit or 1.0)
            given = given if unit else given * 0.0
            counts = (apart > _UNRELATED) & np.isfinite(given)
            confused = np.flatnonzero(counts & (given <= max(_CONFUSED, 2 * min(floor, _INVARIANT))))
            middle = [float(np.median(each[counts])) if counts.any() else math.nan for each in (given, apart)]
            families.append(PairFamily(name, int(counts.sum()), tuple(map(int, confused)), *middle))
            floors.append(floor)
    floor = max((each for each in floors if math.isfinite(each)), default=0.0)
    return CompletenessReport(group.name, tuple(families), floor, 1.0 if unit else math.nan)


def descriptor_distance(descriptor: Callable[[Tensor], Tensor]) -> Distance:
    """Euclidean distance of the descriptors of two images, for :func:`completeness`.

    Parameters
    ----------
    descriptor : callable
        Function from images (n, 1, h, w) to a tensor or array with one entry per image.

    Returns
    -------
    callable

    Examples
    --------
    >>> descriptor_distance(lambda x: x.mean((2, 3)))(torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2)).item()
    1.0
    """

    def distance(one: Tensor, other: Tensor) -> Tensor:
        a, b = (checked_numbers(descriptor(images.clone()), len(images)) for images in (one, other))
        return (a - b).flatten(1).norm(dim=1)

    return distance


def brute_force_distance(one: Tensor, other: Tensor, mirrored: bool) -> Tensor:
    """Smallest distance (n,) of pairs of images over 72 rotations, all periodic whole-pixel shifts and the mirror."""
    turns = rotation(torch.arange(_ANGLES, dtype=torch.float64) * (2 * math.pi / _ANGLES))  # (72, 3, 3)
    poses = torch.cat([turns, turns @ reflection(torch.float64)]) if mirrored else turns
    best = []
    for still, image in zip(one.double(), other, strict=True):  # (c, h, w)
        moved = warp(image[None], poses.to(image)).double()  # (k, c, h, w)
        spectra = torch.fft.rfft2(still) * torch.fft.rfft2(moved).conj()
        products = torch.fft.irfft2(spectra, still.shape[-2:]).sum(1).flatten(1).amax(1)  # (k,)
        best.append((still.square().sum() + moved.square().sum((1, 2, 3)) - 2 * products).amin())
    return torch.stack(best).clamp(min=0).sqrt()


def _pairs(n: int, size: int, random_state: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Name of a family -> two batches (n, 1, size, size) of images inside the inscribed disc."""
    generator = torch.Generator().manual_seed(int(random_state))
    # Convolutions of two sparse patterns must fit into the disc.
    side = int(size / 2 / math.sqrt(2)) // 2 * 2 + 1
    patterns = torch.rand(2, n, side, side, generator=generator) * (
        torch.rand(2, n, side, side, generator=generator) < 6 / side**2
    )
    patterns[:, :, 0, 0], patterns[:, :, 0, -1], patterns[:, :, -2, 1] = 1.0, 0.7, 0.4  # never symmetric
    first, second = patterns
    images = smooth_noise(n, 1, (size, size), sigma=1.5, random_state=random_state)
    images = images * disc_window((size, size), size / 2 - 1, images)
    radius = pixel_grid((size, size)).norm(dim=-1)
    inner = radius < size / 4
    shuffled = images.flatten(2).clone()
    for i in range(n):
        inside = torch.nonzero((radius < size / 2 - 1).flatten())[:, 0]
        shuffled[i, 0, inside] = images[i].flatten()[inside[torch.randperm(len(inside), generator=generator)]]
    return {
        "equal autocorrelation": (_convolved(first, second, size), _convolved(first, second.flip(1, 2), size)),
        "independent rings": (images, torch.where(inner, images, quarter_turn(images, 1))),
        "equal pixel values": (images, shuffled.view_as(images)),
        "mirror images": (images, mirror(images)),
    }


def _convolved(a: Tensor, b: Tensor, size: int) -> Tensor:
    """Full convolutions of patterns (n, s, s), in the middle of images (n, 1, size, size)."""
    full = 2 * a.shape[-1] - 1
    spectra = [torch.fft.rfft2(each.double(), (full, full)) for each in (a, b)]
    product = torch.fft.irfft2(spectra[0] * spectra[1], (full, full))
    images = torch.zeros(len(a), 1, size, size)
    start = (size - full) // 2
    images[:, 0, start : start + full, start : start + full] = product.clamp(min=0).float()
    return images


def _moved(distance: Distance, images: Tensor, element: Element) -> float:
    moved = act(images, element, Kind(image=True), (images.shape[-2], images.shape[-1]))
    return _middle(_numbers(distance, images, moved))


def _numbers(distance: Distance, one: Tensor, other: Tensor) -> NDArray:
    """The distances (n,) of pairs of images, NaN where they could not be measured."""
    given = torch.as_tensor(distance(one.clone(), other.clone()))
    numbers = checked_numbers(given.nan_to_num(0.0, torch.inf, -torch.inf), len(one)).numpy()
    if numbers.ndim != 1:
        raise ValueError(f"a distance must return ({len(one)},) numbers, one per pair, got shape {numbers.shape}")
    numbers[given.isnan().cpu().numpy()] = math.nan
    return numbers


def _middle(numbers: NDArray) -> float:
    """The median of those numbers that were measured; NaN if there are none."""
    measured = numbers[np.isfinite(numbers)]
    return float(np.median(measured)) if len(measured) else math.nan
