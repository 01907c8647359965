"""split, tile, cover: cutting a loop into tiles.

`split(i, BLOCK_M)` before → after::

    for i in [0, m):                    for i0 in [0, (m + (BLOCK_M - 1)) // BLOCK_M):
      s: y[i] = f(x[i])                   for i1 in [0, BLOCK_M):
                                            s: y[i0*BLOCK_M + i1] = f(…)  when i0*BLOCK_M + i1 < m

A factor that provably divides the range gives no guard. What was divided by the factor is the outer loop:
x[i // F] becomes x[i0]. A loop over a part of an axis, [z*C, min(z*C + C, n)) with C a multiple of the factor
(`neptune.fusion.split_k`), is cut into the very tiles of the whole axis::

    for j in [z*(T*B), min(z*(T*B) + T*B, n)):    for j0 in [z*T, min(z*T + T, cdiv(n, B))):
      s: …                                          for j1 in [0, B):  s: …  when j0*B + j1 < n
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from neptune.errors import ScheduleError
from neptune.ir.expr import (
    Const,
    Expr,
    Op,
    Var,
    binary,
    cast,
    ceildiv,
    loads,
    minimum,
    select,
    substitute,
    variables,
)
from neptune.ir.indices.affine import Poly, poly, scope_of, to_expr
from neptune.ir.indices.quotients import divided
from neptune.ir.program import ZERO, For, Program, Stmt, for_loops, map_exprs, sub_stmts, with_stmts
from neptune.ir.text.printer import print_expr
from neptune.schedule.state import Loop, State, add_guard, check_whole, fresh_name, names_in_use, replace_node


def _divides(program: Program, factor: Expr, extent: Expr) -> bool:
    if not isinstance(factor, Const):
        return False
    f = int(factor.value)
    if isinstance(extent, Const):
        return int(extent.value) % f == 0
    if isinstance(extent, Var):
        return any(s.name == extent.name and s.divisor % f == 0 for s in program.scalars)
    return False


def _check(state: State, ref: Loop, request: str) -> For:
    loop = state.loop(ref)
    check_whole(state, loop, request)
    if loop.kind != "serial":
        raise ScheduleError(request, f"loop `{loop.var}` is bound to {loop.kind}", hint="split before you bind")
    return loop


def split(state: State, ref: Loop, factor: Expr) -> tuple[State, str, str]:
    """Split a loop by a number or a tunable; returns the names of the outer and the inner loop."""
    request = f"split(`{ref.var}` of `{ref.stage}`, {print_expr(factor)})"
    loop = _check(state, ref, request)
    if isinstance(factor, Const) and int(factor.value) < 1:
        raise ScheduleError(request, "a tile has at least one iteration", legal=["a positive number", "sch.param(…)"])
    if isinstance(factor, Var) and factor.name not in {t.name for t in state.program.tunables}:
        raise ScheduleError(
            request,
            f"`{factor.name}` is not a tunable of this schedule",
            legal=[t.name for t in state.program.tunables],
            hint=f'sch.param("{factor.name}", [64, 128])',
        )
    # Sibling nests may share names (axes that were aligned should); only what is around and below must be free.
    used = names_in_use(state.program, loop)
    outer = fresh_name(used, f"{loop.var}0")
    inner = fresh_name(used | {outer}, f"{loop.var}1")
    whole = binary("add", binary("mul", Var(outer), factor), Var(inner))
    env = {loop.var: whole}
    lo, hi, ends = _tiles(state.program, loop, factor, request)
    nest = For(outer, lo, hi, For(inner, ZERO, factor, loop.body))
    scope = scope_of(state.program, (nest, *for_loops((nest.body,))))
    body = map_exprs(loop.body, lambda e: divided(substitute(e, env), scope))
    for end in ends:
        tail = binary("lt", whole, end)
        body = _guarded_bounds(add_guard(body, tail), tail, frozenset([outer, inner]))
    nest = replace(nest, body=For(inner, ZERO, factor, body))
    return state.reindexed(loop, nest, {loop.var: (outer, inner)}, lambda e: substitute(e, env)), outer, inner


def _tiles(program: Program, loop: For, factor: Expr, request: str) -> tuple[Expr, Expr, list[Expr]]:
    """The range of the loop over tiles, and the ends that its last tile may run over."""
    if loop.lo == ZERO:
        return ZERO, ceildiv(loop.hi, factor), [] if _divides(program, factor, loop.hi) else [loop.hi]
    lo = _quotient(loop.lo, factor)
    if lo is None:
        raise ScheduleError(
            request,
            f"`{loop.var}` starts at {print_expr(loop.lo)}, which is no multiple of {print_expr(factor)}",
            hint="split by what the parts are a multiple of",
        )
    ends = loop.hi.args if isinstance(loop.hi, Op) and loop.hi.name == "min" else (loop.hi,)
    tiles = [_quotient(end, factor) for end in ends]
    over = [end for end, n in zip(ends, tiles, strict=True) if n is None and not _divides(program, factor, end)]
    counts = [ceildiv(end, factor) if n is None else n for end, n in zip(ends, tiles, strict=True)]
    return lo, reduce(minimum, counts), over


def _quotient(e: Expr, factor: Expr) -> Expr | None:
    """e / factor, where every term of e holds the factor as it stands."""
    p = poly(e)
    if isinstance(factor, Const):
        n = int(factor.value)
        return to_expr(Poly(tuple((m, c // n) for m, c in p.terms))) if all(c % n == 0 for _, c in p.terms) else None
    # The factor as a whole: that it also decides what another part of the term is does not matter.
    if not all(factor in atoms for atoms, _ in p.terms):
        return None
    return to_expr(Poly(tuple((_without(atoms, factor), c) for atoms, c in p.terms)))


def _without(atoms: tuple[Expr, ...], one: Expr) -> tuple[Expr, ...]:
    k = atoms.index(one)
    return (*atoms[:k], *atoms[k + 1 :])


def _guarded_bounds(s: Stmt, tail: Expr, names: frozenset[str]) -> Stmt:
    """Loops that take their range from data at `names` are empty where `tail` is false: there is no data.

    `for j in [0, length[i0*4 + i1])`   →   `for j in [0, select(i0*4 + i1 < m, length[i0*4 + i1], 0))`
    """
    s = with_stmts(s, tuple(_guarded_bounds(p, tail, names) for p in sub_stmts(s)))
    if not isinstance(s, For) or not any(variables(x) & names for e in (s.lo, s.hi) for x in loads(e)):
        return s
    return replace(s, hi=select(tail, s.hi, cast(ZERO, s.hi.dtype)), lo=select(tail, s.lo, cast(ZERO, s.lo.dtype)))


def cover(state: State, ref: Loop, name: str) -> State:
    """Make a whole loop one tile: it runs to the tunable `name` ≥ its extent, guarded.

    `cover(j, BLOCK_N)`: `for j in [0, n)` becomes `for j in [0, BLOCK_N)` with `when j < n`.
    """
    request = f"cover(`{ref.var}` of `{ref.stage}`, {name})"
    loop = _check(state, ref, request)
    if loop.lo != ZERO or not variables(loop.hi) <= {s.name for s in state.program.scalars} or loads(loop.hi):
        raise ScheduleError(
            request,
            f"[{print_expr(loop.lo)}, {print_expr(loop.hi)}) is not a size that is known before a launch",
            hint="cover the whole axis, before it is split",
        )
    body = add_guard(loop.body, binary("lt", Var(loop.var), loop.hi))
    return state.with_body(replace_node(state.program.body, loop, replace(loop, hi=Var(name), body=body)))
