"""Row sums that stay in lanes: a sum that a loop carries is one number a lane there, and is summed over lanes once.

    l = full(0)                            l = full(0) [64, 4]
    for …:                                 for …:
        l = l * r + Σ_j p[i, j]       →        l = l * r[:, None] + lane sums of p
    … = 1 / l                              l = Σ_lanes l;  … = 1 / l

The four lanes that hold a row would else exchange their sums in every iteration. Only the order of additions changes,
so that it is done for sums alone, and only where nothing else reads the sum before the loops are over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neptune.hopper.ir import AStmt, Finish, locals_of, walk_async
from neptune.ir.expr import Const, args_of
from neptune.tile.ir import Assign, Full, Local, Reduce, TExpr, read_by


@dataclass(frozen=True)
class Collected:
    """The sum `name` becomes a tile of rows again."""

    name: str


@dataclass(frozen=True)
class Step:
    """One change of a sum in lanes: times `factor`, plus the sums of rows of `terms`, where there are such."""

    factor: TExpr | None
    terms: TExpr | None


def with_collected(body: tuple[AStmt, ...]) -> tuple[tuple[Any, ...], frozenset[str]]:
    """A role's body with its sums in lanes collected before their first other use, and the names of these sums."""
    out: list[Any] = []
    names = {s.name for s in body if isinstance(s, Assign)}
    first = {n: k for n in names if (k := _end_of_sum(body, n)) is not None}
    for k, s in enumerate(body):
        out += [Collected(n) for n in sorted(first) if first[n] == k]
        out.append(s)
    return tuple(out), frozenset(first)


def _end_of_sum(body: tuple[AStmt, ...], name: str) -> int | None:
    """The position of the statement before which a sum must be collected; None where it cannot be in lanes."""
    kinds = [{k for x in walk_async((s,)) if (k := _use(x, name)) is not None} for s in body]
    end = next((k for k, found in enumerate(kinds) if "other" in found), None)
    start = next((k for k, found in enumerate(kinds) if found), None)
    if end is None or start is None or kinds[start] != {"start"} or any({"start", "sum"} & f for f in kinds[end:]):
        return None
    if any("start" in found for found in kinds[start + 1 : end]):
        return None
    return end if any("sum" in found for found in kinds[:end]) else None


def _use(s: Any, name: str) -> str | None:
    """What a statement does with a sum: "start", "sum", "scale", "other"; None if nothing but keep it in its place."""
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
