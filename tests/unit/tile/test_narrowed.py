"""Which programs are one but for the widths of their indices, and that one exact check is then made of both."""

from __future__ import annotations

from dataclasses import replace

import pytest

import neptune
from neptune.ir.expr import Cast, Const, rewrite
from neptune.ir.program import Buffer
from neptune.ops.attention import operator
from neptune.tile.ir import Assign, Local, Scalar, TExpr, TileProgram, map_stmt
from neptune.tile.verify import narrowed, same_but_widths

WIDE = "tile program in 64 bits"
GROUP = Const(8, "int64")


@pytest.fixture(scope="module")
def packed() -> neptune.Kernel:
    return neptune.compile(operator("prefill_gqa"), "packed_attention", target="cuda:90")


def groups_of(tiles: TileProgram, heads: int) -> TileProgram:
    """The program with another number in place of its group of heads, wherever indices are computed in 64 bits."""

    def other(e: TExpr) -> TExpr | None:
        if not isinstance(e, Scalar):
            return None
        return Scalar(rewrite(e.expr, lambda x: replace(GROUP, value=heads) if x == GROUP else None))

    kernels = (replace(k, body=tuple(map_stmt(s, lambda e: rewrite(e, other)) for s in k.body)) for k in tiles.kernels)
    return replace(tiles, kernels=tuple(kernels))


def test_arithmetic_in_64_bits_is_the_same_and_checked_once(packed: neptune.Kernel) -> None:
    tiles, wide = packed.build.tiles, packed.build.wider[1]
    assert "i64" not in str(tiles) and "i64" in str(wide) and "i64" not in str(narrowed(wide))
    assert same_but_widths(tiles, wide)
    assert WIDE not in packed.build.checks and packed.build.checks["tile program"].accepted


def test_other_arithmetic_is_not_the_same(packed: neptune.Kernel) -> None:
    tiles, wide = packed.build.tiles, packed.build.wider[1]
    assert same_but_widths(tiles, groups_of(wide, GROUP.value)) and groups_of(wide, 2) != wide
    assert not same_but_widths(tiles, groups_of(wide, 2))


def test_where_integers_are_data_both_are_checked(packed: neptune.Kernel) -> None:
    table = Buffer("table", (), "int32")
    tiles, wide = (replace(p, inputs=(*p.inputs, table)) for p in (packed.build.tiles, packed.build.wider[1]))
    assert not same_but_widths(tiles, wide)


def test_a_float_that_is_cut_to_64_bits_is_not_one_that_is_cut_to_32(packed: neptune.Kernel) -> None:
    tiles, x = packed.build.tiles, Local("x", (), "float32")

    def cut(dtype: str) -> TileProgram:
        return replace(tiles, kernels=(replace(tiles.kernels[0], body=(Assign("n", Cast(x, dtype)),)),))

    assert same_but_widths(cut("int32"), cut("int32")) and not same_but_widths(cut("int32"), cut("int64"))
