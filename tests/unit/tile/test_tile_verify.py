"""The tile verifier: a good matmul with row sums passes, and each finding has a program that shows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neptune.errors import InternalError
from neptune.ir.expr import Cast, Const, Expr, Load, Op, Select, Var, ceildiv
from neptune.ir.nodes import join
from neptune.ir.program import Buffer, Tunable
from neptune.ir.program import Scalar as Size
from neptune.ir.reducers import REDUCERS
from neptune.tile.ir import (
    Assign,
    Branch,
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
from neptune.tile.verify import broadcasts, verify_tiles

M, N, BM = Var("M"), Var("N"), Var("BLOCK_M")
ZERO, ZERO_F = Const(0, "int32"), Const(0.0, "float32")


def tiled(axis: str, dims: str, start: Expr) -> TExpr:
    """start + iota(axis), as a dimension of a tile of rank 2."""
    offsets: TExpr = Op("add", (Scalar(start), Iota(axis)), "int32")
    return offsets if dims == axis else Rearrange(offsets, f"{axis} -> {dims}")


ROW, COL, DEEP = tiled("m", "m 1", Var("i0") * BM), tiled("n", "1 n", ZERO), tiled("k", "1 k", Var("j0") * 32)
MASK = Op("lt", (ROW, Scalar(M)), "bool")
A = LoadTile("a", (ROW, DEEP), MASK, 0.0, ("m", "k"), "float16")
B = LoadTile("b", (Rearrange(DEEP, "1 k -> k 1"), COL), None, 0.0, ("k", "n"), "float16")
ACC = Local("acc", ("m", "n"), "float32")
CLEAR = Assign("acc", Full(Scalar(ZERO_F), ("m", "n"), "float32"))
STEP = Assign("acc", Dot(A, B, ACC), "y")
SUMS = Assign("sums", Reduce("sum", "n", ACC))
SCALED = Op("div", (ACC, Rearrange(Local("sums", ("m",), "float32"), "m -> m 1")), "float32")
STORE = StoreTile("y", (ROW, COL), Select(MASK, SCALED, Scalar(ZERO_F)), MASK, ("m", "n"))
LOOP = Loop("j0", ZERO, N, (STEP,), (Var("j0") < N,))
BODY: tuple[TStmt, ...] = (CLEAR, LOOP, SUMS, STORE)
KERNEL = TileKernel(
    "matmul",
    (GridAxis("i0", ceildiv(M, BM), "x"),),
    (("m", BM), ("n", Const(64, "int32")), ("k", Const(32, "int32"))),
    BODY,
)
PROGRAM = TileProgram(
    name="p",
    inputs=(Buffer("a", (M, N), "float16"), Buffer("b", (N, Const(64, "int32")), "float16")),
    outputs=(Buffer("y", (M, Const(64, "int32")), "float32"),),
    temporaries=(Buffer("t", (M,), "float32"),),
    scalars=(Size("M"), Size("N"), Size("s", "float32")),
    tunables=(Tunable("BLOCK_M", (64, 128)), Tunable("ODD", (48,))),
    kernels=(KERNEL,),
)


def found(program: TileProgram) -> str:
    with pytest.raises(InternalError) as caught:
        verify_tiles(program)
    return str(caught.value)


def with_kernel(kernel: TileKernel) -> TileProgram:
    return replace(PROGRAM, kernels=(kernel,))


def with_body(*body: TStmt) -> TileProgram:
    return with_kernel(replace(KERNEL, body=body))


def test_good_program() -> None:
    verify_tiles(PROGRAM)


def test_join_and_broadcast() -> None:
    assert join(("m", "1"), ("1", "n"), ()) == ("m", "n") and join((), ()) == ()
    assert join(("m",), ("m", "n")) is None and join(("m", "k"), ("m", "n")) is None
    assert broadcasts((), ("m",)) and broadcasts(("1", "n"), ("m", "n")) and not broadcasts(("m", "n"), ("1", "n"))


F_M, F_N = Full(Scalar(ZERO_F), ("m",), "float32"), Full(Scalar(ZERO_F), ("n",), "float32")
I_M = Iota("m")
DOT = Dot(A, B, None)
VALUES: dict[str, tuple[TExpr, str]] = {
    "map join": (Op("add", (F_M, F_N), "float32"), "add of <m>, <n> is impossible"),
    "map rank": (Op("add", (F_M, ACC), "float32"), "add of <m>, <m n> is impossible"),
    "map op": (Op("foo", (F_M,), "float32"), "unknown operator foo"),
    "map arity": (Op("exp", (F_M, F_M), "float32"), "exp takes 1 arguments"),
    "map dtypes": (Op("add", (F_M, I_M), "float32"), "one dtype on both sides"),
    "map dtype": (Op("lt", (F_M, F_M), "float32"), "lt of float32 is bool, not float32"),
    "where mask": (Select(F_M, F_M, F_M), "select on float32, not on a predicate"),
    "where branches": (Select(MASK, F_M, I_M), "branches differ in dtype: float32 and int32"),
    "where join": (Select(MASK, F_M, F_M), "select of <m 1>, <m>, <m> is impossible"),
    "cast": (Cast(F_M, "f32"), "unknown dtype f32"),
    "axis": (Iota("q"), "axis q is not declared"),
    "full axis": (Full(Scalar(ZERO_F), ("q",), "float32"), "axis q is not declared"),
    "full twice": (Full(Scalar(ZERO_F), ("m", "m"), "float32"), "an axis occurs twice in <m m>"),
    "full dtype": (Full(Scalar(ZERO_F), ("m",), "float16"), "full of float32 is not float16"),
    "scalar": (Scalar(Var("q")), "variable q is used where it is not defined"),
    "scalar dtype": (Scalar(Var("s")), "variable s is float32, used as int32"),
    "scalar load": (Scalar(Load("t", (ZERO,), "float32")), "buffer t is read before anything writes it"),
    "local": (Local("q", (), "float32"), "local q is read where it may not be assigned"),
    "local dims": (Local("acc", ("n", "m"), "float32"), "local acc is float32<m n>, read as float32<n m>"),
    "local dtype": (Local("acc", ("m", "n"), "float16"), "read as float16<m n>"),
    "reduce axis": (Reduce("sum", "k", F_M), "reduce over k, which is no axis of <m>"),
    "reduce unit": (Reduce("sum", "1", ROW), "reduce over 1"),
    "reduce reducer": (Reduce("mean", "m", F_M), "unknown reducer mean"),
    "reduce bool": (Reduce("max", "m", MASK), "reduce of bool by max"),
    "reduce numbers": (Reduce("all", "m", F_M), "reduce of float32 by all"),
    "dot rank": (Dot(F_M, B, None), "dot takes tiles of rank 2, not <m> and <k n>"),
    "dot depth": (Dot(A, A, None), "dot takes <x k> and <k y>, not <m k> and <m k>"),
    "dot unit": (Dot(Rearrange(F_M, "m -> m 1"), Rearrange(F_N, "n -> 1 n"), None), "dot takes <x k>"),
    "dot square": (Dot(A, Rearrange(A, "m k -> k m"), None), "not <m k> and <k m>"),
    "dot dtypes": (Dot(Cast(A, "float32"), B, None), "floats of one dtype, or int8, not float32 and float16"),
    "dot ints": (Dot(Cast(A, "uint8"), Cast(B, "uint8"), None), "floats of one dtype, or int8, not uint8"),
    "dot acc dims": (Dot(A, B, Rearrange(ACC, "m n -> n m")), "accumulates float32<m n>, not float32<n m>"),
    "dot acc dtype": (Dot(A, B, Cast(ACC, "float16")), "accumulates float32<m n>, not float16<m n>"),
    "pattern": (Rearrange(F_M, "m"), "'m' is not `left -> right`"),
    "pattern left": (Rearrange(F_M, "n -> n 1"), "is for <n>, not for <m>"),
    "pattern drop": (Rearrange(ACC, "m n -> m"), "is no permutation"),
    "pattern repeat": (Rearrange(F_M, "m -> m m"), "is no permutation"),
    "pattern merge": (Rearrange(ACC, "m n -> (m n)"), "is no permutation"),
    "pattern squeeze": (Rearrange(ROW, "m 1 -> m"), "removes a dimension"),
    "load buffer": (replace(A, buffer="q"), "buffer q is not defined"),
    "load rank": (replace(A, index=(ROW,)), "buffer a has rank 2, indexed by 1"),
    "load index dtype": (replace(A, index=(ROW, Scalar(ZERO_F))), "index of a is float32, not an integer"),
    "load index dims": (replace(A, index=(ROW, COL)), "index <1 n> of a does not broadcast to <m k>"),
    "load mask dims": (replace(B, mask=MASK), "mask <m 1> of b does not broadcast to <k n>"),
    "load mask dtype": (replace(A, mask=ROW), "mask of a is int32, not bool"),
    "load dims": (replace(A, dims=("m", "q")), "axis q is not declared"),
    "load dtype": (replace(A, dtype="float32"), "buffer a is float16, loaded as float32"),
    "load unwritten": (LoadTile("t", (I_M,), None, 0.0, ("m",), "float32"), "buffer t is read before anything"),
}


@pytest.mark.parametrize(("value", "message"), VALUES.values(), ids=VALUES.keys())
def test_expressions(value: TExpr, message: str) -> None:
    inside = replace(LOOP, body=(STEP, Assign("extra", value)))
    assert message in found(with_body(CLEAR, inside, SUMS, STORE))


def test_tuple_reducers_do_not_fold_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REDUCERS, "pair", replace(REDUCERS["sum"], name="pair", width=2))
    assert "width one, not pair" in found(with_body(*BODY, Assign("extra", Reduce("pair", "m", F_M))))


PRED = Op("lt", (M, N), "bool")
BODIES: dict[str, tuple[tuple[TStmt, ...], str]] = {
    "loop carried": ((LOOP, SUMS, STORE), "local acc is read where it may not be assigned"),
    "loop only": ((replace(LOOP, body=(Assign("acc", DOT),)), SUMS, STORE), "local acc is read where it may not"),
    "branch only": ((Branch(PRED, (CLEAR,)), LOOP, SUMS, STORE), "local acc is read where it may not"),
    "one shape": ((*BODY, Assign("acc", F_M)), "local acc is float32<m n>, assigned float32<m>"),
    "one dtype": ((*BODY, Assign("acc", Cast(ACC, "float16"))), "assigned float16<m n>"),
    "local shadows": ((*BODY, Assign("M", F_M)), "local M shadows a variable"),
    "loop shadows": ((*BODY, Loop("i0", ZERO, N, ())), "loop i0 shadows a variable"),
    "loop bound": ((*BODY, Loop("k0", ZERO, ZERO_F, ())), "bound of loop k0, 0.0 is float32"),
    "loop bound names": ((*BODY, Loop("k0", ZERO, Var("k0"), ())), "variable k0 is used"),
    "loop fact": ((*BODY, Loop("k0", ZERO, N, (), (M,))), "fact of loop k0, M is int32, not bool"),
    "fact names": ((*BODY, Loop("k0", ZERO, N, (), (Var("q") < M,))), "variable q is used"),
    "loop scope": ((*BODY, Assign("t", Scalar(Var("j0")))), "variable j0 is used"),
    "branch pred": ((*BODY, Branch(M, ())), "condition M is int32, not bool"),
    "branch names": ((*BODY, Branch(Var("q", "bool"), ())), "variable q is used"),
    "output": ((CLEAR, LOOP, SUMS), "output y is never written"),
    "input": ((*BODY, replace(STORE, buffer="a", value=Cast(SCALED, "float16"))), "input a is written"),
    "store buffer": ((*BODY, replace(STORE, buffer="q")), "buffer q is not defined"),
    "store rank": ((*BODY, replace(STORE, index=(ROW,))), "buffer y has rank 2, indexed by 1"),
    "store dtype": (
        (*BODY, replace(STORE, value=Cast(ACC, "float16"))),
        "buffer y is float32, its value is float16",
    ),
    "store value": ((*BODY, replace(STORE, value=Rearrange(ACC, "m n -> n m"))), "value <n m> does not broadcast"),
    "store index": ((*BODY, replace(STORE, index=(COL, Rearrange(ROW, "m 1 -> 1 m")))), "index <1 m> of y does not"),
    "store mask dtype": ((*BODY, replace(STORE, mask=ROW)), "mask of y is int32, not bool"),
    "store mask dims": ((*BODY, replace(STORE, mask=Rearrange(MASK, "m 1 -> 1 m"))), "mask <1 m> of y does not"),
    "store dims": ((*BODY, replace(STORE, dims=("m", "q"))), "axis q is not declared"),
    "store malformed": ((*BODY, replace(STORE, value=Dot(F_M, F_M, None))), "dot takes tiles of rank 2"),
    "assign malformed": ((*BODY, Assign("q", Rearrange(F_M, "m"))), "is not `left -> right`"),
}


@pytest.mark.parametrize(("body", "message"), BODIES.values(), ids=BODIES.keys())
def test_bodies(body: tuple[TStmt, ...], message: str) -> None:
    assert message in found(with_body(*body))


def test_what_a_loop_assigns_may_be_used_inside_it() -> None:
    inside = (
        Assign("product", DOT),
        Assign("acc", Op("add", (ACC, Local("product", ACC.dims, "float32")), "float32")),
    )
    verify_tiles(with_body(CLEAR, replace(LOOP, body=inside), SUMS, STORE))


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (replace(KERNEL, axes=(*KERNEL.axes, ("m", BM))), "axis m is declared twice"),
        (replace(KERNEL, axes=(*KERNEL.axes, ("1", BM))), "'1' cannot be the name of an axis"),
        (replace(KERNEL, axes=(*KERNEL.axes, ("q", M))), "axis q is neither a constant nor a tunable"),
        (replace(KERNEL, axes=(*KERNEL.axes, ("q", Const(48, "int32")))), "extent of axis q is 48, not a power of two"),
        (replace(KERNEL, axes=(*KERNEL.axes, ("q", Const(0, "int32")))), "extent of axis q is 0"),
        (replace(KERNEL, axes=(*KERNEL.axes, ("q", Var("ODD")))), "extent of axis q is 48, not a power of two"),
        (replace(KERNEL, grid=(*KERNEL.grid, GridAxis("b", M, "w"))), "unknown launch dimension w"),
        (replace(KERNEL, grid=(*KERNEL.grid, GridAxis("M", M, "y"))), "grid variable M shadows"),
        (replace(KERNEL, grid=(*KERNEL.grid, GridAxis("b", ZERO_F, "y"))), "extent of grid variable b, 0.0 is float32"),
        (replace(KERNEL, grid=(*KERNEL.grid, GridAxis("b", Var("i0"), "y"))), "variable i0 is used"),
    ],
)
def test_kernels(kernel: TileKernel, message: str) -> None:
    assert message in found(with_kernel(kernel))


def test_programs() -> None:
    assert "kernel matmul is declared twice" in found(replace(PROGRAM, kernels=(KERNEL, KERNEL)))
    produce = TileKernel(
        "first",
        (),
        (("m", BM),),
        (StoreTile("t", (I_M,), F_M, Op("lt", (I_M, Scalar(M)), "bool"), ("m",)),),
    )
    read = Assign("early", LoadTile("t", (I_M,), None, 0.0, ("m",), "float32"))
    consume = replace(KERNEL, body=(read, *BODY))
    verify_tiles(replace(PROGRAM, kernels=(produce, consume)))
    assert "kernel matmul: buffer t is read before" in found(replace(PROGRAM, kernels=(consume, produce)))
