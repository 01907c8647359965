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

from neptune.ir.expr import variables
from neptune.ir.program import For, Program, Stmt, seq
from neptune.schedule.bind import is_independent
from neptune.tile.localize import grid_of, is_axis, kernels_of, wrap


def arrange(program: Program) -> Program:
    """The program with the loops around the whole of each kernel in a better order, where that is legal."""
    return program.with_body(seq(*(arrange_nest(program, n) for n in kernels_of(program.body))))


def arrange_nest(program: Program, nest: Stmt) -> Stmt:
    """`arrange` for one kernel."""
    grid, body = grid_of(nest)
    return wrap(grid, _arranged(program, body))


def _arranged(program: Program, s: Stmt) -> Stmt:
    loops: list[For] = []
    while isinstance(s, For) and is_independent(s, program):
        loops.append(s)
        s = s.body
    axes = [f for f in loops if is_axis(program, f)]
    rest = [f for f in loops if f not in axes]
    mentioned = frozenset[str]().union(*(variables(e) for f in loops for e in (f.lo, f.hi, *f.facts)))
    if mentioned & {f.var for f in loops}:
        rest, axes = loops, []
    return wrap([*rest, *axes], s)
