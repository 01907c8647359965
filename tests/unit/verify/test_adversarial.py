"""Programs that are wrong in a corner only: every one is rejected at a compilation's own number of draws."""

from __future__ import annotations

import pytest

from neptune.config import DRAWS
from neptune.ir.program import Program
from neptune.ir.text.parser import parse_program
from neptune.verify.exact import check_exact

SOFTMAX_SUM = """program p
  in x: f32[rows, n]
  out l: f32[rows]
  temp m: f32[rows]
  scalar rows: i32 lo 1
  scalar n: i32 lo 1
body:
  for i in [0, rows):
    for j in [0, n):
      m: m[i] max= x[i, j] init -3.4028234663852886e+38
  for i in [0, rows):
    for j in [0, n):
      l: l[i] += exp(x[i, j] - m[i]) init 0.0
"""

ONLINE = """program p
  in x: f32[rows, n]
  out l: f32[rows]
  scalar rows: i32 lo 1
  scalar n: i32 lo 1
  tunable T in {16, 32}
body:
  for i in [0, rows) grid.x:
    alloc m: f32[] @tile
    alloc total: f32[] @tile
    m_init: m[] = -3.4028234663852886e+38
    total_init: total[] = 0.0
    for j0 in [0, (n + (T - 1)) // T):
      alloc m_prev: f32[] @tile
      m_prev: m_prev[] = m[]
      for j1 in [0, T):
        m: m[] max= x[i, j0 * T + j1] when j0 * T + j1 < n
      REPAIR
      for j1 in [0, T):
        total: total[] += exp(x[i, j0 * T + j1] - m[]) when GUARD
    l: l[i] = total[]
"""
REPAIR = "repair: total[] = total[] * exp(m_prev[] - m[])"
GUARD = "j0 * T + j1 < n"


def online(repair: str = REPAIR, guard: str = GUARD) -> Program:
    return parse_program(ONLINE.replace("REPAIR", repair).replace("GUARD", guard))


WRONG_SUMS = {
    "no rescale from the third tile on": online("repair: total[] = total[] * select(j0 < 2, exp(m_prev[] - m[]), 1.0)"),
    "no rescale of the last tile": online(
        "repair: total[] = total[] * select(j0 + 1 < (n + (T - 1)) // T, exp(m_prev[] - m[]), 1.0)"
    ),
    "rescaled only where the maximum is positive": online(
        "repair: total[] = total[] * select(m[] > 0.0, exp(m_prev[] - m[]), 1.0)"
    ),
    "third and later tiles dropped": online(guard=f"{GUARD} and j0 < 2"),
    "the last element of a tail of two or more dropped": online(
        guard=f"{GUARD} and (j0 * T + j1 != n - 1 or j1 == 0 or j1 == T - 1)"
    ),
    "a tail dropped where the row has one tile": online(guard=f"{GUARD} and (n >= T or n == 1)"),
}


@pytest.mark.parametrize("name", WRONG_SUMS)
def test_a_running_sum_that_is_wrong_in_a_corner(name: str) -> None:
    original = parse_program(SOFTMAX_SUM)
    assert check_exact(original, online(), draws=DRAWS[1]).accepted
    report = check_exact(original, WRONG_SUMS[name], draws=DRAWS[1])
    assert report.verdict == "rejected", report


MASKED = SOFTMAX_SUM.replace("n]", "n]\n  in bias: f32[rows, n]", 1).replace("x[i, j]", "x[i, j] + bias[i, j]")


def masked(start: str = "-3.4028234663852886e+38", factor: str = "exp(m_prev[] - m[])") -> Program:
    text = ONLINE.replace("n]", "n]\n  in bias: f32[rows, n]", 1)
    text = text.replace("x[i, j0 * T + j1]", "x[i, j0 * T + j1] + bias[i, j0 * T + j1]")
    text = text.replace("m[] = -3.4028234663852886e+38", f"m[] = {start}")
    return parse_program(text.replace("REPAIR", f"repair: total[] = total[] * {factor}").replace("GUARD", GUARD))


def test_a_first_tile_that_is_all_masked() -> None:
    """-inf - -inf is NaN: a running maximum must not start at -inf."""
    original = parse_program(MASKED)
    assert check_exact(original, masked(), draws=DRAWS[1]).accepted
    report = check_exact(original, masked(start="-inf"), draws=DRAWS[1])
    assert report.verdict == "rejected", report


NORMALISED = SOFTMAX_SUM.replace("out l: f32[rows]", "out y: f32[rows, n]").replace(
    "temp m", "temp l: f32[rows]\n  temp m"
)
NORMALISED += """  for i in [0, rows):
    for j in [0, n):
      y: y[i, j] = exp(x[i, j] - m[i]) / l[i]
"""


@pytest.mark.parametrize("start", ["0.0", "-100.0", "3.4028234663852886e+38"])
def test_a_maximum_that_is_none(start: str) -> None:
    """It cancels in every exact model; in the range of float32 everything vanishes or overflows."""
    original = parse_program(NORMALISED)
    report = check_exact(original, parse_program(NORMALISED.replace("-3.4028234663852886e+38", start)), draws=DRAWS[1])
    assert report.verdict == "rejected", report


def test_no_maximum_at_all() -> None:
    made = parse_program(NORMALISED.replace(" - m[i]", ""))
    assert check_exact(parse_program(NORMALISED), made, draws=DRAWS[1]).verdict == "rejected"


SPLIT = """program p
  in x: f32[rows, n]
  out l: f32[rows]
  temp m: f32[rows]
  temp mp: f32[P, rows]
  temp lp: f32[P, rows]
  scalar rows: i32 lo 1
  scalar n: i32 lo 1
  scalar P: i32 lo 1 upto n
body:
  for part in [0, P):
    for i in [0, rows):
      mp_init: mp[part, i] = -3.4028234663852886e+38 STARTED
      lp_init: lp[part, i] = 0.0 STARTED
      for j in [LOW, HIGH):
        mp: mp[part, i] max= x[i, j]
      for j in [LOW, HIGH):
        lp: lp[part, i] += exp(x[i, j] - mp[part, i])
  for i in [0, rows):
    m_init: m[i] = -3.4028234663852886e+38
    for part in [0, P):
      m: m[i] max= mp[part, i]
  for i in [0, rows):
    for part in [0, P):
      l: l[i] += lp[part, i] * WEIGHT init 0.0
"""
CHUNK = "((n + (P - 1)) // P)"


def split(started: str = "", low: str = "", high: str = "", weight: str = "exp(mp[part, i] - m[i])") -> Program:
    text = SPLIT.replace(" STARTED", started).replace("WEIGHT", weight)
    text = text.replace("LOW", low or f"{CHUNK} * part")
    return parse_program(text.replace("HIGH", high or f"min(n, {CHUNK} * part + {CHUNK})"))


WRONG_SPLITS = {
    "a part without elements is not initialised": split(started=f" when {CHUNK} * part < n"),
    "the combine ignores m": split(weight="1.0"),
    "the combine ignores m from the third part on": split(weight="select(part < 2, exp(mp[part, i] - m[i]), 1.0)"),
    "parts overlap": split(low=f"max(0, {CHUNK} * part - 1)"),
    "a gap between parts": split(high=f"min(n, {CHUNK} * part + max(1, {CHUNK} - 1))"),
    "chunks rounded down": split(low="n // P * part", high="n // P * part + n // P"),
}


@pytest.mark.parametrize("name", WRONG_SPLITS)
def test_a_split_that_is_wrong_in_a_corner(name: str) -> None:
    original = parse_program(SOFTMAX_SUM)
    assert check_exact(original, split(), draws=DRAWS[1]).accepted
    report = check_exact(original, WRONG_SPLITS[name], draws=DRAWS[1])
    assert report.verdict == "rejected", report


GROUPED = """program p
  in x: f32[heads, n]
  in w: f32[heads]
  out y: f32[heads, n]
  scalar heads: i32 lo 1
  scalar n: i32 lo 1
TUNABLE
body:
"""
PLAIN = (
    GROUPED.replace("TUNABLE\n", "")
    + """  for h in [0, heads):
    for i in [0, n):
      y: y[h, i] = x[h, i] * w[h]
"""
)
PACKED = (
    GROUPED.replace("TUNABLE", "  tunable T in {16, 32}")
    + """  for r0 in [0, (heads * n + (T - 1)) // T):
    for r1 in [0, T):
      y: y[ROW // n, ROW % n] = x[ROW // n, ROW % n] * w[HEAD] when ROW < heads * n
"""
)


def test_a_head_that_is_read_once_per_tile() -> None:
    """Right as long as no tile holds rows of two heads."""
    rows = PACKED.replace("ROW", "(r0 * T + r1)")
    good, bad = (parse_program(rows.replace("HEAD", h)) for h in ("(r0 * T + r1) // n", "(r0 * T) // n"))
    original = parse_program(PLAIN)
    assert check_exact(original, good, draws=DRAWS[1]).accepted
    assert check_exact(original, bad, draws=DRAWS[1]).verdict == "rejected"


ARGMAX = """program p
  in x: f32[rows, n]
  out best: f32[rows]
  out at: i32[rows]
  scalar rows: i32 lo 1
  scalar n: i32 lo 1
body:
  for i in [0, rows):
    for j in [0, n):
      best: best[i], at[i] argmax= x[i, j], j init -3.4028234663852886e+38, 2147483647
"""


def test_ties_that_the_last_one_wins() -> None:
    """Equal everywhere but between equal values."""
    made = parse_program(ARGMAX.replace("x[i, j], j", "x[i, n - 1 - j], n - 1 - j"))
    again = parse_program(ARGMAX.replace("x[i, j], j", "x[i, j], j + 0 * n"))
    assert check_exact(parse_program(ARGMAX), again, draws=DRAWS[1]).accepted
    kept = """  for i in [0, rows):
    best_init: best[i] = -3.4028234663852886e+38
    at_init: at[i] = 2147483647
    for j in [0, n):
      at: at[i] = select(x[i, j] >= best[i], j, at[i])
      best: best[i] = max(best[i], x[i, j])
"""
    last = parse_program(ARGMAX.split("body:\n")[0] + "body:\n" + kept)
    assert check_exact(parse_program(ARGMAX), last, draws=DRAWS[1]).verdict == "rejected"
    assert check_exact(parse_program(ARGMAX), made, draws=DRAWS[1]).accepted, "the smaller index wins in any order"
