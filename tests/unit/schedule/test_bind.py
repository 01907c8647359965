"""bind: what is spread over the grid is independent, and what is not is refused."""

from __future__ import annotations

import pytest

from neptune.errors import ScheduleError
from neptune.fusion.schedule import Schedule
from neptune.ir.program import For
from neptune.ir.text.parser import parse_program
from neptune.schedule.primitives.bind import check_independent, is_independent
from tests.examples.schedule_examples import check_same, matmul, row_sums

HEAD = """\
program p
  in x: f32[n]
  in idx: i32[n]
  out y: f32[n]
  temp t: f32[n]
  scalar n: i32 lo 1
  tunable B in {4}
body:
"""


def loop(body: str) -> For:
    s = parse_program(HEAD + body).body
    assert isinstance(s, For)
    return s


def test_bind_keeps_the_meaning() -> None:
    sch = Schedule(matmul())
    i, j, _ = sch.loops("c")
    i0, j0, _, _ = sch.tile([i, j], [sch.param("BM", [2]), sch.param("BN", [2])])
    sch.fuse_at("d", j0)
    sch.bind([i0, j0], ["grid.y", "grid.x"])
    assert "grid.y" in str(sch.program) and "grid.x" in str(sch.program)
    check_same(matmul(), sch.program)


def test_bind_with_a_reduction_inside() -> None:
    sch = Schedule(row_sums())
    i, _ = sch.loops("e")
    sch.fuse_at("r", i)
    sch.fuse_at("y", i)
    sch.bind(i, "grid.x")
    check_same(row_sums(), sch.program)


@pytest.mark.parametrize(
    "body",
    [
        "  for i in [0, n):\n    y: y[i] = x[i]\n",
        "  for i in [0, n // B):\n    for j in [0, B):\n      y: y[i*B + j] = x[j]\n",
        "  for i in [0, n):\n    for j in [0, 2):\n      for k in [0, 3):\n        y: y[i*6 + j*3 + k] = x[j]\n",
        # Both sides of a stage lie in the iteration's own tile.
        "  for i in [0, n // B):\n    for j in [0, B):\n      t: t[i*B + j] = x[j]\n"
        "    for k in [0, B):\n      y: y[i*B + k] = t[i*B + k]\n",
        "  for i in [0, n):\n    alloc v: f32[] @tile\n    v: v[] = x[i]\n    y: y[i] = v[]\n",
        # Told apart by the remainder: every B-th element, and tiles of two so.
        "  for i in [0, B):\n    for q in [0, n // B):\n      y: y[q*B + i] = x[q]\n",
        "  for i in [0, B):\n    for q in [0, n // B):\n      for j in [0, 2):\n        y: y[q*B*2 + i*2 + j] = x[q]\n",
    ],
)
def test_independent(body: str) -> None:
    assert is_independent(loop(body))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("  for i in [0, n):\n    y: y[0] += x[i]\n", "reduces over `i`"),
        ("  for i in [0, n):\n    y: y[0] = x[i]\n", "the same elements of `y`"),
        # Windows that overlap: a tile of 4 every 3 elements.
        ("  for i in [0, n // B):\n    for j in [0, 4):\n      y: y[i*3 + j] = x[j]\n", "that others write"),
        ("  for i in [0, n // B):\n    for j in [0, B + 1):\n      y: y[i*B + j] = x[j]\n", "that others write"),
        # Remainders that meet: one too many of them, and a stride that is no multiple of their number.
        ("  for i in [0, B + 1):\n    for q in [0, n // B):\n      y: y[q*B + i] = x[q]\n", "of `y` that others write"),
        ("  for i in [0, B):\n    for q in [0, n // B):\n      y: y[q*3 + i] = x[q]\n", "of `y` that others write"),
        (
            "  for i in [0, B):\n    for q in [0, B):\n      for j in [0, 3):\n        y: y[q*B*2 + i*2 + j] = x[q]\n",
            "of `y`",
        ),
        # The same stride, read at an offset.
        ("  for i in [0, n):\n    t: t[i] = x[i]\n    y: y[i] = t[i + 1]\n", "of `t` that others write"),
        ("  for i in [0, n):\n    t: t[i] = x[i]\n    y: y[i] = t[i*2]\n", "of `t` that others write"),
        ("  for i in [0, n):\n    t: t[i] = x[i]\n    y: y[i] = t[idx[i]]\n", "of `t` that others write"),
        ("  for i in [0, n):\n    for j in [0, n):\n      t: t[i] = x[i]\n      y: y[i] = t[j]\n", "of `t`"),
        ("  for i in [0, n):\n    t: t[i] = x[i]\n    y: y[i] = 1.0 when t[0] < 2.0\n", "of `t`"),
        ("  for i in [0, n):\n    y: y[i // 2] = x[i]\n", "of `y` that others write"),
    ],
)
def test_dependent(body: str, reason: str) -> None:
    with pytest.raises(ScheduleError, match=reason):
        check_independent(loop(body), "bind")


PACKED = """\
program p
  in x: f32[n]
  out y: f32[12, n]
  scalar n: i32 lo 1
  tunable B in {4}
body:
  for h in [0, 3):
    for r0 in [0, (n * 4 + (B - 1)) // B):
      for r1 in [0, B):
        a: y[ROW] = x[(r0 * B + r1) // 4] when r0 * B + r1 < n * 4
"""


@pytest.mark.parametrize(
    ("row", "independent"),
    [
        ("h * 4 + (r0 * B + r1) % 4, (r0 * B + r1) // 4", ["h", "r0"]),
        # Rows of two groups meet, and so do those of one.
        ("h * 3 + (r0 * B + r1) % 4, (r0 * B + r1) // 4", ["r0"]),
        ("h * 4 + (r0 * B + r1) % 4, (r0 * B + r1) // 5", ["h"]),
        ("h * 4 + (r0 * B + r1) % 4, (r0 * B + r1 + 1) // 4", ["h"]),
        ("h * 4 + (r0 * B) % 4, (r0 * B) // 4", ["h", "r0"]),
        ("r1 % 4 + (r0 * B + r1) % 4, (r0 * B + r1) // 4", []),
    ],
)
def test_rows_given_by_a_quotient_and_a_remainder(row: str, independent: list[str]) -> None:
    program = parse_program(PACKED.replace("ROW", row))
    h = program.body
    assert isinstance(h, For) and isinstance(h.body, For)
    assert [f.var for f in (h, h.body) if is_independent(f, program)] == independent
