"""The check of generated modules: all loops that matter, in time for a compilation; mutants of their text."""

from __future__ import annotations

import re
from functools import cache

import pytest

from neptune.errors import InternalError, Unsupported
from neptune.hopper.derive import form_of
from neptune.hopper.gluon.module import generate
from neptune.hopper.ir import AsyncKernel, Levers
from neptune.hopper.protocol import Finding
from neptune.hopper.protocol.check import Report, Trial, check
from neptune.hopper.protocol.trials import call, in_a_row, sizes, swept, trials
from neptune.hopper.roles.kernel import roles
from neptune.tile.ir import TileProgram
from tests.examples.gluon_mutants import mutants
from tests.examples.hopper_examples import attention, product
from tests.examples.walks import tiles_of, walked
from tests.work import calls

ATTENTION = {"BLOCK_M": 64, "BLOCK_N": 64}
PRODUCT = {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64}
FORMS = {
    "once": ("attention", Levers(2, 2, "once", tiles=ATTENTION)),
    "table": ("attention", Levers(3, 3, "table", own_out=False, tiles=ATTENTION)),
    "reused": ("attention", Levers(2, 2, "table", own_out=False, tiles=ATTENTION)),
    "ahead": ("attention", Levers(2, 2, "table", tiles=ATTENTION, ahead=True)),
    "stride": ("attention", Levers(3, 2, "stride", pin=True, tiles={**ATTENTION, "BLOCK_N": 128})),
    "product": ("product", Levers(2, 3, "table", tiles=PRODUCT)),
}


@cache
def form(name: str) -> tuple[TileProgram, AsyncKernel, str]:
    example, levers = FORMS[name]
    walked, program = {"attention": attention, "product": product}[example](levers.consumers)
    kernel = roles(walked, program, levers)
    return program, kernel, generate(program, kernel).text


@pytest.mark.parametrize("name", FORMS)
def test_generated_modules_are_in_step(name: str) -> None:
    program, kernel, text = form(name)
    reports: list[Report] = []
    work = calls(lambda: reports.append(check(text, trials(program, kernel))))
    (report,) = reports
    assert report.ok, report
    assert report.actions > 500
    assert report.unreached == ()
    assert work < 500_000  # some tenths of a second: 60 for an action, and the text is read once


def test_sizes_of_derived_loops_are_found_through_scalars() -> None:
    """The walk gives bounds names; a window's loop needs more keys than the window has."""
    _, tiles = tiles_of("prefill_window", "flash_attention", depth=64)
    levers = Levers(2, 2, "table", tiles={"BLOCK_N": 64})
    kernel = roles(walked(tiles, levers), tiles, levers)
    assert swept(tiles, kernel) == {"s_q", "s_kv"}
    made = sizes(tiles, kernel)
    assert max(v["s_kv"] for v in made) > 4096 + 2 * 64 and {-(-v["s_kv"] // 64) for v in made} >= set(range(1, 6))


def test_a_kernel_whose_actions_are_not_known_has_no_such_form(monkeypatch: pytest.MonkeyPatch) -> None:
    _, tiles = tiles_of("prefill_causal", "flash_attention", depth=64, heads=2)
    levers = Levers(2, 2, "table", tiles={"BLOCK_N": 64})
    assert form_of(tiles, {tiles.kernels[-1].name: levers}).protocol.ok
    unread = Report(0, 0, 0.0, (Finding("not read", "text", 0, "depends on a tile"),))
    monkeypatch.setattr("neptune.hopper.derive.check", lambda *_: unread)
    refused = form_of(tiles, {tiles.kernels[-1].name: levers})
    assert isinstance(refused, Unsupported) and "not known before they run: depends on a tile" in str(refused)
    wrong = Report(1, 1, 0.0, (Finding("deadlock", "producer", 7, "waits"),))
    monkeypatch.setattr("neptune.hopper.derive.check", lambda *_: wrong)
    with pytest.raises(InternalError, match=r"do not keep in step(.|\n)*deadlock: producer, line 7: waits"):
        form_of(tiles, {tiles.kernels[-1].name: levers})


def test_lines_that_no_launch_comes_to_are_told() -> None:
    """Tiles that a mask cuts twice need lengths that differ by a part of a tile; of such a loop all is checked."""
    _, tiles = tiles_of("prefill_causal", "flash_attention", depth=64, heads=2)
    levers = Levers(2, 2, "table", tiles={"BLOCK_N": 64})
    made = form_of(tiles, {tiles.kernels[-1].name: levers})
    assert made.protocol.unreached == ()
    even = Trial(call(tiles, {"batch": 1, "s_q": 256, "s_kv": 256}))
    missed = check(made.text.text, [even]).unreached
    text = made.text.text.splitlines()
    assert any("v_full" in text[n - 1] for n in missed) and any("warpgroup_mma" in text[n - 1] for n in missed)
    # A size of 0, which no call has, comes to what the text says of it.
    assert any(t.spare for t in trials(tiles, made.kernel))


def test_sizes_give_loops_of_all_lengths() -> None:
    program, kernel, _ = form("product")
    assert swept(program, kernel) == {"m", "k"}
    # Tiles of 64 along k, three stages: 0 to 7 iterations, but for none, which no size of at least 1 gives.
    assert {-(-values["k"] // 64) for values in sizes(program, kernel)} == set(range(1, 8))
    program, kernel, _ = form("stride")
    made = sizes(program, kernel)
    assert {-(-values["s_kv"] // 128) for values in made} == set(range(1, 6))
    assert any(v["s_kv"] == 1 < v["s_q"] for v in made) and any(v["s_q"] == 1 < v["s_kv"] for v in made)


def test_tiles_of_the_next_group_come_while_one_is_computed() -> None:
    """Their ring has two stages of its own; launches have as many groups in a row as come back to the same turn."""
    program, kernel, text = form("ahead")
    (q,) = [r for r in kernel.rings if r.name == "q"]
    assert q.stages == 2 and "q_tiles.index(q_turn % STAGES * CONSUMERS + W)" in text
    assert (in_a_row(kernel), in_a_row(form("table")[1])) == (5, 3)
    # Five groups of 128 rows: four have begun by the time that a stage is wrong a second time.
    assert any(-(-v["s_q"] // 128) == 5 for v in sizes(program, kernel))
    phase = "(q_turn // STAGES) & 1"
    assert text.count(phase) == 2
    for wrong in ("(q_turn // 4) & 1", "q_turn & 1"):
        assert not check(text.replace(phase, wrong), trials(program, kernel)).ok, wrong


def test_a_stage_that_is_released_a_step_early_is_found() -> None:
    """That of this iteration's product in the place of the one before; and behind a wait that leaves both in flight."""
    program, kernel, text = form("product")
    release, wait = "mbarrier.arrive(a_b_empty.index(turn % STAGES), count=1)", "warpgroup_mma_wait(1, deps=[c])"
    assert text.count(release) == 2 and text.count(wait) == 1
    early = release.replace("turn % STAGES", "(turn + 1) % STAGES")
    for wrong in (text.replace(release, early, 1), text.replace(wait, wait.replace("1", "2"))):
        report = check(wrong, trials(program, kernel))
        assert not report.ok and {f.kind for f in report.findings} & {"early release", "registers in flight"}
    # Finishing both as before is in step, and takes turns with the copies.
    assert check(text.replace(wait, wait.replace("1", "0")), trials(program, kernel)).ok


HARMLESS = ("move", "pending", "drop, barrier()", "drop, tma.store_wait(0)", "drop, async_store(")
"""Kinds of edits that may leave a protocol as it is, or make it stricter: they must be in step state by state. The
last one is in step, and writes nothing, as the emulator shows (tests/unit/hopper/test_mutants.py)."""


@pytest.mark.parametrize(
    ("name", "every", "sizes"),
    [
        ("reused", 1, {"batch": 1, "heads": 2, "s_q": 128, "s_kv": 128}),
        ("ahead", 3, {"batch": 1, "heads": 2, "s_q": 128, "s_kv": 64}),
        ("product", 3, {"m": 64, "n": 128, "k": 128}),
    ],
)
def test_mutants_of_generated_text_are_rejected(name: str, every: int, sizes: dict[str, int]) -> None:
    program, kernel, text = form(name)
    made = list(mutants(text))[::every]
    alive = [m for m in made if check(m.text, trials(program, kernel)).ok]
    assert len(made) * every > {"reused": 180, "ahead": 100, "product": 80}[name] and len(alive) < len(made) / 7
    launch = call(program, sizes)
    for mutant in alive:
        name = re.sub(r", line \d+:", ",", mutant.name)
        assert name.startswith(HARMLESS), mutant.name
        again = check(mutant.text, [Trial(launch, processors=1)], most_states=20_000)
        assert again.ok and again.states > 100, mutant.name
