"""The operators of µGraphs, as a table: how many operands each has, and what it is on axes.

A `map` works element by element; operands are broadcast along axes that they lack. A `fold` takes one axis away: of
`matmul` that of a product of two operands (without the product being stored), of `sum` and `max` that of one. An
`accumulate` takes the part of an axis away that the loop of a block goes through; its value is there behind the loop.
"""

from __future__ import annotations

from dataclasses import dataclass

from neptune.ir.dtypes import DTYPES


@dataclass(frozen=True, slots=True)
class OpRow:
    """An operator: `kind` is "map", "fold" or "accumulate"; with `constant` it has a number beside its operands."""

    name: str
    arity: int
    kind: str
    commutes: bool = False
    constant: bool = False


_ROWS = (
    OpRow("add", 2, "map", commutes=True),
    OpRow("sub", 2, "map"),
    OpRow("mul", 2, "map", commutes=True),
    OpRow("div", 2, "map"),
    OpRow("maximum", 2, "map", commutes=True),
    OpRow("neg", 1, "map"),
    OpRow("exp", 1, "map"),
    OpRow("sqr", 1, "map"),
    OpRow("sqrt", 1, "map"),
    OpRow("rsqrt", 1, "map"),
    OpRow("silu", 1, "map"),
    OpRow("sigmoid", 1, "map"),
    OpRow("shift", 1, "map", constant=True),
    OpRow("scale", 1, "map", constant=True),
    OpRow("power", 1, "map", constant=True),
    OpRow("cast", 1, "map"),
    OpRow("opaque", -1, "map"),
    OpRow("matmul", 2, "fold", commutes=True),
    OpRow("sum", 1, "fold"),
    OpRow("max", 1, "fold"),
    OpRow("acc", 1, "accumulate"),
    OpRow("acc_sum", 1, "accumulate"),
    OpRow("acc_max", 1, "accumulate"),
    OpRow("acc_rescaled", 2, "accumulate", constant=True),
)
"""`shift` adds its number, `scale` multiplies by it, `power` raises to it (a rational). `cast` rounds to `dtype`, which
the algebra does not see. `opaque` applies the function `function` of which nothing is known. `acc_sum` folds the tile
part of the axis too. `acc_rescaled(x, m)` is the sum of x·exp(c·(m_before − m)) so far: x has the degree c in exp(−m)
for the running maximum m (an `acc_max`)."""

OPS = {row.name: row for row in _ROWS}

FLOATS = tuple(row.name for row in DTYPES.values() if row.kind == "float" and row.bits >= 16)
"""The dtypes of tensors and roundings."""
