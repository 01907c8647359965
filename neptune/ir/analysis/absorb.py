"""Proofs of absorption: everything downstream absorbs the value that a false predicate leaves.

A causal mask stores -inf where it is false.  max(m, -inf) = m, exp(-inf - m) = 0, l + 0 = l: such an
element contributes nothing, and a tile of them can be skipped.  This module proves it by running a loop
body over a tiny domain of known values.  It relies on reducers starting from a *finite* identity
(so that -inf - m is -inf), and treats 0·x as 0, i.e. data is taken to be finite where it is masked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from neptune.ir.analysis.facts import constant_range
from neptune.ir.analysis.fold import fold
from neptune.ir.expr import Const, Expr, Load, Op, Select, conjuncts, loads
from neptune.ir.ops import OPS
from neptune.ir.program import Stage, values
from neptune.ir.reducers import REDUCERS


@dataclass(frozen=True)
class Same:
    """The value that a location of a buffer had on entry to the loop body."""

    buffer: str
    above: bool = False  # never -inf: an accumulator of max, which starts from the finite extreme
    index: tuple[Expr, ...] = ()  # which location; () where only one is in question
    casts: tuple[str, ...] = ()  # the roundings it has been through


NEG_INF, ZERO, ONE = "-inf", "0", "1"
_NUMBERS = {NEG_INF: -inf, ZERO: 0.0, ONE: 1.0}
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
    """Return the known value of `e` (see the module's text), None if nothing is known."""

    def leaf(x: Expr) -> Known:
        if isinstance(x, Load):
            return memory.get(x.buffer)
        number = x.value if isinstance(x, Const) and not isinstance(x.value, bool) else None
        return next((k for k, v in _NUMBERS.items() if v == number), None)

    def choice(x: Select[Expr], then: Known, other: Known) -> Known:
        return other if then == other or is_false(conjuncts(x.pred)) else None

    return fold(e, leaf, _operator, choice, cast=lambda x, of: _cast(of, x.arg.dtype, x.dtype))


def _cast(known: Known, source: str, target: str) -> Known:
    if isinstance(known, Same):
        # The finite extreme of a wide dtype is -inf in a narrow one.
        wider = (source, target) in _WIDENING
        return Same(known.buffer, known.above and wider, known.index, (*known.casts, target))
    if known == NEG_INF:
        return NEG_INF if target in _HAVE_INF else None
    return known


def _operator(e: Op[Expr], known: Sequence[Known]) -> Known:
    name, args = e.name, e.args
    numbers = [_NUMBERS[k] for k in known if isinstance(k, str)]
    if args and len(numbers) == len(args):
        return _number(name, numbers)
    a, b = known[0] if known else None, known[1] if len(known) > 1 else None
    scales = [0 < r.lo <= r.hi < inf for r in map(constant_range, args)]
    if name == "sub":
        if a is not None and a == b:
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
        return NEG_INF if NEG_INF in (a, b) and scales[1 if a == NEG_INF else 0] else None
    if name == "div":
        return ZERO if a == ZERO else NEG_INF if a == NEG_INF and scales[1] else None
    return None


def _number(name: str, numbers: list[float]) -> Known:
    """An operator on known numbers: exp(-inf) is 0."""
    function = OPS[name].value
    try:
        value = math.nan if function is None else function(*numbers)
    except (ValueError, OverflowError):
        value = math.nan
    return next((k for k, v in _NUMBERS.items() if v == value), None)


def absorbed(reducer: str, value: Known) -> bool:
    """True if folding this value in leaves the state as it is."""
    row = REDUCERS[reducer]
    return row.width == 1 and isinstance(value, str) and _NUMBERS[value] == row.neutral


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
    above = finite & {b for s in stages if s.action.reducer == "max" for b in s.action.buffers}
    memory: dict[str, Written] = {}
    for stage in stages:
        action, first = stage.action, stage.action.buffers[0]
        if not stage.folds and first in given:
            memory[first] = Written(given[first], stage)
            continue
        seen = {b: _seen(b, ix, stage, memory, carried, above) for b, ix in _reads(stage).items()}
        known = [known_value(v, seen, is_false) for v in values(action)]
        if not stage.folds:
            before = _seen(first, action.index, stage, {}, carried, above)
            if first in carried and known[0] != before:
                return False
            if first not in carried:
                memory[first] = Written(known[0], stage)
        elif any(b in carried for b in action.buffers):
            if len(known) != 1 or not absorbed(action.reducer, known[0]):
                return False
        else:
            memory.update({b: Written(None, stage) for b in action.buffers})
    return True


@dataclass(frozen=True)
class Written:
    """The known value of a buffer's last write, and the stage that wrote it."""

    value: Known
    by: Stage


def _reads(stage: Stage) -> dict[str, tuple[Expr, ...] | None]:
    """buffer → the one index it is read at, None where there are several."""
    indices: dict[str, tuple[Expr, ...] | None] = {}
    for x in (x for v in values(stage.action) for x in loads(v)):
        indices[x.buffer] = x.index if indices.get(x.buffer, x.index) == x.index else None
    return indices


def _seen(
    buffer: str,
    index: tuple[Expr, ...] | None,
    reader: Stage,
    memory: Mapping[str, Written],
    carried: frozenset[str],
    above: frozenset[str],
) -> Known:
    """Return what a stage reads at `index`: known only of the very element written under the same guards."""
    if index is None:
        return None
    if buffer in carried:
        return Same(buffer, buffer in above, index)
    written = memory.get(buffer)
    if written is None or written.by.action.index != index:
        return None
    return written.value if set(conjuncts(written.by.when)) <= set(conjuncts(reader.when)) else None
