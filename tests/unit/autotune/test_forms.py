"""Candidates in the asynchronous form: which there are, what a record keeps of them, and what a winner becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import neptune
from bench import stub_driver
from neptune.autotune import tuner
from neptune.autotune.place import Bench, Outcome
from neptune.autotune.search import Tuned
from neptune.autotune.space import Trial, other_trials, trials
from neptune.autotune.task import Task, task_of, task_of_kernel
from neptune.autotune.tuner import EXECUTORS, Options, together, tuned
from neptune.autotune.worker import judged
from neptune.base.choice import Choice
from neptune.driver.known import lever_names, read, written
from neptune.errors import TargetError
from neptune.hopper.form import FORM
from neptune.hopper.validate.kernel import on_trial, split_of
from neptune.kernel import Kernel
from neptune.ops.attention import prefill_causal
from neptune.ops.linear import matmul
from neptune.records.record import Record, parse
from neptune.runtime.hopper import accepted
from neptune.runtime.hopper.data import ASYNCHRONOUS
from tests.unit.autotune.test_tuner import store

SIZES = {"m": 4096, "n": 4096, "k": 4096}
GIVEN = {"BLOCK_N": 128, "BLOCK_K": 64, "num_stages": 3}
TWO = {"consumers": 2, "stages": 3, "persistent": "stride", "own_out": True, "ahead": False}


@cache
def task(form: str | None = "auto") -> Task:
    return task_of(matmul(), "matmul", target="cuda:90", params=GIVEN, form=form)


@cache
def kernel() -> Kernel:
    return neptune.compile(matmul(), "matmul", target="cuda:90", params=GIVEN | TWO, form="asynchronous")


def candidates(of: Task) -> tuple[list[Trial], list[Trial]]:
    plain = list(trials(of.forms, SIZES, of.machine, of.given))
    return plain, other_trials(of.forms, plain, SIZES, of.machine, of.given)


def levers_in(k: Kernel) -> Mapping[str, Any]:
    of = k.executable.artifact.form
    assert of is not None
    return of.levers


# --- levers as numbers --------------------------------------------------------------------------


def coded(levers: Mapping[str, Any]) -> Mapping[str, int]:
    return written(Choice("matmul", {}).formed(ASYNCHRONOUS, levers)).params


def test_levers_are_numbers_of_a_record_and_come_back() -> None:
    every = [{**TWO, n: v} for n, legal in FORM.levers.items() for v in legal]
    choices = [Choice("matmul", {"BLOCK_M": 64}).formed(ASYNCHRONOUS, x) for x in every]
    assert [read(written(c)) for c in choices] == choices
    codes = [coded(x) for x in every]
    assert len({tuple(c.values()) for c in codes}) == len({tuple(x.values()) for x in every})
    at: dict[str, Any] = {"structure": "0" * 32, "device": "H200", "versions": {}, "template": "matmul"}
    record = Record(sizes=SIZES, params=GIVEN, numbers=codes[0], us=[1.0], **at)
    assert parse(record.line()) == record


@pytest.mark.parametrize(
    "wrong", [{"asynchronous.persistent": 4}, {"asynchronous.consumers": 4}, {"asynchronous.own_out": 2}]
)
def test_what_is_no_lever_is_no_choice(wrong: Mapping[str, int]) -> None:
    """Anybody may have written a record."""
    assert read(Choice("matmul", coded(TWO))) == Choice("matmul", {}).formed(ASYNCHRONOUS, TWO)
    assert read(Choice("matmul", {**coded(TWO), **wrong})) is None
    assert read(Choice("matmul", {n: v for n, v in coded(TWO).items() if n != "asynchronous.stages"})) is None


# --- the space ----------------------------------------------------------------------------------


def test_candidates_are_levers_that_fit_beside_tiles_of_the_same_sizes() -> None:
    plain, found = candidates(task())
    assert found and candidates(task(None)) == (plain, [])
    values = [t.params for t in plain]
    assert all(t.params in values and t.choice.levers for t in found)
    assert all(t.params.items() >= GIVEN.items() for t in found)
    for name, legal in (("consumers", {2, 3}), ("persistent", {"once", "stride"}), ("own_out", {True})):
        assert {t.choice.levers[name] for t in found} == legal, name
    assert len({t.choice for t in [*plain, *found]}) == len(plain) + len(found)


def test_results_may_take_the_memory_of_queries_and_groups_of_different_length_a_table() -> None:
    sizes = {"batch": 1, "s_q": 4096, "s_kv": 4096}
    of = task_of(prefill_causal(heads=2, depth=64), "flash_attention", target="cuda:90", form="auto")
    plain = trials(of.forms, sizes, of.machine)
    levers = [t.choice.levers for t in other_trials(of.forms, plain, sizes, of.machine)]
    assert {x["own_out"] for x in levers} == {True, False}
    assert {x["persistent"] for x in levers} == {"once", "stride", "table", "reverse"}


def test_the_first_is_what_a_compilation_takes() -> None:
    made = neptune.compile(matmul(), "matmul", target="cuda:90", params=GIVEN, form="asynchronous", shapes=SIZES)
    (first, *_), levers = candidates(task())[1], levers_in(made)
    assert {n: v for n, v in (first.choice.levers).items() if n in levers} == {
        n: levers[n] for n in ("consumers", "stages", "persistent")
    }


def test_a_candidate_is_compiled_with_its_levers() -> None:
    asked = next(t for t in candidates(task())[1] if t.choice.levers == {**TWO, "stages": 2, "persistent": "once"})
    made = task().kernel(asked.choice)
    assert levers_in(made).items() >= {"consumers": 2, "stages": 2, "persistent": "once", "BLOCK_N": 128}.items()
    assert made.params.items() >= asked.params.items() and task().kernel(asked.choice) is made


def test_another_target_has_none() -> None:
    assert all(not f.others for f in task_of(matmul(), "matmul", target="cuda:80", form="auto").forms)
    with pytest.raises(TargetError):
        task_of(matmul(), "matmul", target="cuda:80", form="asynchronous")


# --- a search -----------------------------------------------------------------------------------


class Planted:
    """An executor without a GPU: what comes of a candidate is planted."""

    here = True
    came: Callable[[Kernel], Outcome]
    asked: list[Kernel]

    def __init__(self, *_: Any) -> None:
        """As executors are made."""

    def measured(self, kernels: Sequence[Kernel]) -> Iterator[tuple[int, Outcome]]:
        for k, made in enumerate(kernels):
            Planted.asked.append(made)
            yield k, Planted.came(made)

    def time(self, made: Kernel) -> Outcome:
        return Planted.came(made)

    def close(self) -> None:
        """Nothing was started."""


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> type[Planted]:
    monkeypatch.setitem(EXECUTORS, "planted", Planted)  # type: ignore[arg-type]
    monkeypatch.setattr(tuner, "FEW", 2)
    Planted.asked = []
    return Planted


def options(folder: Path, **more: Any) -> Options:
    return Options(600.0, executor="planted", records=store(folder), bench=Bench("planted"), quiet=True, **more)


def is_async(k: Kernel) -> bool:
    return k.executable.artifact.form is not None


def test_a_form_that_is_faster_is_taken_and_recorded(planted: type[Planted], tmp_path: Path) -> None:
    planted.came = lambda k: Outcome((20.0 if is_async(k) else 100.0,))
    found = tuned(task(), SIZES, options(tmp_path))
    (at,) = found.shapes
    assert at.us == 20.0 and at.best.choice.form and is_async(found.kernel)
    of = found.kernel.executable.artifact.form
    assert of is not None and of.forced
    assert "asynchronous form for cuda:90" in found.kernel.explain()
    assert at.as_json()["best"]["levers"] == at.best.choice.levers and "asynchronous consumers=" in str(at)
    kept = [r for r in store(tmp_path).all() if r.numbers]
    assert kept and all(r.numbers.keys() == lever_names() and not lever_names() & r.params.keys() for r in kept)
    # The same search goes on from there.
    before = len(planted.asked)
    again = tuned(task(), SIZES, options(tmp_path)).shapes[0]
    assert again.best.choice == at.best.choice and again.known
    assert len(planted.asked) - before <= 1


def test_a_form_that_is_refused_is_a_failure_and_not_tried_again(planted: type[Planted], tmp_path: Path) -> None:
    refused = Outcome(failed="failed", why="the asynchronous form is refused: 8 bytes a thread are spilled")
    planted.came = lambda k: refused if is_async(k) else Outcome((100.0,))
    found = tuned(task(), SIZES, options(tmp_path))
    (at,) = found.shapes
    assert at.us == 100.0 and at.best.choice.form is None and not is_async(found.kernel)
    assert any("spilled" in why for name, why in at.failed.items() if "asynchronous" in name)
    lost = store(tmp_path).failures(store(tmp_path).all()[0].structure, "H200")
    assert lost and all(f.numbers.keys() == lever_names() for f in lost)
    before = len(planted.asked)
    tuned(task(), SIZES, options(tmp_path))
    assert not any(map(is_async, planted.asked[before:]))


def test_winners_of_both_forms_are_variants_and_stay_when_saved(planted: type[Planted], tmp_path: Path) -> None:
    """At one shape the form is faster, at the other tiles are: both of one template."""
    shapes = [SIZES, {**SIZES, "m": 256}]
    best = [candidates(task())[1][0], candidates(task())[0][0]]
    found = [
        Tuned(s, b, b, 9.0, 9.0, 1, 1, 0, {}, "", {b.choice: 9.0, o.choice: 99.0})
        for s, b, o in zip(shapes, best, reversed(best), strict=True)
    ]
    made = together(task().kernel, found)
    made.save(tmp_path / "k")
    for k in (made, neptune.load(tmp_path / "k", target="cuda:90")):
        assert len(k.variants) == 2 and "; asynchronous form, consumers=" in k.explain()
        assert [is_async(k.chosen(**s).kernel) for s in shapes] == [True, False]
        assert not lever_names() & k.chosen(**shapes[0]).params.keys()


# --- a kernel that has the form -------------------------------------------------------------------


def test_a_kernel_with_the_form_is_tuned_in_both_and_starts_from_its_own() -> None:
    at = {"m": 256, "n": 256, "k": 256}
    args = [torch.empty(256, 256, dtype=torch.float16) for _ in range(2)]
    of = task_of_kernel(kernel(), args, at)
    assert any(f.others for f in of.forms)
    plain = list(trials(of.forms, at, of.machine, numbers=False))
    default = of.default(at, other_trials(of.forms, plain, at, of.machine))
    own = default.choice.levers
    assert {n: own[n] for n in ("consumers", "stages", "persistent")} == {
        n: TWO[n] for n in ("consumers", "stages", "persistent")
    }
    assert {n: default.params[n] for n in ("BLOCK_N", "BLOCK_K")} == {"BLOCK_N": 128, "BLOCK_K": 64}
    tiles = task_of_kernel(kernel().with_params(BLOCK_M=64), args, at)
    assert not any(f.others for f in tiles.forms) and tiles.chosen(at).form is None


def test_what_is_timed_is_the_form() -> None:
    """A form that does not run, or not on these tensors, has no time: that would be the Triton form's."""
    a, b = (torch.zeros(64, 64, dtype=torch.float16) for _ in range(2))
    odd = torch.zeros(64, 65, dtype=torch.float16)[:, :64]
    clean = on_trial(kernel().executable.artifact, split_of(kernel().executable.artifact))
    assert clean.form is not None
    found = accepted.read(clean.form.record)
    assert found is not None
    spilled = accepted.written(replace(found, spill_bytes=104))
    bad = replace(clean, form=replace(clean.form, record=spilled))
    with stub_driver.installed(90):
        run = kernel().keeping(clean).for_target("cuda")
        assert judged(run, [(a, b)])[1] == ""
        assert "not all are dense on 16 bytes" in judged(run, [(a, b), (odd, b)])[1]
        assert "104 bytes a thread are spilled" in judged(kernel().keeping(bad).for_target("cuda"), [(a, b)])[1]
        plain = kernel().with_params(BLOCK_M=64)
        assert judged(plain, [(odd, b)]) == (plain, "")
    assert "refused" in judged(kernel().keeping(clean), [(a, b)])[1]


def test_parameters_of_the_form_that_are_given_hold_for_all_candidates() -> None:
    of = task_of(matmul(), "matmul", target="cuda:90", params={**GIVEN, "consumers": 2, "stages": 3}, form="auto")
    assert of.given == GIVEN
    found = tuner.others_of(of, list(trials(of.forms, SIZES, of.machine, of.given)), SIZES)
    assert found and all(t.choice.levers.items() >= {"consumers": 2, "stages": 3}.items() for t in found)
    assert len(found) < len(candidates(task())[1])
    default = of.chosen(SIZES)
    assert default.form is None or default.levers.items() >= {"consumers": 2, "stages": 3}.items()
    with pytest.raises(TargetError, match="parameter of the asynchronous form"):
        task_of(matmul(), "matmul", target="cuda:90", params={"consumers": 2}, form="triton")
