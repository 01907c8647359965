"""Numbers of elements of an axis that a loop has folded, if it takes them in order, a tile per iteration.

j ↦ j0*BLOCK_N + j1, j1 in [0, BLOCK_N):   j0*BLOCK_N before iteration j0, min(j0*BLOCK_N + BLOCK_N, n) after it
"""

from __future__ import annotations

from collections.abc import Sequence

from neptune.ir.affine import extreme, linear, number, poly, scope_of, to_expr
from neptune.ir.expr import Expr, Var, binary, variables
from neptune.ir.program import ZERO, For, Program


def folded(
    program: Program, loops: Sequence[For], loop: For, axis: Expr, extent: Expr, begin: Expr = ZERO
) -> tuple[Expr, Expr] | None:
    """The elements of `axis`, an expression over `loops`, before and after an iteration of `loop`, or None.

    The axis ends at `extent`, and begins at `begin`: where a part of it does, which ends behind a whole tile.
    """
    parts = linear(poly(axis), loop.var)
    inside = loops[next(k for k, f in enumerate(loops) if f is loop) + 1 :]
    below = [f.var for f in reversed(inside) if f.var in variables(axis)]
    around = {f.var for f in loops} - {f.var for f in inside} - {loop.var}
    if variables(axis) & around:
        return None
    if parts is None or any(loop.var in variables(e) for f in loops for e in (f.lo, f.hi)):
        return None
    stride, rest = parts
    scope = scope_of(program, loops)
    low, high = (extreme(rest, below, scope, largest=largest) for largest in (False, True))
    if low != number(0) or high is None or high + number(1) != stride:
        return None
    start = binary("mul", Var(loop.var), to_expr(stride))
    if poly(binary("mul", loop.lo, to_expr(stride))) != poly(begin):
        return None
    end = binary("min", binary("add", start, to_expr(stride)), extent)
    return (start, end) if begin == ZERO else (binary("sub", start, begin), binary("sub", end, begin))
