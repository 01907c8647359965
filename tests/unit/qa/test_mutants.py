"""The mutation engine, and a bounded sample of its mutants; `python -m qa.mutants` makes them all."""

from __future__ import annotations

import pytest

from neptune.config import DRAWS
from qa.mutants import EXACTLY, REJECTED, Outcome, Settings, as_json, judge, matrix, mutants_of, outcomes_of, sample
from qa.mutants_cases import CASES
from qa.mutants_numbers import in_numbers
from qa.mutate import KINDS, NAMED
from tests.tiers import sampled

SAMPLED = ("figure1", "prefill_causal", "softmax_row", "rms_norm_linear", "abs_max_matmul")


@pytest.mark.parametrize("level", ["loops", "tiles"])
def test_mutants_are_of_known_kinds_and_differ_from_the_program(level: str) -> None:
    forms = CASES["figure1"].forms()
    program = forms.fused if level == "loops" else forms.tiles
    mutants = mutants_of(CASES["figure1"], level)
    assert {m.kind for m in mutants} <= KINDS.keys()
    splits = {"overlapping split", "gap between splits", "combine that ignores m"}
    assert set(NAMED) - splits - {"factor dropped"} <= {m.kind for m in mutants}
    assert all(m.made != program for m in mutants)


def test_a_sample_is_drawn_by_its_seed() -> None:
    mutants = mutants_of(CASES["figure1"], "tiles")
    first, again, other = (sample(mutants, seed, 2) for seed in (1, 1, 2))
    assert first == again != other
    assert max(sum(m.kind == kind for m in first) for kind in KINDS) == 2


def test_float64_tells_equal_from_wrong() -> None:
    forms = CASES["figure1"].forms()
    assert in_numbers("figure1", forms.fused)[0] == in_numbers("figure1", forms.tiles)[0] == "equal"
    (wrong,) = (m for m in mutants_of(CASES["figure1"], "tiles") if m.where == "branch" and m.kind == "dropped tile")
    assert in_numbers("figure1", wrong.made)[0] == "missed"


@pytest.mark.slow
def test_what_is_equal_in_every_model_is_rejected_by_its_rounding_errors() -> None:
    """A running mean that is wrong serves as well, but for rounding: only the last must be the expression's."""
    mutants = [m for m in mutants_of(CASES["variance"], "tiles") if m.kind == "missing rescale"]
    assert "rounding errors" in {in_numbers("variance", m.made)[0] for m in mutants if m.where == "squares_1"}


@pytest.mark.slow
def test_mistakes_of_a_split_are_rejected_by_the_exact_checks() -> None:
    for change in mutants_of(CASES["decode_split"], "tiles"):
        if change.kind == "combine that ignores m":
            assert judge("decode_split", "tiles", change, DRAWS[1]).verdict in EXACTLY, change.where


@pytest.mark.parametrize("name", sampled(SAMPLED, 5))
def test_no_named_mistake_is_missed(name: str) -> None:
    """One mutant of each named kind, on loops and on tiles, with the draws of a compilation."""
    for outcome in outcomes_of(Settings(per_kind=1, kinds=NAMED), name):
        assert outcome.verdict in (*REJECTED, "equal"), outcome


def test_tables_count_what_is_equal_apart() -> None:
    made = [Outcome("figure1", "loops", "dropped tile", "", v) for v in ("both models", "equal", "missed", "missed")]
    assert as_json(made, Settings())["by checker"] == {"both models": 1, "equal": 1, "missed": 2}
    assert [next(iter(column.cells)) for column in matrix(made).columns] == ["figure1", "1/3", "1/3", "1"]
