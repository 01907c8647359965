"""short_operands: a product reads operands of 16 and 8 bits, not what they were widened to.

z = cast(f32, x); y = y + dot(z, cast(f32, w))        →        y = y + dot(x, w)

The matrix unit multiplies 16-bit numbers exactly and sums in float32: both forms are the same, but float32 operands are
multiplied one by one on most GPUs. Of 8-bit floats the one that is not alike is widened to 16 bits (`operand_dtype`).
Where one operand alone is short, both stay as they are.
"""

from __future__ import annotations

from dataclasses import replace

from neptune.ir.contraction import NARROW, operand_dtype
from neptune.ir.expr import Cast
from neptune.tile.ir import Dot, Local, Rearrange, TExpr, TileKernel
from neptune.tile.passes.copies import drop_dead
from neptune.tile.passes.util import Block, Known, forward, map_blocks


def short_operands(kernel: TileKernel) -> TileKernel:
    """Shorten the operands of products within blocks, then drop the casts that nothing reads any more."""
    return replace(kernel, body=drop_dead(map_blocks(kernel.body, _block)))


def _block(stmts: Block) -> Block:
    return forward(stmts, lambda e: _short(e, {}), _product)


def _product(e: TExpr, short_of: Known) -> TExpr | None:
    if not isinstance(e, Dot) or e.a.dtype != "float32":
        return None
    a, b = _short(e.a, short_of), _short(e.b, short_of)
    if a is None or b is None:
        return None
    dtype = operand_dtype(a.dtype, b.dtype)
    return None if dtype == "float32" else replace(e, a=_as(a, dtype), b=_as(b, dtype))


def _as(e: TExpr, dtype: str) -> TExpr:
    return e if e.dtype == dtype else Cast(e, dtype)


def _short(e: TExpr, short_of: Known) -> TExpr | None:
    """Return the expression that an operand was widened from; None if it was not."""
    if isinstance(e, Rearrange):
        inner = _short(e.arg, short_of)
        return None if inner is None else replace(e, arg=inner)
    if isinstance(e, Cast) and e.dtype == "float32" and e.arg.dtype in NARROW:
        return e.arg
    return short_of.get(e.name) if isinstance(e, Local) else None
