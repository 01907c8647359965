"""Small programs and templates that need no solver, for tests of what happens around compilation."""

from __future__ import annotations

from typing import Any

from neptune.ir.program import Program
from neptune.ir.text.parser import parse_program


def rows_program() -> Program:
    """y[i] = scale * (sum over j of x[i, j] * w[j]) + shift; the last two are trailing scalar arguments."""
    return parse_program(
        """program rows
  in x: f32[m, n]
  in w: f32[n]
  out y: f32[m]
  temp t: f32[m]
  scalar m: i32 lo 1
  scalar n: i32 lo 1
  scalar scale: f32
  scalar shift: i32 lo 0 hi 9
body:
  for i in [0, m):
    for j in [0, n):
      t: t[i] += x[i, j] * w[j] init 0.0
  for i in [0, m):
    y: y[i] = t[i] * scale + cast(f32, shift)
"""
    )


def rows_fused(sch: Any) -> None:
    """One kernel: tiles of rows, a loop over columns."""
    i, j = sch.loops("t")
    i0, _j0, _i1, _j1 = sch.tile([i, j], [sch.param("BLOCK_M", [16, 32]), sch.param("BLOCK_N", [8])])
    sch.bind(i0, "grid.x")
    sch.fuse_at("y", i0)


def rows_covered(sch: Any) -> None:
    """One kernel: a whole row in one tile."""
    i, j = sch.loops("t")
    i0, _ = sch.split(i, sch.param("BLOCK_M", [4]))
    sch.cover(j, "BLOCK_N")
    sch.bind(i0, "grid.x")
    sch.fuse_at("y", i0)


def rows_apart(sch: Any) -> None:
    """Two kernels with `t` between them."""
    for stage in ("t", "y"):
        i = sch.loops(stage)[0]
        i0, _ = sch.split(i, sch.param("BLOCK_M", [16]))
        sch.bind(i0, "grid.x")
        if stage == "t":
            sch.cover(sch.loops("t")[-1], "BLOCK_N")


def pair_program() -> Program:
    """Two results of one input: row sums, and each row twice; the depth is constant, the rows are even."""
    return parse_program(
        """program pair
  in x: f16[batch, rows, 64]
  in bias: f16[batch, rows]
  out total: f32[batch, rows]
  out twice: f16[batch, 2 * rows, 64]
  scalar batch: i32 lo 1
  scalar rows: i32 lo 1 divisor 2
body:
  for b in [0, batch):
    for i in [0, rows):
      for d in [0, 64):
        total: total[b, i] += cast(f32, x[b, i, d] + bias[b, i]) init 0.0
  for b in [0, batch):
    for i in [0, 2 * rows):
      for d in [0, 64):
        twice: twice[b, i, d] = x[b, i // 2, d]
"""
    )


def pair_apart(sch: Any) -> None:
    """Two kernels, of which neither reads what the other writes."""
    for stage in ("total", "twice"):
        b, i, _ = sch.loops(stage)
        i0, _ = sch.split(i, sch.param("BLOCK_M", [8]))
        sch.bind([b, i0], ["grid.y", "grid.x"])
