"""Constructors of expressions: lifting, typing, integer folding; and the traversals."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import neptune
from neptune.frontend.builder import build, compute, placeholder
from neptune.ir.expr import (
    FALSE,
    TRUE,
    Cast,
    Const,
    Expr,
    Load,
    Op,
    Select,
    Var,
    as_expr,
    binary,
    cast,
    ceildiv,
    children,
    conjuncts,
    eq,
    loads,
    logical_and,
    logical_or,
    maximum,
    minimum,
    ne,
    op,
    rebuild,
    rewrite,
    select,
    substitute,
    variables,
    walk,
)
from tests.examples.strategies import Names, exprs

i, j, a, p = Var("i"), Var("j"), Var("a", "float32"), Var("p", "bool")
NAMES = Names(loops={"i": Var("m")})


def test_numbers_take_the_other_side_s_dtype() -> None:
    assert a + 1 == Op("add", (a, Const(1.0, "float32")), "float32")
    assert 2 - Var("h", "float16") == Op("sub", (Const(2.0, "float16"), Var("h", "float16")), "float16")
    assert 1 + Var("k", "int64") == Op("add", (Const(1, "int64"), Var("k", "int64")), "int64")
    assert as_expr(True) == TRUE and as_expr(1.5) == Const(1.5, "float32") and as_expr(3) == Const(3, "int32")


def test_operators_build_their_nodes() -> None:
    built = [a * 2.0, a / 2.0, 1.0 / a, i // 2, i % 2, -a, i < j, i <= j, i > j, i >= j, eq(i, j), ne(i, j)]
    names = ["mul", "div", "div", "floordiv", "mod", "neg", "lt", "le", "gt", "ge", "eq", "ne"]
    assert [e.name for e in built if isinstance(e, Op)] == names
    assert [e.dtype for e in built] == ["float32"] * 3 + ["int32"] * 2 + ["float32"] + ["bool"] * 6


def test_int32_meets_int64_as_int64() -> None:
    k = Var("k", "int64")
    assert i + k == Op("add", (Cast(i, "int64"), k), "int64")


def test_zeros_of_either_sign_are_two_constants() -> None:
    zero, negative, nan = Const(0.0, "float32"), Const(-0.0, "float32"), Const(math.nan, "float32")
    assert zero != negative and zero == Const(0.0, "float32") and len({zero, negative}) == 2
    assert nan == Const(-math.nan, "float32") and len({nan, Const(float("nan"), "float32")}) == 1
    x = placeholder((4,), name="x")
    texts = [str(build(compute((4,), lambda i, z=z: 1 / (x[i] + z), "y"), name="p")) for z in (0.0, -0.0)]
    assert texts[0] != texts[1]
    kernels = [
        neptune.compile(build(compute((4,), lambda i, z=z: 1 / (x[i] * z), "y"), name="p"), target="llvm")
        for z in (0.0, -0.0)
    ]
    results = [kernel(torch.ones(4)) for kernel in kernels]
    assert bool((results[0] == math.inf).all()) and bool((results[1] == -math.inf).all())


def test_equality_is_structural_and_truth_is_refused() -> None:
    assert i + j == i + j and i + j != j + i
    with pytest.raises(TypeError, match="no truth value"):
        bool(i < j)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: op("foo", i),
        lambda: op("add", i),
        lambda: op("add", i, a),
        lambda: op("and", i, i),
        lambda: op("exp", i),
        lambda: op("div", i, i),
        lambda: op("mod", a, a),
        lambda: select(i, a, a),
        lambda: select(p, a, i),
        lambda: as_expr("x"),  # type: ignore[arg-type]
    ],
)
def test_ill_typed_expressions_are_refused(wrong: Callable[[], Expr]) -> None:
    with pytest.raises(TypeError):
        wrong()


@pytest.mark.parametrize(
    ("folded", "expected"),
    [
        (i + 0, i),
        (0 + i, i),
        (i - 0, i),
        (i * 1, i),
        (i * 0, Const(0, "int32")),
        (i // 1, i),
        (Const(-7, "int32") // 2, Const(-4, "int32")),
        (Const(-7, "int32") % 4, Const(1, "int32")),
        (minimum(i, i), i),
        (maximum(3, Const(5, "int32")), Const(5, "int32")),
        (ceildiv(7, 2), Const(4, "int32")),
        (cast(Const(3, "int32"), "int64"), Const(3, "int64")),
        (cast(a, "float32"), a),
        (select(TRUE, i, j), i),
        (select(FALSE, i, j), j),
        (logical_and(p, TRUE), p),
        (logical_and(p, FALSE), FALSE),
        (logical_or(FALSE, p), p),
        (logical_or(p, TRUE), TRUE),
        (logical_and(), TRUE),
        (logical_or(), FALSE),
    ],
)
def test_integers_and_bools_fold(folded: Expr, expected: Expr) -> None:
    assert folded == expected


def test_floats_do_not_fold() -> None:
    for e in (a * 0.0, a + 0.0, a - a, a / a, maximum(a, a), Const(1.0, "float32") + 1.0):
        assert isinstance(e, Op)
    assert isinstance(cast(Const(1.0, "float32"), "float16"), Cast)


def test_division_by_zero_does_not_fold() -> None:
    assert isinstance(binary("floordiv", Const(1, "int32"), 0), Op)
    assert isinstance(binary("mod", Const(1, "int32"), 0), Op)


TABLE: dict[str, Callable[[int, int], int]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "floordiv": lambda x, y: x // y,
    "mod": lambda x, y: x % y,
    "min": min,
    "max": max,
}


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(TABLE)), st.integers(-9, 9), st.integers(-9, 9))
def test_folding_keeps_the_value(name: str, x: int, y: int) -> None:
    """Folding before and after the variables are known gives the same number."""
    if name in ("floordiv", "mod") and y == 0:
        return
    expected = Const(TABLE[name](x, y), "int32")
    env: dict[str, Expr] = {"i": Const(x, "int32"), "j": Const(y, "int32")}
    for left, right in ((i, j), (Const(x, "int32"), j), (i, Const(y, "int32"))):
        assert substitute(binary(name, left, right), env) == expected
    if name == "floordiv":
        assert expected.value == math.floor(Fraction(x, y))


@settings(max_examples=60, deadline=None)
@given(exprs("float32", NAMES))
def test_rebuild_is_the_identity_on_built_expressions(e: Expr) -> None:
    for node in walk(e):
        assert rebuild(node, children(node)) == node
    assert rewrite(e, lambda x: None) is e


def test_traversals() -> None:
    inner = Load("idx", (j,), "int32")
    e = select(i < j, Load("x", (i, inner), "float32"), cast(Var("h", "float16"), "float32"))
    assert variables(e) == {"i", "j", "h"}
    assert [x.buffer for x in loads(e)] == ["x", "idx"]
    assert isinstance(e, Select) and children(e) == (e.pred, e.then, e.other)
    assert next(walk(e)) is e


def test_substitute_replaces_inside_indices_and_folds() -> None:
    e = Load("x", (i + j,), "float32")
    assert substitute(e, {"j": Const(0, "int32")}) == Load("x", (i,), "float32")
    assert substitute(e, {}) is e


def test_rewrite_does_not_revisit() -> None:
    assert rewrite(i + j, lambda x: i + i if x == i else None) == (i + i) + j


def test_conjuncts() -> None:
    parts = [i < j, p, op("not", p)]
    assert conjuncts(logical_and(*parts)) == parts
    assert conjuncts(None) == [] and conjuncts(TRUE) == [] and conjuncts(op("or", p, p)) == [op("or", p, p)]
