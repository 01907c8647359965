"""The mutation engine, and a bounded sample of its mutants; `python -m bench.mutants` runs them all."""

from __future__ import annotations

import pytest

from bench.mutants import REJECTED, in_numbers, judge, mutants_of, sample
from bench.mutants_cases import CASES
from bench.mutate import KINDS, NAMED
from neptune.ops.attention import OPERATORS

SAMPLED = (*OPERATORS, "figure1", "softmax_row", "log_softmax", "rms_norm_linear", "abs_max_matmul")
DRAWS = 8


@pytest.mark.parametrize("level", ["loops", "tiles"])
def test_mutants_are_of_known_kinds_and_differ_from_the_program(level: str) -> None:
    forms = CASES["figure1"].forms()
    program = forms.fused if level == "loops" else forms.tiles
    mutants = mutants_of(CASES["figure1"], level)
    assert {m.kind for m in mutants} <= KINDS.keys()
    assert set(NAMED) - {"factor dropped"} <= {m.kind for m in mutants}
    assert all(m.made != program for m in mutants)


def test_a_sample_is_drawn_by_its_seed() -> None:
    mutants = mutants_of(CASES["figure1"], "tiles")
    first, again, other = (sample(mutants, seed, 2) for seed in (1, 1, 2))
    assert first == again != other
    assert max(sum(m.kind == kind for m in first) for kind in KINDS) == 2


def test_the_oracle_tells_equal_from_wrong() -> None:
    forms = CASES["figure1"].forms()
    assert in_numbers("figure1", forms.fused)[0] == in_numbers("figure1", forms.tiles)[0] == "equal"
    (wrong,) = (m for m in mutants_of(CASES["figure1"], "tiles") if m.where == "branch" and m.kind == "dropped tile")
    assert in_numbers("figure1", wrong.made)[0] == "missed"


@pytest.mark.parametrize("name", SAMPLED)
def test_no_named_mistake_is_missed(name: str) -> None:
    """One mutant of each named kind, on loops and on tiles: rejected, or equal in float64 on every instance."""
    for level in ("loops", "tiles"):
        for change in sample(mutants_of(CASES[name], level), 0, 1, NAMED):
            outcome = judge(name, level, change, DRAWS)
            assert outcome.verdict in (*REJECTED, "equal", "numeric"), outcome
