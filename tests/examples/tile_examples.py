"""TilePrograms written by hand, as the translator would write them: material for tests."""

from __future__ import annotations

import math

from neptune.ir.expr import Cast, Const, Expr, Op, Select, Var, ceildiv, maximum, minimum, op
from neptune.ir.program import Buffer, Tunable
from neptune.ir.program import Scalar as ScalarParam
from neptune.tile.ir import (
    Assign,
    Dot,
    Full,
    GridAxis,
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
)

LOWEST = -3.4028234663852886e38


def var(name: str) -> Expr:
    return Var(name)


def lit(value: float) -> Scalar:
    return Scalar(Const(value, "float32"))


def size(name: str) -> ScalarParam:
    return ScalarParam(name, lo=1)


def map_(name: str, *args: TExpr, dtype: str | None = None) -> Op[TExpr]:
    """An operator on tiles."""
    if dtype is None:
        dtype = "bool" if name in ("lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not") else args[0].dtype
    return Op(name, args, dtype)


def where(pred: TExpr, then: TExpr, other: TExpr) -> Select[TExpr]:
    return Select(pred, then, other)


def at(start: Expr, axis: str) -> Op[TExpr]:
    """Positions start + 0, 1, … along an axis."""
    return map_("add", Scalar(start), Iota(axis))


def softmax(dtype: str = "float16") -> TileProgram:
    """Softmax over the last dimension, one row tile at a time, a whole row in one tile."""
    rows, cols = var("rows"), var("cols")
    row = at(op("mul", Var("i0"), Var("BLOCK_R")), "r")
    row_ok = map_("lt", Rearrange(row, "r -> r 1"), Scalar(rows))
    col_ok = map_("lt", Rearrange(Iota("c"), "c -> 1 c"), Scalar(cols))
    inside = map_("and", row_ok, col_ok)
    x = LoadTile("x", (Rearrange(row, "r -> r 1"), Rearrange(Iota("c"), "c -> 1 c")), inside, 0.0, ("r", "c"), dtype)
    xf, top = Local("xf", ("r", "c"), "float32"), Local("top", ("r",), "float32")
    e, total = Local("e", ("r", "c"), "float32"), Local("total", ("r",), "float32")
    log2e = Scalar(op("log2e"))
    body: tuple[TStmt, ...] = (
        Assign("xf", where(col_ok, Cast(x, "float32"), lit(-math.inf)), "x"),
        Assign("top", Reduce("max", "c", xf), "top"),
        Assign("e", map_("exp2", map_("mul", map_("sub", xf, Rearrange(top, "r -> r 1")), log2e)), "e"),
        Assign("total", Reduce("sum", "c", e), "total"),
        StoreTile(
            "y",
            (Rearrange(row, "r -> r 1"), Rearrange(Iota("c"), "c -> 1 c")),
            Cast(map_("div", e, Rearrange(total, "r -> r 1")), dtype),
            inside,
            ("r", "c"),
            "y",
        ),
    )
    kernel = TileKernel(
        "softmax",
        (GridAxis("i0", ceildiv(rows, var("BLOCK_R")), "x"),),
        (("r", var("BLOCK_R")), ("c", var("BLOCK_C"))),
        body,
    )
    return TileProgram(
        "softmax",
        (Buffer("x", (rows, cols), dtype),),
        (Buffer("y", (rows, cols), dtype),),
        (),
        (size("rows"), size("cols")),
        (Tunable("BLOCK_R", (4, 8, 16)), Tunable("BLOCK_C", (), covers=cols)),
        (kernel,),
    )


def attention(d: int = 128, dtype: str = "float16") -> TileProgram:
    """Causal attention, bottom-right aligned: a loop over clean tiles, then one over masked tiles."""
    batch, heads, s_q, s_kv = (var(n) for n in ("batch", "heads", "s_q", "s_kv"))
    block_m, block_n = var("BLOCK_M"), var("BLOCK_N")
    depth = Const(d, "int32")
    first_row = op("mul", Var("i0"), block_m)
    last_row = op("sub", minimum(op("add", first_row, block_m), s_q), 1)
    shift = op("sub", s_kv, s_q)
    end = minimum(
        ceildiv(s_kv, block_n),
        ceildiv(maximum(op("add", op("add", last_row, shift), Const(1, "int32")), Const(0, "int32")), block_n),
    )
    clean = minimum(
        op("floordiv", s_kv, block_n),
        op(
            "floordiv",
            maximum(op("add", op("add", first_row, shift), Const(1, "int32")), Const(0, "int32")),
            block_n,
        ),
    )
    row, col = at(first_row, "m"), at(op("mul", Var("j0"), block_n), "n")
    row_ok = map_("lt", Rearrange(row, "m -> m 1"), Scalar(s_q))
    q, m, total, acc = (
        Local("q_tile", ("m", "d"), dtype),
        Local("m", ("m",), "float32"),
        Local("l", ("m",), "float32"),
        Local("acc", ("m", "d"), "float32"),
    )
    s, p, alpha, m_new = (
        Local("s", ("m", "n"), "float32"),
        Local("p", ("m", "n"), "float32"),
        Local("alpha", ("m",), "float32"),
        Local("m_new", ("m",), "float32"),
    )
    head = (Scalar(Var("b")), Scalar(Var("h")))
    feature = Rearrange(Iota("d"), "d -> 1 d")
    rows = (*head, Rearrange(row, "m -> m 1"), feature)
    scale = map_("mul", lit(1.0 / math.sqrt(d)), Scalar(op("log2e")))

    def read(name: str, masked: bool) -> LoadTile:
        keys = Rearrange(col, "n -> n 1")
        mask = map_("lt", keys, Scalar(s_kv)) if masked else None
        return LoadTile(name, (*head, keys, feature), mask, 0.0, ("n", "d"), dtype)

    def step(masked: bool) -> tuple[TStmt, ...]:
        score: TExpr = map_("mul", Dot(q, Rearrange(read("k", masked), "n d -> d n"), None), scale)
        if masked:
            keys = Rearrange(col, "n -> 1 n")
            limit = map_("add", Rearrange(row, "m -> m 1"), Scalar(shift))
            visible = map_("and", map_("le", keys, limit), map_("lt", keys, Scalar(s_kv)))
            score = where(visible, score, lit(-math.inf))
        return (
            Assign("s", score, "s"),
            Assign("m_new", map_("max", m, Reduce("max", "n", s)), "m"),
            Assign("alpha", map_("exp2", map_("sub", m, m_new)), "m"),
            Assign("p", map_("exp2", map_("sub", s, Rearrange(m_new, "m -> m 1"))), "p"),
            Assign("l", map_("add", map_("mul", total, alpha), Reduce("sum", "n", p)), "l"),
            Assign(
                "acc",
                Dot(Cast(p, dtype), read("v", masked), map_("mul", acc, Rearrange(alpha, "m -> m 1"))),
                "acc",
            ),
            Assign("m", m_new, "m"),
        )

    body: tuple[TStmt, ...] = (
        Assign("q_tile", LoadTile("q", rows, row_ok, 0.0, ("m", "d"), dtype), "q"),
        Assign("m", Full(lit(LOWEST), ("m",), "float32"), "m"),
        Assign("l", Full(lit(0.0), ("m",), "float32"), "l"),
        Assign("acc", Full(lit(0.0), ("m", "d"), "float32"), "acc"),
        Loop("j0", Const(0, "int32"), clean, step(False)),
        Loop("j0", clean, maximum(clean, end), step(True)),
        StoreTile("out", rows, Cast(map_("div", acc, Rearrange(total, "m -> m 1")), dtype), row_ok, ("m", "d"), "out"),
    )
    grid = (GridAxis("i0", ceildiv(s_q, block_m), "x"), GridAxis("h", heads, "y"), GridAxis("b", batch, "z"))
    kernel = TileKernel("attention", grid, (("m", block_m), ("n", block_n), ("d", depth)), body)
    return TileProgram(
        "attention",
        (
            Buffer("q", (batch, heads, s_q, depth), dtype),
            Buffer("k", (batch, heads, s_kv, depth), dtype),
            Buffer("v", (batch, heads, s_kv, depth), dtype),
        ),
        (Buffer("out", (batch, heads, s_q, depth), dtype),),
        (),
        (size("batch"), size("heads"), size("s_q"), size("s_kv")),
        (Tunable("BLOCK_M", (64, 128)), Tunable("BLOCK_N", (32, 64, 128))),
        (kernel,),
    )
