"""Sums of what two matrices are together, such as squared distances, that products of matrices would compute.

    far[i, j] += (q[i, d] - k[j, d])²     →     Σ q² - 2 Σ q·k + Σ k²: one product of matrices, and two sums of rows

Of what does not multiply out, such as Σ |q - k|, nothing is said: nothing better can be had.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations, product

from neptune.ir.expr import Const, Expr, Load, Op, loads, variables
from neptune.ir.program import For, Stage, Update
from neptune.tile.registers import dots
from neptune.tune.slow_products import OF_UNIT, SHORTEST, Found, unmasked
from neptune.tune.subject import Subject, around

MOST = 16
"""Products that a sum is multiplied out into: of more, nobody would write them."""
Term = tuple[frozenset[str], frozenset[str]]
"""A product: the variables of its factor on either side."""


@dataclass(frozen=True)
class Sides:
    """Two operands of a sum, and the axes that either alone has, and that both are summed along."""

    a: Load
    b: Load
    rows: frozenset[str]
    cols: frozenset[str]
    depth: frozenset[str]

    def are_matrices(self, term: Term) -> bool:
        """True for a product of an element of either side's matrix."""
        a, b = term
        return bool(a & self.rows and a & self.depth and b & self.cols and b & self.depth)


def lost_expansions(s: Subject) -> Iterator[Found]:
    """Sums over both sides of a tile that are several products of matrices, multiplied out, where no kernel has one."""
    for loops, stage in s.nests:
        action = stage.action
        if not isinstance(action, Update) or action.reducer != "sum" or len(action.values) != 1:
            continue
        sides = _sides(s, loops, stage)
        terms = None if sides is None else _terms(unmasked(action).values[0], sides)
        # One product, hidden or not, is none that has to be multiplied out.
        if sides is None or terms is None or len(terms) < 2 or _is_multiplied_out(s, sides):
            continue
        if any(map(sides.are_matrices, terms)):
            axes = (sorted(x)[-1] for x in (sides.rows, sides.cols, sides.depth))
            yield stage.name, dict(zip(("i", "j", "d"), axes, strict=True))


def _sides(s: Subject, loops: tuple[For, ...], stage: Stage) -> Sides | None:
    """The operands of a sum that would be those of a product of matrices."""
    kept, folded = (frozenset(f.var for f in loops_of if s.length(f) >= SHORTEST) for loops_of in around(loops, stage))
    for x, y in permutations(loads(stage.action.values[0]), 2):
        left, right = (frozenset[str]().union(*map(variables, e.index)) for e in (x, y))
        sides = Sides(x, y, (left - right) & kept, (right - left) & kept, left & right & folded)
        if sides.rows and sides.cols and sides.depth and {x.dtype, y.dtype} <= set(OF_UNIT):
            return sides
    return None


def _terms(e: Expr, sides: Sides) -> list[Term] | None:
    """What a value is multiplied out, as products of one factor of either side; None for what is no such sum."""
    names = variables(e)
    if not names & sides.cols:
        return [(names, frozenset())]
    if not names & sides.rows:
        return [(frozenset(), names)]
    match e:
        case Op("add" | "sub", (x, y)):
            a, b = _terms(x, sides), _terms(y, sides)
            return None if a is None or b is None else a + b
        case Op("neg", (x,)):
            return _terms(x, sides)
        case Op("div", (x, y)) if not (variables(y) & sides.rows and variables(y) & sides.cols):
            return _product(_terms(x, sides), _terms(y, sides))
        case Op("pow", (x, Const(2))):
            return _product(_terms(x, sides), _terms(x, sides))
        case Op("mul", (x, y)):
            return _product(_terms(x, sides), _terms(y, sides))
    return None


def _product(a: list[Term] | None, b: list[Term] | None) -> list[Term] | None:
    if a is None or b is None or len(a) * len(b) > MOST:
        return None
    return [(x[0] | y[0], x[1] | y[1]) for x, y in product(a, b)]


def _is_multiplied_out(s: Subject, sides: Sides) -> bool:
    """True where a kernel has a product on tiles of these two operands and nothing else."""
    sources = [s.inputs_of(e, s.sources) for e in (sides.a, sides.b)]
    products = [[s.behind(e, k.name) for e in (dot.a, dot.b)] for k in s.tiles.kernels for dot in dots(k)]
    return sources in products or sources[::-1] in products
