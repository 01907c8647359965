"""Sums of products, and why others are no products of matrices."""

from __future__ import annotations

import pytest

from neptune.ir.contraction import NOT_MATRICES, Contraction, NoProduct, contraction, matrix_product
from neptune.ir.program import Store, Update, stages
from neptune.ir.text.parser import parse_program
from neptune.ir.text.printer import print_expr

HEAD = """\
program p
  in x: f32[4, 4, 4]
  in w: f32[4, 4, 4]
  in u: f16[4, 4, 4]
  in n: f64[4]
  out y: f32[4, 4, 4]
  out z: f16[4, 4, 4]
  out d: f64[4, 4, 4]
body:
"""
AXES = ("h", "i", "j", "k")


def action(text: str) -> Store | Update:
    loops = "".join(f"{'  ' * (n + 1)}for {a} in [0, 4):\n" for n, a in enumerate(AXES))
    return stages(parse_program(f"{HEAD}{loops}          s: {text}\n").body)[0].action


CASES = {
    "plain": ("y[h, i, j] += x[0, i, k] * w[0, k, j]", ("i",), ("j",), ("k",)),
    "batched": ("y[h, i, j] += x[h, i, k] * w[h, k, j]", ("i",), ("j",), ("k",)),
    "heads of one operand": ("y[h, i, j] += x[h, i, k] * w[0, j, k]", ("h", "i"), ("j",), ("k",)),
    "columns first": ("y[h, i, j] += w[0, k, j] * x[0, i, k]", ("j",), ("i",), ("k",)),
    "two depths": ("y[0, i, j] += x[h, i, k] * w[h, k, j]", ("i",), ("j",), ("h", "k")),
    "a vector": ("y[0, 0, i] += x[0, i, k] * w[0, 0, k]", ("i",), (), ("k",)),
    "an outer product": ("y[0, i, j] += x[0, 0, i] * w[0, 0, j]", ("i",), ("j",), ()),
}


@pytest.mark.parametrize(("text", "rows", "cols", "depth"), CASES.values(), ids=CASES.keys())
def test_axes(text: str, rows: tuple[str, ...], cols: tuple[str, ...], depth: tuple[str, ...]) -> None:
    found = contraction(action(text), AXES)
    assert found is not None and (found.rows, found.cols, found.depth) == (rows, cols, depth)
    assert found.of_matrices == all((rows, cols, depth)) == (matrix_product(action(text), AXES) == found)
    assert (found.flipped.rows, found.flipped.a, found.flipped.flipped) == (cols, found.b, found)


def test_operands_stand_without_the_cast_that_makes_their_product_exact() -> None:
    found = matrix_product(action("y[h, i, j] += cast(f32, u[h, i, k]) * exp(cast(f32, u[h, k, j]))"), AXES)
    assert isinstance(found, Contraction) and found.dtype == "float32"
    assert (print_expr(found.a), print_expr(found.b)) == ("u[h, i, k]", "exp(cast(f32, u[h, k, j]))")


NONE = {
    "y[h, i, j] = x[h, i, k] * w[h, k, j]": "is a map",
    "y[h, i, j] max= x[h, i, k] * w[h, k, j]": "is no sum of products: max of x[h, i, k] * w[h, k, j]",
    "y[h, i, j] += x[h, i, k]": "is no sum of products: sum of x[h, i, k]",
    "z[h, i, j] += u[h, i, k] * u[h, k, j]": "multiplies in float16 and sums in float16",
    "y[h, i, j] += cast(f32, u[h, i, k] * u[h, k, j])": "multiplies in float16 and sums in float32",
    "z[h, i, j] += cast(f16, x[h, i, k] * w[h, k, j])": "multiplies in float32 and sums in float16",
    "d[h, i, j] += cast(f64, x[h, i, k]) * n[k]": "multiplies in float64",
    "y[h, i, j] += x[h, i, k] * w[h, i, k]": NOT_MATRICES.wrong,
}


@pytest.mark.parametrize("text", NONE)
def test_no_product_says_why(text: str) -> None:
    found = matrix_product(action(text), AXES)
    assert isinstance(found, NoProduct) and found.wrong.startswith(NONE[text])
