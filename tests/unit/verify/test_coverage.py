"""Cases of programs: what sizes of exact checks are chosen by."""

from __future__ import annotations

from collections import Counter

import numpy as np

from neptune.ir.evaluate.domains import TooLarge
from neptune.ir.text.parser import parse_program
from neptune.verify.coverage import Cases
from neptune.verify.draws import Check, Effort, Pool
from tests.work import calls

HEAD = "program p\n  in x: f32[n]\n  out y: f32[n]\n  scalar n: i32 lo 1\n  tunable T in {16, 32}\nbody:\n"
TILED = f"""{HEAD}  for i0 in [0, (n + (T - 1)) // T):
    for i1 in [0, T):
      y: y[i0 * T + i1] = x[i0 * T + i1] when i0 * T + i1 < n
"""


def test_a_tail_is_a_case_of_its_own() -> None:
    program = Cases(parse_program(TILED))
    whole, tail = (program.at({"n": n, "T": 4}) for n in (4, 5))
    assert tail - whole, "a second tile, and a guard that decides"
    assert any("decides" in case for case in tail - whole)
    assert not any("decides" in case for case in whole)


def test_more_tiles_of_the_same_kind_are_no_more_cases() -> None:
    program = Cases(parse_program(TILED))
    assert program.at({"n": 15, "T": 4}) == program.at({"n": 19, "T": 4})


def test_a_tail_in_the_only_tile_is_none_of_a_later_tile() -> None:
    program = Cases(parse_program(TILED))
    only = program.at({"n": 3, "T": 4}) - program.at({"n": 7, "T": 4})
    assert any("#i0" in case for case in only)


LENGTHS = """program p
  in x: f32[n]
  in length: i32[1]
  out y: f32[1]
  scalar n: i32 lo 1
body:
  for i in [0, 1):
    y_init: y[i] = 0.0
    for j in [0, min(n, length[i])):
      y: y[i] += x[j]
"""


def test_lengths_cut_nothing_off() -> None:
    program = parse_program(LENGTHS)
    one, many = (Cases(program, frozenset({"length"})).at({"n": n}) for n in (1, 5))
    assert len(one) == len(many) > len(Cases(program).at({"n": 5}))


def test_the_pool_gives_what_has_not_been_seen() -> None:
    program = parse_program(TILED)
    check = Check(program, program, Effort(4), 0, None, None)
    pool = Pool(check)
    for k in range(4):
        sizes = pool.take(np.random.default_rng(k), 0)
        fresh = check.cases_at(sizes) - pool.seen.keys()
        pool.seen.update(check.cases_at(sizes))
        assert fresh or k
    everything = Counter(c for n in range(1, 8) for t in (1, 2, 4) for c in check.cases_at({"n": n, "T": t}))
    assert len(pool.seen) >= 0.8 * len(everything)


def test_sizes_beyond_the_budget_are_too_large() -> None:
    program = parse_program(TILED)
    pool = Pool(Check(program, program, Effort(4, budget=0), 0, None, None))
    assert isinstance(pool.take(np.random.default_rng(0), 0), TooLarge)


def test_cases_are_found_once_for_all_draws() -> None:
    """Each draw asks for the cases of all sizes at hand: after the first time nothing is walked or counted anew."""
    program = parse_program(TILED)
    check = Check(program, program, Effort(), 0, None, None)
    sizes = [{"n": n, "T": 16} for n in range(1, 40)]
    found = check.explored(sizes)
    assert calls(lambda: check.explored(sizes)) < 2 * len(sizes)
    assert check.explored(sizes) == found and len(set(found)) > 3
    # As numbers they are told apart as the cases themselves are.
    cases = [[c.at(x) for c in check.cases] for x in sizes]
    assert [[a == b for b in found] for a in found] == [[a == b for b in cases] for a in cases]
    assert all(len(numbers) == sum(map(len, of)) for numbers, of in zip(found, cases, strict=True))
