"""relax: a tile form for every program, by giving up tile axes until there is one (paper §5).

Where a nest cannot be translated with all its tile axes, or its tiles would be too large, its outermost axis
becomes a serial loop, then the next one, down to scalars:

    for i1 in [0, BM): for d in [0, 2048):          for d in [0, 2048):       d fits no tile: a loop
      o: out[i0*BM + i1, d] = …              →        out[…, d]<i1> = …

In the extreme, values that have no place on chip are kept in global memory, where the one program that
wrote them reads them back behind a barrier.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from neptune.errors import ScheduleError, TargetError, or_refusal, unless_refused
from neptune.ir.expr import Var
from neptune.ir.expr import walk as walk_expr
from neptune.ir.integers import known_size
from neptune.ir.program import For, Program, Stmt, sub_stmts, walk, with_stmts
from neptune.tile.arrange import arrange_nest
from neptune.tile.ir import TileKernel, TileProgram, stmt_exprs, walk_stmts
from neptune.tile.localize import LOOP, grid_of, is_axis, kernels_of, localize_nest, with_kernels
from neptune.tile.translate import prepared, tile_program, translate_kernel

MAX_ELEMENTS = 1 << 20
"""Triton's largest tensor."""
MANY_ELEMENTS = 1 << 15
"""The largest tile of constant axes only: nobody has asked for so large a one."""


def translate_relaxed(program: Program) -> TileProgram:
    """The TileProgram of a scheduled program. TargetError where even single elements have no form."""
    program = prepared(program)
    nests = list(kernels_of(program.body))
    kernels: list[TileKernel] = []
    for k in range(len(nests)):
        nests[k], kernel = _relaxed(program, k, nests[k], [x.name for x in kernels])
        kernels.append(kernel)
    return tile_program(with_kernels(program, nests), kernels)


def _relaxed(program: Program, k: int, nest: Stmt, taken: list[str]) -> tuple[Stmt, TileKernel]:
    """The kernel of a nest with as many tile axes as it can have, and the nest as it was translated."""
    while True:
        kernel = or_refusal(_placed, program, k, nest, taken)
        if not isinstance(kernel, TargetError | ScheduleError):
            return unless_refused(kernel)
        axis = next(_axes(program, nest), None)
        if axis is None:
            return nest, translate_kernel(program, nest, taken, memory=True)
        nest = _as_loops(nest, axis)


def _placed(program: Program, k: int, nest: Stmt, taken: list[str]) -> tuple[Stmt, TileKernel]:
    placed = localize_nest(program, k, arrange_nest(program, nest))
    kernel = translate_kernel(program, placed, taken)
    check_tile_sizes(program, kernel)
    return placed, kernel


def _axes(program: Program, nest: Stmt) -> Iterator[str]:
    """The loops that are still tile axes, outermost first."""
    return (s.var for s in walk(grid_of(nest)[1]) if isinstance(s, For) and is_axis(program, s))


def _as_loops(s: Stmt, var: str) -> Stmt:
    """The nest with its loops over `var` being serial for good."""
    s = with_stmts(s, tuple(_as_loops(p, var) for p in sub_stmts(s)))
    return replace(s, kind=LOOP) if isinstance(s, For) and s.var == var and s.kind == "serial" else s


def check_tile_sizes(program: Program, kernel: TileKernel) -> None:
    """Raise TargetError where a tile has too many elements, with tunables at their first candidates."""
    first = {t.name: t.candidates[0] for t in program.tunables if t.candidates}
    extents = dict(kernel.axes)
    for dims in {e.dims for s in walk_stmts(kernel.body) for root in stmt_exprs(s) for e in walk_expr(root)}:
        named = [extents[d] for d in dims if d in extents]
        elements = prod(known_size(e, first) for e in named)
        free = any(isinstance(e, Var) for e in named)
        if elements > (MAX_ELEMENTS if free else MANY_ELEMENTS):
            raise TargetError(
                f"translate kernel `{kernel.name}`",
                f"a tile over ({', '.join(dims)}) has {elements} elements",
                legal=(f"at most {MAX_ELEMENTS if free else MANY_ELEMENTS}",),
                hint="split or tile its loops",
            )
