"""The operators of µGraphs, as a table: how many operands each has, and what it is on axes.

A `map` works element by element; operands are broadcast along axes that they lack. A `fold` takes one axis away: of
`matmul` that of a product of two operands (without the product being stored), of `sum` and `max` that of one. An
`accumulate` takes the part of an axis away that the loop of a block goes through; its value is there behind the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from neptune.ir.dtypes import DTYPES

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class OpRow:
    """An operator: `kind` is "map", "fold" or "accumulate"; with `constant` it has a number beside its operands.

    `function`: the operator of expressions (`neptune.ir.ops`) that a map is, of its operands and its number, or
    `compound`: a formula of such, given a function that applies one by name. A map that has both is computed by its
    function, and search and proofs read the formula, of operators that they know. `extremum`: a map whose value is one
    of its operands'. `reducer`: how a fold folds.
    """

    name: str
    arity: int
    kind: str
    function: str = ""
    reducer: str = ""
    commutes: bool = False
    constant: bool = False
    extremum: bool = False
    compound: Callable[..., Any] | None = None

    def applied(self, apply: Callable[..., V], *args: V) -> V:
        """The value of a map; `apply(name, *args)` makes that of an operator of expressions, the number last."""
        return apply(self.function, *args) if self.compound is None else self.compound(apply, *args)

    def computed(self, apply: Callable[..., V], *args: V) -> V:
        """The same value as a kernel computes it: by the function, where there is one beside the formula."""
        return apply(self.function, *args) if self.function else self.applied(apply, *args)


_ROWS = (
    OpRow("add", 2, "map", "add", commutes=True),
    OpRow("sub", 2, "map", "sub"),
    OpRow("mul", 2, "map", "mul", commutes=True),
    OpRow("div", 2, "map", "div"),
    OpRow("maximum", 2, "map", "max", commutes=True, extremum=True),
    OpRow(
        "minimum",
        2,
        "map",
        "min",
        commutes=True,
        extremum=True,
        compound=lambda f, x, y: f("neg", f("max", f("neg", x), f("neg", y))),
    ),
    OpRow("neg", 1, "map", "neg"),
    OpRow("exp", 1, "map", "exp"),
    OpRow("sqr", 1, "map", compound=lambda f, x: f("mul", x, x)),
    OpRow("sqrt", 1, "map", "sqrt"),
    OpRow("rsqrt", 1, "map", "rsqrt"),
    OpRow("silu", 1, "map", compound=lambda f, x: f("mul", x, f("sigmoid", x))),
    OpRow("sigmoid", 1, "map", "sigmoid"),
    OpRow("shift", 1, "map", "add", constant=True),
    OpRow("scale", 1, "map", "mul", constant=True),
    OpRow("power", 1, "map", "pow", constant=True),
    OpRow("cast", 1, "map"),
    OpRow("opaque", -1, "map"),
    OpRow("matmul", 2, "fold", reducer="sum", commutes=True),
    OpRow("sum", 1, "fold", reducer="sum"),
    OpRow("max", 1, "fold", reducer="max"),
    OpRow("acc", 1, "accumulate", reducer="sum"),
    OpRow("acc_sum", 1, "accumulate", reducer="sum"),
    OpRow("acc_max", 1, "accumulate", reducer="max"),
    OpRow("acc_rescaled", 2, "accumulate", reducer="sum", constant=True),
)
"""`shift` adds its number, `scale` multiplies by it, `power` raises to it (a rational). `cast` rounds to `dtype`, which
the algebra does not see. `opaque` applies the function `function` of which nothing is known. `acc_sum` folds the tile
part of the axis too. `acc_rescaled(x, m)` is the sum of x·exp(c·(m_before − m)) so far: x has the degree c in exp(−m)
for the running maximum m (an `acc_max`)."""

OPS = {row.name: row for row in _ROWS}

FLOATS = tuple(row.name for row in DTYPES.values() if row.kind == "float" and row.bits >= 16)
"""The dtypes of tensors and roundings."""
