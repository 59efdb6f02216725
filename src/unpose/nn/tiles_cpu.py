"""The inner loops of group attention on the CPU, for a tile of neighbouring pixels and a chunk of the window's entries.

Maps are planes, (element, channel, pixel), so that the keys at one offset from a tile's pixels are one load. That load,
which mostly crosses a cache line, is what costs: so up to SHARE outputs are computed together and share it. The loops
hold what belongs to the tile in rows (channels, SHARE, WIDTH); scores are rows (entries, SHARE, WIDTH) and the table is
(entries / BLOCK, channels + 1, SHARE, BLOCK), so that nearly all places are known when the code is made.

The outputs that a tile is computed for are its members. Scores are to base two: the queries come multiplied with
log2(e).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils

from unpose.nn.lanes_cpu import BLOCK, HALF, I32, I64, SHARE, SUMS, WIDTH, Lanes, lane_code

ROW = SHARE * WIDTH
"""Numbers of a row: a tile for each member."""
_LINE = SHARE * BLOCK  # numbers of the table for one channel of a block


@lane_code
def hold(lanes, planes, at, step, members, channels, stride, rows):  # type: ignore[no-untyped-def]
    """Rows (channels, SHARE, WIDTH) of a tile; members are ``step`` numbers apart, their channels ``stride``."""
    with cgutils.for_range(lanes.builder, members) as member, cgutils.for_range(lanes.builder, channels) as channel:
        start = lanes.plus(lanes.plus(at, lanes.times(member.index, step)), lanes.times(channel.index, stride))
        target = lanes.plus(lanes.times(channel.index, ROW), lanes.times(member.index, WIDTH))
        lanes.store(lanes.load(planes, start), rows, target)


class _Moving(NamedTuple):
    """What a tile's members meet entry by entry: planes ``stride`` apart, entry e ``offsets[e]`` beyond ``at``.

    ``blocks`` of entries are gone through, from ``first`` on.
    """

    planes: Any
    at: Any
    offsets: Any
    first: Any
    blocks: Any
    channels: Any
    stride: Any

    def start(self, lanes: Lanes, entry: Any) -> Any:
        """Where the first channel of an entry lies for the tile's first pixel."""
        return lanes.plus(self.at, lanes.entry(self.offsets, entry))

    def channel(self, lanes: Lanes, start: Any, channel: Any, width: int = WIDTH) -> Any:
        """A channel of the entry that starts there."""
        return lanes.load(self.planes, lanes.plus(start, lanes.times(channel, self.stride)), width)


def _emit_dots(
    lanes: Lanes,
    held: Any,
    moving: _Moving,
    starts: list[Any],
    member: Any,
    totals: list[list[Any]],
    encoded: Callable[[Any, int, int], Any] | None = None,
) -> None:
    """Add ``sum_c held_c (moving_c + encoded_c)`` to totals (entries, members), for entries at ``starts`` and members
    from one on; ``encoded(c, i, m)`` is the table's number for a channel, an entry and a member."""
    with cgutils.for_range(lanes.builder, moving.channels) as channel:
        own = lanes.times(channel.index, ROW)
        there = [moving.channel(lanes, start, channel.index) for start in starts]
        for m in range(len(totals[0])):
            here = lanes.load(held, lanes.plus(own, _tile(lanes, member, m)))
            for i, near in enumerate(there):
                lanes.add(totals[i][m], here, near)
                if encoded is not None:
                    lanes.add(totals[i][m], here, lanes.splat(encoded(channel.index, i, m)))


def _tile(lanes: Lanes, member: Any, m: int) -> Any:
    """Where in a row the tile of member ``member + m`` starts."""
    return lanes.times(lanes.plus(member, m), WIDTH)


def _code(lanes: Lanes, channel: Any, member: Any, m: int, i: int) -> Any:
    """Where in a block of the table the number for entry i and member ``member + m`` stands."""
    return lanes.plus(lanes.times(channel, _LINE), lanes.plus(lanes.times(lanes.plus(member, m), BLOCK), i))


@lane_code
def dots(lanes, held, members, key, key_at, offsets, first, blocks, channels, stride, table, scores):  # type: ignore[no-untyped-def]
    """Scores: ``sum_c query_c (key_c + table_c) + mask + bias`` of a tile of queries with blocks of entries.

    Entry e of the keys lies ``offsets[e]`` beyond ``key_at``; the mask is the plane after the key's channels, the bias
    stands in the table after its channels.
    """
    builder, moving = lanes.builder, _Moving(key, key_at, offsets, first, blocks, channels, stride)

    def emit(member: Any, count: int) -> None:
        each = min(BLOCK, SUMS // (2 * count))
        totals = [lanes.sums(count) for _ in range(each)]

        def some(block: Any, skip: int) -> None:
            """The entries of a block from ``skip`` on, as many as there are sums for."""
            begin = lanes.plus(moving.first, lanes.times(block, BLOCK))
            starts = [moving.start(lanes, lanes.plus(begin, skip + i)) for i in range(each)]
            codes = lanes.times(begin, lanes.times(lanes.plus(channels, 1), SHARE))

            def encoded(channel: Any, i: int, m: int) -> Any:
                return lanes.entry(table, lanes.plus(codes, _code(lanes, channel, member, m, skip + i)))

            for i, row in enumerate(totals):
                mask = moving.channel(lanes, starts[i], channels)
                for m, total in enumerate(row):
                    builder.store(builder.fadd(lanes.splat(encoded(channels, i, m)), mask), total)
            _emit_dots(lanes, held, moving, starts, member, totals, encoded)
            for i, row in enumerate(totals):
                target = lanes.times(lanes.plus(lanes.times(block, BLOCK), skip + i), ROW)
                for m, total in enumerate(row):
                    lanes.store(builder.load(total), scores, lanes.plus(target, _tile(lanes, member, m)))

        with cgutils.for_range(builder, blocks) as block:
            for skip in range(0, BLOCK, each):
                some(block.index, skip)

    lanes.in_groups(members, SHARE, emit)


@lane_code
def peak(lanes, scores, count, members, top):  # type: ignore[no-untyped-def]
    """Raise ``top`` (SHARE, WIDTH) to the largest of ``count`` rows."""

    def emit(member: Any, size: int) -> None:
        places = [lanes.times(lanes.plus(member, m), WIDTH) for m in range(size)]
        largest = lanes.sums(size)
        for total, place in zip(largest, places, strict=True):
            lanes.builder.store(lanes.load(top, place), total)
        with cgutils.for_range(lanes.builder, count) as row:
            for total, place in zip(largest, places, strict=True):
                value = lanes.load(scores, lanes.plus(place, lanes.times(row.index, ROW)))
                lanes.builder.store(lanes.larger(value, lanes.builder.load(total)), total)
        for total, place in zip(largest, places, strict=True):
            lanes.store(lanes.builder.load(total), top, place)

    lanes.in_groups(members, SHARE, emit)


@lane_code
def powers(lanes, scores, count, members, top, total):  # type: ignore[no-untyped-def]
    """Replace rows by ``2^(row - top)`` and add them to ``total`` (SHARE, WIDTH)."""
    with cgutils.for_range(lanes.builder, members) as member:
        place = lanes.times(member.index, WIDTH)
        (sum_,) = lanes.sums(1)
        lanes.builder.store(lanes.load(total, place), sum_)
        highest = lanes.load(top, place)
        with cgutils.for_range(lanes.builder, count) as row:
            at = lanes.plus(place, lanes.times(row.index, ROW))
            value = lanes.power(lanes.builder.fsub(lanes.load(scores, at), highest))
            lanes.builder.store(lanes.builder.fadd(lanes.builder.load(sum_), value), sum_)
            lanes.store(value, scores, at)
        lanes.store(lanes.builder.load(sum_), total, place)


class _Drop(NamedTuple):
    """Which weights are dropped.

    The index of a weight is that of its pixel, times HASH in ``pixels``, and ``base + member * step + index[e]``.
    """

    pixels: Any
    at: Any
    index: Any
    base: Any
    step: Any
    seed: Any
    threshold: Any
    factor: Any

    def scales(self, lanes: Lanes, entry: Any, member: Any, count: int) -> list[Any]:
        """What the weights of an entry are multiplied with, for members from an even one on."""
        pixels = lanes.load(self.pixels, self.at, kind=ir.VectorType(I32, WIDTH))
        start = lanes.plus(self.base, lanes.entry(self.index, entry))
        factor = lanes.splat(lanes.entry(self.factor, I64(0)))
        kept: list[Any] = []
        for m in range(0, count, 2):
            number = lanes.plus(start, lanes.times(lanes.plus(member, m), self.step))
            kept += lanes.kept(pixels, number, self.seed, self.threshold)
        return [lanes.builder.select(keep, factor, lanes.constant(0.0)) for keep in kept[:count]]


@lane_code
def drop(lanes, weights, count, members, pixels, at, index, first, base, step, seed, threshold, factor):  # type: ignore[no-untyped-def]
    """Multiply the weights that are kept by ``factor`` (1,), and the others by zero."""
    builder, dropped = lanes.builder, _Drop(pixels, at, index, base, step, seed, threshold, factor)

    def emit(member: Any, size: int) -> None:
        with cgutils.for_range(builder, count) as row:
            scales = dropped.scales(lanes, lanes.plus(first, row.index), member, size)
            for m, scale in enumerate(scales):
                place = lanes.plus(lanes.times(row.index, ROW), _tile(lanes, member, m))
                lanes.store(builder.fmul(lanes.load(weights, place), scale), weights, place)

    lanes.in_groups(members, SHARE, emit)


@lane_code
def slopes(  # type: ignore[no-untyped-def]
    lanes, held, members, value, value_at, offsets, first, blocks, channels, stride, level, delta, scores, weights,
    pixels, at, index, base, step, seed, threshold, factor,
):  # fmt: skip
    """From scores to their gradients, in place: ``weight (<gradient, value> - delta)``, ``weight = 2^(score - level)``;
    and the weights as they were used.

    ``held`` is the tile's gradient of the result; level and delta are (SHARE, WIDTH). A weight that was dropped takes
    no gradient from its value.
    """
    builder, moving = lanes.builder, _Moving(value, value_at, offsets, first, blocks, channels, stride)
    dropped = _Drop(pixels, at, index, base, step, seed, threshold, factor)

    def emit(member: Any, count: int, drops: bool) -> None:
        each = min(BLOCK, SUMS // (2 * count))
        totals = [lanes.sums(count) for _ in range(each)]
        with cgutils.for_range(builder, lanes.times(blocks, BLOCK // each)) as block:
            number = lanes.times(block.index, each)
            entries = [lanes.plus(first, lanes.plus(number, i)) for i in range(each)]
            for row in totals:
                for total in row:
                    builder.store(lanes.constant(0.0), total)
            _emit_dots(lanes, held, moving, [moving.start(lanes, entry) for entry in entries], member, totals)
            for i, entry in enumerate(entries):
                scales = dropped.scales(lanes, entry, member, count) if drops else [None] * count
                for m, (total, scale) in enumerate(zip(totals[i], scales, strict=True)):
                    tile = _tile(lanes, member, m)
                    target = lanes.plus(lanes.times(lanes.plus(number, i), ROW), tile)
                    weight = lanes.power(builder.fsub(lanes.load(scores, target), lanes.load(level, tile)))
                    slope, used = builder.load(total), weight
                    if scale is not None:
                        slope, used = builder.fmul(slope, scale), builder.fmul(used, scale)
                    lanes.store(builder.fmul(weight, builder.fsub(slope, lanes.load(delta, tile))), scores, target)
                    lanes.store(used, weights, target)

    with builder.if_else(builder.icmp_unsigned("!=", threshold, I64(0))) as (some, none):
        for branch, drops in ((some, True), (none, False)):
            with branch:
                lanes.in_groups(members, SHARE, partial(emit, drops=drops))


@lane_code
def scatter(lanes, weights, members, held, planes, at, offsets, first, blocks, channels, stride):  # type: ignore[no-untyped-def]
    """Add ``sum_m weights_em held_m`` to planes where entry e lies: what :func:`gather` takes, given back."""
    builder, moving = lanes.builder, _Moving(planes, at, offsets, first, blocks, channels, stride)

    def emit(member: Any, count: int, channel: Any, size: int) -> None:
        tiles = [_tile(lanes, member, m) for m in range(count)]
        places = [lanes.plus(channel, c) for c in range(size)]
        here = [[lanes.load(held, lanes.plus(lanes.times(place, ROW), tile)) for tile in tiles] for place in places]
        with cgutils.for_range(builder, lanes.times(blocks, BLOCK)) as row:
            own = lanes.times(row.index, ROW)
            shares = [lanes.load(weights, lanes.plus(own, tile)) for tile in tiles]
            start = moving.start(lanes, lanes.plus(first, row.index))
            for place, tiled in zip(places, here, strict=True):
                total = moving.channel(lanes, start, place)
                for share, near in zip(shares, tiled, strict=True):
                    total = lanes.fma(share, near, total)
                lanes.store(total, planes, lanes.plus(start, lanes.times(place, stride)))

    def in_channels(member: Any, count: int) -> None:
        lanes.in_groups(channels, 2, lambda channel, size: emit(member, count, channel, size))

    lanes.in_groups(members, SHARE, in_channels)


def _emit_gather(
    lanes: Lanes,
    weights: Any,
    members: Any,
    moving: _Moving,
    table: Any,
    found: Any,
) -> None:
    builder = lanes.builder

    def emit(member: Any, count: int, channel: Any, size: int) -> None:
        width = WIDTH if 4 * count * 2 <= SUMS else HALF
        totals = [lanes.sums(count, width) for _ in range(size)]
        with cgutils.for_range(builder, I64(WIDTH // width)) as part:
            shift = lanes.times(part.index, width)
            tiles = [lanes.plus(shift, _tile(lanes, member, m)) for m in range(count)]
            for c, row in enumerate(totals):
                for tile, total in zip(tiles, row, strict=True):
                    start = lanes.load(found, lanes.plus(tile, lanes.times(lanes.plus(channel, c), ROW)), width)
                    builder.store(start, total)
            with cgutils.for_range(builder, moving.blocks) as block:
                start = lanes.plus(moving.first, lanes.times(block.index, BLOCK))
                codes = lanes.times(start, lanes.times(lanes.plus(moving.channels, 1), SHARE))
                for i in range(BLOCK):
                    own = lanes.times(lanes.plus(lanes.times(block.index, BLOCK), i), ROW)
                    shares = [lanes.load(weights, lanes.plus(own, tile), width) for tile in tiles]
                    at = lanes.plus(moving.start(lanes, lanes.plus(start, i)), shift)
                    for c, row in enumerate(totals):
                        there = lanes.plus(channel, c)
                        near = moving.channel(lanes, at, there, width)
                        for m, (total, share) in enumerate(zip(row, shares, strict=True)):
                            lanes.add(total, share, near)
                            if table is not None:
                                code = lanes.entry(table, lanes.plus(codes, _code(lanes, there, member, m, i)))
                                lanes.add(total, share, lanes.splat(code, width))
            for c, row in enumerate(totals):
                for tile, total in zip(tiles, row, strict=True):
                    place = lanes.plus(tile, lanes.times(lanes.plus(channel, c), ROW))
                    lanes.store(builder.load(total), found, place)

    def in_channels(member: Any, count: int) -> None:
        lanes.in_groups(moving.channels, 4, lambda channel, size: emit(member, count, channel, size))

    lanes.in_groups(members, SHARE, in_channels)


@lane_code
def gather(lanes, weights, members, planes, at, offsets, first, blocks, channels, stride, found):  # type: ignore[no-untyped-def]
    """Add ``sum_e weights_e moving_e`` to rows ``found`` (channels, SHARE, WIDTH)."""
    moving = _Moving(planes, at, offsets, first, blocks, channels, stride)
    _emit_gather(lanes, weights, members, moving, None, found)


@lane_code
def gather_encoded(lanes, weights, members, planes, at, offsets, first, blocks, channels, stride, table, found):  # type: ignore[no-untyped-def]
    """Add ``sum_e weights_e (moving_e + table_e)``."""
    moving = _Moving(planes, at, offsets, first, blocks, channels, stride)
    _emit_gather(lanes, weights, members, moving, table, found)


@lane_code
def outer(lanes, weights, weights_step, held, held_step, tiles, members, blocks, channels, first, member_step, out):  # type: ignore[no-untyped-def]
    """Add ``sum_tiles weights_e held_c`` to out (members, entries, channels, HALF), sums of HALF pixels side by side.

    Tiles are ``weights_step`` and ``held_step`` numbers apart, members of the result ``member_step``.
    """
    builder, each = lanes.builder, SUMS // 4

    def emit(member: Any, channel: Any, size: int) -> None:
        totals = [lanes.sums(size, HALF) for _ in range(each)]
        tile = lanes.times(member, WIDTH)
        with cgutils.for_range(builder, lanes.times(blocks, BLOCK // each)) as step:
            entry = lanes.times(step.index, each)
            base = lanes.plus(lanes.times(member, member_step), lanes.times(channel, HALF))

            def target(i: int, c: int) -> Any:
                row = lanes.times(lanes.plus(first, lanes.plus(entry, i)), lanes.times(channels, HALF))
                return lanes.plus(base, lanes.plus(row, c * HALF))

            for i, row in enumerate(totals):
                for c, total in enumerate(row):
                    builder.store(lanes.load(out, target(i, c), HALF), total)
            with cgutils.for_range(builder, tiles) as strip:
                far, near = (lanes.times(strip.index, apart) for apart in (weights_step, held_step))
                for half in (0, HALF):
                    own = lanes.plus(tile, half)
                    queries = [
                        lanes.load(
                            held, lanes.plus(lanes.plus(near, own), lanes.times(lanes.plus(channel, c), ROW)), HALF
                        )
                        for c in range(size)
                    ]
                    for i, row in enumerate(totals):
                        place = lanes.plus(lanes.plus(far, own), lanes.times(lanes.plus(entry, i), ROW))
                        share = lanes.load(weights, place, HALF)
                        for query, total in zip(queries, row, strict=True):
                            lanes.add(total, share, query)
            for i, row in enumerate(totals):
                for c, total in enumerate(row):
                    lanes.store(builder.load(total), out, target(i, c))

    with cgutils.for_range(builder, members) as member:
        lanes.in_groups(channels, 4, lambda channel, size: emit(member.index, channel, size))
