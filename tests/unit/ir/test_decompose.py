"""decompose() puts the init of every reduction where its meaning says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from neptune.errors import InternalError
from neptune.ir.decompose import decompose
from neptune.ir.program import Program, Update, seq, stages
from neptune.ir.text.parser import parse_program
from neptune.ir.verify import verify
from tests.examples.strategies import programs

HEAD = """\
program p
  in x: f32[m, n]
  in len: i32[]
  out y: f32[m]
  scalar m: i32 lo 1
  scalar n: i32 lo 1
body:
"""


def check(before: str, after: str) -> None:
    program = parse_program(HEAD + before)
    verify(program)
    result = decompose(program)
    assert str(result).split("body:\n")[1] == after
    verify(result, lowered=True)


def test_init_goes_before_the_reduction_loop() -> None:
    check(
        """\
  for i in [0, m):
    for j in [0, n):
      s: y[i] += x[i, j] init 0.0
""",
        """\
  for i in [0, m):
    s_init: y[i] = 0.0
    for j in [0, n):
      s: y[i] += x[i, j]
""",
    )


def test_spatial_loops_inside_are_repeated_without_their_facts() -> None:
    check(
        """\
  for j in [0, n):
    for i in [0, m):
      fact i < j
      s: y[i] += x[i, j] init 0.0
""",
        """\
  for i in [0, m):
    s_init: y[i] = 0.0
  for j in [0, n):
    for i in [0, m):
      fact i < j
      s: y[i] += x[i, j]
""",
    )


def test_only_guards_that_are_known_there_restrict_the_init() -> None:
    check(
        """\
  for j in [0, n):
    for i in [0, m):
      if i < len[] and j < 5:
        s: y[i] += x[i, j] init 0.0 when i < 7 and j < i
""",
        """\
  for i in [0, m):
    s_init: y[i] = 0.0 when i < 7 and i < len[]
  for j in [0, n):
    for i in [0, m):
      if i < len[] and j < 5:
        s: y[i] += x[i, j] when i < 7 and j < i
""",
    )


def test_guards_on_what_the_loop_computes_do_not_restrict_the_init() -> None:
    check(
        """\
  for i in [0, m):
    for j in [0, n):
      alloc t: f32[] @tile
      t: t[] = x[i, j]
      s: y[i] += 1.0 init 0.0 when t[] < 2.0 and i < len[]
""",
        """\
  for i in [0, m):
    s_init: y[i] = 0.0 when i < len[]
    for j in [0, n):
      alloc t: f32[] @tile
      t: t[] = x[i, j]
      s: y[i] += 1.0 when t[] < 2.0 and i < len[]
""",
    )


def test_a_loop_around_the_alloc_is_no_reduction_loop() -> None:
    check(
        """\
  for i in [0, m) grid.x:
    alloc t: f32[] @tile
    for j in [0, n):
      t: t[] += x[i, j] init 0.0
    s: y[i] = t[]
""",
        """\
  for i in [0, m) grid.x:
    alloc t: f32[] @tile
    t_init: t[] = 0.0
    for j in [0, n):
      t: t[] += x[i, j]
    s: y[i] = t[]
""",
    )


def test_no_reduction_loop_puts_the_init_right_before() -> None:
    check(
        """\
  for i in [0, m):
    if i < len[]:
      s: y[i] += x[i, 0] init 1.0 when i < 3
""",
        """\
  for i in [0, m):
    if i < len[]:
      s_init: y[i] = 1.0 when i < 3
      s: y[i] += x[i, 0] when i < 3
""",
    )


def test_inits_of_one_loop_keep_program_order() -> None:
    text = """\
program p
  in x: f32[n]
  out a: f32[]
  out b: f32[]
  scalar n: i32
body:
  for j in [0, n):
    a: a[] max= x[j] init 0.0
    b: b[] += a[] init 1.0
"""
    names = [s.name for s in stages(decompose(parse_program(text)).body)]
    assert names == ["a_init", "b_init", "a", "b"]


def test_one_object_at_two_places() -> None:
    """A pass may use one statement twice; each occurrence gets its own init."""
    program = parse_program(HEAD + "  for i in [0, m):\n    for j in [0, n):\n      s: y[i] += x[i, j] init 0.0\n")
    once = decompose(program).body
    assert decompose(program.with_body(seq(program.body, program.body))).body == seq(once, once)


def test_bounds_that_are_not_known_before_the_loop_are_refused() -> None:
    text = "  for j in [0, n):\n    for i in [j, m):\n      s: y[i] += x[i, j] init 0.0\n"
    with pytest.raises(InternalError, match="bounds of loop 'i'"):
        decompose(parse_program(HEAD + text))


@settings(max_examples=40, deadline=None)
@given(programs())
def test_nothing_implicit_is_left(program: Program) -> None:
    result = decompose(program)
    verify(result)
    assert not any(isinstance(s.action, Update) and s.action.init is not None for s in stages(result.body))
    assert decompose(result) is result
    added = [s for s in stages(program.body) if isinstance(s.action, Update) and s.action.init is not None]
    assert len(stages(result.body)) == len(stages(program.body)) + len(added)
