"""Figures 4 and 14: from loops over scalars to statements on tiles.

    python -m appendix_examples.figures_4_14
"""

from __future__ import annotations

from tvm import te

import neptune
from appendix_examples.figures_10_11 import privatised
from neptune.compiler import as_program
from neptune.tile.pipeline import lower

N, M, R, C = 4, 8, 16, 16


def figure_4() -> neptune.Schedule:
    """A transpose, an exponential and a row maximum, in tiles of R rows and C columns."""
    inp = te.placeholder((M * C, N * R), "float32", name="inp")
    j = te.reduce_axis((0, M * C), name="j")
    exp2d = te.compute((N * R, M * C), lambda i, j: te.exp(inp[j, i]), name="exp2d")
    max1d = te.compute((N * R,), lambda i: te.max(exp2d[i, j], axis=j), name="max1d")
    sch = neptune.Schedule(as_program([exp2d, max1d], name="figure_4"))
    i0, j0, *_ = sch.tile(sch.loops("exp2d"), [R, C])
    sch.bind(i0, "grid.x")
    sch.fuse_at("max1d", j0)
    return sch


def main() -> None:
    sch = figure_4()
    print("Figure 4, loops: tiles of 16 rows and 16 columns, and a nest for each stage inside.\n")
    print(sch.program)
    print("Figure 4, tiles: each inner nest is one statement. `inp` is read as (j1, i1), `exp2d` is written as")
    print("(i1, j1): the dimensions are reconciled by 'j1 i1 -> i1 j1', and the maximum goes over j1. (exp is exp2")
    print("after a change of units; the accumulator stays in registers, and is stored once.)\n")
    print(lower(sch.program))

    made = privatised()
    made.bind(made.loops("xmax")[0], "grid.x")
    print("Figure 14: Figure 11 on tiles. The local maximum and the local sum of two columns are reductions of a")
    print("tile; the running ones, and what repairs them, are scalars of a row. (Maxima are kept in units of log₂,")
    print("and the rows have become programs of the grid: a loop that is left alone is no tile.)\n")
    print(lower(made.program))


if __name__ == "__main__":
    main()
