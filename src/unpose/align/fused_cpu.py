"""Best pose of every pair of images on one CPU core, without writing the scores of all poses.

The two inner loops (cross-products, angle synthesis) are emitted as explicit vector code, because the
compiler's own loop vectoriser stays at half the register width on AVX-512 and keeps no sums in registers.
One vector lane is one fixed image, and every lane runs the same operations in the same order whatever its
neighbours hold: no byte of a result depends on how the inputs are split or on the number of threads.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.extending import intrinsic

_FEATURES = binding.get_host_cpu_features()
_LANES = 16 if _FEATURES.get("avx512f", False) else 8 if _FEATURES.get("avx", False) else 4
# Two vectors side by side use every broadcast factor twice, but need 32 registers (AVX-512, NEON).
_COLUMNS = 1 if _LANES == 8 else 2
_WIDTH = _LANES * _COLUMNS  # fixed images in a tile
_BLOCK = 4  # views in a block: a loaded coefficient of a fixed image serves all of them

_I64 = ir.IntType(64)
_VEC = ir.VectorType(ir.FloatType(), _LANES)
_INT = ir.VectorType(ir.IntType(32), _LANES)


def _pointer(context: Any, builder: Any, kind: Any, array: Any, offset: Any) -> Any:
    """Address of element ``offset`` of a flat array."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, [offset])


def _place(builder: Any, pointer: Any, row: int, column: int, kind: Any = _VEC) -> Any:
    """Address of vector ``column`` in row ``row`` of a (rows, _WIDTH) array."""
    step = ir.Constant(_I64, row * _WIDTH + column * _LANES)
    return builder.bitcast(builder.gep(pointer, [step]), kind.as_pointer())


def _load(builder: Any, pointer: Any, row: int, column: int) -> Any:
    return builder.load(_place(builder, pointer, row, column), align=4)


def _splat(builder: Any, scalar: Any, kind: Any) -> Any:
    """A vector with ``scalar`` in every lane."""
    empty = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(empty, scalar, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, empty, ir.Constant(_INT, [0] * _LANES))


def _factor(builder: Any, pointer: Any, index: int) -> Any:
    """Element ``index`` behind ``pointer`` in every lane."""
    return _splat(builder, builder.load(builder.gep(pointer, [ir.Constant(_I64, index)])), _VEC)


def _call(builder: Any, name: str, *args: Any) -> Any:
    """A lane-wise compiler intrinsic."""
    kind = ir.FunctionType(_VEC, [_VEC] * len(args))
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"{name}.v{_LANES}f32"), args)


def _add_product(builder: Any, total: Any, a: Any, b: Any) -> None:
    builder.store(_call(builder, "llvm.fmuladd", a, b, builder.load(total)), total)


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@intrinsic
def _cross(typingctx, views, view_at, tile, tile_at, count, bias, bias_at, out, out_at, stride):  # type: ignore
    """Sums over ``count`` radial coefficients of one frequency: a block of views times a tile of images.

    views[c, part, w], tile[c, part, lane], out[w * stride + part, lane]; the real sums start at ``bias``.
    """
    at = types.intp
    signature = types.void(views, at, tile, at, at, bias, at, out, at, at)

    def codegen(context, builder, signature, args):
        arrays = [_pointer(context, builder, signature.args[p], args[p], args[p + 1]) for p in (0, 2, 5, 7)]
        ...

    return signature, codegen
