"""Tile programs but for the widths of their indices: what a program for nearly all sizes must be the same as.

    q[cast(i64, h0 * 4) + cast(i64, i_h0) * 64:i64]    →    q[h0 * 4 + i_h0 * 64]

At sizes that are drawn for a check no integer leaves int32, so that two programs which are the same here compute the
same, where no integer is data: one exact check is of both.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from neptune.ir.dtypes import is_int
from neptune.ir.expr import Cast, rewrite
from neptune.ir.nodes import rewrite_parts
from neptune.tile.ir import Scalar, TExpr, TileProgram, map_stmt

WIDE, NARROW = "int64", "int32"


def same_but_widths(a: TileProgram, b: TileProgram) -> bool:
    """True where two programs that read and write no integers differ at most in casts and dtypes of indices."""
    if any(is_int(buffer.dtype) for program in (a, b) for buffer in program.globals.values()):
        return False
    return narrowed(a) == narrowed(b)


def narrowed(program: TileProgram) -> TileProgram:
    """The program with all arithmetic on indices of its statements in int32, without the casts between."""
    kernels = (replace(k, body=tuple(map_stmt(s, _tile) for s in k.body)) for k in program.kernels)
    return replace(program, kernels=tuple(kernels))


def _tile(e: TExpr) -> TExpr:
    return rewrite(e, _narrow)


def _narrow(e: Any) -> Any:
    """A node without its width; the same for tiles and for the scalars in them."""
    if isinstance(e, Scalar):
        return Scalar(rewrite(e.expr, _narrow))
    if isinstance(e, Cast) and is_int(e.dtype) and is_int(e.arg.dtype):
        return rewrite(e.arg, _narrow)
    # A number that is cut to an integer may be any.
    if e.dtype == WIDE and not isinstance(e, Cast) and "dtype" in type(e).__dataclass_fields__:
        return replace(rewrite_parts(e, _narrow), dtype=NARROW)
    return None
