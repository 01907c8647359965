"""split, tile, cover: cutting a loop into tiles.

`split(i, BLOCK_M)` before → after::

    for i in [0, m):                    for i0 in [0, (m + (BLOCK_M - 1)) // BLOCK_M):
      s: y[i] = f(x[i])                   for i1 in [0, BLOCK_M):
                                            s: y[i0*BLOCK_M + i1] = f(…)  when i0*BLOCK_M + i1 < m

A factor that provably divides the range gives no guard.
"""

from __future__ import annotations

from dataclasses import replace

from neptune.errors import ScheduleError
from neptune.ir.expr import Const, Expr, Var, binary, ceildiv, substitute
from neptune.ir.printer import print_expr
from neptune.ir.program import ZERO, For, Program, map_exprs, stages
from neptune.schedule.state import Loop, State, add_guard, fresh_name, names_in_use, replace_node


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
    if loop.lo != ZERO:
        raise ScheduleError(
            request,
            f"loop `{loop.var}` starts at {print_expr(loop.lo)}: it is already a piece of a partitioned loop",
            hint="split before you partition",
        )
    return loop


def split(state: State, ref: Loop, factor: Expr) -> tuple[State, str, str]:
    """Split a loop by a number or a tunable; returns the names of the outer and the inner loop."""
    request = f"split(`{ref.var}` of `{ref.stage}`, {print_expr(factor)})"
    loop = _check(state, ref, request)
    if loop.kind != "serial":
        raise ScheduleError(request, f"loop `{loop.var}` is bound to {loop.kind}", hint="split before you bind")
    if isinstance(factor, Const) and int(factor.value) < 1:
        raise ScheduleError(request, "a tile has at least one iteration", legal=["a positive number", "sch.param(…)"])
    if isinstance(factor, Var) and factor.name not in {t.name for t in state.program.tunables}:
        raise ScheduleError(
            request,
            f"`{factor.name}` is not a tunable of this schedule",
            legal=[t.name for t in state.program.tunables],
            hint=f'sch.param("{factor.name}", [64, 128])',
        )
    used = names_in_use(state.program) - {f"{loop.var}0", f"{loop.var}1"}
    # Sibling nests may share names (axes that were aligned should); only the own path must be free.
    on_path = {f.var for f in state.loops(ref.stage)}
    outer = fresh_name(on_path | (used & on_path), f"{loop.var}0")
    inner = fresh_name(on_path, f"{loop.var}1")
    whole = binary("add", binary("mul", Var(outer), factor), Var(inner))
    env = {loop.var: whole}
    body = map_exprs(loop.body, lambda e: substitute(e, env))
    if not _divides(state.program, factor, loop.hi):
        body = add_guard(body, binary("lt", whole, loop.hi))
    nest = For(outer, ZERO, ceildiv(loop.hi, factor), For(inner, ZERO, factor, body))
    result = state.with_body(replace_node(state.program.body, loop, nest))
    return result.substitute_axes({s.name for s in stages(loop.body)}, env), outer, inner


def cover(state: State, ref: Loop, name: str) -> State:
    """Make a whole loop one tile: it runs to the tunable `name` ≥ its extent, guarded.

    `cover(j, BLOCK_N)`: `for j in [0, n)` becomes `for j in [0, BLOCK_N)` with `when j < n`.
    """
    loop = _check(state, ref, f"cover(`{ref.var}` of `{ref.stage}`, {name})")
    body = add_guard(loop.body, binary("lt", Var(loop.var), loop.hi))
    return state.with_body(replace_node(state.program.body, loop, replace(loop, hi=Var(name), body=body)))
