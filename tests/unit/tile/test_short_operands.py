"""short_operands: products of what was widened read the 16-bit numbers."""

from __future__ import annotations

import pytest

import neptune
from bench.chain_programs import ROW_CHAINS
from bench.chains import fusing
from neptune.ir.expr import Cast, Const, Op
from neptune.tile.ir import Assign, Branch, Dot, Local, Rearrange, StoreTile, TExpr, TileKernel, TStmt, walk_stmts
from neptune.tile.passes.short_operands import short_operands
from tests.examples.kernels import N, loop

X, W = Local("x", ("r", "c"), "float16"), Local("w", ("c", "k"), "float16")
Z = Local("z", ("r", "c"), "float32")
WIDENED = Assign("z", Cast(X, "float32"))


def multiplied(a: TExpr, b: TExpr) -> Assign:
    return Assign("y", Dot(a, b, None))


def passed(*body: TStmt) -> tuple[TStmt, ...]:
    """A body that stores `y`, after the pass."""
    store = StoreTile("out", (), Local("y", ("r", "k"), "float32"), None, ("r", "k"))
    axes = tuple((a, Const(16, "int32")) for a in ("r", "c", "k"))
    return short_operands(TileKernel("k", (), axes, (*body, store))).body[:-1]


def operands(body: tuple[TStmt, ...]) -> list[tuple[TExpr, TExpr]]:
    found = [s.value for s in walk_stmts(body) if isinstance(s, Assign)]
    return [(e.a, e.b) for e in found if isinstance(e, Dot)]


def test_a_product_reads_what_was_widened() -> None:
    body = passed(WIDENED, multiplied(Z, Cast(W, "float32")))
    assert body == (multiplied(X, W),)


def test_also_turned_and_in_a_loop() -> None:
    turned = Rearrange(Local("w", ("k", "c"), "float16"), "k c -> c k")
    wide = Rearrange(Cast(turned.arg, "float32"), turned.pattern)
    body = passed(WIDENED, loop(multiplied(Z, wide)))
    assert operands(body) == [(X, turned)] and len(body) == 1


def test_the_cast_stays_where_something_else_reads_it() -> None:
    doubled = Assign("d", Op("add", (Z, Z), "float32"))
    stored = StoreTile("z", (), Local("d", Z.dims, "float32"), None, Z.dims)
    body = passed(WIDENED, doubled, stored, multiplied(Z, Cast(W, "float32")))
    assert WIDENED in body and operands(body) == [(X, W)]


CHANGED = Assign("x", Op("add", (X, X), "float16"))


@pytest.mark.parametrize(
    "body",
    [
        (WIDENED, multiplied(Z, Local("w", W.dims, "float32"))),
        (WIDENED, multiplied(Z, Cast(Local("w", W.dims, "bfloat16"), "float32"))),
        (WIDENED, CHANGED, multiplied(Z, Cast(W, "float32"))),
        (WIDENED, Assign("z", Op("mul", (Z, Z), "float32")), multiplied(Z, Cast(W, "float32"))),
        (WIDENED, loop(multiplied(Z, Cast(W, "float32")), CHANGED)),
        (Branch(N > 1, (WIDENED,)), multiplied(Z, Cast(W, "float32"))),
    ],
    ids=["one_wide", "two_kinds", "source_changes", "cast_changes", "next_iteration", "in_a_branch"],
)
def test_others_stay(body: tuple[TStmt, ...]) -> None:
    assert operands(passed(*body)) == operands(body)


def test_a_scale_that_is_deferred_leaves_a_product_for_the_matrix_unit() -> None:
    (chain,) = [c for c in ROW_CHAINS if c.name == "abs_max_matmul"]
    (found,) = neptune.compile(chain.build(64), fusing(chain.build(64)), target="interpret").resources("cuda:90")
    assert (found.matrix, found.spill_bytes) == ("wgmma", 0)


EIGHT = Local("w", ("c", "k"), "float8_e4m3fn")


@pytest.mark.parametrize(
    ("of_x", "dtype", "operands_"),
    [
        ("float8_e4m3fn", "float8_e4m3fn", ("float8_e4m3fn", "float8_e4m3fn")),
        ("float8_e5m2", "float16", ("float16", "float16")),
        ("float16", "float16", ("float16", "float16")),
        ("bfloat16", "bfloat16", ("bfloat16", "bfloat16")),
    ],
)
def test_8_bits_beside_others(of_x: str, dtype: str, operands_: tuple[str, str]) -> None:
    """Two alike stay; beside a 16-bit float, or another 8-bit one, the product is of 16 bits."""
    x = Local("x", X.dims, of_x)
    ((a, b),) = operands(passed(multiplied(Cast(x, "float32"), Cast(EIGHT, "float32"))))
    assert (a.dtype, b.dtype) == operands_
    assert a in (x, Cast(x, dtype)) and b in (EIGHT, Cast(EIGHT, dtype))


def test_8_bits_beside_float32_stay_wide() -> None:
    product = multiplied(Local("z", X.dims, "float32"), Cast(EIGHT, "float32"))
    assert passed(product) == (product,)
