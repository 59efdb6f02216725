"""Compiled loops of the search for duplicates: ranks of pixels, comparison of frames, and the nearest vectors."""

import numpy as np

from unpose.compiled import compiled
from unpose.images.kernels.keys_cpu import keys_weights, weighted_sum


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
def detail(grey):  # type: ignore[no-untyped-def]
    """Mean step between neighbouring pixels of a frame (h, w), and the standard deviation of its pixels."""
    height, width = grey.shape
    down, across, total, squares = 0.0, 0.0, 0.0, 0.0
    for y in range(height):
        above = max(y - 1, 0)
        for x in range(width):
            value = np.float32(grey[y, x])
            total += value
            squares += value * value
            down += abs(value - np.float32(grey[above, x]))
        for x in range(1, width):
            across += abs(np.float32(grey[y, x]) - np.float32(grey[y, x - 1]))
    n = height * width
    steps = down / max((height - 1) * width, 1) + across / max(height * (width - 1), 1)
    return steps, np.sqrt(max(squares / n - (total / n) ** 2, 0.0))


@compiled
def inside_border(grey, low, high, out):  # type: ignore[no-untyped-def]
    """Set out (h, w) where a frame (h, w) is not a part of its border: pixels between two values, joined to the edge.

    Pixels are joined with their four neighbours.
    """
    height, width = grey.shape
    todo = np.empty(height * width, np.int64)
    count = 0
    out[:] = True
    for y in range(height):
        for x in range(width):
            if (y == 0 or x == 0 or y == height - 1 or x == width - 1) and low < grey[y, x] < high:
                out[y, x] = False
                todo[count] = y * width + x
                count += 1
    while count:
        count -= 1
        y, x = todo[count] // width, todo[count] % width
        for dy, dx in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            row, column = y + dy, x + dx
            if 0 <= row < height and 0 <= column < width and out[row, column] and low < grey[row, column] < high:
                out[row, column] = False
                todo[count] = row * width + column
                count += 1


@compiled
def convex_hull(points, out):  # type: ignore[no-untyped-def]
    """Corners of the convex hull of points (n, 2), sorted by one coordinate and then by the other: out (n + 1, 2).

    Returns how many corners there are. Andrew's monotone chain.
    """
    count, first = 0, 2
    for step in range(2 * len(points) - 1):
        k = step if step < len(points) else 2 * len(points) - 2 - step
        if step == len(points):
            first = count + 1  # the way back must not remove the way there
        x, y = points[k]
        while count >= first:
            ax, ay = out[count - 1, 0] - out[count - 2, 0], out[count - 1, 1] - out[count - 2, 1]
            if ax * (y - out[count - 2, 1]) - ay * (x - out[count - 2, 0]) > 0:
                break
            count -= 1
        out[count, 0], out[count, 1] = x, y
        count += 1
    return count - 1  # the last is the first


@compiled
def smooth(frame, unit, weights, across, out):  # type: ignore[no-untyped-def]
    """Convolve a frame (h, w) with symmetric weights (2 r + 1,) along both axes; beyond its edge it stays constant.

    The frame is multiplied by ``unit``. ``across`` (h, w) holds it after the first axis.
    """
    height, width = frame.shape
    reach = len(weights) // 2
    padded = np.empty(width + 2 * reach, np.float32)
    for y in range(height):
        padded[:reach], padded[reach + width :] = frame[y, 0], frame[y, -1]
        for x in range(width):  # numba compiles the checks of shapes in ``padded[...] = frame[y]`` for seconds
            padded[reach + x] = frame[y, x]
        line = across[y]
        line[:] = 0
        for k in range(len(weights)):
            weight, shifted = unit * weights[k], padded[k : k + width]
            for x in range(width):
                line[x] += weight * shifted[x]
    for y in range(height):
        line = out[y]
        line[:] = 0
        for k in range(len(weights)):
            weight, shifted = weights[k], across[min(max(y + k - reach, 0), height - 1)]
            for x in range(width):
                line[x] += weight * shifted[x]


@compiled
def mark_inside(m, x, y, half_width, half_height, angle, width, height, margin, out):  # type: ignore[no-untyped-def]
    """Clear out (h, w) where pixels come from outside a turned rectangle or its frame, or from closer than the margin.

    ``m`` (3, 3) maps pixels of ``out`` to points of the frame, of the given width and height. Returns how many remain.
    """
    cosine, sine = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    x, y = np.float32(x), np.float32(y)
    half_width, half_height = np.float32(half_width - margin), np.float32(half_height - margin)
    right, bottom = np.float32(width / 2 - 0.5), np.float32(height / 2 - 0.5)
    rows, columns = out.shape
    count = 0
    for row in range(rows):
        down_out = np.float32(row - (rows - 1) / 2)
        for column in range(columns):
            across_out = np.float32(column - (columns - 1) / 2)
            across = m[0, 0] * across_out + m[0, 1] * down_out + m[0, 2]
            down = m[1, 0] * across_out + m[1, 1] * down_out + m[1, 2]
            u = cosine * (across - x) - sine * (down - y)
            v = sine * (across - x) + cosine * (down - y)
            is_inside = abs(u) <= half_width and abs(v) <= half_height and abs(across) <= right and abs(down) <= bottom
            out[row, column] &= is_inside
            count += out[row, column]
    return count


@compiled
def tile_moments(moving, fixed, src_from_dst, inside, radius, side, out):  # type: ignore[no-untyped-def]
    """Sum 1, m, f, m m, m f and f f over the pixels of each tile: out (p, rows, columns, 6).

    m is an image of ``moving`` (p, H, W), sampled as :func:`unpose.images.sample` does where the pixels of ``fixed``
    (p, h, w) come from by affine maps (p, 3, 3); f is a pixel of ``fixed``. Pixels count that are ``inside``
    (p or 1, h, w) and come from within ``radius`` of the centre. All are float32. Values are taken about 0.5, for the
    precision of the sums of squares. The last tile of a row or column is larger.
    """
    (n, rows, columns, _), (_, height, width), (_, tall, wide) = out.shape, fixed.shape, moving.shape
    one, half, flat, stride = np.float32(1), np.float32(0.5), moving.ravel(), np.uintp(wide)
    half_width, half_height = np.float32((wide - 1) / 2), np.float32((tall - 1) / 2)
    for p in range(n):
        m, is_inside = src_from_dst[p], inside[min(p, len(inside) - 1)]
        xx, xy, x0, yx, yy, y0 = m[0, 0], m[0, 1], m[0, 2], m[1, 0], m[1, 1], m[1, 2]
        for tile in range(rows * columns):
            tile_row, tile_column = tile // columns, tile % columns
            bottom = (tile_row + 1) * side if tile_row < rows - 1 else height
            right = (tile_column + 1) * side if tile_column < columns - 1 else width
            count, sum_m, sum_f, sum_mm, sum_mf, sum_ff = 0, 0.0, 0.0, 0.0, 0.0, 0.0
            for row in range(tile_row * side, bottom):
                y = np.float32(row - (height - 1) / 2)
                for column in range(tile_column * side, right):
                    x = np.float32(column - (width - 1) / 2)
                    across, down = xx * x + xy * y + x0, yx * x + yy * y + y0
                    if not is_inside[row, column] or across * across + down * down > radius * radius:
                        continue
                    across, down = across + half_width, down + half_height
                    left, top = np.floor(across), np.floor(down)
                    u, v = keys_weights(across - left, one), keys_weights(down - top, one)
                    first, start = np.int64(left) - 1, np.int64(top) - 1
                    value = -half
                    if first >= 0 and start >= 0 and first + 3 < wide and start + 3 < tall:
                        at = np.uintp((p * tall + start) * wide + first)
                        value += weighted_sum(flat, at, u) * v[0] + weighted_sum(flat, at + stride, u) * v[1]
                        at += stride + stride
                        value += weighted_sum(flat, at, u) * v[2] + weighted_sum(flat, at + stride, u) * v[3]
                    else:  # zero outside the frame
                        for i in range(4):
                            for j in range(4):
                                if 0 <= start + i < tall and 0 <= first + j < wide:
                                    value += v[i] * u[j] * moving[p, start + i, first + j]
                    goal = fixed[p, row, column] - half
                    count += 1
                    sum_m += value
                    sum_f += goal
                    sum_mm += value * value
                    sum_mf += value * goal
                    sum_ff += goal * goal
            sums = out[p, tile_row, tile_column]
            sums[0], sums[1], sums[2], sums[3], sums[4], sums[5] = count, sum_m, sum_f, sum_mm, sum_mf, sum_ff


@compiled
def compare_tiles(tiles, smallest, noise, agrees, out):  # type: ignore[no-untyped-def]
    """Compare pictures by the moments of their tiles (p, tiles, 6): out (p, 5).

    These are the residual, the contrast spread, the agreement, the typical correlation and the number of tiles of a
    :class:`unpose.dedupe.Comparison`. Tiles count that have at least ``smallest`` pixels and, in one of the pictures, a
    standard deviation of at least ``noise``. Without such a tile, the first two are 1 and the others 0.
    """
    floor = (noise / 2) ** 2  # noise that only one of them has must not count as texture of its own
    for p in range(tiles.shape[0]):
        variances, counted = np.empty((3, tiles.shape[1])), 0
        for t in range(tiles.shape[1]):
            w, m, f, mm, mf, ff = tiles[p, t]
            if w < smallest:
                continue
            m, f = m / w, f / w
            moved, fixed = max(mm / w - m * m, 0.0), max(ff / w - f * f, 0.0)
            if max(moved, fixed) >= noise**2:
                variances[0, counted], variances[1, counted], variances[2, counted] = moved, fixed, mf / w - m * f
                counted += 1
        if counted == 0:
            out[p, :2], out[p, 2:] = 1, 0
            continue
        moved, fixed, both = variances[0, :counted], variances[1, :counted], variances[2, :counted]
        changes = 0.5 * np.log((fixed + floor) / (moved + floor))
        change = np.median(changes)
        gain = np.exp(change)
        left = (fixed - 2 * gain * both + gain**2 * moved) / (fixed + gain**2 * moved + 2 * floor * (1 + gain**2))
        correlations = both / np.sqrt((moved + floor) * (fixed + floor))
        out[p, 0], out[p, 1] = np.median(left), np.median(np.abs(changes - change))
        out[p, 2], out[p, 3], out[p, 4] = (correlations >= agrees).mean(), np.median(correlations), counted


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
