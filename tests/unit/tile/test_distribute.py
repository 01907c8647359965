"""distribute: one loop becomes several where its iterations are independent."""

from __future__ import annotations

import numpy as np
import pytest

from neptune.ir.decompose import decompose
from neptune.ir.program import For, Program, seq
from neptune.ir.text.parser import parse_program
from neptune.tile.translate import distribute
from tests.examples.schedule_examples import outputs

HEAD = """\
program p
  in x: f32[m, n]
  out y: f32[m, n]
  temp t: f32[m, n]
  temp r: f32[m]
  scalar m: i32 lo 1
  scalar n: i32 lo 1
body:
"""


def program(body: str) -> Program:
    return decompose(parse_program(HEAD + body))


def apart(p: Program) -> list[For] | None:
    assert isinstance(p.body, For)
    parts = distribute(p.body)
    return None if parts is None else [f for f in parts if isinstance(f, For)]


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("  for i in [0, m):\n    t: t[i, 0] = x[i, 0]\n    y: y[i, 0] = t[i, 0]\n", 2),
        (
            "  for i in [0, m):\n    for j in [0, n):\n      t: t[i, j] = x[i, j]\n      y: y[i, j] = t[i, j] + 1.0\n",
            2,
        ),
        (
            "  for i in [0, m):\n    for j in [0, n):\n      r: r[i] += x[i, j] init 0.0\n"
            "    for j in [0, n):\n      y: y[i, j] = r[i]\n",
            3,
        ),
        # A running sum: its columns keep their order, only the init comes off.
        (
            "  for i in [0, m):\n    for j in [0, n):\n      r: r[i] += x[i, j] init 0.0\n      y: y[i, j] = r[i]\n",
            2,
        ),
    ],
)
def test_results_are_kept(body: str, parts: int) -> None:
    p = program(body)
    found = apart(p)
    assert found is not None and len(found) == parts
    for sizes in ({"m": 1, "n": 1}, {"m": 3, "n": 5}):
        before = np.nan_to_num(outputs_or_poison(p, sizes))
        after = np.nan_to_num(outputs_or_poison(p.with_body(seq(*found)), sizes))
        np.testing.assert_array_equal(after, before)


def outputs_or_poison(p: Program, sizes: dict[str, int]) -> np.ndarray:
    """The output; elements that no stage writes are NaN and count as equal."""
    return np.asarray(outputs(p, sizes)["y"])


@pytest.mark.parametrize(
    "body",
    [
        "  for i in [0, m):\n    y: y[i, 0] = x[i, 0]\n",  # one part
        "  for i in [0, m):\n    r: r[0] = x[i, 0]\n    y: y[i, 0] = r[0]\n",  # one cell for all iterations
        "  for i in [0, m - 1):\n    r: r[i] = x[i, 0]\n    y: y[i, 0] = r[i + 1]\n",  # reads what comes later
        "  for i in [0, m):\n    for j in [0, n):\n      r: r[j] += x[i, j]\n    y: y[i, 0] = r[0]\n",
    ],
)
def test_dependent_iterations_stay_together(body: str) -> None:
    assert apart(program(body)) is None


def test_an_alloc_stays_around_its_users() -> None:
    body = "  for i in [0, m):\n    alloc v: f32[] @tile\n    v: v[] = x[i, 0]\n    y: y[i, 0] = v[]\n"
    assert apart(program(body)) is None
