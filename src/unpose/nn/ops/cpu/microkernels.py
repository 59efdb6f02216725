"""The inner loops of group attention on the CPU, for a tile of neighbouring pixels and a chunk of the window's entries.

Maps are planes, (element, channel, pixel), so that the keys at one offset from a tile's pixels are one load. That load,
which mostly crosses a cache line, is what costs: so up to SHARE outputs are computed together and share it. The loops
hold what belongs to the tile in rows (channels, SHARE, WIDTH); scores are rows (entries, SHARE, WIDTH) and a table of
codes is (codes, channels + 1, SHARE), so that nearly all places are known when the code is made.

The outputs that a tile is computed for are its members. Scores are to base two: the queries come multiplied with
log2(e).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils

from unpose.nn.ops.cpu.simd import BLOCK, HALF, I32, I64, SHARE, SUMS, WIDTH, Lanes, lane_code

ROW = SHARE * WIDTH
"""Numbers of a row: a tile for each member."""


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


def _tile(lanes: Lanes, member: Any, m: int) -> Any:
    """Where in a row the tile of member ``member + m`` starts."""
    return lanes.times(lanes.plus(member, m), WIDTH)


def _emit_dots(
    lanes: Lanes, held: Any, members: Any, moving: _Moving, rows: Any, begin: Callable[[Any, Any], Callable[[Any], Any]]
) -> None:
    """Rows (entries, SHARE, WIDTH) of ``sum_c held_c moving_c``, added to what ``begin(row, start)(tile)`` is."""
    builder = lanes.builder

    def emit(member: Any, count: int) -> None:
        each = min(BLOCK, SUMS // (2 * count))
        totals, tiles = [lanes.sums(count) for _ in range(each)], [_tile(lanes, member, m) for m in range(count)]
        with cgutils.for_range(builder, lanes.times(moving.blocks, BLOCK // each)) as step:
            numbers = [lanes.plus(lanes.times(step.index, each), i) for i in range(each)]
            starts = [moving.start(lanes, lanes.plus(moving.first, number)) for number in numbers]
            for number, start, row in zip(numbers, starts, totals, strict=True):
                begun = begin(number, start)
                for tile, total in zip(tiles, row, strict=True):
                    builder.store(begun(tile), total)
            with cgutils.for_range(builder, moving.channels) as channel:
                there = [moving.channel(lanes, start, channel.index) for start in starts]
                for m, tile in enumerate(tiles):
                    here = lanes.load(held, lanes.plus(lanes.times(channel.index, ROW), tile))
                    for row, near in zip(totals, there, strict=True):
                        lanes.add(row[m], here, near)
            for number, row in zip(numbers, totals, strict=True):
                for tile, total in zip(tiles, row, strict=True):
                    lanes.store(builder.load(total), rows, lanes.plus(lanes.times(number, ROW), tile))

    lanes.in_groups(members, SHARE, emit)


def _code(lanes: Lanes, table: Any, code: Any, channels: Any, channel: Any, member: Any, m: int) -> Any:
    """A number of the table, (codes, channels + 1, SHARE)."""
    line = lanes.plus(lanes.times(code, lanes.plus(channels, 1)), channel)
    return lanes.entry(table, lanes.plus(lanes.plus(lanes.times(line, SHARE), member), m))


@lane_code
def encode(lanes, held, members, table, first, count, channels, rows):  # type: ignore[no-untyped-def]
    """Rows (codes, SHARE, WIDTH): ``sum_c held_c table_c`` and the number behind the channels; codes from one on."""
    builder = lanes.builder

    def emit(member: Any, members: int, code: Any, size: int) -> None:
        totals = [lanes.sums(members) for _ in range(size)]
        codes = [lanes.plus(lanes.plus(first, code), i) for i in range(size)]
        for row, own in zip(totals, codes, strict=True):
            for m, total in enumerate(row):
                builder.store(lanes.splat(_code(lanes, table, own, channels, channels, member, m)), total)
        with cgutils.for_range(builder, channels) as channel:
            for m in range(members):
                here = lanes.load(held, lanes.plus(lanes.times(channel.index, ROW), _tile(lanes, member, m)))
                for row, own in zip(totals, codes, strict=True):
                    number = _code(lanes, table, own, channels, channel.index, member, m)
                    lanes.add(row[m], here, lanes.splat(number))
        for i, row in enumerate(totals):
            for m, total in enumerate(row):
                place = lanes.plus(lanes.times(lanes.plus(code, i), ROW), _tile(lanes, member, m))
                lanes.store(builder.load(total), rows, place)

    def in_codes(member: Any, members: int) -> None:
        lanes.in_groups(count, SUMS // (2 * members), lambda code, size: emit(member, members, code, size))

    lanes.in_groups(members, SHARE, in_codes)


@lane_code
def dots(  # type: ignore[no-untyped-def]
    lanes, held, members, key, key_at, offsets, first, blocks, channels, stride, coded, codes, kinded, kinds, scores
):  # fmt: skip
    """Scores of a tile of queries with blocks of entries: ``sum_c query_c key_c + mask`` and what the queries have with
    the table, the rows of ``coded`` and ``kinded`` that ``codes[e]`` and ``kinds[e]`` name, counted from the first.

    Entry e of the keys lies ``offsets[e]`` beyond ``key_at``; the mask is the plane after the key's channels.
    """
    moving = _Moving(key, key_at, offsets, first, blocks, channels, stride)

    def begin(row: Any, start: Any) -> Callable[[Any], Any]:
        mask = moving.channel(lanes, start, channels)
        code, kind = lanes.entry(codes, row), lanes.entry(kinds, row)

        def begun(tile: Any) -> Any:
            by_code, by_key = lanes.load(coded, lanes.plus(code, tile)), lanes.load(kinded, lanes.plus(kind, tile))
            return lanes.builder.fadd(lanes.builder.fadd(by_code, by_key), mask)

        return begun

    _emit_dots(lanes, held, members, moving, scores, begin)


@lane_code
def products(lanes, held, members, planes, at, offsets, first, blocks, channels, stride, rows):  # type: ignore[no-untyped-def]
    """Rows (entries, SHARE, WIDTH): ``sum_c held_c moving_c`` of a tile with blocks of entries."""
    moving = _Moving(planes, at, offsets, first, blocks, channels, stride)
    _emit_dots(lanes, held, members, moving, rows, lambda row, start: lambda tile: lanes.constant(0.0))


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
    lanes, scores, weights, count, members, level, delta, pixels, at, index, first, base, step, seed, threshold, factor
):  # fmt: skip
    """From scores to their gradients, in place: ``weight (<gradient, value> - delta)``, ``weight = 2^(score - level)``.

    ``weights`` holds the products of gradient and value, and then the weights as they were used; level and delta are
    (SHARE, WIDTH). A weight that was dropped takes no gradient from its value.
    """
    builder, dropped = lanes.builder, _Drop(pixels, at, index, base, step, seed, threshold, factor)

    def emit(member: Any, size: int, drops: bool) -> None:
        tiles = [_tile(lanes, member, m) for m in range(size)]
        with cgutils.for_range(builder, count) as row:
            scales = dropped.scales(lanes, lanes.plus(first, row.index), member, size) if drops else [None] * size
            for tile, scale in zip(tiles, scales, strict=True):
                place = lanes.plus(lanes.times(row.index, ROW), tile)
                weight = lanes.power(builder.fsub(lanes.load(scores, place), lanes.load(level, tile)))
                slope, used = lanes.load(weights, place), weight
                if scale is not None:
                    slope, used = builder.fmul(slope, scale), builder.fmul(used, scale)
                lanes.store(builder.fmul(weight, builder.fsub(slope, lanes.load(delta, tile))), scores, place)
                lanes.store(used, weights, place)

    with builder.if_else(builder.icmp_unsigned("!=", threshold, I64(0))) as (some, none):
        for branch, drops in ((some, True), (none, False)):
            with branch:
                lanes.in_groups(members, SHARE, partial(emit, drops=drops))


def _in_parts(
    lanes: Lanes, members: Any, channels: Any, emit: Callable[[Any, list[Any], list[Any], Any, int], None]
) -> None:
    """``emit(member, tiles, places, shift, width)`` for some members at a time, some channels and a part of the tiles.

    ``tiles`` are where in a row the members' parts start, ``shift`` pixels into their tiles and ``width`` wide; as many
    sums at a time as there are registers for.
    """

    def some(member: Any, count: int, channel: Any, size: int) -> None:
        width = WIDTH if 4 * count * 2 <= SUMS else HALF
        places = [lanes.plus(channel, c) for c in range(size)]
        with cgutils.for_range(lanes.builder, I64(WIDTH // width)) as part:
            shift = lanes.times(part.index, width)
            tiles = [lanes.plus(shift, _tile(lanes, member, m)) for m in range(count)]
            emit(member, tiles, places, shift, width)

    def in_channels(member: Any, count: int) -> None:
        lanes.in_groups(channels, 4, lambda channel, size: some(member, count, channel, size))

    lanes.in_groups(members, SHARE, in_channels)


@lane_code
def scatter(lanes, weights, members, held, planes, at, offsets, first, blocks, channels, stride):  # type: ignore[no-untyped-def]
    """Add ``sum_m weights_em held_m`` to planes where entry e lies: what :func:`gather` takes, given back."""
    builder, moving = lanes.builder, _Moving(planes, at, offsets, first, blocks, channels, stride)

    def emit(member: Any, tiles: list[Any], places: list[Any], shift: Any, width: int) -> None:
        here = [
            [lanes.load(held, lanes.plus(lanes.times(place, ROW), tile), width) for tile in tiles] for place in places
        ]
        with cgutils.for_range(builder, lanes.times(blocks, BLOCK)) as row:
            own = lanes.times(row.index, ROW)
            shares = [lanes.load(weights, lanes.plus(own, tile), width) for tile in tiles]
            start = lanes.plus(moving.start(lanes, lanes.plus(first, row.index)), shift)
            for place, near in zip(places, here, strict=True):
                total = moving.channel(lanes, start, place, width)
                for share, factor in zip(shares, near, strict=True):
                    total = lanes.fma(share, factor, total)
                lanes.store(total, planes, lanes.plus(start, lanes.times(place, stride)))

    _in_parts(lanes, members, channels, emit)


def _emit_gather(
    lanes: Lanes,
    weights: Any,
    members: Any,
    steps: Any,
    each: int,
    channels: Any,
    found: Any,
    factors: Callable[[Any, Any, int], Callable[[Any, Any, int], Any]],
) -> None:
    """Add ``sum_r weights_r factor_r`` to rows found (channels, SHARE, WIDTH), for ``steps`` times ``each`` rows.

    ``factors(row, shift, width)`` gives what ``(channel, member, m)`` makes a vector of so many pixels from a shift on.
    """
    builder = lanes.builder

    def emit(member: Any, tiles: list[Any], places: list[Any], shift: Any, width: int) -> None:
        totals = [lanes.sums(len(tiles), width) for _ in places]
        for place, row in zip(places, totals, strict=True):
            for tile, total in zip(tiles, row, strict=True):
                builder.store(lanes.load(found, lanes.plus(tile, lanes.times(place, ROW)), width), total)
        with cgutils.for_range(builder, steps) as step:
            for i in range(each):
                own = lanes.plus(lanes.times(step.index, each), i)
                shares = [lanes.load(weights, lanes.plus(lanes.times(own, ROW), tile), width) for tile in tiles]
                factor = factors(own, shift, width)
                for place, row in zip(places, totals, strict=True):
                    for m, (total, share) in enumerate(zip(row, shares, strict=True)):
                        lanes.add(total, share, factor(place, member, m))
        for place, row in zip(places, totals, strict=True):
            for tile, total in zip(tiles, row, strict=True):
                lanes.store(builder.load(total), found, lanes.plus(tile, lanes.times(place, ROW)))

    _in_parts(lanes, members, channels, emit)


@lane_code
def gather(lanes, weights, members, planes, at, offsets, first, blocks, channels, stride, found):  # type: ignore[no-untyped-def]
    """Add ``sum_e weights_e moving_e`` to rows ``found`` (channels, SHARE, WIDTH)."""
    moving = _Moving(planes, at, offsets, first, blocks, channels, stride)

    def factors(row: Any, shift: Any, width: int) -> Callable[[Any, Any, int], Any]:
        start = lanes.plus(moving.start(lanes, lanes.plus(first, row)), shift)
        return lambda channel, member, m: moving.channel(lanes, start, channel, width)

    _emit_gather(lanes, weights, members, blocks, BLOCK, channels, found, factors)


@lane_code
def decode(lanes, weights, count, members, table, first, channels, found):  # type: ignore[no-untyped-def]
    """Add ``sum_codes weights table_c`` to rows ``found`` (channels, SHARE, WIDTH), for codes from one on."""

    def factors(row: Any, shift: Any, width: int) -> Callable[[Any, Any, int], Any]:
        code = lanes.plus(first, row)
        return lambda channel, member, m: lanes.splat(_code(lanes, table, code, channels, channel, member, m), width)

    _emit_gather(lanes, weights, members, count, 1, channels, found, factors)


@lane_code
def fold(lanes, rows, at, step, count, members, out, to):  # type: ignore[no-untyped-def]
    """Add ``count`` rows, ``step`` apart from ``at`` on, to a row of out."""
    builder = lanes.builder

    def emit(member: Any, size: int) -> None:
        totals, tiles = lanes.sums(size), [_tile(lanes, member, m) for m in range(size)]
        target = lanes.times(to, ROW)
        for total, tile in zip(totals, tiles, strict=True):
            builder.store(lanes.load(out, lanes.plus(target, tile)), total)
        with cgutils.for_range(builder, count) as row:
            own = lanes.times(lanes.plus(at, lanes.times(row.index, step)), ROW)
            for total, tile in zip(totals, tiles, strict=True):
                builder.store(builder.fadd(builder.load(total), lanes.load(rows, lanes.plus(own, tile))), total)
        for total, tile in zip(totals, tiles, strict=True):
            lanes.store(builder.load(total), out, lanes.plus(target, tile))

    lanes.in_groups(members, SHARE, emit)


@lane_code
def outer(lanes, weights, weights_step, held, held_step, tiles, members, count, channels, first, member_step, out):  # type: ignore[no-untyped-def]
    """Add ``sum_tiles weights held_c`` to out (members, codes, channels, HALF), sums of HALF pixels side by side.

    For ``count`` codes from ``first`` on. Tiles are ``weights_step`` and ``held_step`` numbers apart, members of the
    result ``member_step``.
    """
    builder = lanes.builder

    def emit(member: Any, channel: Any, size: int, code: Any, each: int) -> None:
        totals = [lanes.sums(size, HALF) for _ in range(each)]
        tile = lanes.times(member, WIDTH)
        base = lanes.plus(lanes.times(member, member_step), lanes.times(channel, HALF))

        def target(i: int, c: int) -> Any:
            row = lanes.times(lanes.plus(first, lanes.plus(code, i)), lanes.times(channels, HALF))
            return lanes.plus(base, lanes.plus(row, c * HALF))

        for i, row in enumerate(totals):
            for c, total in enumerate(row):
                builder.store(lanes.load(out, target(i, c), HALF), total)
        with cgutils.for_range(builder, tiles) as strip:
            far, near = (lanes.times(strip.index, apart) for apart in (weights_step, held_step))
            for half in (0, HALF):
                own = lanes.plus(tile, half)
                queries = [
                    lanes.load(held, lanes.plus(lanes.plus(near, own), lanes.times(lanes.plus(channel, c), ROW)), HALF)
                    for c in range(size)
                ]
                for i, row in enumerate(totals):
                    place = lanes.plus(lanes.plus(far, own), lanes.times(lanes.plus(code, i), ROW))
                    share = lanes.load(weights, place, HALF)
                    for query, total in zip(queries, row, strict=True):
                        lanes.add(total, share, query)
        for i, row in enumerate(totals):
            for c, total in enumerate(row):
                lanes.store(builder.load(total), out, target(i, c))

    def in_codes(member: Any, channel: Any, size: int) -> None:
        lanes.in_groups(count, SUMS // 4, lambda code, each: emit(member, channel, size, code, each))

    with cgutils.for_range(builder, members) as member:
        lanes.in_groups(channels, 4, lambda channel, size: in_codes(member.index, channel, size))
