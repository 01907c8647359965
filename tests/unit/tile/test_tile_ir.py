"""Tile expressions: dims and dtypes of the nodes, traversals, printing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neptune.ir.expr import Cast, Const, Op, Select, Var, children, rebuild, rewrite, walk
from neptune.tile.ir import (
    Assign,
    Branch,
    Dot,
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
    map_stmt,
    stmt_exprs,
    walk_stmts,
)
from neptune.tile.printer import print_texpr, print_tstmt

ROWS, DEEP = Iota("m"), Iota("k")
A, B = Local("a", ("m", "k"), "float16"), Local("b", ("k", "n"), "float16")
ACC = Local("acc", ("m", "n"), "float32")
BELOW = Op("lt", (ROWS, Scalar(Var("M"))), "bool")
LOAD = LoadTile("x", (ROWS,), BELOW, 0.0, ("m",), "float16")
EVERY: list[TExpr] = [
    Scalar(Var("M")),
    Full(Scalar(Const(0.0, "float32")), ("m", "n"), "float32"),
    ROWS,
    A,
    LOAD,
    replace(LOAD, mask=None),
    Op("exp", (ACC,), "float32"),
    Cast(ACC, "float16"),
    Select(BELOW, ROWS, DEEP),
    Reduce("sum", "k", A),
    Dot(A, B, None),
    Dot(A, B, ACC, allow_tf32=True),
    Rearrange(A, "m k -> k 1 m"),
]


@pytest.mark.parametrize(
    ("e", "dims", "dtype"),
    [
        (Scalar(Var("s", "float32")), (), "float32"),
        (ROWS, ("m",), "int32"),
        (Cast(ACC, "float16"), ("m", "n"), "float16"),
        (Select(BELOW, ROWS, ROWS), ("m",), "int32"),
        (Reduce("max", "m", A), ("k",), "float16"),
        (Reduce("max", "k", A), ("m",), "float16"),
        (Dot(A, B, None), ("m", "n"), "float32"),
        (Rearrange(A, "m k -> k 1 m"), ("k", "1", "m"), "float16"),
    ],
)
def test_derived_dims_and_dtypes(e: TExpr, dims: tuple[str, ...], dtype: str) -> None:
    assert (e.dims, e.dtype) == (dims, dtype)


@pytest.mark.parametrize("e", EVERY, ids=[f"{type(e).__name__}-{k}" for k, e in enumerate(EVERY)])
def test_rebuild_is_the_identity_on_its_own_children(e: TExpr) -> None:
    assert rebuild(e, children(e)) == e
    assert rewrite(e, lambda x: None) is e


def test_children_are_all_expressions_of_a_node() -> None:
    assert children(LOAD) == (ROWS, BELOW)
    assert children(Dot(A, B, ACC)) == (A, B, ACC) and children(Dot(A, B, None)) == (A, B)
    assert children(Select(BELOW, ROWS, DEEP)) == (BELOW, ROWS, DEEP)
    assert list(walk(LOAD)) == [LOAD, ROWS, BELOW, ROWS, Scalar(Var("M"))]


def test_rewrite_is_top_down() -> None:
    renamed = rewrite(Dot(A, B, ACC), lambda x: replace(x, name=x.name + "1") if isinstance(x, Local) else None)
    assert isinstance(renamed, Dot) and renamed.acc == Local("acc1", ACC.dims, "float32")
    seen: list[TExpr] = []
    rewrite(Reduce("sum", "k", A), lambda x: seen.append(x))
    assert seen == [Reduce("sum", "k", A), A]


def test_what_is_rewritten_is_not_looked_at_again() -> None:
    inside = rewrite(Cast(Cast(A, "float32"), "float16"), lambda x: x.arg if isinstance(x, Cast) else None)
    assert inside == Cast(A, "float32")
    both = rewrite(Cast(Cast(A, "float32"), "float16"), peeled)
    assert both == A


def peeled(e: TExpr) -> TExpr | None:
    """The argument of a cast, rewritten itself."""
    return rewrite(e.arg, peeled) if isinstance(e, Cast) else None


def test_statements() -> None:
    store = StoreTile("y", (ROWS,), LOAD, BELOW, ("m",), "y")
    assert stmt_exprs(store) == (ROWS, LOAD, BELOW)
    assert stmt_exprs(replace(store, mask=None)) == (ROWS, LOAD)
    loop = Loop("j", Const(0, "int32"), Var("N"), (Assign("t", LOAD), Branch(Var("p", "bool"), (store,))))
    assert [type(s) for s in walk_stmts((loop,))] == [Loop, Assign, Branch, StoreTile]
    unmasked = map_stmt(loop, lambda e: rewrite(e, lambda x: ROWS if x == LOAD else None))
    assert [e for s in walk_stmts((unmasked,)) for e in stmt_exprs(s)] == [ROWS, ROWS, ROWS, BELOW]


def test_printing() -> None:
    assert print_texpr(LOAD) == "masked(x[iota(m)]<m>, (iota(m) < M), 0.0)"
    assert print_texpr(Dot(A, B, ACC)) == "(acc + dot(a, b))"
    assert print_texpr(Rearrange(Reduce("max", "k", A), "m -> m 1")) == "rearrange(reduce(a, max, 'k'), 'm -> m 1')"
    assert print_texpr(Cast(Op("exp", (ACC,), "float32"), "float16")) == "cast(f16, exp(acc))"
    assert print_texpr(Select(BELOW, ROWS, DEEP)) == "where((iota(m) < M), iota(m), iota(k))"
    fill = Assign("acc", Full(Scalar(Const(0.0, "float32")), ("m", "n"), "float32"), "s")
    loop = Loop("j", Const(0, "int32"), Var("N"), (fill,), (Var("j") < Var("N"),))
    assert print_tstmt(loop, 0) == [
        "for j in [0, N):",
        "  fact j < N",
        "  acc<m n> = full(0.0, 'm n')  # s",
    ]
