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

from neptune.ir.expr import Cast, Const, Expr, Load, Op, Select, conjuncts, loads
from neptune.ir.program import Stage, Store, Update, values


@dataclass(frozen=True)
class Same:
    """The value that a location of a buffer had on entry to the loop body."""

    buffer: str
    above: bool = False  # never -inf: an accumulator of max, which starts from the finite extreme
    index: tuple[Expr, ...] = ()  # which location; () where only one is in question
    casts: tuple[str, ...] = ()  # the roundings it has been through


NEG_INF, ZERO, ONE = "-inf", "0", "1"
Known: TypeAlias = "str | Same | None"
_HAVE_INF = ("float16", "bfloat16", "float32", "float64")
_WIDENING = {("float16", "float32"), ("bfloat16", "float32"), ("float32", "float64"), ("float16", "float64")}
_WIDENING |= {("bfloat16", "float64")}
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
        case Cast(arg, dtype):
            return _cast(known_value(arg, memory, is_false), arg.dtype, dtype)
        case Select(pred, then, other):
            if is_false(conjuncts(pred)):
                return known_value(other, memory, is_false)
            a, b = known_value(then, memory, is_false), known_value(other, memory, is_false)
            return a if a == b else None
        case Op(name, args, _):
            return _operator(name, args, [known_value(a, memory, is_false) for a in args])
        case _:
            return None


def _cast(known: Known, source: str, target: str) -> Known:
    if isinstance(known, Same):
        # The finite extreme of a wide dtype is -inf in a narrow one.
        wider = (source, target) in _WIDENING
        return Same(known.buffer, known.above and wider, known.index, (*known.casts, target))
    if known == NEG_INF:
        return NEG_INF if target in _HAVE_INF else None
    return known


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
        if {a, b} == {ZERO, NEG_INF}:
            return None
        if ZERO in (a, b):
            return ZERO
        if ONE in (a, b):
            return b if a == ONE else a
        return NEG_INF if NEG_INF in (a, b) and positive[1 if a == NEG_INF else 0] else None
    if name == "div":
        return ZERO if a == ZERO and b != ZERO else NEG_INF if a == NEG_INF and positive[1] else None
    if name in ("exp", "exp2"):
        return ZERO if a == NEG_INF else ONE if a == ZERO else None
    return None


def absorbed(reducer: str, value: Known) -> bool:
    """True if folding this value in leaves the state as it is."""
    return (reducer, value) in {("sum", ZERO), ("max", NEG_INF), ("prod", ONE)}


def unchanged(
    body: Iterable[Stage],
    carried: frozenset[str],
    is_false: IsFalse,
    given: Mapping[str, Known],
    finite: frozenset[str] = frozenset(),
) -> bool:
    """True if one run of these stages provably leaves every buffer of `carried` as it was.

    `carried`: what the body hands on to later iterations or to code behind the loop.  `given`: buffers
    whose value is already known (a stage that writes one keeps it so).  `finite`: buffers that start from
    a finite value; those of them that only grow never hold -inf.
    """
    stages = list(body)
    updates = [s.action for s in stages if isinstance(s.action, Update)]
    above = finite & {b for u in updates if u.reducer == "max" for b in u.buffers}
    memory: dict[str, Written] = {}
    for stage in stages:
        action = stage.action
        if isinstance(action, Store) and action.buffer in given:
            memory[action.buffer] = Written(given[action.buffer], stage)
            continue
        seen = {b: _seen(b, ix, stage, memory, carried, above) for b, ix in _reads(stage).items()}
        known = [known_value(v, seen, is_false) for v in values(action)]
        if isinstance(action, Store):
            before = _seen(action.buffer, action.index, stage, {}, carried, above)
            if action.buffer in carried and known[0] != before:
                return False
            if action.buffer not in carried:
                memory[action.buffer] = Written(known[0], stage)
        elif any(b in carried for b in action.buffers):
            if len(known) != 1 or not absorbed(action.reducer, known[0]):
                return False
        else:
            memory.update({b: Written(None, stage) for b in action.buffers})
    return True


@dataclass(frozen=True)
class Written:
    """What the last write of a buffer put there, and the stage that did."""

    value: Known
    by: Stage


def _reads(stage: Stage) -> dict[str, tuple[Expr, ...] | None]:
    """buffer → the one index it is read at, None where there are several."""
    found: dict[str, tuple[Expr, ...] | None] = {}
    for x in (x for v in values(stage.action) for x in loads(v)):
        found[x.buffer] = x.index if found.get(x.buffer, x.index) == x.index else None
    return found


def _seen(
    buffer: str,
    index: tuple[Expr, ...] | None,
    reader: Stage,
    memory: Mapping[str, Written],
    carried: frozenset[str],
    above: frozenset[str],
) -> Known:
    """What a stage finds at `index`: known of the very element that was written under the same guards."""
    if index is None:
        return None
    if buffer in carried:
        return Same(buffer, buffer in above, index)
    written = memory.get(buffer)
    if written is None or written.by.action.index != index:
        return None
    return written.value if set(conjuncts(written.by.when)) <= set(conjuncts(reader.when)) else None
