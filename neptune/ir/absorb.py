"""What a value is known to be where a predicate is false: does everything downstream absorb it?

A causal mask stores -inf where it is false.  max(m, -inf) = m, exp(-inf - m) = 0, l + 0 = l: such an
element contributes nothing, and a tile of them can be skipped.  This module proves it by running a loop
body over a tiny domain of known values.  It relies on reducers starting from a *finite* identity
(so that -inf - m is -inf), and treats 0·x as 0, i.e. data is taken to be finite where it is masked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from neptune.ir.expr import Cast, Const, Expr, Load, Op, Select, conjuncts
from neptune.ir.program import Stage, Store, Update


@dataclass(frozen=True)
class Same:
    """The value that this location of a buffer had on entry to the loop body."""

    buffer: str
    above: bool = False  # never -inf: an accumulator of max, which starts from the finite extreme


NEG_INF, ZERO, ONE = "-inf", "0", "1"
Known: TypeAlias = "str | Same | None"
# Says whether a conjunction is certainly false where the predicate in question is.
IsFalse: TypeAlias = Callable[[list[Expr]], bool]


def conjunct_false(pred: Expr) -> IsFalse:
    """The plain rule: a conjunction that has `pred` among its parts is false where `pred` is."""
    return lambda parts: pred in parts


def known_value(e: Expr, memory: Mapping[str, Known], is_false: IsFalse) -> Known:
    """What is known of `e` (see the module's text)."""
    match e:
        case Const(value, _):
            return {-inf: NEG_INF, 0: ZERO, 1: ONE}.get(value) if not isinstance(value, bool) else None
        case Load(buffer, _, _):
            return memory.get(buffer)
        case Cast(arg, _):
            return known_value(arg, memory, is_false)
        case Select(pred, then, other):
            if is_false(conjuncts(pred)):
                return known_value(other, memory, is_false)
            a, b = known_value(then, memory, is_false), known_value(other, memory, is_false)
            return a if a == b else None
        case Op(name, args, _):
            return _operator(name, args, [known_value(a, memory, is_false) for a in args])
        case _:
            return None


def _operator(name: str, args: tuple[Expr, ...], known: list[Known]) -> Known:
    a, b = known[0] if known else None, known[1] if len(known) > 1 else None
    positive = [
        (isinstance(x, Const) and 0 < x.value < inf) or (isinstance(x, Op) and x.name in ("log2e", "ln2")) for x in args
    ]
    if name == "sub":
        if a is not None and a == b and isinstance(a, Same):
            return ZERO
        if b == ZERO:
            return a
        return NEG_INF if a == NEG_INF and isinstance(b, Same) and b.above else None
    if name == "add":
        return a if b == ZERO else b if a == ZERO else None
    if name == "mul":
        if ZERO in (a, b):
            return ZERO
        if ONE in (a, b):
            return b if a == ONE else a
        return NEG_INF if NEG_INF in (a, b) and positive[1 if a == NEG_INF else 0] else None
    if name == "div":
        if a is not None and a == b and isinstance(a, Same):
            return ONE
        return ZERO if a == ZERO else NEG_INF if a == NEG_INF and positive[1] else None
    if name in ("exp", "exp2"):
        return ZERO if a == NEG_INF else ONE if a == ZERO else None
    return None


def absorbed(reducer: str, value: Known) -> bool:
    """True if folding this value in leaves the state as it is."""
    return (reducer, value) in {("sum", ZERO), ("max", NEG_INF), ("prod", ONE)}


def unchanged(body: Iterable[Stage], carried: frozenset[str], is_false: IsFalse, given: Mapping[str, Known]) -> bool:
    """True if one run of these stages provably leaves every buffer of `carried` as it was.

    `carried`: what the body hands on to later iterations or to code behind the loop.  `given`: buffers
    whose value is already known (a stage that writes one keeps it so).
    """
    stages = list(body)
    maxima = {b for s in stages if isinstance(s.action, Update) and s.action.reducer == "max" for b in s.action.buffers}
    memory: dict[str, Known] = {b: Same(b, b in maxima) for b in carried}
    memory.update(given)
    for stage in stages:
        action = stage.action
        if isinstance(action, Store):
            if action.buffer in given:
                continue
            value = known_value(action.value, memory, is_false)
            if action.buffer in carried and value != memory[action.buffer]:
                return False
            memory[action.buffer] = value
        else:
            value = known_value(action.values[0], memory, is_false)
            if any(b in carried for b in action.buffers):
                if len(action.values) != 1 or not absorbed(action.reducer, value):
                    return False
            else:
                memory[action.buffers[0]] = None
    return True
