"""Scores in the kernels of :mod:`unpose.nn.ops.cuda.attention_kernels`, and their gradients.

Letters and columns are theirs. Everything here is compiled into the kernels that call it.
"""

# Triton reads no stars in tuples, no annotations of them, and drops the way not taken only below an else.
# ruff: noqa: RUF005, RET505
# mypy: disable-error-code="assignment, var-annotated, misc"

import triton
import triton.language as tl

from unpose.nn.ops.cuda.neighbourhood import channel, look, outset_of
from unpose.nn.ops.cuda.packed import alike, code_of, codes_of, keep_of, plus, power, times, times_plus


@triton.jit
def _along(  # type: ignore[no-untyped-def]
    score, queries, asking, codes, i: tl.constexpr, first: tl.constexpr, COUNT: tl.constexpr,
    Q: tl.constexpr, D: tl.constexpr, PAIR: tl.constexpr,
):  # fmt: skip
    """A score, and what COUNT channels from ``first`` on of the i-th output's query add to it with an encoding's."""
    for c in tl.static_range(COUNT):
        asked_for = channel(queries, asking, i, first + c, D, Q[2], Q[3], PAIR)
        score = times_plus(asked_for, code_of(codes, c, PAIR), score, PAIR)
    return score


@triton.jit
def line_of(  # type: ignore[no-untyped-def]
    line, queries, asking, table, bias, y, x, Q: tl.constexpr, H: tl.constexpr, W: tl.constexpr, WY: tl.constexpr,
    WX: tl.constexpr, D: tl.constexpr, SPACE: tl.constexpr, PARTS: tl.constexpr, HAS_BIAS: tl.constexpr,
    SHARED: tl.constexpr, PAIR: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """What the scores of a line begin with, whichever of the key elements that share its entries they are for.

    That is what queries have with the table, minus infinity where there is no pixel. And which part of the table the
    line is in, and of each entry how far off the key lies in memory, and its place in the window.
    """
    SIZE: tl.constexpr = (SPACE + PAIR - 1) // PAIR
    WORDS: tl.constexpr = (SIZE + 3) // 4 * 4
    CHUNKS: tl.constexpr = (WX + GROUP - 1) // GROUP
    ENTRIES: tl.constexpr = PARTS * WY * WX
    part, row, start = line % PARTS, line // (PARTS * CHUNKS), line // PARTS % CHUNKS * GROUP
    begun, steps, places = (), (), ()
    entry = (part * WY + row) * WX + start
    # Added to a pointer here, so that what follows are constant steps from it.
    line_table, line_bias = table + entry * WORDS, bias + entry
    for j in tl.static_range(GROUP):
        inside, step, shift = look(y, x, row, start, j, 1, H, W, WY, WX, GROUP)
        steps, places = steps + (step,), places + (row * WX + start + shift,)
        outset = outset_of(inside, PAIR)
        for i in tl.static_range(SHARED):
            codes = codes_of(line_table + (i * ENTRIES + shift) * WORDS, SIZE)
            score = _along(outset, queries, asking, codes, i, 0, SPACE, Q, D, PAIR)
            if HAS_BIAS:
                score = plus(score, alike(tl.load(line_bias + (i * ENTRIES + shift)), PAIR), PAIR)
            begun = begun + (score,)
    return part, begun, steps, places


@triton.jit
def vector_of(vectors, number, CHANNELS: tl.constexpr, PAIR: tl.constexpr):  # type: ignore[no-untyped-def]
    """The words of one of the vectors."""
    SIZE: tl.constexpr = (CHANNELS + PAIR - 1) // PAIR
    return codes_of(vectors + number * ((SIZE + 3) // 4 * 4), SIZE)


@triton.jit
def extras_of(  # type: ignore[no-untyped-def]
    scores, queries, asking, vectors, number, Q: tl.constexpr, D: tl.constexpr, KEYS: tl.constexpr,
    SPACE: tl.constexpr, SHARED: tl.constexpr, PAIR: tl.constexpr,
):  # fmt: skip
    """What the vectors of SHARED outputs and one key element add to scores; the first has this number."""
    found = ()
    for i in tl.static_range(SHARED):
        codes = vector_of(vectors, number + i * KEYS, D - SPACE, PAIR)
        found = found + (_along(scores[i], queries, asking, codes, i, SPACE, D - SPACE, Q, D, PAIR),)
    return found


@triton.jit
def score_of(  # type: ignore[no-untyped-def]
    score, queries, asking, near, i: tl.constexpr, Q: tl.constexpr, D: tl.constexpr, PAIR: tl.constexpr,
):  # fmt: skip
    """A score, and what the i-th output's query and a key add to it."""
    for c in tl.static_range(D):
        score = times_plus(channel(queries, asking, i, c, D, Q[2], Q[3], PAIR), near[c], score, PAIR)
    return score


@triton.jit
def slope_of(  # type: ignore[no-untyped-def]
    score, product, factor, levels, first: tl.constexpr, mark, entry, least, DROPS: tl.constexpr, PAIR: tl.constexpr,
):  # fmt: skip
    """The weight of a value, dropped or not, and the gradient of its score, before unit and 1 / sqrt(d).

    ``product`` is that of the value and the result's gradient. From ``first`` on, levels are the logarithm of the
    denominator, negative and in bits, in words in two parts, what half precision has of it and the rest; and minus the
    inner product of the result and its gradient.
    """
    score = times_plus(score, factor, levels[first], PAIR)
    if PAIR == 2:
        score = plus(score, levels[first + 1], PAIR)
    weight = power(score, PAIR)
    if DROPS:
        keep = keep_of(mark, entry, least, PAIR)
        return times(weight, keep, PAIR), times(weight, times_plus(product, keep, levels[first + PAIR], PAIR), PAIR)
    else:
        return weight, times(weight, plus(product, levels[first + PAIR], PAIR), PAIR)
