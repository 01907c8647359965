"""Which of the axes that a stage sums over are axes of its tile, and which are loops around it.

The matrix unit sums over one axis: of several, the last one of the longest.

    for u in [0, 3): for i1: for j1: for k1: …     →     u is a loop around the tiles (i1, j1, k1)

What is no product, and none of whose operands fills a tile, as a sum of squared distances, goes element by element:

    for i1: for j1: for d: far[i1, j1] += (x[i1, d] - y[j1, d])²     →     for d: far += (x[:, d] - y[:, d])²

A tile over i1, j1 and d would hold as many values as it computes, where x and y are two of its sides: in registers
there is no room for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from neptune.ir.contraction import Contraction, matrix_product
from neptune.ir.expr import loads, variables
from neptune.ir.integers import constant_length
from neptune.ir.program import For, Program, Stage, Stmt, reduction_loops, sub_stmts, values, with_stmts, wrap
from neptune.tile.localize import LOOP, is_axis


def with_depths(program: Program) -> Program:
    """The program with the loops that shall not become tile axes marked."""
    return program.with_body(_marked(program, program.body, ()))


def perfect(s: For) -> tuple[tuple[For, ...], Stage] | None:
    """The loops and the one stage of a perfect nest."""
    loops: list[For] = []
    body: Stmt = s
    while isinstance(body, For):
        loops.append(body)
        body = body.body
    return (tuple(loops), body) if isinstance(body, Stage) else None


def _marked(program: Program, s: Stmt, around: tuple[For, ...]) -> Stmt:
    nest = perfect(s) if isinstance(s, For) else None
    if nest is None:
        inside = (*around, s) if isinstance(s, For) else around
        return with_stmts(s, tuple(_marked(program, p, inside) for p in sub_stmts(s)))
    loops, stage = nest
    depths = [f for f in reduction_loops(stage, loops) if is_axis(program, f)]
    tiles = {f.var for f in (*around, *loops) if is_axis(program, f) and f not in depths}
    kept = _depth(depths) if is_product(stage, loops) else [] if _unfilled(stage, depths, tiles) else depths
    return wrap([replace(f, kind=LOOP) if f in depths and f not in kept else f for f in loops], stage)


def _depth(depths: Sequence[For]) -> list[For]:
    """The axis that the matrix unit sums over."""
    return [max(reversed(depths), key=lambda f: constant_length(f.hi))] if depths else []


def is_product(stage: Stage, loops: Sequence[For]) -> bool:
    """True for what goes to the matrix unit, over `loops` and those around that its target runs over."""
    axes = frozenset(f.var for f in loops).union(*map(variables, stage.action.index))
    return isinstance(matrix_product(stage.action, axes), Contraction)


def _unfilled(stage: Stage, depths: Sequence[For], tiles: set[str]) -> bool:
    """True for a sum over a tile that has two axes or more, where each operand that the sum moves along has one."""
    deep, kept = {f.var for f in depths}, tiles & frozenset[str]().union(*map(variables, stage.action.index))
    reads = [frozenset[str]().union(*map(variables, x.index)) for v in values(stage.action) for x in loads(v)]
    sides = [r & kept for r in reads if r & deep]
    return bool(deep) and len(frozenset[str]().union(*sides)) > 1 and all(len(s) < 2 for s in sides)
