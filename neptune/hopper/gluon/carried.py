"""Values that loops carry in registers, in a form that keeps loops short: sums of rows by lanes, operands in pairs.

    l = full(0)                            l = full(0) [64, 4]
    for …:                                 for …:
        l = l * r + Σ_j p[i, j]       →        l = l * r[:, None] + lane sums of p
    … = 1 / l                              l = Σ_lanes l;  … = 1 / l

The four lanes that hold a row would else exchange their sums in every iteration. Only the order of additions changes,
so that it is done for sums alone, and only where nothing else reads the sum before the loops are over.

    p_cast = cast(f16, p)                  p_cast = pairs of cast(f16, p), int32
    for …:                            →    for …:
        acc = acc + p_cast · v                 acc = acc + halves of p_cast · v
        p_cast = cast(f16, p)                  p_cast = pairs of cast(f16, p)

A product takes two elements of 16 bits in a register. What a loop carries the compiler sees element by element: where
two loops follow each other it puts every pair together anew in each iteration (64 of the 513 instructions of causal
attention).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from neptune.hopper.ir import Body, Finish, Issue, exprs_of, inside, locals_of, walk_async
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Const, args_of
from neptune.tile.ir import Assign, Full, Local, Loop, Reduce, TExpr, read_by


@dataclass(frozen=True)
class Collected:
    """The sum `name` becomes a tile of rows again."""

    name: str


@dataclass(frozen=True)
class Step:
    """One change of a sum in lanes: times `factor`, plus the sums of rows of `terms`, where there are such."""

    factor: TExpr | None
    terms: TExpr | None


def with_collected(body: Body) -> tuple[tuple[Any, ...], frozenset[str]]:
    """A role's body with its sums in lanes collected before their first other use, and the names of these sums."""
    out: list[Any] = []
    names = {s.name for s in body if isinstance(s, Assign)}
    first = {n: k for n in names if (k := _end_of_sum(body, n)) is not None}
    for k, s in enumerate(body):
        out += [Collected(n) for n in sorted(first) if first[n] == k]
        out.append(s)
    return tuple(out), frozenset(first)


def _end_of_sum(body: Body, name: str) -> int | None:
    """The position of the statement before which a sum must be collected; None where it cannot be in lanes."""
    kinds = [{k for x in walk_async((s,)) if (k := _use(x, name)) is not None} for s in body]
    end = next((k for k, uses in enumerate(kinds) if "other" in uses), None)
    start = next((k for k, uses in enumerate(kinds) if uses), None)
    if end is None or start is None or kinds[start] != {"start"} or any({"start", "sum"} & f for f in kinds[end:]):
        return None
    if any("start" in uses for uses in kinds[start + 1 : end]):
        return None
    return end if any("sum" in uses for uses in kinds[:end]) else None


def _use(s: Any, name: str) -> str | None:
    """The kind of use that a statement has of a sum: "start", "sum", "scale", "other"; None if nothing but keep it in
    its place."""
    if isinstance(s, Finish):
        return None
    if isinstance(s, Assign) and s.name == name:
        if isinstance(s.value, Full) and s.value.value.expr == Const(0.0, "float32") and len(s.value.dims) == 1:
            return "start"
        step = step_of(s)
        return "other" if step is None else "sum" if step.terms is not None else "scale"
    return "other" if name in locals_of(s) else None


def step_of(s: Assign) -> Step | None:
    """`l = l * factor + Σ terms` in any order, with either part."""
    value, terms = s.value, None
    if parts := args_of(value, "add"):
        sums = [p for p in parts if _row_sum(p)]
        if len(sums) != 1:
            return None
        (value,) = [p for p in parts if p is not sums[0]]
        assert isinstance(sums[0], Reduce)
        terms = sums[0].arg
    factor = None
    if not _is(value, s.name):
        factors = args_of(value, "mul")
        if sum(_is(f, s.name) for f in factors) != 1:
            return None
        (factor,) = [f for f in factors if not _is(f, s.name)]
    own = frozenset[str]().union(*(read_by(e) for e in (factor, terms) if e is not None))
    return None if s.name in own or s.value.dtype != "float32" else Step(factor, terms)


def _is(e: TExpr, name: str) -> bool:
    return isinstance(e, Local) and e.name == name


def _row_sum(e: TExpr) -> bool:
    return isinstance(e, Reduce) and e.reducer == "sum" and len(e.arg.dims) == 2 and e.axis == e.arg.dims[1]


# --- operands in pairs ----------------------------------------------------------------------------


def paired(body: Body) -> frozenset[str]:
    """The operands of 16 bits that several loops carry, and that nothing but products reads."""
    every: list[Any] = list(walk_async(body))
    products = [s for s in every if isinstance(s, Issue)]
    names = {n: s.dot.a.dtype for s in products if (n := _operand(s)) is not None}
    read = {n for s in every for e in _others(s) for n in read_by(e)}
    carried = Counter(n for s in every if isinstance(s, Loop) for n in _first_read(inside(s)))
    return frozenset(n for n, t in names.items() if DTYPES[t].bits == 16 and carried[n] > 1 and n not in read)


def _operand(s: Issue) -> str | None:
    """The local that is the left operand of a product."""
    return s.dot.a.name if isinstance(s.dot.a, Local) else None


def _others(s: Any) -> Iterable[Any]:
    """The expressions of a statement but for the left operand of a product."""
    if isinstance(s, Issue):
        return [e for e in (s.dot.b, s.dot.acc) if e is not None]
    return exprs_of(s)


def _first_read(body: Body) -> set[str]:
    """The operands of products that a body reads before it assigns them."""
    assigned: set[str] = set()
    first: set[str] = set()
    for s in walk_async(body):
        if isinstance(s, Issue) and (name := _operand(s)) is not None and name not in assigned:
            first.add(name)
        elif isinstance(s, Assign):
            assigned.add(s.name)
    return first
