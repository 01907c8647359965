"""Groups, and edges of masks, become small with the constants they belong to."""

from __future__ import annotations

import neptune
from neptune.ir.text.parser import parse_program
from neptune.ops.attention import attention, operator
from neptune.verify.exact import check_exact
from neptune.verify.shrink import edges_of, shrink

GROUPED = """program p
  in k: f32[8, n]
  out y: f32[32, n]
  scalar n: i32 lo 1
body:
  for h in [0, 32):
    for i in [0, n):
      y: y[h, i] = k[h // 4, i] * 2.0
"""
PACKED = GROUPED.replace("for h in [0, 32):", "for h0 in [0, 8):\n    for h1 in [0, 4):")
PACKED = PACKED.replace("y[h, i] = k[h // 4, i]", "y[h0 * 4 + h1, i] = k[h0, i]").replace("    for i", "      for i")
PACKED = PACKED.replace("      y:", "        y:")
EDGE = """program p
  in x: f32[n]
  out y: f32[n]
  scalar n: i32 lo 1
body:
  for i in [0, n):
    y: y[i] = select(n - i < 4096, x[i], 0.0)
"""


TILED = """program p
  in x: f32[n]
  out y: f32[n]
  scalar n: i32 lo 1
body:
  for i0 in [0, (n + 127) // 128):
    for i1 in [0, 128):
      y: y[i0 * 128 + i1] = x[i0 * 128 + i1] when i0 * 128 + i1 < n
"""


def test_tiles_of_a_loop_that_rounds_up_become_small_in_one_piece() -> None:
    program = parse_program(TILED)
    (small,) = shrink(program)
    assert "(n + 1) // 2" in str(small) and "128" not in str(small) and "127" not in str(small)
    assert edges_of(program) == (128,)
    once = parse_program(TILED.replace("(n + 127) // 128", "1"))
    assert check_exact(program, program).accepted and check_exact(program, once).verdict == "rejected"


def test_tiles_that_do_not_divide_a_constant_extent_stay() -> None:
    rows = TILED.replace("f32[n]", "f32[300, n]").replace("x[i0", "x[0, i0").replace("y[i0", "y[0, i0")
    more = "  for r0 in [0, 3):\n    for r1 in [0, 128):\n      z: y[r0 * 128 + r1, 0] = 0.0 when r0 * 128 + r1 < 300\n"
    assert "128" in str(shrink(parse_program(rows + more))[0])


def test_heads_stay_a_multiple_of_their_groups() -> None:
    original, packed = shrink(parse_program(GROUPED), parse_program(PACKED))
    assert "[4, n]" in str(original) and "h // 2" in str(original)
    assert "h0 * 2 + h1" in str(packed)
    assert check_exact(parse_program(GROUPED), parse_program(PACKED)).accepted
    wrong = parse_program(PACKED.replace("k[h0, i]", "k[h1, i]"))
    assert check_exact(parse_program(GROUPED), wrong).verdict == "rejected"


def test_an_extent_of_a_step_shrinks_with_it() -> None:
    """(h0 - 1) * 4 + 1 is written h0 * 4 - 3: what becomes h0 * 2 is h0 * 2 - 1."""
    strided = parse_program(PACKED.replace("for i in [0, n)", "for i in [0, 4 * n - 3)").replace("n]", "4 * n - 3]"))
    (small,) = shrink(strided)
    assert "h0 * 2 + h1" in str(small) and "2 * n - 1]" in str(small)


def test_heads_that_are_as_many_as_a_tile_stay_a_multiple_of_their_groups() -> None:
    """32 heads of 2 beside tiles of 32, which are not 2 long because of that: k would have more heads than q."""
    tiled = parse_program(TILED.replace("127", "31").replace("128", "32"))
    heads, tiles = shrink(parse_program(GROUPED.replace("[8, n]", "[16, n]").replace("// 4", "// 2")), tiled)
    assert "f32[4, n]" in str(heads) and "f32[2, n]" in str(heads) and "h // 2" in str(heads)
    assert "(n + 3) // 4" in str(tiles) and "[0, 32)" not in str(tiles)


def test_an_edge_becomes_small_and_keeps_its_neighbours() -> None:
    one, two = parse_program(EDGE), parse_program(EDGE.replace("n - i < 4096", "n - i <= 4095"))
    assert edges_of(one, two) == (4095, 4096)
    assert "4096" not in str(shrink(one, two)[0])
    assert check_exact(one, two).accepted
    report = check_exact(one, parse_program(EDGE.replace("< 4096", "<= 4096")))
    assert report.verdict == "rejected" and report.counterexample is not None
    assert report.counterexample.sizes["n"] >= 4096, "confirmed on the program as it is"


def test_a_constant_that_is_also_an_index_stays() -> None:
    program = parse_program(EDGE.replace("x[i], 0.0", "x[4096], 0.0").replace("f32[n]", "f32[n + 4096]"))
    assert "4096" in str(shrink(program)[0])


def test_the_windows_of_attention_are_exercised() -> None:
    (small,) = shrink(operator("prefill_window"))
    assert "4096" not in str(small) and "128" not in str(small)


ROWS = """program p
  in q: f32[10, 16]
  out o: f32[10, 16]
body:
  for h in [0, 2):
    for r in [0, (80 + 31) // 32):
      for i in [0, 32):
        o: o[h * 5 + (r * 32 + i) % 5, (r * 32 + i) // 5] = q[h * 5 + (r * 32 + i) % 5, (r * 32 + i) // 5] \
when r * 32 + i < 80
"""


def test_rows_of_several_heads_are_as_many_as_heads_times_queries() -> None:
    """80 rows of 5 heads with 80 made 4 and 5 made 3 were read beyond the queries."""
    program = parse_program(ROWS)
    (small,) = shrink(program)
    assert "< 80" in str(small) and "// 5" in str(small)
    assert check_exact(program, program).accepted


def test_a_group_that_does_not_divide_a_tile_is_packed() -> None:
    program = attention(2, 10, 128, kv_heads=2, queries=16, causal=True)
    kernel = neptune.compile(program, "flash_attention", target="cuda:90")
    assert "pack" in kernel.explain() and {c.verdict for c in kernel.build.checks.values()} == {"accepted"}
