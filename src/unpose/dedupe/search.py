"""The search as a whole: pictures are described one by one, then candidates are found and checked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unpose.dedupe.neighbours import Candidates, find_candidates
from unpose.dedupe.pictures import extract_patch, grey_frame
from unpose.dedupe.pixels import Comparison, align_candidates, compare, frame_pose, probability
from unpose.dedupe.regions import Region, find_regions
from unpose.dedupe.signature import signatures
from unpose.groups import pose_parts

_CHUNK = 8192
"""Candidates that are aligned at once."""


@dataclass(frozen=True)
class Match:
    """Two pictures that were compared pixel against pixel.

    Parameters
    ----------
    one, two : int
        Indices of the pictures.
    pose : array of shape (3, 3)
        Brings the grey frame of the second picture onto that of the first.
    comparison : Comparison
        How they compare there.
    probability : float
        Probability that they are the same picture.
    region_one, region_two : Region
        The parts of the frames that were compared.

    Examples
    --------
    >>> pictures = np.random.default_rng(0).random((2, 12, 16, 3)).repeat(6, 1).repeat(6, 2)
    >>> found = find_duplicates([pictures[0], pictures[1], np.rot90(pictures[0])])
    >>> [(match.one, match.two, match.probability > 0.9) for match in found]
    [(0, 2, True)]
    """

    one: int
    two: int
    pose: NDArray
    comparison: Comparison
    probability: float
    region_one: Region
    region_two: Region


class Matches(list[Match]):
    """What :func:`find_duplicates` found: a list of :class:`Match` that notebooks show as a table.

    Parameters
    ----------
    iterable : iterable of Match, default ()
        Entries of the list.

    Examples
    --------
    >>> Matches() == []
    True
    """

    def _repr_html_(self) -> str:
        from unpose.report import table_html

        parts = [pose_parts(match.pose) for match in self]
        columns: dict[str, list[Any]] = {
            "pictures": [f"{match.one} and {match.two}" for match in self],
            "probability": [match.probability for match in self],
            "turned by degrees": [part["angle"] for part in parts],
            "scale": [part["scale"] for part in parts],
            "mirrored": [part["mirrored"] for part in parts],
        }
        return table_html(columns, bars=["probability"])


@dataclass(frozen=True)
class Entries:
    """What is known of many pictures: one entry for each hypothesis about each picture, m in all.

    Parameters
    ----------
    owners : int array of shape (m,)
        The picture that each entry belongs to.
    regions : list of Region
        The part of the frame that the entry takes for the picture.
    patches : uint8 array of shape (m, 64, 64)
        The discs of the regions.
    vectors : dict of str to arrays of shape (m, views, size)
        Signatures.

    Examples
    --------
    >>> describe([np.random.default_rng(0).random((40, 50))]).patches.shape
    (1, 64, 64)
    """

    owners: NDArray
    regions: list[Region]
    patches: NDArray
    vectors: dict[str, NDArray]


def describe(frames: Sequence[NDArray]) -> Entries:
    """Describe grey frames by patches and signatures.

    Parameters
    ----------
    frames : sequence of arrays of shape (h, w)
        Grey frames from :func:`unpose.dedupe.grey_frame`: bytes, or floats in [0, 1].

    Returns
    -------
    Entries
        One or two entries for each frame, in order.

    Examples
    --------
    >>> entries = describe([np.pad(np.random.default_rng(0).random((40, 50)), 8)])
    >>> entries.owners  # the rectangle inside the border is the only region of this frame
    array([0])
    """
    regions = [find_regions(frame) for frame in frames]
    owners = np.repeat(np.arange(len(frames)), [len(found) for found in regions])
    flat = [region for found in regions for region in found]
    patches = np.zeros((len(flat), 64, 64), np.uint8)
    for k, region in enumerate(flat):
        patches[k] = extract_patch(frames[owners[k]], region)
    return Entries(owners, flat, patches, signatures(patches))


def chunks(owners: NDArray, candidates: Candidates) -> list[Candidates]:
    """Cut candidates into parts of about 8192, so that all candidates of one pair of pictures are in the same part.

    Parameters
    ----------
    owners : int array of shape (m,)
        The picture that each entry belongs to.
    candidates : Candidates
        Pairs of entries.

    Returns
    -------
    list of Candidates

    Examples
    --------
    >>> none = np.zeros(0, int)
    >>> chunks(none, Candidates(none, none, none, none, none, none))
    []
    """
    one, two = owners[candidates.queries], owners[candidates.entries]
    low, high = np.minimum(one, two), np.maximum(one, two)
    order = np.lexsort((high, low))
    low, high = low[order], high[order]
    is_first = np.append(True, (low[1:] != low[:-1]) | (high[1:] != high[:-1]))
    ends, start = [], 0
    for end in [*np.flatnonzero(is_first)[1:].tolist(), len(order)] if len(order) else []:
        if end - start >= _CHUNK or end == len(order):
            ends.append((start, end))
            start = end
    return [candidates.take(order[first:last]) for first, last in ends]


def check(
    entries: Entries, candidates: Candidates, read: Callable[[Sequence[int]], Sequence[NDArray | None]]
) -> list[Match]:
    """Align candidates and compare those that look alike, pixel against pixel.

    Parameters
    ----------
    entries : Entries
        All pictures.
    candidates : Candidates
        Pairs to check, at most one of :func:`unpose.dedupe.chunks`.
    read : callable
        Returns the grey frames of pictures by their indices, with None for those that can no longer be read.

    Returns
    -------
    list of Match
        Every pair whose frames were compared, also those that are different; the smaller index comes first.

    Examples
    --------
    >>> frames = [np.random.default_rng(k).random((40, 50)) for k in range(2)]
    >>> entries = describe(frames)
    >>> none = np.zeros(0, int)
    >>> check(entries, Candidates(none, none, none, none, none, none), lambda which: [frames[i] for i in which])
    []
    """
    kept, poses = align_candidates(entries.patches, entries.owners, candidates)
    pictures = np.unique(np.concatenate([entries.owners[kept.queries], entries.owners[kept.entries]])).tolist()
    frames = dict(zip(pictures, read(pictures), strict=True))
    matches = []
    for query, entry, pose in zip(kept.queries, kept.entries, poses, strict=True):
        one, two = int(entries.owners[query]), int(entries.owners[entry])
        ours, theirs = entries.regions[query], entries.regions[entry]
        between = frame_pose(pose, ours, theirs)
        if one > two:
            one, two, ours, theirs, between = two, one, theirs, ours, np.linalg.inv(between)
        frame_one, frame_two = frames[one], frames[two]
        if frame_one is not None and frame_two is not None:
            found = compare(frame_one, frame_two, between, ours, theirs)
            matches.append(Match(one, two, between, found, probability(found), ours, theirs))
    return matches


def find_duplicates(pictures: Sequence[NDArray], *, threshold: float = 0.95) -> Matches:
    """Find pictures that are the same up to a turn, a mirror, a scale, a small crop, a border, a stamp or brightness.

    For pictures in memory; ``unpose dedupe`` does the same for folders.

    Parameters
    ----------
    pictures : sequence of arrays of shape (h, w) or (h, w, 3)
        Pictures of any sizes: bytes, or finite numbers in [0, 1]; others are brought there by their smallest and
        largest value.
    threshold : float, default 0.95
        Least probability of a match, from 0 to 1.

    Returns
    -------
    Matches
        A list of :class:`Match`, sorted by the indices of the pictures.

    Examples
    --------
    >>> pictures = np.random.default_rng(0).random((3, 12, 16)).repeat(6, 1).repeat(6, 2)
    >>> found = find_duplicates([*pictures, pictures[1][:, ::-1]])  # the last is mirrored
    >>> [(match.one, match.two) for match in found]
    [(1, 3)]
    """
    if not isinstance(threshold, Real) or not 0 <= threshold <= 1:
        raise ValueError(f"threshold must be a probability from 0 to 1, such as 0.95, got {threshold!r}")
    frames = [grey_frame(_checked(number, picture)) for number, picture in enumerate(pictures)]
    entries = describe(frames)
    matches: list[Match] = []
    for part in chunks(entries.owners, find_candidates(entries.vectors, entries.owners)):
        checked = check(entries, part, lambda which: [frames[i] for i in which])
        matches += [match for match in checked if match.probability >= threshold]
    return Matches(sorted(matches, key=lambda match: (match.one, match.two)))


def _checked(number: int, picture: Any) -> NDArray:
    """One of the pictures as an array, or a ValueError that names it."""
    array = np.asarray(picture)
    if array.ndim not in (2, 3) or array.shape[2:] not in ((), (3,)):
        hint = "; leave the fourth channel out: picture[..., :3]" if array.ndim == 3 and array.shape[2] == 4 else ""
        raise ValueError(f"picture {number} must be (h, w) or (h, w, 3), got shape {array.shape}{hint}")
    if array.size == 0:
        raise ValueError(f"picture {number} has no pixels: shape {array.shape}")
    if np.iscomplexobj(array):
        raise ValueError(f"picture {number} must be real numbers, got complex ones")
    if not (np.issubdtype(array.dtype, np.number) or array.dtype == bool):
        raise ValueError(f"picture {number} must be numbers, got an array of type {array.dtype}")
    if not np.isfinite(array).all():
        raise ValueError(f"picture {number} has pixels that are NaN or infinite")
    return array
