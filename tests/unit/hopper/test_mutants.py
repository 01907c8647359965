"""Every small edit of the hand-written text that changes its protocol is rejected by the check, or by its numbers."""

import functools

import pytest

from bench.baselines.flash_attention_gluon import Form
from neptune.hopper.emulate import ProtocolError
from neptune.hopper.protocol import causal, explore, trace
from qa.gluon_launch import Launch, text
from qa.gluon_mutants import Mutant, mutants
from qa.protocol import SAME, SMALL, verdict


@functools.cache
def all_mutants() -> list[Mutant]:
    return list(mutants(text()))


@pytest.mark.parametrize("part", range(5))
def test_mutants_are_rejected_or_known_to_be_the_same(part: int) -> None:
    for mutant in all_mutants()[part::5]:
        same = any(f": {edit}" in mutant.name for edit in SAME)
        found = verdict(mutant.name, mutant.text)
        assert found != "lives" and (found == "same") == same, mutant.name


def test_every_reason_is_of_a_mutant() -> None:
    names = [m.name for m in all_mutants()]
    assert len(names) > 150
    for edit in SAME:
        assert any(f": {edit}" in name for name in names), edit


@pytest.mark.parametrize("launch", [Launch(Form(2, 64, 2, True), 130, programs=1, heads=1), SMALL[1]])
def test_what_the_explorer_finds_the_causal_check_finds(launch: Launch) -> None:
    found = 0
    for mutant in all_mutants()[3::12]:
        try:
            made = trace(mutant.text, launch.kernel, launch.grid, launch.args())
        except (ProtocolError, IndexError):
            continue
        seen = explore(made).finding
        assert seen is None or causal(made), mutant.name
        found += seen is not None
    assert found >= 4
