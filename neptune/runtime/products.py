"""Loops over a product of sizes (`fuse`) count in 32 bits on a GPU: calls for which that is not enough are refused.

Sizes are checked one by one where a call's arguments are; here, that products of them in the ranges of loops
stay in range as well.
"""

from __future__ import annotations

from collections.abc import Mapping

from neptune.errors import ShapeError
from neptune.ir.expr import Expr, Op, variables, walk
from neptune.ir.integers import evaluate_size
from neptune.ir.printer import print_expr
from neptune.ir.program import For, Program
from neptune.ir.program import walk as walk_stmts

# A loop that was split may run past the end by a tile.
LIMIT = 2**31 - 2**16


def products(program: Program) -> tuple[Expr, ...]:
    """The products of two or more sizes in ranges of loops."""
    sizes = {s.name for s in program.scalars}
    ranges = [e for f in walk_stmts(program.body) if isinstance(f, For) for e in (f.lo, f.hi)]
    factors = (x for e in ranges for x in walk(e) if isinstance(x, Op) and x.name == "mul")
    return tuple(dict.fromkeys(x for x in factors if len(variables(x)) > 1 and variables(x) <= sizes))


def check_products(program: Program, terms: tuple[Expr, ...], sizes: Mapping[str, int | float]) -> None:
    """Raise ShapeError where a product is not below 2**31 (less a tile)."""
    for e in terms:
        value = evaluate_size(e, sizes)
        if value >= LIMIT:
            raise ShapeError(
                f"call of kernel `{program.name}`",
                f"its schedule has one loop over {print_expr(e)}, which is {value} here: loops count in 32 bits",
                legal=(f"{print_expr(e)} below {LIMIT}",),
                hint="a schedule that does not fuse these loops",
            )
