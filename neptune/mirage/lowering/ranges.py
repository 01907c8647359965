"""The ranges of what definitions compute, with facts that no operator's row tells.

exp(x - max x) is at most 1, x / Σ x for positive x as well, and x / √(mean x²) at most √n in rows of length n.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from neptune.ir.analysis.facts import of_dtype, range_of
from neptune.ir.expr import Expr, Load, Op, args_of, binary, substitute
from neptune.ir.ops import Range
from neptune.ir.program import Store, Update
from neptune.mirage.lowering.definitions import Definitions
from neptune.mirage.lowering.rewriting import Actions, actions_of, at_index

LONGEST = 2.0**31
"""No axis is longer: sizes are int32."""


def range_in(algebra: Definitions) -> Callable[[Expr], Range]:
    """The range of an expression over the loads of definitions."""
    actions = actions_of(algebra.program)
    known: dict[str, Range] = {}

    def leaf(x: Expr) -> Range | None:
        if isinstance(x, Load) and x.buffer in known:
            return known[x.buffer]
        if isinstance(x, Op) and x.name == "exp" and _below_its_maximum(x.args[0], actions):
            return Range(0.0, 1.0)
        if isinstance(x, Op) and x.name == "div" and _of_its_sum(x, actions) and range_of(x.args[0], leaf).lo >= 0:
            return Range(0.0, 1.0)
        if isinstance(x, Op) and x.name == "div" and (n := _row_length(x, actions)) is not None:
            return Range(-n, n)
        return None

    for name, action in actions.items():
        known[name] = _folded(action, range_of(action.values[0], leaf))
    return lambda e: range_of(e, leaf)


def _folded(action: Store | Update, value: Range) -> Range:
    """The range of what an action makes of values in a range."""
    if isinstance(action, Store):
        return value
    if action.reducer == "sum":
        return Range(0.0 if value.lo >= 0 else -math.inf, 0.0 if value.hi <= 0 else math.inf)
    return value | of_dtype(action.values[0].dtype)


def _read(x: Expr, actions: Actions) -> tuple[Store | Update, Expr] | None:
    """What makes an element that is read, and its value over the axes of the reader."""
    if not isinstance(x, Load) or x.buffer not in actions:
        return None
    action = actions[x.buffer]
    return action, substitute(action.values[0], at_index(action, x.index))


def _folded_value(x: Expr, actions: Actions, reducer: str) -> Expr | None:
    """What a reduction folds, over the axes of the reader, where an element of one by this reducer is read."""
    read = _read(x, actions)
    return read[1] if read is not None and isinstance(read[0], Update) and read[0].reducer == reducer else None


def _below_its_maximum(e: Expr, actions: Actions) -> bool:
    """True for x - m where m is the maximum of x along some axes."""
    terms = args_of(e, "sub")
    return bool(terms) and _folded_value(terms[1], actions, "max") == terms[0]


def _of_its_sum(e: Op[Expr], actions: Actions) -> bool:
    """True for x / Σ x."""
    return _folded_value(e.args[1], actions, "sum") == e.args[0]


def _row_length(e: Op[Expr], actions: Actions) -> float | None:
    """√n of x / √(Σ x² / n + …)."""
    value, root = e.args
    inside = args_of(_seen(root, actions), "sqrt")
    factors = args_of(_seen(inside[0], actions), "mul") if inside else ()
    for total, by in (factors, factors[::-1]) if factors else ():
        if _folded_value(total, actions, "sum") == binary("mul", value, value):
            scale = range_of(by)
            least = scale.lo if scale.lo > 0 else 1 / LONGEST if _reciprocal(by) else 0.0
            return math.sqrt(1 / least) if least > 0 else None
    return None


def _reciprocal(e: Expr) -> bool:
    """True for 1 / a size."""
    parts = args_of(e, "div")
    return bool(parts) and range_of(parts[0]).lo >= 1 and not any(isinstance(x, Load) for x in parts)


def _seen(e: Expr, actions: Actions) -> Expr:
    """The expression that a map has stored, if it is read."""
    read = _read(e, actions)
    return read[1] if read is not None and isinstance(read[0], Store) else e
