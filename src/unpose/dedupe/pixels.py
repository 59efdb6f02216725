"""Decides whether two pictures are the same, pixel against pixel, at the pose that brings one onto the other.

1. :func:`rough_poses`: the angle and the mirror from the coefficients of the signature, for every candidate.
2. :func:`align_candidates`: Gauss-Newton refinement of shift, angle and scale, on discs, by :mod:`unpose.align`.
3. :func:`compare`: one whole frame is warped onto the other, and both are compared tile by tile. A tile agrees if its
   pixels correlate, whatever its brightness and contrast. A stamp spoils some tiles, a different picture nearly all of
   them. The contrast of a copy differs from that of its original by the same factor everywhere. That of two similar
   things does not, and with one factor for all tiles, much of their difference remains.
4. :func:`probability`: a logistic model of the comparison, fitted to altered copies and to the most similar pairs of
   different pictures (``benchmarks/dedupe_fit.py``).
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from unpose.align import align_from
from unpose.dedupe.kernels import compare_tiles, mark_inside, smooth, tile_moments
from unpose.dedupe.neighbours import Candidates
from unpose.dedupe.regions import Region
from unpose.dedupe.signature import LAYERS, PATCH, basis_of, disc, fitted, projected, ranks
from unpose.groups import rotation

_N_ANGLES = 96
_TILES = 10
"""Tiles along the shorter side of a frame."""
_SMALLEST_TILE = 6
"""Pixels of a tile's side, at least."""
_NOISE = 2.0 / 255
"""Standard deviation below which a tile is flat: it could belong to any picture."""
_BLUR = 0.7
"""Smoothing of both frames in pixels, which forgives what compression and scaling did to single pixels."""
_AGREES = 0.7
"""Correlation from which a tile agrees."""
_ROUGH_SCORE = 0.84
"""Correlation of the coefficients below which a candidate is dropped; of the copies, 99.5 % were above 0.85."""
_ROUGH_RESIDUAL = 0.65
_GLANCE_RESIDUAL = 0.3
_PATCH_RESIDUAL = 0.25
"""Residual of patches beyond which a candidate is dropped: at the rough pose, once patches of half the size are
aligned, and once whole patches are. Of the copies of photographs that these were chosen on, 99.5 % were below."""
_CLEAR_RESIDUAL = 0.3
"""Residual at the rough pose below which the pair is not aligned from another candidate as well."""
_MARGIN = 2.5
"""Pixels inside the border of a region that are not compared: smoothing and JPEG mix them with the border."""
_LEAST_TILES = 8
"""Tiles with texture, at least: two blue skies are never called the same picture."""
_LEAST_OVERLAP = 0.25
_HALF = np.array([[1, 1, 0.5], [1, 1, 0.5], [1, 1, 1]])
"""Factors of a pose, for patches of half the size."""
_MAX_SCALE = 2.2
"""Largest scale of one patch beside the other; a crop to 0.5 of the sides is within it."""


@dataclass(frozen=True)
class Comparison:
    """How two frames compare at a pose.

    Parameters
    ----------
    correlation : float
        Correlation coefficient of all pixels that both show.
    agreement : float
        Share of the tiles with texture whose pixels correlate by at least 0.7.
    typical : float
        Median of the correlations of the tiles with texture.
    tiles : int
        Number of tiles with texture.
    overlap : float
        Share of the larger picture that both show.
    containment : float
        Share of the smaller picture that both show: 1 for a crop.
    residual : float
        What remains of the contrast of a typical tile when one picture is subtracted from the other, after one change
        of contrast for the whole picture: 0 for the same pictures, 1 for pictures that have nothing in common.
    contrast_spread : float
        Typical deviation of the change of contrast of single tiles from that of the whole picture, in natural units of
        the logarithm.

    Examples
    --------
    >>> Comparison(0.99, 1.0, 0.98, 80, 1.0, 1.0, 0.001, 0.01).agreement
    1.0
    """

    correlation: float
    agreement: float
    typical: float
    tiles: int
    overlap: float
    containment: float
    residual: float
    contrast_spread: float


def rough_poses(patches: NDArray, candidates: Candidates) -> tuple[NDArray, NDArray]:
    """Find the angle and the mirror of candidates: poses (p, 3, 3) from entry to query in patch pixels, scores (p,).

    The score is the correlation of the coefficients at the best angle.
    """
    poses, scores = np.zeros((len(candidates.queries), 3, 3)), np.zeros(len(candidates.queries))
    for number, layer in enumerate(LAYERS):
        rows = np.flatnonzero(candidates.layers == number)
        if len(rows) == 0:
            continue
        ours = _in_views(patches, candidates.queries[rows], candidates.query_views[rows], number)
        theirs = _in_views(patches, candidates.entries[rows], candidates.views[rows], number)
        starts = basis_of(layer).starts
        n_frequencies = len(starts) - 1
        signs = np.repeat((-1.0) ** np.arange(n_frequencies), np.diff(starts))
        scored = []
        for moved in (theirs, signs * theirs.conj()):  # as it is, and mirrored
            spectrum = np.add.reduceat(ours.conj() * moved, starts[:-1], axis=1)  # (p, K)
            scored.append((spectrum @ _waves(n_frequencies)).real)  # (p, angles)
        both = np.concatenate(scored, axis=1)
        best = both.argmax(1)
        scores[rows] = both[np.arange(len(rows)), best]
        turns = rotation(torch.arange(_N_ANGLES, dtype=torch.float64) * (2 * math.pi / _N_ANGLES)).numpy()
        mirror = np.diag([-1.0, 1.0, 1.0])
        elements = np.concatenate([turns, turns @ mirror])  # (2 angles, 3, 3)
        of_view = np.stack([view.pose for view in layer.views])
        poses[rows] = (
            np.linalg.inv(of_view[candidates.query_views[rows]]) @ elements[best] @ of_view[candidates.views[rows]]
        )
    poses[:, :2, 2] *= PATCH / 2
    return poses, scores


def _in_views(patches: NDArray, entries: NDArray, views: NDArray, layer: int) -> NDArray:
    """Coefficients of entries (p,), each in one view (p,): (p, C) complex."""
    found = np.zeros((len(entries), int(basis_of(LAYERS[layer]).starts[-1])), np.complex64)
    unique, where = np.unique(entries, return_inverse=True)
    small = ranks(patches[unique])
    for view in np.unique(views):
        rows = np.flatnonzero(views == view)
        found[rows] = projected(small[where[rows]], LAYERS[layer], int(view))[:, 0]
    return found


@cache
def _waves(n_frequencies: int) -> NDArray:
    angles = 2 * math.pi * np.arange(_N_ANGLES) / _N_ANGLES
    return np.exp(-1j * np.outer(np.arange(n_frequencies), angles)).astype(np.complex64)


def align_patches(moving: NDArray, fixed: NDArray, poses: NDArray) -> tuple[NDArray, NDArray]:
    """Refine poses (p, 3, 3) of pairs of patches (p, side, side) uint8: poses, and correlations inside the discs."""
    side = moving.shape[-1]
    found, distances = align_from(
        moving, fixed, poses, group="similarity", contrast="affine", mask="disc", max_shift=0.7 * side,
        max_scale=_MAX_SCALE, n_jobs=1,
    )  # fmt: skip
    return found, np.where(np.isfinite(distances), 1 - distances**2 / 2, -1.0)


def frame_pose(pose: NDArray, query: Region, entry: Region) -> NDArray:
    """Convert a pose between patches to one between their frames: (3, 3), from entry to query in frame pixels."""
    return _frame_from_patch(query) @ pose @ np.linalg.inv(_frame_from_patch(entry))


def _frame_from_patch(region: Region) -> NDArray:
    scale = 2 * region.radius / PATCH
    return np.array([[scale, 0, region.x], [0, scale, region.y], [0, 0, 1]])


def compare(one: NDArray, two: NDArray, one_from_two: NDArray, region_one: Region, region_two: Region) -> Comparison:
    """Compare two grey frames at a pose.

    The frame with more pixels of the scene is reduced to the other, so that no detail is missing on one side only.

    Parameters
    ----------
    one, two : arrays of shape (h, w)
        Frames as :func:`unpose.dedupe.grey_frame` makes them.
    one_from_two : array of shape (3, 3)
        Brings the second frame onto the first.
    region_one, region_two : Region
        The parts of the frames that show the picture.

    Returns
    -------
    Comparison

    Examples
    --------
    >>> from unpose.dedupe.regions import find_regions
    >>> one = np.random.default_rng(0).random((14, 18)).astype(np.float32).repeat(5, 0).repeat(5, 1)
    >>> region = find_regions(one)[0]
    >>> compare(one, 0.5 * one, np.eye(3), region, region).agreement
    1.0
    """
    scale = math.sqrt(abs(one_from_two[0, 0] * one_from_two[1, 1] - one_from_two[0, 1] * one_from_two[1, 0]))
    if scale > 1:
        one, two, region_one, region_two = two, one, region_two, region_one
        two_from_one, scale = one_from_two, 1 / scale
    else:
        two_from_one = np.linalg.inv(one_from_two)
    blur = math.hypot(_BLUR / scale, 0.45 * math.sqrt(1 / scale**2 - 1))
    fixed, moving = _smooth(one, _BLUR), _smooth(two, blur)
    source, inside = two_from_one.astype(np.float32), np.ones(fixed.shape, bool)
    n_ours = _mark_inside(np.eye(3, dtype=np.float32), region_one, one.shape, 1.0, inside)
    n_both = _mark_inside(source, region_two, two.shape, 1 / scale, inside)
    n_theirs = 4 * region_two.half_width * region_two.half_height * scale**2
    side = max(_SMALLEST_TILE, round(min(fixed.shape) / _TILES))
    tiles = _tile_moments(moving[None], fixed[None], source[None], inside[None], math.inf, side)
    residual, contrast_spread, agreement, typical, count = _compare_tiles(tiles, side)[0].tolist()
    return Comparison(
        correlation=_correlation(tiles[0].sum(0)),
        agreement=agreement,
        typical=typical,
        tiles=int(count),
        overlap=min(1.0, n_both / max(n_ours, n_theirs, 1.0)),
        containment=min(1.0, n_both / max(min(n_ours, n_theirs), 1.0)),
        residual=residual,
        contrast_spread=contrast_spread,
    )


def features(comparison: Comparison) -> NDArray:
    """What the logistic model sees: (5,). The correlations of pixels and of tiles add nothing to it.

    Two different pictures that agree somewhere rarely do so on all of the smaller one; a picture and a part of it do.
    """
    return np.array([
        math.log(max(comparison.residual, 0.0) + 1e-4), math.log(comparison.contrast_spread + 0.01),
        math.log(max(comparison.tiles, 1)), comparison.overlap, comparison.containment,
    ])  # fmt: skip


def probability(comparison: Comparison) -> float:
    """The probability that two pictures are the same.

    Parameters
    ----------
    comparison : Comparison
        How they compare at the best pose.

    Returns
    -------
    float
        0 if they share too little, or have too little texture, to tell.

    Examples
    --------
    >>> probability(Comparison(0.99, 1.0, 0.98, 80, 1.0, 1.0, 0.002, 0.01)) > 0.99
    True
    >>> probability(Comparison(0.8, 0.2, 0.3, 80, 0.7, 0.8, 0.6, 0.5)) < 0.05
    True
    """
    if comparison.tiles < _LEAST_TILES or comparison.overlap < _LEAST_OVERLAP:
        return 0.0
    weights = fitted()["probability"].astype(np.float64)
    return float(1 / (1 + np.exp(-(weights[0] + features(comparison) @ weights[1:]))))


def glance(moving: NDArray, fixed: NDArray, poses: NDArray) -> NDArray:
    """Compare patches (p, side, side) uint8 tile by tile inside their discs: the residuals, (p,).

    Quick and robust against stamps; it decides which candidates are worth the comparison of whole frames.
    """
    side = fixed.shape[-1]
    source = np.linalg.inv(poses).astype(np.float32)
    moving, fixed = (np.divide(patches, 255, dtype=np.float32) for patches in (moving, fixed))
    tiles = _tile_moments(moving, fixed, source, disc(side)[None], side / 2, side // 8)
    return _compare_tiles(tiles, side // 8)[:, 0]


def _smooth(frame: NDArray, sigma: float) -> NDArray:
    """Smooth a frame (h, w) by a Gaussian that ends at three standard deviations: float32, bytes divided by 255."""
    reach = int(3 * sigma + 0.5)
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    across, smoothed = np.empty(frame.shape, np.float32), np.empty(frame.shape, np.float32)
    unit = np.float32(1 / 255 if frame.dtype == np.uint8 else 1)
    pixels = np.ascontiguousarray(frame, np.float32)  # one type, so that the kernel is compiled once
    smooth(pixels, unit, (weights / weights.sum()).astype(np.float32), across, smoothed)
    return smoothed


def _mark_inside(source: NDArray, region: Region, shape: tuple[int, ...], pixel: float, inside: NDArray) -> int:
    """Clear ``inside`` (h, w) where pixels do not come from inside a region and its frame, half a pixel from the edge.

    ``source`` (3, 3) maps pixels to the frame. Along a border, the margin is wider; it is given for pixels of the size
    ``pixel``. Returns how many pixels remain.
    """
    height, width = shape
    is_whole = region.half_width >= width / 2 and region.half_height >= height / 2
    margin = 0.5 if is_whole else min(_MARGIN * pixel, 0.2 * region.radius)
    return int(mark_inside(
        source, region.x, region.y, region.half_width, region.half_height, region.angle, width, height, margin, inside
    ))  # fmt: skip


def _tile_moments(
    moving: NDArray, fixed: NDArray, source: NDArray, inside: NDArray, radius: float, side: int
) -> NDArray:
    """Sums of 1, m, f, m m, m f and f f over the pixels inside of each tile: (p, h, w) each -> (p, tiles, 6)."""
    height, width = fixed.shape[1:]
    rows, columns = (max(1, -(-max(each - side // 2, 1) // side)) for each in (height, width))
    sums = np.zeros((len(fixed), rows, columns, 6))
    tile_moments(moving, fixed, source, inside, np.float32(radius), side, sums)
    return sums.reshape(len(fixed), rows * columns, 6)


def _compare_tiles(tiles: NDArray, side: int) -> NDArray:
    """Compare pairs by the moments of their tiles (p, tiles, 6): (p, 5), as the kernel says."""
    found = np.zeros((len(tiles), 5))
    compare_tiles(tiles, side * side / 2, _NOISE, _AGREES, found)
    return found


def _correlation(moments: NDArray) -> float:
    """Correlation coefficient from moments (6,)."""
    _, m, f, mm, mf, ff = (moments / max(moments[0], 1e-9)).tolist()
    floor = (_NOISE / 2) ** 2
    return float((mf - m * f) / math.sqrt((max(mm - m * m, 0) + floor) * (max(ff - f * f, 0) + floor)))


def align_candidates(patches: NDArray, owners: NDArray, candidates: Candidates) -> tuple[Candidates, NDArray]:
    """Align candidates and drop those that do not look alike: the others, and their poses (p, 3, 3) between patches.

    At most one candidate remains for each pair of pictures.
    """
    poses, scores = rough_poses(patches, candidates)
    rows = np.flatnonzero(scores >= _ROUGH_SCORE)
    rows = _best_of_pairs(owners, candidates, scores, rows, by_layer=True)
    kept, poses = candidates.take(rows), poses[rows] * _HALF
    theirs, ours = _halved(patches[kept.entries]), _halved(patches[kept.queries])
    seen = glance(theirs, ours, poses)
    best = _best_of_pairs(owners, kept, -seen, np.arange(len(rows)), by_layer=False)
    is_best = np.isin(np.arange(len(rows)), best)
    rows = np.flatnonzero((seen <= _ROUGH_RESIDUAL) & (is_best | (seen > _CLEAR_RESIDUAL)))
    kept, theirs, ours = kept.take(rows), theirs[rows], ours[rows]
    poses = _aligned(theirs, ours, poses[rows])
    seen = glance(theirs, ours, poses)
    rows = _best_of_pairs(owners, kept, -seen, np.flatnonzero(seen <= _GLANCE_RESIDUAL), by_layer=False)
    kept, poses = kept.take(rows), poses[rows] / _HALF
    theirs, ours = patches[kept.entries], patches[kept.queries]
    poses = _aligned(theirs, ours, poses)
    rows = np.flatnonzero(glance(theirs, ours, poses) <= _PATCH_RESIDUAL)
    return kept.take(rows), poses[rows]


def _aligned(moving: NDArray, fixed: NDArray, poses: NDArray) -> NDArray:
    """Poses (p, 3, 3) of pairs of patches, refined; there may be none."""
    return align_patches(moving, fixed, poses)[0] if len(poses) else poses


def _halved(patches: NDArray) -> NDArray:
    rows = patches[:, ::2].astype(np.uint16) + patches[:, 1::2]
    return ((rows[:, :, ::2] + rows[:, :, 1::2] + 2) // 4).astype(np.uint8)


def _best_of_pairs(
    owners: NDArray, candidates: Candidates, scores: NDArray, rows: NDArray, *, by_layer: bool
) -> NDArray:
    """Of some rows, the one with the highest score for each unordered pair of pictures (and each layer), sorted."""
    one, two = owners[candidates.queries[rows]], owners[candidates.entries[rows]]
    layer = candidates.layers[rows] if by_layer else np.zeros(len(rows), int)
    keys = np.stack([np.minimum(one, two), np.maximum(one, two), layer])
    order = np.lexsort((-scores[rows], *keys[::-1]))
    first = np.ones(len(order), bool)
    first[1:] = (keys[:, order[1:]] != keys[:, order[:-1]]).any(0)
    return rows[np.sort(order[first])]
