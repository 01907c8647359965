"""Loops over a product of sizes (`fuse`) count in 32 bits on a GPU: calls for which that is not enough are refused.

Sizes are checked one by one where a call's arguments are; here, that products of them in the ranges of loops
stay in range as well, and so does all other arithmetic on indices (`neptune.ir.indices.widths`).
"""

from __future__ import annotations

from collections.abc import Mapping

from neptune.errors import ShapeError
from neptune.ir.dtypes import limits
from neptune.ir.expr import Expr, Op, variables, walk
from neptune.ir.indices.widths import NEARLY_ALL, USUAL, by_name, interval, unfit
from neptune.ir.integers import evaluate_size
from neptune.ir.program import For, Program
from neptune.ir.program import walk as walk_stmts
from neptune.ir.text.printer import print_expr

# A loop that was split may run past the end by a tile.
LIMIT = 2**31 - 2**16


def products(program: Program) -> tuple[Expr, ...]:
    """The products of two or more sizes in ranges of loops."""
    sizes = {s.name for s in program.scalars}
    ranges = [e for f in walk_stmts(program.body) if isinstance(f, For) for e in (f.lo, f.hi)]
    factors = (x for e in ranges for x in walk(e) if isinstance(x, Op) and x.name == "mul")
    return tuple(dict.fromkeys(x for x in factors if len(variables(x)) > 1 and variables(x) <= sizes))


class Widths:
    """Whether arithmetic on indices fits its dtype for the sizes of a call: shown for some sizes, it holds for all that
    are smaller. `wider` is of the program with more of it in int64."""

    def __init__(self, program: Program, tunables: Mapping[str, int], wider: Widths | None = None) -> None:
        self.program, self.wider, self.shown = program, wider, dict.fromkeys((s.name for s in program.scalars), USUAL)
        self.tiles = {t.name: (1, max(t.candidates, default=1)) for t in program.tunables}
        self.tiles |= {n: (v, v) for n, v in tunables.items()}
        self.covers = {t.name: t.covers for t in program.tunables if t.covers is not None}
        # For usual sizes the compiler has seen to it.
        self.least = {s.name: s.lo for s in program.scalars if s.lo is not None}

    def has_room(self, sizes: Mapping[str, int | float]) -> bool:
        """True where all arithmetic of the program itself fits."""
        return self._wrong(sizes) is None

    def check(self, sizes: Mapping[str, int | float]) -> None:
        """Raise ShapeError where a call's sizes make an index or a bound that has no room, not in the wider program
        either."""
        wrong = self._wrong(sizes)
        if wrong is None or (
            self.wider is not None and self.wider.has_room(sizes) and max(sizes[n] for n in self.least) <= NEARLY_ALL
        ):
            return
        low, high = limits(wrong.dtype)
        larger = ", ".join(f"{n}={v}" for n, v in self._larger(sizes).items())
        raise ShapeError(
            f"call of kernel `{self.program.name}` with {larger}",
            f"`{print_expr(wrong)}` may leave {wrong.dtype} at these sizes",
            legal=(f"sizes for which it stays in {low} … {high}",),
            hint="write it in int64: cast(i, 'int64') in an expression" if wrong.dtype == "int32" else None,
        )

    def _larger(self, sizes: Mapping[str, int | float]) -> dict[str, int]:
        return {n: int(sizes[n]) for n in self.least if sizes[n] > self.shown[n]}

    def _wrong(self, sizes: Mapping[str, int | float]) -> Expr | None:
        larger, wrong = self._larger(sizes), None
        if not larger:
            return None
        # So that lengths that grow from call to call are looked at a few times.
        for now in ({n: 1 << v.bit_length() for n, v in larger.items()}, larger):
            largest = {**{n: self.shown[n] for n in self.least}, **now}
            ranges = {**self.tiles, **{n: (low, max(low, largest[n])) for n, low in self.least.items()}}
            known = by_name(ranges)
            ranges |= {n: (1, 1 << max(1, interval(e, known)[1]).bit_length()) for n, e in self.covers.items()}
            wrong = next(unfit(self.program, ranges), None)
            if wrong is None:
                self.shown.update(now)
                return None
        return wrong


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
