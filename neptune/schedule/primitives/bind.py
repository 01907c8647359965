"""bind: spread a loop over a grid axis.

`bind(i0, "grid.x")` before → after::

    for i0 in [0, cdiv(m, BLOCK_M)):        for i0 in [0, cdiv(m, BLOCK_M)) grid.x:

Legal where iterations are independent: no stage below reduces over the loop, and what one iteration
writes no other one touches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations

from neptune.errors import ScheduleError
from neptune.ir.expr import Const, Expr, Op, Var, binary, loads, rewrite, variables
from neptune.ir.expr import walk as walk_expr
from neptune.ir.indices.affine import Poly, linear, poly, scope_of, split_by, with_remainders, within
from neptune.ir.program import (
    ZERO,
    Alloc,
    For,
    If,
    Program,
    Stage,
    Store,
    Update,
    for_loops,
    paths,
    reduction_loops,
    walk,
    writes,
)
from neptune.ir.text.printer import print_expr, print_stage
from neptune.schedule.state import Loop, State, reads, replace_node

GRID = ("grid.x", "grid.y", "grid.z")


@dataclass(frozen=True)
class _Access:
    loops: tuple[For, ...]  # those inside the loop in question
    stage: Stage
    index: tuple[Expr, ...]


def _accesses(loop: For) -> dict[str, list[_Access]]:
    """Every access under `loop`, by buffer; without the buffers that live inside."""
    accesses: dict[str, list[_Access]] = {}
    private = {s.buffer.name for s in walk(loop.body) if isinstance(s, Alloc)}
    for path, stage in paths(loop.body):
        inner = for_loops(path)
        touched = [(b, stage.action.index) for b in writes(stage.action)]
        touched += [(x.buffer, x.index) for x in reads(stage)]
        bounds = [
            e for s in path for e in ((s.lo, s.hi) if isinstance(s, For) else (s.pred,) if isinstance(s, If) else ())
        ]
        touched += [(x.buffer, x.index) for e in bounds for x in loads(e)]
        for buffer, index in touched:
            if buffer not in private:
                accesses.setdefault(buffer, []).append(_Access(inner, stage, index))
    return accesses


def _separate(accesses: list[_Access], var: str, program: Program | None, count: Expr | None = None) -> bool:
    """True if some dimension provably tells apart what the iterations of `var` touch, `count` of them from 0.

    That is: every access is at  c·var + c·count·q + fixed + r  with one c and one fixed part, for any q, and 0 ≤ r < c.
    A fused loop is told apart by its quotient and its remainder, each in a dimension of its own; and the tiles of a
    loop r by r where one dimension is r // w, and another r % w from the same start everywhere.
    """
    if any(_separates(accesses, d, var, program, count) for d in range(len(accesses[0].index))):
        return True
    if any(_separates(whole, 0, var, program) for whole in _dividends(accesses, var)):
        return True
    for width in _widths(accesses, var):
        quotient, rest = f"{var}//", f"{var}%"  # not the names of any loops
        env = {binary("floordiv", Var(var), width): Var(quotient), binary("mod", Var(var), width): Var(rest)}
        parts = [replace(a, index=tuple(rewrite(i, env.get) for i in a.index)) for a in accesses]
        if not any(var in variables(i) for a in parts for i in a.index):
            counts = {quotient: None, rest: width}
            return all(_separate(_without(parts, o), v, program, counts[v]) for v, o in permutations(counts))
    return False


def _widths(accesses: list[_Access], var: str) -> list[Expr]:
    """Return the divisors of `var` in the accesses."""
    nodes = (x for a in accesses for i in a.index for x in walk_expr(i))
    return list(
        dict.fromkeys(x.args[1] for x in nodes if isinstance(x, Op) and x.name == "mod" and x.args[0] == Var(var))
    )


def _dividends(accesses: list[_Access], var: str) -> Iterator[list[_Access]]:
    """The accesses by one index f each, where it is given by two dimensions: f // w, and f % w plus what is fixed."""
    for whole, part in permutations(range(len(accesses[0].index)), 2):
        dividends = [_dividend(a, whole, part, var) for a in accesses]
        valid = [x for x in dividends if x is not None]
        if len(valid) == len(dividends) and len({(width, start) for _, width, start in valid}) == 1:
            yield [replace(a, index=(f,)) for a, (f, _, _) in zip(accesses, valid, strict=True)]


def _dividend(a: _Access, whole: int, part: int, var: str) -> tuple[Expr, Expr, Poly] | None:
    """(f, w, start) with the dimensions f // w and start + f % w; neither w nor start moves with `var` or inside it."""
    quotient, moving = a.index[whole], {var, *(f.var for f in a.loops)}
    if not (isinstance(quotient, Op) and quotient.name == "floordiv") or loads(quotient) or loads(a.index[part]):
        return None
    f, width = quotient.args
    start = poly(a.index[part]) - poly(binary("mod", f, width))
    fixed = not any(variables(x) & moving for atoms, _ in start.terms for x in atoms) and not variables(width) & moving
    return (f, width, start) if fixed else None


def _without(accesses: list[_Access], var: str) -> list[_Access]:
    """The accesses without the dimensions that depend on `var`."""
    fixed = [d for d in range(len(accesses[0].index)) if not any(var in variables(a.index[d]) for a in accesses)]
    return [replace(a, index=tuple(a.index[d] for d in fixed)) for a in accesses]


def _separates(accesses: list[_Access], dim: int, var: str, program: Program | None, count: Expr | None = None) -> bool:
    forms = set()
    for a in accesses:
        parts = linear(poly(a.index[dim]), var)
        if parts is None or not parts[0].terms:
            return False
        width, rest = parts
        inner = frozenset(f.var for f in a.loops)
        if count is not None and not variables(count) & inner:
            rest = _without_strides(rest, width * poly(count), inner)
        moving, fixed = split_by(rest, inner)
        if split_by(width, inner)[0].terms or any(loads(x) for atoms, _ in rest.terms for x in atoms):
            return False
        moving, scope = with_remainders(moving, scope_of(program, a.loops))
        if not within(moving, reversed(list(scope.ranges)), width, scope):
            return False
        forms.add((width, fixed))
    return len(forms) == 1


def _without_strides(p: Poly, stride: Poly, names: frozenset[str]) -> Poly:
    """The sum without the terms `stride` · v of variables v of these names: what tells iterations apart modulo
    `stride`."""
    for v in sorted(names):
        parts = linear(p, v)
        if parts is not None and parts[0] == stride:
            p = parts[1]
    return p


@dataclass(frozen=True)
class Dependence:
    """Why iterations of a loop do not touch separate elements, with the stage and what to try."""

    wrong: str
    where: str | None = None
    hint: str | None = None


def dependence(loop: For, program: Program | None = None) -> Dependence | None:
    """What ties the iterations of `loop` together; None where they touch separate elements."""
    below = list(paths(loop.body))
    private = {s.buffer.name for s in walk(loop.body) if isinstance(s, Alloc)}
    for path, stage in below:
        reduced = any(f is loop for f in reduction_loops(stage, (loop, *for_loops(path))))
        if reduced and not set(writes(stage.action)) <= private:
            return Dependence(
                f"stage `{stage.name}` reduces over `{loop.var}`: its iterations are not independent",
                where=print_stage(stage),
                hint="bind a loop over rows, or split_k to reduce in parallel",
            )
    written = {b for _, s in below for b in writes(s.action)}
    for buffer, accesses in _accesses(loop).items():
        if buffer not in written or _separate(accesses, loop.var, program, _count(loop)):
            continue
        odd = next((a for a in accesses if not any(loop.var in variables(i) for i in a.index)), None)
        if odd is not None:
            wrong = f"every iteration of `{loop.var}` touches the same elements of `{buffer}`"
            return Dependence(wrong, where=print_stage(odd.stage))
        return Dependence(f"an iteration of `{loop.var}` reads elements of `{buffer}` that others write")
    return None


def check_independent(loop: For, request: str, program: Program | None = None) -> None:
    """Raise a ScheduleError unless the iterations of `loop` touch separate elements."""
    reason = dependence(loop, program)
    if reason is not None:
        raise ScheduleError(request, reason.wrong, where=reason.where, hint=reason.hint)


def _count(loop: For) -> Expr | None:
    """The number of iterations of a loop that begins at 0."""
    return loop.hi if loop.lo == ZERO else None


def is_independent(loop: For, program: Program | None = None) -> bool:
    """Return True if nothing ties the iterations of the loop together."""
    return dependence(loop, program) is None


def shared_by_programs(state: State, name: str) -> str | None:
    """A grid loop around a stage several of whose programs write the same elements."""
    path, stage = state.path(name)
    grid = (f for f in for_loops(path) if f.kind != "serial")
    return next((f.var for f in grid if not writes_apart(f, stage.action, state.program)), None)


def writes_apart(loop: For, action: Store | Update, program: Program | None) -> bool:
    """True where no two iterations of `loop` touch one element of what `action` writes, by a proof."""
    if loop.lo == ZERO and loop.hi == Const(1, loop.hi.dtype):
        return True
    accesses = [x for b, xs in _accesses(loop).items() if b in writes(action) for x in xs]
    return not accesses or _separate(accesses, loop.var, program, _count(loop))


def bind(state: State, ref: Loop, axis: str) -> State:
    """Bind a loop to "grid.x", "grid.y" or "grid.z"."""
    request = f"bind(`{ref.var}` of `{ref.stage}`, {axis!r})"
    loop = state.loop(ref)
    if axis not in GRID:
        raise ScheduleError(request, f"{axis!r} is not a grid axis", legal=GRID)
    path = state.loops(ref.stage)
    outside = path[: next(k for k, f in enumerate(path) if f is loop)]
    if loop.kind != "serial":
        raise ScheduleError(request, f"`{loop.var}` is bound to {loop.kind} already")
    serial = [f.var for f in outside if f.kind == "serial"]
    if serial:
        raise ScheduleError(
            request, f"loop `{serial[0]}` outside of it runs serially", hint=f"bind `{serial[0]}` first, or reorder"
        )
    if loop.lo != ZERO:
        raise ScheduleError(
            request,
            f"`{loop.var}` runs over a part of an axis, from {print_expr(loop.lo)}: the grid starts at 0",
            hint="bind the loop over the parts",
        )
    rows = [f.var for f in outside if f.var in variables(loop.hi)]
    if rows:
        wrong = f"the range of `{loop.var}`, to {print_expr(loop.hi)}, is another one for each `{rows[0]}`"
        raise ScheduleError(request, wrong, hint=f"bind `{rows[0]}` alone")
    check_independent(loop, request, state.program)
    return state.with_body(replace_node(state.program.body, loop, replace(loop, kind=axis)))
