"""Figures 4 and 14: from loops over scalars to statements on tiles.

python -m appendix_examples.figures_4_14
"""

from __future__ import annotations

from tvm import te

import neptune
from appendix_examples.figures_10_11 import privatised
from neptune.driver.pipeline import as_program
from neptune.tile.pipeline import lower


def figure_4() -> neptune.Schedule:
    """A transpose, an exponential and a row maximum, in tiles of R rows and C columns."""
    n, m = te.var("n"), te.var("m")
    inp = te.placeholder((m, n), "float32", name="inp")
    j = te.reduce_axis((0, m), name="j")
    exp2d = te.compute((n, m), lambda i, j: te.exp(inp[j, i]), name="exp2d")
    max1d = te.compute((n,), lambda i: te.max(exp2d[i, j], axis=j), name="max1d")
    sch = neptune.Schedule(as_program([exp2d, max1d], name="figure_4"))
    i0, j0, *_ = sch.tile(sch.loops("exp2d"), [sch.param("R", [16]), sch.param("C", [16])])
    sch.bind(i0, "grid.x")
    sch.fuse_at("max1d", j0)
    return sch


def main() -> None:
    sch = figure_4()
    print("Figure 4, loops: tiles of R rows and C columns, and a nest for each stage inside. (The conditions are for")
    print("lengths that R and C do not divide.)\n")
    print(sch.program)
    print("Figure 4, tiles: each inner nest is one statement. `inp` is read as (j1, i1) and `exp2d` written as")
    print("(i1, j1): the dimensions are reconciled by 'j1 i1 -> i1 j1', and the maximum goes over j1. (exp(x) is")
    print("written exp2(x log₂e), and max1d stays in registers until its row is done.)\n")
    print(lower(sch.program))

    made = privatised(te.var("m"), te.var("n"))
    made.bind(made.loops("xmax")[0], "grid.x")
    print("Figure 14: Figure 11 on tiles. The local maximum and the local sum of two columns are reductions of a")
    print("tile; the running ones, and what repairs them, are scalars of a row. (The rows have become programs of")
    print("the grid.)\n")
    print(lower(made.program))


if __name__ == "__main__":
    main()
