"""Sums in lanes of float64 compute what the loop computes, whatever its bounds and conditions."""

from __future__ import annotations

import numpy as np
import pytest

from neptune.codegen.for_cpu import LANES, in_partial_sums, widened
from neptune.ir.evaluate.program import evaluate
from neptune.ir.program import Alloc, For, walk
from neptune.ir.text.parser import parse_program
from neptune.ir.verify import verify

ROWS = """program rows
  in x: f32[m, n]
  in w: f32[n]
  out y: f32[m]
  scalar m: i32 lo 1
  scalar n: i32 lo 1
  made s_init as init of s
body:
  for i in [0, m):
    alloc t: f32[1] @tile
    s_init: t[0] = 0.0
    for j in [{lo}, {hi}):
      s: t[0] += {value} {when}
    y: y[i] = t[0] * 2.0
"""
BOUNDS = [("0", "n"), ("1", "n"), ("n // 2", "n"), ("i", "n"), ("0", "n - i"), ("n", "i // 8")]
WHENS = [
    "", "when j < n - 1", "when j + i < n and 0 < i", "when i < 1", "when w[j] < 0.5", "when j % 2 == 0",
    "when j < i - 2", "when 2 * j < n",
]  # fmt: skip


def rows(lo: str = "0", hi: str = "n", when: str = "", value: str = "x[i, j] * w[j]"):
    return parse_program(ROWS.format(lo=lo, hi=hi, when=when, value=value))


def results(program, n: int, m: int = 3) -> np.ndarray:
    draw = np.random.default_rng(n)
    given = {"x": draw.normal(size=(m, n)) + 1.0, "w": draw.normal(size=n)}
    return evaluate(program, given, {"m": m, "n": n})["y"]


@pytest.mark.parametrize("when", WHENS)
@pytest.mark.parametrize("bounds", BOUNDS)
def test_the_sum_is_the_same(bounds: tuple[str, str], when: str) -> None:
    program = rows(*bounds, when)
    made = in_partial_sums(program)
    verify(made, lowered=True)
    assert sum(isinstance(s, Alloc) for s in walk(made.body)) == 2
    for n in (1, 2, LANES - 1, LANES, LANES + 1, 3 * LANES + 5):
        np.testing.assert_allclose(results(made, n), results(program, n), rtol=1e-12, atol=1e-12)


def test_a_sum_that_reads_itself_is_left() -> None:
    program = rows(value="x[i, j] + t[0]")
    made = in_partial_sums(program)
    assert sum(isinstance(s, For) for s in walk(made.body)) == sum(isinstance(s, For) for s in walk(program.body))


def test_other_folds_are_left() -> None:
    program = parse_program(ROWS.format(lo="0", hi="n", value="x[i, j]", when="").replace("+=", "max="))
    assert in_partial_sums(program) == program


def test_what_is_stored_from_a_sum_to_itself_stays_float64() -> None:
    text = ROWS.format(lo="0", hi="n", value="x[i, j]", when="").replace("    y:", "    r: t[0] = t[0] * w[0]\n    y:")
    made = str(widened(parse_program(text)))
    assert "alloc t: f64[1]" in made and "t[0] = t[0] * cast(f64, w[0])" in made
    assert "y[i] = cast(f32, t[0]) * 2.0" in made
