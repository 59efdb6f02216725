"""Compiled loops of the search for duplicates: ranks of pixels, frames, sums over tiles, and the nearest vectors."""

import numpy as np

from unpose.compiled import compiled


@compiled
def halved_ranks(patches, disc, out):  # type: ignore[no-untyped-def]
    """Replace the pixels of patches (n, 2 s, 2 s) uint8 by their ranks inside a disc, and halve: out (n, s, s).

    Ranks are in [-0.5, 0.5]; equal pixels share their middle rank, and pixels outside the disc are 0.
    """
    n, side, _ = patches.shape
    for i in range(n):
        counts = np.zeros(256, np.int64)
        total = 0
        for y in range(side):
            for x in range(side):
                if disc[y, x]:
                    counts[patches[i, y, x]] += 1
                    total += 1
        ranks = np.empty(256, np.float32)
        below = 0
        for value in range(256):
            ranks[value] = (below + counts[value] / 2) / total - 0.5
            below += counts[value]
        for y in range(0, side, 2):
            for x in range(0, side, 2):
                value = np.float32(0)
                for dy in range(2):
                    for dx in range(2):
                        if disc[y + dy, x + dx]:
                            value += ranks[patches[i, y + dy, x + dx]]
                out[i, y // 2, x // 2] = value / 4


@compiled
def source_points(src_from_dst, out):  # type: ignore[no-untyped-def]
    """Points that the pixels of frames come from, by affine maps (p, 3, 3) float32: out (p, h, w, 2).

    The same as :func:`unpose.images.source_points`, whose matrix product takes a quarter of the time of a comparison.
    """
    height, width = out.shape[1], out.shape[2]
    for p in range(out.shape[0]):
        m = src_from_dst[p]
        for row in range(height):
            y = np.float32(row - (height - 1) / 2)
            for column in range(width):
                x = np.float32(column - (width - 1) / 2)
                out[p, row, column, 0] = m[0, 0] * x + m[0, 1] * y + m[0, 2]
                out[p, row, column, 1] = m[1, 0] * x + m[1, 1] * y + m[1, 2]


@compiled
def smooth(frame, weights, across, out):  # type: ignore[no-untyped-def]
    """Convolve a frame (h, w) with symmetric weights (2 r + 1,) along both axes; beyond its edge it stays constant.

    ``across`` (h, w) holds the frame after the first axis.
    """
    height, width = frame.shape
    reach = len(weights) // 2
    for y in range(height):
        for x in range(width):
            value = np.float32(0)
            if reach <= x < width - reach:
                for k in range(len(weights)):
                    value += weights[k] * frame[y, x + k - reach]
            else:
                for k in range(len(weights)):
                    value += weights[k] * frame[y, min(max(x + k - reach, 0), width - 1)]
            across[y, x] = value
    for y in range(height):
        out[y] = 0
        for k in range(len(weights)):
            row = min(max(y + k - reach, 0), height - 1)
            for x in range(width):
                out[y, x] += weights[k] * across[row, x]


@compiled
def mark_inside(points, x, y, half_width, half_height, angle, width, height, margin, out):  # type: ignore[no-untyped-def]
    """Clear out (h, w) where points (h, w, 2) are outside a turned rectangle or the frame, closer than the margin."""
    cosine, sine = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    x, y = np.float32(x), np.float32(y)
    half_width, half_height = np.float32(half_width - margin), np.float32(half_height - margin)
    right, bottom = np.float32(width / 2 - 0.5), np.float32(height / 2 - 0.5)
    for row in range(out.shape[0]):
        for column in range(out.shape[1]):
            across, down = points[row, column, 0], points[row, column, 1]
            u = cosine * (across - x) - sine * (down - y)
            v = sine * (across - x) + cosine * (down - y)
            if not (abs(u) <= half_width and abs(v) <= half_height and abs(across) <= right and abs(down) <= bottom):
                out[row, column] = False


@compiled
def tile_moments(moved, fixed, inside, side, out):  # type: ignore[no-untyped-def]
    """Sum 1, m, f, m m, m f and f f over the pixels inside of each tile: (p, h, w) each -> out (p, rows, columns, 6).

    Values are taken about 0.5, for the precision of the sums of squares. The last tile of a row or column is larger.
    """
    rows, columns = out.shape[1], out.shape[2]
    for p in range(fixed.shape[0]):
        for y in range(fixed.shape[1]):
            row = min(y // side, rows - 1)
            for x in range(fixed.shape[2]):
                if inside[p, y, x]:
                    column = min(x // side, columns - 1)
                    m, f = moved[p, y, x] - np.float32(0.5), fixed[p, y, x] - np.float32(0.5)
                    out[p, row, column, 0] += 1
                    out[p, row, column, 1] += m
                    out[p, row, column, 2] += f
                    out[p, row, column, 3] += m * m
                    out[p, row, column, 4] += m * f
                    out[p, row, column, 5] += f * f


@compiled
def residuals(tiles, smallest, noise, out):  # type: ignore[no-untyped-def]
    """Compare pictures by the moments of their tiles (p, tiles, 6): out (p, 2), the residual and the contrast spread.

    :class:`unpose.dedupe.Comparison` explains both. Tiles count that have at least ``smallest`` pixels and, in one of
    the pictures, a standard deviation of at least ``noise``. Without such a tile, both are 1.
    """
    floor = (noise / 2) ** 2
    for p in range(tiles.shape[0]):
        variances, counted = np.empty((tiles.shape[1], 3)), 0
        for t in range(tiles.shape[1]):
            w, m, f, mm, mf, ff = tiles[p, t]
            if w < smallest:
                continue
            m, f = m / w, f / w
            moved, fixed = max(mm / w - m * m, 0.0), max(ff / w - f * f, 0.0)
            if max(moved, fixed) >= noise**2:
                variances[counted, 0], variances[counted, 1], variances[counted, 2] = moved, fixed, mf / w - m * f
                counted += 1
        if counted == 0:
            out[p, 0] = out[p, 1] = 1
            continue
        moved, fixed, both = variances[:counted, 0], variances[:counted, 1], variances[:counted, 2]
        changes = 0.5 * np.log((fixed + floor) / (moved + floor))
        change = np.median(changes)
        gain = np.exp(change)
        left = (fixed - 2 * gain * both + gain**2 * moved) / (fixed + gain**2 * moved + 2 * floor * (1 + gain**2))
        out[p, 0], out[p, 1] = np.median(left), np.median(np.abs(changes - change))


@compiled
def keep_nearest(products, rows, row_norms, columns, column_norms, nearest, squared, limits):  # type: ignore[no-untyped-def]
    """Enter the points of a block into the lists of nearest points of some queries.

    ``products`` (r, c) are the inner products of queries ``rows`` (r,) and points ``columns`` (c,), ``*_norms`` the
    squared norms of all. ``nearest`` and ``squared`` (q, k) hold the points found so far, unordered, and their squared
    distances; ``limits`` (q,) the distance that a point must be below, which falls once a list is full.
    """
    k = nearest.shape[1]
    for r in range(len(rows)):
        query = rows[r]
        own, limit = row_norms[query], limits[query]
        for c in range(len(columns)):
            distance = own + column_norms[columns[c]] - 2 * products[r, c]
            if distance < limit:
                last, largest = 0, np.float32(-1)
                for place in range(k):  # replaces an empty place, or the farthest point
                    if nearest[query, place] < 0:
                        last = place
                        break
                    if squared[query, place] > largest:
                        last, largest = place, squared[query, place]
                nearest[query, last] = columns[c]
                squared[query, last] = max(distance, np.float32(0))
                largest = np.float32(-1)
                for place in range(k):
                    if nearest[query, place] < 0:
                        largest = limit
                        break
                    largest = max(largest, squared[query, place])
                limit = largest
        limits[query] = limit
