"""Edge cases: one table of operators and reducers on NaN, on zeros with a sign, and beyond the range of a dtype.

The evaluator, LLVM and Triton (compiled and interpreted) keep to it; `tests/numerics/test_text_edges.py` runs every
row on all of them.  `docs/numerics.md` shows the table.  What a row leaves open ("either", undefined) is open
because a GPU would pay for more.  A maximum passes over NaN, as C's fmax, `torch.fmax` and the plain instruction of
every GPU do, where `torch.maximum` and `torch.amax` give NaN: `select(x < 0, 0, x)` is a ReLU that keeps it.

The exact models have no NaN: what they call so is "no value", which absorbs everything.
"""

from __future__ import annotations

from dataclasses import dataclass

from neptune.ir.expr import OPS
from neptune.ir.reducers import REDUCERS

SPREADS = "NaN, if an operand is"
NUMBER = "the other operand; NaN, if both are"
FALSE = "false"
TRUE = "true"
FIRST = "it comes before every number, with its index"
NO_FLOATS = "takes no floats"


@dataclass(frozen=True)
class Edge:
    """A row. `nan`: the result where an operand is NaN. `zero`: the sign of a result that is 0, "exact" or "either".
    `undefined`: where the value may be anything (nothing traps, and nothing else is touched)."""

    nan: str
    zero: str = "exact"
    undefined: str = ""


OVERFLOW = "the exact result does not fit the integer dtype"
_ROWS: dict[str, Edge] = {
    **dict.fromkeys(("add", "sub", "mul"), Edge(SPREADS, undefined=OVERFLOW)),
    **dict.fromkeys(("floordiv", "mod"), Edge(NO_FLOATS, undefined=f"the divisor is 0; {OVERFLOW}")),
    "abs": Edge(SPREADS, undefined="of the least integer"),
    "neg": Edge(SPREADS, "either", undefined="of the least integer"),
    **dict.fromkeys(("min", "max"), Edge(NUMBER, "either")),
    **dict.fromkeys(("tanh", "round", "sin", "erf"), Edge(SPREADS, "either")),
    "hypot": Edge(f"{SPREADS} and none is infinite"),
    "fmod": Edge(f"{SPREADS}; of inf, or by 0, too", undefined="x / y is 2²⁴ or more"),
    "pow": Edge("x⁰ is 1; 1 to the NaN is 1 or NaN; else NaN", "either", "x = -inf, or x is 1 or -1 and y infinite"),
    **dict.fromkeys(("lt", "le", "gt", "ge", "eq"), Edge(FALSE)),
    "ne": Edge(TRUE),
    **dict.fromkeys(("and", "or", "not", "bitand", "bitor", "bitxor"), Edge(NO_FLOATS)),
    **dict.fromkeys(("shl", "shr"), Edge(NO_FLOATS, undefined="a shift by less than 0, or by the width or more")),
}
EDGES: dict[str, Edge] = {
    name: _ROWS.get(name, Edge(SPREADS)) for name, row in OPS.items() if row.arity and row.kind != "instruction"
}
SELECT = Edge("the side that is not taken contributes nothing; a predicate that compares NaN is false")
CAST = Edge("to a float: NaN; to bool: true", undefined="to an integer: of NaN, and of what does not fit its dtype")
REDUCER_EDGES: dict[str, Edge] = {
    **dict.fromkeys(("sum", "prod", "lse"), Edge(SPREADS, "either")),
    **dict.fromkeys(("max", "min"), Edge("passed over; of nothing but NaN: the start, or NaN", "either")),
    **{name: Edge(NO_FLOATS) for name, row in REDUCERS.items() if row.folds != "numbers"},
    **{name: Edge(FIRST, "either") for name, row in REDUCERS.items() if row.best},
}


def table() -> str:
    """The rows as Markdown, equal ones together: what `docs/numerics.md` holds."""
    rows = [*EDGES.items(), ("select", SELECT), ("cast", CAST)]
    rows += [(f"{name} (reducer)", edge) for name, edge in REDUCER_EDGES.items()]
    groups: dict[Edge, list[str]] = {}
    for name, edge in rows:
        groups.setdefault(edge, []).append(name)
    head = ["| operator | of NaN | sign of a zero | undefined where |", "|---|---|---|---|"]
    return "\n".join(head + [f"| {', '.join(n)} | {e.nan} | {e.zero} | {e.undefined} |" for e, n in groups.items()])
