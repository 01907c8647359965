"""Small instances of programs: what is drawn, and what drawing costs."""

from __future__ import annotations

import tracemalloc

import numpy as np

from neptune.ir.text.parser import parse_program
from neptune.verify.instances import draw_sizes

EDGE = 1 << 21
COPY = "program p\n  in x: f32[n]\n  out y: f32[n]\n  scalar n: i32 lo {lo}\nbody:\n"
COPY += "  for i in [0, n):\n    y: y[i] = x[i] when i < 2097152\n"


def test_sizes_near_a_far_edge_cost_no_memory() -> None:
    program = parse_program(COPY.format(lo=1))
    tracemalloc.start()
    drawn = {draw_sizes(program, program, np.random.default_rng(k), near=[EDGE])["n"] for k in range(20)}
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert min(drawn) < EDGE < max(drawn)
    # All sizes up to the edge, listed, take 16 million bytes and more.
    assert peak < EDGE


def test_bounds_and_divisors_are_kept() -> None:
    program = parse_program(COPY.format(lo=5).replace("lo 5", "lo 5 hi 9 divisor 4"))
    assert {draw_sizes(program, program, np.random.default_rng(k))["n"] for k in range(9)} == {8}
