"""Mutation operators on scalar expressions, and the places where a statement or expression can be changed.

A `Change` is one mistake: its kind (a row of `KINDS`), where it was made, and the changed thing. What is changed is
given by holes: (part, put) pairs, where `put(new)` is the whole with another part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

from neptune.ir.dtypes import is_float, is_int
from neptune.ir.expr import OPS, Const, Expr, Load, Op, Select, Var, as_expr, children, maximum, rebuild
from neptune.ir.nodes import E, Node
from neptune.ir.program import Buffer, Program
from neptune.tile.ir import TileProgram

KINDS = {
    "missing rescale": "a value is carried on without the factor that a new maximum or norm asks for",
    "reversed rescale": "old and new exchanged in a repair's factor",
    "dropped tile": "a loop that starts late, ends early, or leaves out its later iterations",
    "repeated tile": "a loop that runs twice, or an iteration that two pieces share",
    "wrong piece bound": "a loop that starts early or goes on too long",
    "overlapping split": "a part of a split reduction that shares an iteration with its neighbour",
    "gap between splits": "a part of a split reduction that leaves an iteration out",
    "combine that ignores m": "partial results added up without the factor that makes them comparable",
    "mask off by one": "a comparison of indices that admits one index more or less",
    "conjunct dropped": "a condition without one of its parts",
    "mask dropped": "a choice, mask or guard that always takes one side",
    "swapped operands": "a - b, a / b or a product of matrices the other way round",
    "factor dropped": "a product without one of its factors, a division without its divisor",
    "term dropped": "a sum without one of its terms",
    "other constant": "another literal",
    "other sign": "an exponential of the negated argument",
    "other base": "exp for exp2, or the other way round",
    "function dropped": "an elementwise function left out",
    "other operator": "max for min, + for -, == for !=",
    "other reducer": "another reducer",
    "other buffer": "a value of the same shape read instead, as before instead of after an update",
    "other index": "a loop variable for another one, or an index off by one",
    "transposed": "two indices exchanged",
    "missing stage": "a stage left out",
    "missing init": "a start left out",
    "init inside the loop": "a state that starts anew in every iteration",
    "stages out of order": "two dependent stages exchanged",
}
NAMED = (
    "missing rescale",
    "reversed rescale",
    "dropped tile",
    "repeated tile",
    "wrong piece bound",
    "overlapping split",
    "gap between splits",
    "combine that ignores m",
    "mask off by one",
    "swapped operands",
    "factor dropped",
)
"""The kinds that are tried for every operator, whatever else is sampled."""
Put: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True)
class Change:
    """A mistake of some kind; `made` is what has it."""

    kind: str
    where: str
    made: Any


@dataclass(frozen=True)
class Scope:
    """What an expression can name: integer loop variables, and buffers."""

    loops: tuple[str, ...] = ()
    buffers: Mapping[str, Buffer] | None = None


SAME_SHAPE = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "eq": "ne", "ne": "eq"}
OTHER = {"max": "min", "min": "max", "add": "sub"}
BASES = {"exp": "exp2", "exp2": "exp", "log": "log2", "log2": "log"}


PARTS = {
    "dropped tile": "gap between splits",
    "repeated tile": "overlapping split",
    "wrong piece bound": "overlapping split",
}
"""What mistakes in the bounds of a loop are called where the loop is a part of a split reduction."""
EXPONENTIALS = ("exp", "exp2")
LATE = 2
"""Mistakes that begin in a loop's third iteration: they need that many tiles to be seen."""


def numbers_of_parts(program: Program | TileProgram) -> frozenset[str]:
    """The scalars that say how many parts a reduction is split into: a launch chooses them."""
    return frozenset(s.name for s in program.scalars if s.upto is not None)


def holes(e: Node[E]) -> Iterator[tuple[E, Put]]:
    """Every node of an expression, the root first."""
    yield cast("E", e), lambda new: new
    parts = children(e)
    for k, part in enumerate(parts):
        for inner, put in holes(part):

            def whole(new: E, k: int = k, put: Put = put) -> Any:
                return rebuild(e, (*parts[:k], put(new), *parts[k + 1 :]))

            yield inner, whole


def expr_changes(e: Expr, scope: Scope) -> Iterator[Change]:
    """Every mistake in one expression."""
    for node, put in holes(e):
        for kind, new in _node(node, scope):
            made = put(new)
            if made != e:
                yield Change(kind, _short(node), made)


def _short(e: Expr) -> str:
    from neptune.ir.text.printer import print_expr

    text = print_expr(e)
    return text if len(text) <= 48 else f"{text[:45]}..."


def _node(e: Expr, scope: Scope) -> Iterator[tuple[str, Expr]]:
    match e:
        case Op():
            yield from _op(e)
        case Const(value, dtype):
            yield from (("other constant", Const(new, dtype)) for new in other_values(value, dtype))
        case Select(_, then, other):
            yield "mask dropped", then
            yield "mask dropped", other
        case Load():
            yield from _load(e, scope)
        case Var(name, dtype) if name in scope.loops:
            yield from (("other index", Var(v, dtype)) for v in scope.loops if v != name)
        case _:
            pass


def other_values(value: Any, dtype: str) -> list[Any]:
    """Other literals for one."""
    if dtype == "bool":
        return [not value]
    if is_int(dtype):
        return [value + 1]
    if value == 0:
        return [1.0]
    return [0.0] if abs(value) >= 6e4 else [value * 2]


def _op(e: Op[Expr]) -> Iterator[tuple[str, Expr]]:
    def shifted(x: Expr, by: int) -> Expr:
        return x + as_expr(1, x.dtype) if by > 0 else x - as_expr(1, x.dtype)

    return op_mistakes(e, shifted)


def op_mistakes(e: Op[E], shifted: Callable[[E, int], E], of_tiles: bool = False) -> Iterator[tuple[str, Any]]:
    """Every mistake in an operator; `shifted` is an integer that is one more or less."""
    args, numbers = e.args, bool(e.args) and is_float(e.args[0].dtype)
    kind = OPS[e.name].kind
    if kind == "compare":
        off = "other operator" if numbers or e.name in ("eq", "ne") else "mask off by one"
        yield off, replace(e, name=SAME_SHAPE[e.name])
        if not numbers and is_int(args[1].dtype):
            yield from (("mask off by one", replace(e, args=(args[0], shifted(args[1], by)))) for by in (1, -1))
    elif kind == "logic" and len(args) == 2:
        yield from (("conjunct dropped", a) for a in args)
    elif e.name in ("sub", "div"):
        yield "swapped operands", replace(e, args=args[::-1])
    # In tiles, integers are indices, which have mistakes of their own.
    if e.name in OTHER and (numbers or not of_tiles):
        yield "other operator", replace(e, name=OTHER[e.name])
    if e.name in ("mul", "div") and numbers:
        yield from (("factor dropped", a) for a in (args if e.name == "mul" else args[:1]))
    if e.name in ("add", "sub") and (numbers or not of_tiles):
        yield from (("term dropped", a) for a in (args if e.name == "add" else args[:1]))
    if e.name in ("max", "min") and numbers and of_tiles:
        yield from (("term dropped", a) for a in args)
    if e.name in BASES:
        yield "other base", replace(e, name=BASES[e.name])
    if e.name in EXPONENTIALS:
        yield "other sign", replace(e, args=(cast("E", Op("neg", args, args[0].dtype)),))
    if kind == "math" and len(args) == 1 and numbers:
        yield "function dropped", args[0]


def loop_mistakes(s: Any, late: Callable[[Expr], Any], again: bool = True) -> Iterator[Change]:
    """Every mistake in the bounds of a loop, and what stands in its place; `late` is its body under a condition."""
    one = as_expr(1, "int32")
    where = f"loop {s.var}"
    yield Change("dropped tile", f"{where} ends early", (replace(s, hi=s.hi - one),))
    yield Change("dropped tile", f"{where} starts late", (replace(s, lo=s.lo + one),))
    yield Change("wrong piece bound", f"{where} goes on", (replace(s, hi=s.hi + one),))
    if not (isinstance(s.lo, Const) and s.lo.value == 0):
        yield Change("repeated tile", f"{where} starts early", (replace(s, lo=maximum(s.lo - one, 0)),))
    if again:
        yield Change("repeated tile", f"{where} twice", (s, s))
    if isinstance(s.lo, Const) and isinstance(s.hi, Const) and s.hi.value - s.lo.value <= LATE:
        return
    after = Op("lt", (Var(s.var), s.lo + as_expr(LATE, "int32")), "bool")
    yield Change("dropped tile", f"{where} but {LATE}", (replace(s, body=late(after)),))


def _load(e: Load, scope: Scope) -> Iterator[tuple[str, Expr]]:
    buffers = scope.buffers or {}
    mine = buffers.get(e.buffer)
    for name, other in buffers.items():
        if mine is not None and name != e.buffer and other.dtype == mine.dtype and other.shape == mine.shape:
            yield "other buffer", Load(name, e.index, e.dtype)
    for k in range(len(e.index)):
        if not isinstance(e.index[k], Const):
            yield "other index", Load(e.buffer, _put(e.index, k, e.index[k] + as_expr(1, e.index[k].dtype)), e.dtype)
    for k in range(len(e.index) - 1):
        swapped = _put(_put(e.index, k, e.index[k + 1]), k + 1, e.index[k])
        yield "transposed", Load(e.buffer, swapped, e.dtype)


def _put(items: tuple[Any, ...], k: int, item: Any) -> tuple[Any, ...]:
    return (*items[:k], item, *items[k + 1 :])
