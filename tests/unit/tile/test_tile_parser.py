"""Reading tile programs back: what is read prints the same, is well-formed, and is the same up to names of stages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neptune.errors import ExpressionError
from neptune.ir.expr import Const, Expr, Load, Op, Var
from neptune.ir.program import Buffer
from neptune.ir.program import Scalar as Size
from neptune.ops.attention import prefill_causal
from neptune.ops.softmax import softmax
from neptune.templates.flash_attention import flash_attention
from neptune.templates.stagewise import stagewise
from neptune.tile.ir import (
    Assign,
    Branch,
    Iota,
    LoadTile,
    Local,
    Loop,
    Scalar,
    StoreTile,
    TExpr,
    TileKernel,
    TileProgram,
)
from neptune.tile.parser import parse_tiles
from neptune.tile.pipeline import lower
from neptune.tile.verify import verify_tiles
from tests.examples import tile_examples
from tests.examples.lowering import scheduled


@pytest.mark.parametrize("tiles", [tile_examples.softmax(), tile_examples.attention()], ids=["softmax", "attention"])
def test_tiles_by_hand(tiles: TileProgram) -> None:
    again = parse_tiles(str(tiles), tiles)
    assert str(again) == str(tiles)
    verify_tiles(again)


def test_tiles_of_templates() -> None:
    for program in (scheduled(prefill_causal(depth=16), flash_attention), scheduled(softmax(), stagewise)):
        tiles = lower(program)
        again = parse_tiles(str(tiles), tiles)
        assert str(again) == str(tiles) and [k.grid for k in again.kernels] == [k.grid for k in tiles.kernels]
        verify_tiles(again)


N, STEP, P = Var("N"), Var("i"), Iota("p")
ROW = Op("add", (Scalar(STEP * 4), P), "int32")
X = LoadTile("x", (ROW,), Op("lt", (ROW, Scalar(N)), "bool"), float("-inf"), ("p",), "float32")
PLAIN = replace(X, mask=None, other=0.0)


def tiles_of(*values: TExpr) -> TileProgram:
    """A kernel that stores each value."""
    body = [s for k, v in enumerate(values) for s in (Assign(f"t{k}", v), StoreTile("y", (ROW,), v, None, ("p",)))]
    axes: tuple[tuple[str, Expr], ...] = (("p", Const(4, "int32")),)
    inputs = (Buffer("x", (N,), "float32"),)
    kernel = TileKernel("k", (), axes, (Loop("i", N * 0, N, tuple(body), (Op("lt", (STEP, N), "bool"),)),))
    return TileProgram("p", inputs, (Buffer("y", (N,), "float32"),), (), (Size("N"),), (), (kernel,))


@pytest.mark.parametrize(
    "e",
    [
        X,
        PLAIN,
        replace(PLAIN, index=(Op("mul", (Scalar(STEP + N), P), "int32"),)),
        replace(PLAIN, index=(Op("add", (P, Scalar(STEP - N)), "int32"),)),
        replace(PLAIN, index=(Op("sub", (Op("neg", (P,), "int32"), Scalar(Const(-1, "int32"))), "int32"),)),
        replace(PLAIN, index=(Op("add", (Scalar(Load("z", (STEP,), "int32")), P), "int32"),)),
    ],
)
def test_expressions(e: TExpr) -> None:
    tiles = tiles_of(e)
    tiles = replace(tiles, inputs=(*tiles.inputs, Buffer("z", (N,), "int32")))
    again = parse_tiles(str(tiles), tiles)
    assert str(again) == str(tiles)
    loop = again.kernels[0].body[0]
    assert isinstance(loop, Loop) and loop.facts and isinstance(loop.body[0], Assign) and loop.body[0].value == e


def test_bounds_and_conditions_read_scalar_locals() -> None:
    tiles = tiles_of(PLAIN)
    flag = Assign("flag", Scalar(Const(True, "bool")))
    (kernel,) = tiles.kernels
    body = (flag, Branch(Load("flag", (), "bool"), (Assign("t", Local("flag", (), "bool")),)))
    tiles = replace(tiles, kernels=(replace(kernel, body=body),))
    assert str(parse_tiles(str(tiles), tiles)) == str(tiles)


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("t<p> = (iota(p) + ", "line 3"),
        ("t<p> = q[iota(p)]<p>", "unknown buffer 'q'"),
        ("t<p> = where(iota(p), 1)", "expected ',', found ')'"),
        ("t = 1", "expected `name<dims> = …`"),
        ("t<p> = u", "unknown variable 'u'"),
    ],
)
def test_what_is_no_tile_program(line: str, wrong: str) -> None:
    tiles = tiles_of()
    with pytest.raises(ExpressionError) as caught:
        parse_tiles(f"tile program p\nkernel k  grid()  axes(p: 4)\n  {line}\n", tiles)
    assert wrong in str(caught.value)
