"""Kernels written by hand to try tile passes on: rows `r` of 4 and columns `c` of 8, in one program.

`x`, `w`: float32[4, 8], `h`: float16[4, 8], `t`: int32[4]; `y`: float32[4], `z`: float32[4, 8]; `n` is the
trip count of loops, `scale` a float argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from neptune.ir.evaluate.domains import Domain
from neptune.ir.expr import Const, Expr, Op, Var, walk
from neptune.ir.program import Buffer
from neptune.ir.program import Scalar as ScalarParam
from neptune.tile.ir import (
    Assign,
    Full,
    Iota,
    LoadTile,
    Local,
    Loop,
    Rearrange,
    Reduce,
    Scalar,
    StoreTile,
    TExpr,
    TileKernel,
    TileProgram,
    TStmt,
    stmt_exprs,
    walk_stmts,
)
from neptune.tile.verify import verify_tiles
from neptune.verify.evaluate import evaluate
from neptune.verify.exact import check_exact
from tests.examples.tile_examples import LOWEST, lit, map_

ROW, TILE = ("r",), ("r", "c")
R, C = Rearrange(Iota("r"), "r -> r 1"), Rearrange(Iota("c"), "c -> 1 c")
ROWS, COLS = Const(4, "int32"), Const(8, "int32")
N = Var("n")
Pass = Callable[[TileKernel], TileKernel]
Array = npt.NDArray[Any]
_DTYPE = {"x": "float32", "w": "float32", "h": "float16", "z": "float32"}


def tile(name: str) -> Local:
    return Local(name, TILE, "float32")


def row(name: str) -> Local:
    return Local(name, ROW, "float32")


def load(buffer: str = "x", mask: TExpr | None = None, shift: Expr | None = None) -> LoadTile:
    """A whole buffer, with its columns rotated where `shift` is given."""
    column = C if shift is None else map_("mod", map_("add", C, Scalar(shift)), Scalar(COLS))
    return LoadTile(buffer, (R, column), mask, 0.0, TILE, _DTYPE[buffer])


def column(t: TExpr) -> Rearrange:
    """A row vector that broadcasts over columns."""
    return Rearrange(t, "r -> r 1")


def full(value: float, dims: tuple[str, ...] = ROW) -> Full:
    return Full(lit(value), dims, "float32")


def fold(reducer: str, t: TExpr) -> Reduce:
    return Reduce(reducer, "c", t)


def loop(*body: TStmt, var: str = "j") -> Loop:
    return Loop(var, Const(0, "int32"), N, body)


def put(value: TExpr, buffer: str | None = None) -> StoreTile:
    """Store a row to `y`, or a tile to `z`."""
    if value.dims == ROW:
        return StoreTile(buffer or "y", (Iota("r"),), value, None, ROW)
    return StoreTile(buffer or "z", (R, C), value, None, TILE)


def kernel(*body: TStmt) -> TileProgram:
    """A program of one kernel; its outputs are the buffers that are stored."""
    stored = list(dict.fromkeys(s.buffer for s in walk_stmts(body) if isinstance(s, StoreTile)))
    shapes = {"y": (ROWS,), "u": (ROWS,), "z": (ROWS, COLS)}
    program = TileProgram(
        "k",
        (
            Buffer("x", (ROWS, COLS), "float32"),
            Buffer("w", (ROWS, COLS), "float32"),
            Buffer("h", (ROWS, COLS), "float16"),
            Buffer("t", (ROWS,), "int32"),
        ),
        tuple(Buffer(b, shapes[b], "float32") for b in stored),
        (),
        (ScalarParam("n", lo=0), ScalarParam("scale", "float32")),
        (),
        (TileKernel("k_kernel", (), (("r", ROWS), ("c", COLS)), body),),
    )
    verify_tiles(program)
    return program


def apply(run: Pass, program: TileProgram) -> TileProgram:
    """The program after a pass, verified."""
    after = replace(program, kernels=tuple(run(k) for k in program.kernels))
    verify_tiles(after)
    return after


def inputs(seed: int = 0) -> dict[str, Array]:
    """Random data with a row of -inf, and a row with some -inf."""
    rng = np.random.default_rng(seed)
    x, w, h = (rng.standard_normal((4, 8)) for _ in range(3))
    x[1] = -math.inf
    x[2, :5] = -math.inf
    return {"x": x, "w": w, "h": h, "t": rng.integers(0, 4, 4).astype(np.int32)}


def same(
    before: TileProgram,
    after: TileProgram,
    data: Mapping[str, Array] | None = None,
    *,
    exact: bool = True,
    domain: Domain | None = None,
    tolerance: float = 1e-12,
) -> None:
    """Both give the same in float64 (or another domain) for 0 to 3 trips, and in exact arithmetic."""
    for trips in (0, 1, 2, 3):
        sizes = {"n": trips, "scale": 0.5}
        old, new = (evaluate(p, data or inputs(), sizes, domain) for p in (before, after))
        for name in old:
            np.testing.assert_allclose(new[name], old[name], tolerance, tolerance, err_msg=f"{name}, n = {trips}")
    if exact:
        report = check_exact(before, after, draws=2)  # type: ignore[arg-type]
        assert report.verdict != "rejected", str(report)


def keeps_meaning(run: Pass, program: TileProgram, data: Mapping[str, Array] | None = None) -> TileProgram:
    """Apply a pass, and check that nothing changed but the form."""
    after = apply(run, program)
    same(program, after, data)
    return after


def body_of(program: TileProgram) -> tuple[TStmt, ...]:
    return program.kernels[0].body


def assigned(program: TileProgram, name: str) -> list[TExpr]:
    """What a local is assigned, in program order."""
    return [s.value for s in walk_stmts(body_of(program)) if isinstance(s, Assign) and s.name == name]


def nodes(program: TileProgram) -> list[TExpr]:
    """Every tile expression node."""
    return [n for k in program.kernels for s in walk_stmts(k.body) for e in stmt_exprs(s) for n in walk(e)]


def count(program: TileProgram, op: str) -> int:
    """How many Maps of an operator there are."""
    return sum(1 for n in nodes(program) if isinstance(n, Op) and n.name == op)


__all__ = ["LOWEST", "lit", "map_"]
