"""fuse: two adjacent loops of a perfect nest become one.

`fuse(i, j)` before → after::

    for i in [0, m):                    for i_j in [0, m * n):
      for j in [0, n):                    s: y[i_j // n, i_j % n] = f(x[i_j // n, i_j % n])
        s: y[i, j] = f(x[i, j])

Guards go along. What `split` cut in two comes together again: (f // B)*B + f % B is f.
"""

from __future__ import annotations

from neptune.errors import ScheduleError
from neptune.ir.dtypes import is_int
from neptune.ir.expr import Expr, Op, Var, binary, rewrite, substitute, variables
from neptune.ir.indices.affine import Poly, number, poly, to_expr
from neptune.ir.program import ZERO, For, for_loops, map_exprs, paths, reduction_loops
from neptune.ir.text.printer import print_expr, print_stage
from neptune.schedule.state import Loop, State, check_whole, fresh_name, names_in_use


def fuse(state: State, outer: Loop, inner: Loop) -> tuple[State, str]:
    """Make one loop of two; returns its name."""
    request = f"fuse(`{outer.var}`, `{inner.var}` of `{inner.stage}`)"
    first, second = _pair(state, outer, inner, request)
    _check_kinds(state, first, second, request)
    var = fresh_name(names_in_use(state.program, first), f"{first.var}_{second.var}")
    env: dict[str, Expr] = {
        first.var: binary("floordiv", Var(var), second.hi),
        second.var: binary("mod", Var(var), second.hi),
    }

    def fused(e: Expr) -> Expr:
        return joined(substitute(e, env), var, second.hi)

    loop = For(var, ZERO, binary("mul", first.hi, second.hi), map_exprs(second.body, fused))
    return state.reindexed(first, loop, {first.var: (var,), second.var: (var,)}, fused), var


def joined(e: Expr, var: str, width: Expr) -> Expr:
    """The expression with `(var // width)*width + var % width` written as `var`, wherever it is a sum."""
    quotient, rest = binary("floordiv", Var(var), width), binary("mod", Var(var), width)
    whole = poly(binary("add", binary("mul", quotient, width), rest)) - poly(Var(var))

    def fn(x: Expr) -> Expr | None:
        if not isinstance(x, Op) or x.name not in ("add", "sub") or not is_int(x.dtype) or var not in variables(x):
            return None
        p = poly(x)
        # One pair at a time: the coefficient of the remainder says how often the pair may occur.
        for atoms, c in p.terms:
            if rest in atoms:
                others = Poly(((tuple(a for a in atoms if a != rest), c),))
                less = p - others * whole
                if len(less.terms) < len(p.terms):
                    return to_expr(less, x.dtype)
        return None

    return rewrite(e, fn) if whole != number(0) else e


def _pair(state: State, outer: Loop, inner: Loop, request: str) -> tuple[For, For]:
    """The two loops, where one is the whole body of the other."""
    first, second = state.loop(outer), state.loop(inner)
    path = state.loops(inner.stage)
    places = [k for k, f in enumerate(path) if f is first]
    if not places:
        raise ScheduleError(
            request, f"loop `{first.var}` is not around stage `{inner.stage}`", legal=[f.var for f in path]
        )
    if first.body is not second:
        below = path[places[0] + 1].var if places[0] + 1 < len(path) else None
        perfect = below is not None and first.body is path[places[0] + 1]
        raise ScheduleError(
            request,
            f"`{second.var}` is not directly inside `{first.var}`"
            + ("" if perfect else f": other statements stand in `{first.var}`"),
            legal=[f"fuse({first.var}, {below})"] if perfect else (),
            hint="reorder the loops first" if perfect else "fuse loops before you put stages into them or partition",
        )
    return first, second


def _check_kinds(state: State, first: For, second: For, request: str) -> None:
    for f in (first, second):
        if f.kind != "serial":
            raise ScheduleError(request, f"loop `{f.var}` is bound to {f.kind}", hint="fuse before you bind")
        check_whole(state, f, request)
        if f.lo != ZERO:
            raise ScheduleError(request, f"`{f.var}` runs over a part of an axis, from {print_expr(f.lo)}")
    if first.var in variables(second.hi):
        raise ScheduleError(request, f"the range of `{second.var}` depends on `{first.var}`")
    for path, stage in paths(second.body):
        loops = (first, second, *for_loops(path))
        reduced = [f.var for f in reduction_loops(stage, loops) if f is first or f is second]
        if len(reduced) == 1:
            other = second.var if reduced[0] == first.var else first.var
            raise ScheduleError(
                request,
                f"`{stage.name}` reduces over `{reduced[0]}` and keeps an element for each `{other}`",
                where=print_stage(stage),
                hint="fuse two loops over rows, or two loops of one reduction",
            )
