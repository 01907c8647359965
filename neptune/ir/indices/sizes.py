"""The sizes that the shapes of a call's inputs give, those inside of a dimension included.

A dimension that is a variable gives it. One that is c·v + d, with a number c ≥ 1 and a d of sizes that are given
already, gives v: what is left of the dimension without d, in c equal parts. Anything else, such as g·v for two sizes,
leaves its variables to the caller.

x: [b, 4·cg + 1] gives b and cg = (shape[1] − 1) / 4
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from neptune.ir.expr import Expr, Var, variables
from neptune.ir.indices.affine import linear, poly, to_expr
from neptune.ir.integers import evaluate_size

Shapes = Sequence[Sequence[Expr]]


@dataclass(frozen=True)
class Solved:
    """The size `name` is (dimension `dim` of input `input` − rest) / times."""

    name: str
    input: int
    dim: int
    times: int
    rest: Expr

    def value(self, n: int, sizes: Mapping[str, int | float]) -> int | None:
        """The size where that dimension is n; None where the parts would not be equal."""
        whole, left = divmod(n - evaluate_size(self.rest, sizes), self.times)
        return None if left else whole


def solved(shapes: Shapes) -> tuple[Solved, ...]:
    """The sizes that only dimensions of several terms give, in an order in which each needs those before it."""
    known = {d.name for shape in shapes for d in shape if isinstance(d, Var)}
    solutions: list[Solved] = []
    while more := next(_solutions(shapes, known), None):
        solutions.append(more)
        known.add(more.name)
    return tuple(solutions)


def given(shapes: Shapes) -> frozenset[str]:
    """The names of all sizes that shapes give."""
    plain = {d.name for shape in shapes for d in shape if isinstance(d, Var)}
    return frozenset(plain | {s.name for s in solved(shapes)})


def _solutions(shapes: Shapes, known: set[str]) -> Iterator[Solved]:
    for k, shape in enumerate(shapes):
        for axis, d in enumerate(shape):
            unknown = variables(d) - known
            if len(unknown) != 1:
                continue
            (name,) = unknown
            parts = linear(poly(d), name)
            times = None if parts is None else parts[0].constant
            if parts is not None and times is not None and times >= 1:
                yield Solved(name, k, axis, times, to_expr(parts[1], "int32"))
