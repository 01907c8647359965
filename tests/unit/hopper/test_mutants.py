"""Every small edit of the hand-written text that changes its protocol is rejected by the check, or by its numbers."""

import functools
import itertools

import pytest

from bench.baselines.flash_attention_gluon import Form
from neptune.hopper.emulate import ProtocolError, run
from neptune.hopper.protocol import causal, explore, trace
from neptune.hopper.protocol.check import Trial, check
from tests.examples.gluon_attention import SMALL, Launch, text
from tests.examples.gluon_mutants import Mutant, mutants

SAME = {
    "mbarrier.wait(qe, (done & 1) ^ 1) before row =": "what moves behind the wait is a number of the producer's own",
    "mbarrier.wait(ke.index(st), phase) before key =": "as above",
    "mbarrier.wait(kf.index(st), (k // ST) & 1) before pst =": "as above",
    "tma.store_wait(0) before acc = acc *": "what moves behind the wait is in registers",
    "async_load(k_desc, [key, 0], kf.index(st), ks.index(st)) before mbarrier.expect": (
        "the phase ends with the arrival of the expect at the earliest, and bytes may land before they are expected"
    ),
    "async_load(v_desc, [key, 0], vf.index(st), vs.index(st)) before mbarrier.expect": "as above",
    "mbarrier.wait(ve.index(st), phase) before async_load(k_desc": "waits for more than it needs",
    "mbarrier.wait(kf.index(k % ST), (k // ST) & 1) before mbarrier.wait(qf": "both waits are before the product",
    "mbarrier.wait(vf.index(k % ST), (k // ST) & 1) before mbarrier.arrive(ke": "waits for more than it needs",
    "mbarrier.wait(vf.index(pst), ((k - 1) // ST) & 1) before sa = warpgroup_mma": "waits for more than it needs",
    "1 → 1 - 1": "waits for more than it needs",
}
"""Mutants with the same protocol, or a stricter one, and why."""


def verdict(name: str, source: str) -> str:
    """What rejects a mutant: "check", "numbers" or "emulator"; "same" if it is known to be; else "lives"."""
    if not check(source, [Trial(x.call) for x in SMALL]).ok:
        return "check"
    for seed, order in itertools.product(range(2), ("late", "random")):
        launch = Launch(Form(2, 64, 2, True), 300, programs=1, heads=1)
        try:
            run(source, launch.kernel, launch.grid, launch.args(), seed=seed, order=order)
        except ProtocolError:
            return "emulator"
        if max(launch.errors()) > 2e-3:
            return "numbers"
    return "same" if any(f": {edit}" in name for edit in SAME) else "lives"


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
