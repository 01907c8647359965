"""A third form goes through everything by its rows of two tables: nothing else knows it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import neptune
from examples.smallest_form import MARK, NAME, Stub, StubData, main
from neptune import forms
from neptune.autotune.search import Tuned
from neptune.autotune.space import other_trials, trials
from neptune.autotune.task import task_of
from neptune.autotune.tuner import together
from neptune.base.choice import Choice
from neptune.driver.counted import in_form
from neptune.driver.device import machine_for
from neptune.driver.forms import DECIDES
from neptune.driver.imports import imported
from neptune.driver.known import read, written
from neptune.errors import ScheduleError, TargetError
from neptune.ops.linear import matmul
from neptune.ops.softmax import softmax
from neptune.records.record import Record, structure_of
from neptune.records.store import Store
from neptune.runtime import forms as data
from neptune.runtime.launching.launch import parse_target
from neptune.runtime.processes import interpret
from neptune.versions import versions

SHAPES = {"m": 256, "n": 256, "k": 8192}
SMALL = {"m": 64, "n": 64, "k": 64}


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stub:
    """The form, registered; what is compiled is compiled for this test."""
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path / "cache"))
    made = Stub()
    monkeypatch.setitem(forms.FORMS, NAME, lambda: made)
    monkeypatch.setitem(data.FORMS, NAME, StubData)
    return made


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modules that the interpreter runs."""
    texts: list[str] = []
    run = interpret.run_interpreted

    def seen(source: str, *rest: Any) -> None:
        texts.append(source)
        run(source, *rest)

    monkeypatch.setattr(interpret, "run_interpreted", seen)
    return texts


def compiled(
    form: str = NAME, target: str = "interpret", template: str | None = "matmul", **more: Any
) -> neptune.Kernel:
    return neptune.compile(matmul(), template, target=target, form=form, **more)


def given() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(48, 32).half(), torch.randn(32, 40).half()


def called(kernel: neptune.Kernel, a: torch.Tensor, b: torch.Tensor) -> None:
    wanted = a.double() @ b.double()
    assert (kernel(a, b).double() - wanted).abs().max() < 1e-2 * wanted.abs().max()


def test_a_form_that_is_asked_for_is_made_and_called(stub: Stub, ran: list[str]) -> None:
    kernel = compiled()
    assert MARK in kernel.source and kernel.build.checks["stub form"].verdict == "accepted"
    called(kernel, *given())
    assert len(ran) == 1 and MARK in ran[0]


def test_the_example_runs_by_itself(
    stub: Stub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It registers itself, as whoever copies it would; the tables are as before behind it."""
    monkeypatch.delitem(forms.FORMS, NAME)
    monkeypatch.delitem(data.FORMS, NAME)
    main()
    assert capsys.readouterr().out == "stub at speed 2: {'runs': True}\n"


def test_tensors_that_it_does_not_serve_are_for_tiles(stub: Stub, ran: list[str]) -> None:
    kernel = compiled()
    a, b = given()
    called(kernel, a.T.contiguous().T.contiguous(), b)
    called(kernel, torch.cat([a, a], dim=1)[:, :32], b)
    assert [MARK in text for text in ran] == [True, False]


@pytest.mark.parametrize("faults", [None, ("its results differ",)])
def test_it_runs_where_its_verdict_says_so(stub: Stub, ran: list[str], faults: tuple[str, ...] | None) -> None:
    stub.verdict = faults
    called(compiled(), *given())
    assert len(ran) == 1 and MARK not in ran[0]


@pytest.mark.parametrize(("factor", "made"), [(0.5, True), (2.0, False)])
def test_auto_takes_it_where_its_time_says_so(stub: Stub, factor: float, made: bool) -> None:
    stub.factor = factor
    kernel = compiled("auto")
    assert (kernel.executable.form is not None) == made
    assert ("it has no stub form: tiles are faster" in kernel.explain()) == (not made)
    assert compiled("triton").executable.form is None


@pytest.mark.parametrize(("factor", "taken"), [(0.01, NAME), (0.99, "asynchronous")])
def test_of_several_forms_the_fastest_is_made(stub: Stub, factor: float, taken: str) -> None:
    stub.factor, stub.targets = factor, ("cuda:90", "cuda")
    kernel = compiled("auto", "cuda:90", shapes={"m": 4096, "n": 4096, "k": 4096})
    of = kernel.executable.form
    assert of is not None and of.name == taken


def test_templates_are_chosen_by_its_time(stub: Stub) -> None:
    stub.factor = 0.01
    plain = compiled("triton", template=None, shapes=SHAPES)
    kernel = compiled("auto", template=None, shapes=SHAPES, records=False)
    assert len(plain.build.tiles.kernels) > 1 and plain.build.template != kernel.build.template == "matmul"
    assert any(d.verdict == DECIDES for d in kernel.build.decisions) and "in the stub form (" in kernel.explain()


def test_variants_are_told_apart_by_its_time_at_a_calls_sizes(stub: Stub) -> None:
    """The kernel's own variant is as fast as its form, as far off as predictions were where both were timed."""
    stub.factor = 0.01
    made, at = compiled("auto", template=None, records=False), {"m": 96, "n": 192, "k": 448}
    of, family = made.executable.artifact.form, made._family
    assert of is not None and family is not None and len(made.variants) > 1
    own, machine, times = family.own, machine_for(parse_target("interpret")), family.chooser.times(at)
    on_tiles = times[own] / stub.factor
    assert made.chosen(**at) == made.variants[own] and f"{times[own]:.1f} µs" in made.chosen(**at).why
    for record, us in (
        ({"faults": []}, 0.01),
        ({"faults": [], "timed": (SMALL, 0.5)}, 0.5),
        ({"faults": ["it is slower"]}, None),
    ):
        form = in_form(replace(made.executable.artifact, form=replace(of, record=record)), machine)
        assert (form is None) == (us is None)
        assert form is None or form(at, on_tiles) == pytest.approx(us * on_tiles)
    assert in_form(made.executable.artifact.for_target("cuda:80"), machine) is None
    # Refused, it counts for nothing, nor does what it was estimated to gain.
    stub.verdict = ("its results differ",)
    refused = made.keeping(replace(made.executable.artifact, form=replace(of, record={"faults": ["x"]})))
    assert refused._family is not None and refused._family.chooser.times(at)[own] >= 0.9 * on_tiles


def test_a_template_that_was_chosen_in_vain_is_chosen_again(stub: Stub) -> None:
    stub.factor, stub.verdict = 0.01, ("its results differ",)
    kernel = compiled("auto", template=None, shapes=SHAPES, records=False)
    assert kernel.build.template == compiled("triton", template=None, shapes=SHAPES).build.template


def test_what_does_not_fit_is_refused_with_the_reason(stub: Stub) -> None:
    with pytest.raises(TargetError, match="a stub is one kernel with a product") as error:
        neptune.compile(softmax(), target="interpret", form=NAME)
    assert tuple(error.value.legal) == ("matmul",)
    assert "it has no stub form" in neptune.compile(softmax(), target="interpret", form="auto").explain()


def test_targets_forms_and_levers_are_those_of_the_rows(stub: Stub) -> None:
    with pytest.raises(TargetError, match="a stub runs in the interpreter") as error:
        compiled(target="cuda:80")
    assert tuple(error.value.legal) == ("interpret",)
    with pytest.raises(TargetError, match="there is no such form") as error:
        compiled("another")
    assert tuple(error.value.legal) == ("triton", "asynchronous", NAME, "auto")
    with pytest.raises(TargetError, match="speed is not 3"):
        compiled(params={"speed": 3})
    with pytest.raises(TargetError, match="no parameter 'consumers'"):
        compiled(params={"consumers": 2})
    with pytest.raises(TargetError, match="a parameter of the asynchronous form and the stub form"):
        compiled("triton", params={f"{NAME}.speed": 2})
    # With "auto" they may be those of any form.
    assert "no parameter 'consumers'" in compiled("auto", params={"consumers": 2}).explain()


def test_its_levers_are_no_values_of_a_kernel_that_there_is(stub: Stub) -> None:
    with pytest.raises(ScheduleError, match=r"no such parameter(?s:.*)compile\(…, params=\{'speed': …\}\)"):
        compiled().with_params(speed=2)
    with pytest.raises(ScheduleError) as other:
        compiled().with_params(spede=2)
    assert "compile(" not in str(other.value)


def test_explain_says_it_in_its_own_words(stub: Stub) -> None:
    kernel = compiled(params={"speed": 2})
    assert "\nstub at speed 2: {'runs': True}\n" in kernel.explain()
    assert kernel.explain(json=True)[NAME] == {"levers": {"speed": 2}, "verdict": {"runs": True}}
    assert NAME not in kernel.for_target("llvm").explain(json=True)


def test_it_is_saved_and_loaded(stub: Stub, ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = compiled(params={"speed": 2})
    kernel.save(tmp_path / "k")
    assert MARK in (tmp_path / "k" / "kernel_stub.py").read_text()
    loaded = neptune.load(tmp_path / "k", target="interpret")
    assert loaded.executable.artifact.form == kernel.executable.artifact.form
    assert loaded.explain() == kernel.explain() and loaded.source == kernel.source
    called(loaded, *given())
    # Where there is no such form, the kernel is one on tiles.
    monkeypatch.delitem(data.FORMS, NAME)
    monkeypatch.delitem(forms.FORMS, NAME)
    plain = neptune.load(tmp_path / "k", target="interpret")
    called(plain, *given())
    assert plain.executable.form is None and "stub at speed" not in plain.explain()
    assert [MARK in text for text in ran] == [True, False]


def test_it_comes_back_from_the_cache(stub: Stub, ran: list[str]) -> None:
    kernel, again = compiled(), compiled()
    assert again.executable.artifact == kernel.executable.artifact
    called(again, *given())
    assert MARK in ran[0]


def test_where_there_is_another_form_auto_is_another_request(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    made = compiled("auto")
    monkeypatch.delitem(forms.FORMS, NAME)
    assert made.executable.form is not None and compiled("auto").executable.form is None


def test_resources_and_assembly_are_its_own(stub: Stub) -> None:
    stub.targets = ("cuda:90", "cuda")
    kernel = compiled(target="cuda:90")
    own, plain = kernel.resources()
    assert (own.form, own.registers, plain.form) == (NAME, 8, "triton")
    assert kernel.asm(form=NAME) == {"stub_kernel": "an assembly"}


# --- the tuner ------------------------------------------------------------------------------------


def test_its_levers_are_candidates(stub: Stub) -> None:
    of = task_of(matmul(), "matmul", target="interpret", form=NAME)
    plain = list(trials(of.forms, SMALL, of.machine))
    found = other_trials(of.forms, plain, SMALL, of.machine)
    assert [t.choice.levers for t in found] == [{"speed": 2}, {"speed": 1}] and {t.choice.form for t in found} == {NAME}
    assert "matmul stub" in {t.choice.kind for t in found} and str(found[0]).endswith("stub speed=2")
    kernel = of.kernel(found[0].choice)
    made = kernel.executable.artifact.form
    assert made is not None and made.levers == {"speed": 2}
    assert kernel.params.items() >= found[0].params.items()
    assert of.default(SMALL, found).choice.form == NAME, "what a default kernel takes"


def test_winners_of_either_form_are_variants_and_stay_when_saved(stub: Stub, tmp_path: Path) -> None:
    of, shapes = task_of(matmul(), "matmul", target="interpret", form=NAME), [SMALL, {**SMALL, "m": 256}]
    plain = list(trials(of.forms, SMALL, of.machine, numbers=False))
    best = [other_trials(of.forms, plain, SMALL, of.machine)[0], plain[0]]
    found = [
        Tuned(s, b, b, 9.0, 9.0, 1, 1, 0, {}, "", {b.choice: 9.0, o.choice: 99.0})
        for s, b, o in zip(shapes, best, reversed(best), strict=True)
    ]
    made = together(of.kernel, found)
    assert found[0].as_json()["best"]["form"] == NAME and found[0].as_json()["best"]["levers"] == {"speed": 2}
    made.save(tmp_path / "k")
    for k in (made, neptune.load(tmp_path / "k", target="interpret")):
        assert len(k.variants) == 2 and "; stub form, speed=2" in k.explain()
        assert [k.chosen(**s).kernel.executable.form is not None for s in shapes] == [True, False]


def coded(levers: Mapping[str, Any]) -> Mapping[str, int]:
    return written(Choice("matmul", {}).formed(NAME, levers)).params


def record(levers: Mapping[str, Any] | None, us: float) -> Record:
    params = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 8, "num_warps": 4, "num_stages": 3}
    return Record(
        structure=structure_of(imported(matmul(), None, None)), template="matmul", versions=versions(),
        device=machine_for(parse_target("interpret")).device, sizes=SMALL, params=params, us=[us],
        numbers={} if levers is None else coded(levers),
    )  # fmt: skip


@pytest.mark.parametrize(("us", "made"), [(10.0, True), (30.0, False)])
def test_what_was_measured_of_it_decides(stub: Stub, tmp_path: Path, us: float, made: bool) -> None:
    assert coded({"speed": 2}) == {"stub.speed": 2} and read(Choice("matmul", {"stub.speed": 3})) is None
    store = Store(tmp_path / "cache")
    store.append(record({"speed": 2}, us))
    store.append(record(None, 20.0))
    kernel = compiled("auto", template=None, shapes=SMALL)
    of = kernel.executable.artifact.form
    assert (of is not None and of.levers == {"speed": 2}) == made
    assert f"records: {us:.1f} µs with BLOCK_K=32" in kernel.explain()


# --- the tables -----------------------------------------------------------------------------------


def test_every_form_has_a_row_in_either_table_and_a_name_of_its_own() -> None:
    assert forms.FORMS.keys() == data.FORMS.keys()
    plain = neptune.compile(softmax(), target="interpret").explain(json=True)
    taken = {*plain, "triton", "auto", "modules", "programs", "parts", "files", "kernel", "variants", "pointer"}
    for name, load in forms.FORMS.items():
        form = load()
        assert form.name == name == data.FORMS[name].name and name not in taken and form.targets and form.reason
        assert all(len(values) > 1 and "." not in lever for lever, values in form.levers.items())


@pytest.mark.parametrize("table", ["neptune.forms", "neptune.runtime.forms"])
def test_to_import_a_table_imports_nothing_that_compiles(table: str) -> None:
    """Nor does a look at the rows."""
    text = (
        f"import sys, {table} as t\n"
        "rows = [load() for load in t.FORMS.values()] if t.__name__ == 'neptune.forms' else list(t.FORMS)\n"
        "wrong = ('neptune.hopper.derive', 'neptune.codegen', 'neptune.verify', 'neptune.schedule', 'neptune.fusion',\n"
        "         'sympy', 'tvm', 'triton')\n"
        "assert rows and not [n for n in wrong if n in sys.modules], [n for n in wrong if n in sys.modules]\n"
    )
    subprocess.run([sys.executable, "-c", text], check=True, timeout=120)
