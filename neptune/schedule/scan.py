"""Scan a loop's range for the iterations on which a mask of data may be true at all.

`doc[i] == doc[j]` bounds no loop by itself: which keys belong to a row's document is known from the data only. But on
a tile whose keys have smaller (or larger) numbers than all of its rows it is false throughout, and two extremes per
tile of keys show that. A loop in front, which loads nothing but the numbers, finds the first and the last iteration
on which they do not, before → after::

    for j0 in [lo, hi): …             alloc j0_first, j0_last: i32[] @tile
                                        j0_first_init: j0_first[] = hi
                                        j0_last_init: j0_last[] = 0
                                        for j0 in [lo, hi):
                                          alloc doc_min, doc_max: i32[] @tile     of the keys of this tile
                                            …
                                            j0_first: j0_first[] min= select(q_doc_min[] <= doc_max[] and …, j0, …)
                                            j0_last: j0_last[] max= select(…, j0 + 1, 0)
                                        for j0 in [max(lo, j0_first[]), min(hi, j0_last[])): …

Sound for any contents; exact for rows and keys that are sorted. Nothing is said of where the mask is true everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from neptune.ir.affine import as_nonnegative
from neptune.ir.expr import TRUE, Expr, Load, Var, binary, cast, loads, logical_and, logical_or, maximum, select
from neptune.ir.extremes import Extremes
from neptune.ir.normal import disjuncts
from neptune.ir.program import ZERO, For, Made, Stage, Stmt, Store, Update, seq
from neptune.schedule.data_bounds import DataBounds
from neptune.schedule.solve_bounds import Alternative, Bound, Solved, holds


def possible(pred: Expr, inner: Sequence[str], extremes: Extremes) -> Expr:
    """A condition without which `pred` is true nowhere while the variables `inner` run; TRUE where there is none."""
    sets = disjuncts(pred)
    if sets is None:
        return TRUE
    return logical_or(*(logical_and(*(_comparison(p, inner, extremes) for p in parts)) for parts in sets))


def _comparison(pred: Expr, inner: Sequence[str], extremes: Extremes) -> Expr:
    parts = as_nonnegative(pred)
    one = parts[0] if parts is not None and len(parts) == 1 else None
    most = None if one is None else extremes.of(one, inner, largest=True)
    if most is None or not any(loads(a) for atoms, _ in most.terms for a in atoms):
        return TRUE
    found = holds(most, extremes.scope)
    return TRUE if found is None else found


def bounded(names: Sequence[str]) -> Solved:
    """The range from the first to the last iteration that a scan has found, as what `partition` cuts by."""
    # At least 0 it is anyhow; said like this, it can be seen.
    first, last = maximum(ZERO, Load(names[0], (), "int32")), Load(names[1], (), "int32")
    bounds = (Bound(False, first, first), Bound(True, last, last))
    return Solved(TRUE, (Alternative(bounds),), True)


def scan(loop: For, lo: Expr, hi: Expr, condition: Expr, names: Sequence[str], data: DataBounds) -> Stmt:
    """The stages that set `names` to the first iteration in [lo, hi) with `condition`, and to one behind the last."""
    at, never = Var(loop.var), cast(hi, "int32")
    first = Update((names[0],), (), "min", (select(condition, at, never),), None)
    last = Update((names[1],), (), "max", (select(condition, binary("add", at, 1), ZERO),), None)
    made = Made("bound", loop.var)
    stages = seq(*(Stage(n, fold, None, made) for n, fold in zip(names, (first, last), strict=True)))
    body = data.of_keys(stages, [condition])
    inits = [
        Stage(f"{n}_init", Store(n, (), e), None, Made("init", n)) for n, e in zip(names, (never, ZERO), strict=True)
    ]
    return seq(*inits, For(loop.var, lo, hi, body))
