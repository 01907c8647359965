"""arrange: loops that stay loops go outside of those that become tile axes.

Before → after (m is a size, 4 a constant; the nest reduces below its init)::

    for o in [0, 4):                      for i in [0, m):
      for i in [0, m):                      for o in [0, 4):
        y_init: y[o, i] = 0                   y_init: y[o, i] = 0
        for r: y: y[o, i] += …                for r: y: y[o, i] += …

The tile then has the axes inside only. Legal where the iterations of each loop are independent and no
bound depends on another of them.
"""

from __future__ import annotations

from neptune.ir.analysis.unseen import without_unseen
from neptune.ir.decompose import decompose
from neptune.ir.expr import variables
from neptune.ir.program import For, Program, Stage, Stmt, reduction_loops, seq, wrap
from neptune.schedule.primitives.bind import is_independent
from neptune.tile.localize import grid_of, is_axis, kernels_of


def arrange(program: Program) -> Program:
    """The program with the loops around the whole of each kernel in a better order, where that is legal."""
    return program.with_body(seq(*(arrange_nest(program, n) for n in kernels_of(program.body))))


def arrange_nest(program: Program, nest: Stmt) -> Stmt:
    """`arrange` for one kernel."""
    grid, body = grid_of(nest)
    return wrap(grid, _arranged(program, body))


def started(program: Program) -> Program:
    """The program with its inits explicit, each as far inside as it can be.

    for r: for i: y: y[i] += … init 0      →      for i: { y_init: y[i] = 0; for r: y: y[i] += … }

    where i stays a loop: every element still folds in the same order. What no row may see is not used any more.
    """
    decomposed = decompose(program.with_body(seq(*(_spatial_first(program, n) for n in kernels_of(program.body)))))
    return without_unseen(decomposed)


def _spatial_first(program: Program, nest: Stmt) -> Stmt:
    grid, s = grid_of(nest)
    loops: list[For] = []
    while isinstance(s, For):
        loops.append(s)
        s = s.body
    if not (isinstance(s, Stage) and s.folds) or _nested_bounds(loops):
        return nest
    reduced = reduction_loops(s, tuple(loops))
    first = [f for f in loops if f not in reduced and not is_axis(program, f)]
    return wrap([*grid, *first, *(f for f in loops if f not in first)], s)


def _nested_bounds(loops: list[For]) -> bool:
    """Return True if the range of one of the loops depends on another one."""
    mentioned = frozenset[str]().union(*(variables(e) for f in loops for e in (f.lo, f.hi, *f.facts)))
    return bool(mentioned & {f.var for f in loops})


def _arranged(program: Program, s: Stmt) -> Stmt:
    loops: list[For] = []
    while isinstance(s, For) and is_independent(s, program):
        loops.append(s)
        s = s.body
    axes = [f for f in loops if is_axis(program, f)]
    rest = [f for f in loops if f not in axes]
    if _nested_bounds(loops):
        rest, axes = loops, []
    return wrap([*rest, *axes], s)
