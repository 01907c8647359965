"""The tuner with planted times in real processes: misfortunes survived, nothing lost, the best one taken."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import neptune
from neptune.autotune import journal
from neptune.autotune import tuner as module
from neptune.autotune.learn import Lesson
from neptune.autotune.place import Bench, Local, Lost, Outcome, case_of
from neptune.autotune.search import NOTHING_BETTER, TIME
from neptune.autotune.space import forms_of, trials
from neptune.autotune.task import NO_GPU, Task, task_of, task_of_kernel
from neptune.autotune.tuner import EXECUTORS, Options, Tuning, tune_kernel, tuned
from neptune.kernel import Kernel
from neptune.ops.softmax import softmax
from neptune.records.record import Record, structure_of
from neptune.records.store import Store
from neptune.versions import versions
from tests.unit.autotune.planted import OTHERS, SPEC

SIZES = {"rows": 4, "cols": 40}
ROOT = Path(__file__).parents[3]


@cache
def task(template: str | None = "softmax_row") -> Task:
    return task_of(softmax(), template, target="llvm")


def store(folder: Path) -> Store:
    """Without the records that ship."""
    return Store(folder, shipped=folder / "none")


def options(
    folder: Path, plan: Mapping[str, Any], seconds: float = 60.0, limit: float = 40.0, workers: int = 0, **more: Any
) -> Options:
    planted = {"plan": dict(plan), "log": str(folder / "log"), **more}
    return Options(seconds, records=store(folder), bench=Bench(SPEC, planted, limit, workers), quiet=True)


def runs(folder: Path) -> list[str]:
    """What has run, but for the reference and its check."""
    file = folder / "log"
    return [x for x in file.read_text().splitlines() if "stagewise" not in x] if file.exists() else []


def kept(folder: Path) -> list[str]:
    return [f"{r.template} {dict(r.params)}" for r in store(folder).all()]


def check_right(kernel: neptune.Kernel) -> None:
    x = torch.randn(5, 77)
    torch.testing.assert_close(kernel(x), torch.softmax(x, -1))


def test_the_fastest_is_taken_and_everything_kept(tmp_path: Path) -> None:
    plan = {"BLOCK_M=2 num_warps=8": 50.0, "BLOCK_M=4 num_warps=8": 49.0}
    found = tuned(task(), SIZES, options(tmp_path, plan))
    (at,) = found.shapes
    assert (at.us, at.default_us, at.failed) == (49.0, OTHERS, {})
    assert found.kernel.params["BLOCK_M"] == 4 and found.kernel.params["num_warps"] == 8
    assert at.stopped == NOTHING_BETTER and at.measured == len(set(runs(tmp_path))) <= at.candidates
    check_right(found.kernel)
    records = store(tmp_path).all()
    best = [r for r in records if min(r.us) == 49.0]
    # Once alone, once among the finalists, in three rounds.
    assert [len(r.us) for r in best] == [3, 3] and best[0].sizes == SIZES
    assert best[0].clocks == {"sm": 1980.0, "memory": 3201.0}


@pytest.mark.slow
def test_misfortunes_are_survived(tmp_path: Path) -> None:
    """Each kind, in processes of their own; what is wrong is never timed, and the best of the rest is taken."""
    plan = {
        "BLOCK_M=1 num_warps=4": "segfaults",
        "BLOCK_M=8 num_warps=4": "exits",
        "BLOCK_M=2 num_warps=4": "wrong",
        "BLOCK_M=4 num_warps=4": "unwritten",
        "BLOCK_M=1 num_warps=8": "memory",
        "BLOCK_M=2 num_warps=8": "raises",
        "BLOCK_M=4 num_warps=8": "hangs",
        "BLOCK_M=2 num_warps=16": 42.0,
    }
    found = tuned(task(), SIZES, options(tmp_path, plan, seconds=300.0, workers=1))
    (at,) = found.shapes
    kinds = {name: why.partition(":")[0] for name, why in at.failed.items()}
    words = {"segfaults": "died", "exits": "died", "unwritten": "wrong", "raises": "failed", "hangs": "hung"}
    for key, planted in plan.items():
        if isinstance(planted, str):
            name = f"softmax_row {key} num_stages=2"
            kind = words.get(planted, planted)
            assert kinds[name] == kind, (name, at.failed)
    assert "SIGSEGV" in at.failed["softmax_row BLOCK_M=1 num_warps=4 num_stages=2"]
    assert "exit code 3" in at.failed["softmax_row BLOCK_M=8 num_warps=4 num_stages=2"]
    assert at.us == 42.0 and at.default_us is None
    assert found.kernel.params["BLOCK_M"] == 2 and found.kernel.params["num_warps"] == 16
    good = [f"BLOCK_M={r.params['BLOCK_M']} num_warps={r.params['num_warps']}" for r in store(tmp_path).all()]
    assert "BLOCK_M=2 num_warps=16" in good and not [x for x in good if isinstance(plan.get(x), str)]


def test_where_all_fail_the_models_choice_is_returned(tmp_path: Path) -> None:
    found = tuned(task(), SIZES, options(tmp_path, {"softmax_row": "wrong"}))
    (at,) = found.shapes
    assert at.us is None and at.best == at.default and set(at.failed.values()) and not kept(tmp_path)
    check_right(found.kernel)


def test_no_process_is_left_where_a_search_ends_before_it_begins(tmp_path: Path) -> None:
    """They start early; the reference's check, which takes longer, is not waited for."""
    case = case_of(task().loops, task().reference(), SIZES, "H200", None)
    slow = Bench(SPEC, {"plan": {}, "log": str(tmp_path / "log"), "seconds_each": 30.0}, workers=1)
    for pause in (0.0, 0.02, 3.0):
        executor = Local(tmp_path, case, slow, lambda: 0.0)
        time.sleep(pause)
        began = time.monotonic()
        executor.close()
        assert time.monotonic() - began < 10
        assert all(place._worker._process is None for place in (executor._measuring, *executor._compiling))


def test_a_template_is_compiled_once(tmp_path: Path) -> None:
    """However many of its candidates are timed, and how often."""
    asked: list[object] = []

    def compiled(template: Any) -> Kernel:
        asked.append(template)
        return neptune.compile(softmax(), template, target="llvm")

    (form,) = forms_of(task().loops, "softmax_row", compiled)
    assert form.kernel() is form.kernel() and asked == ["softmax_row"]
    every = forms_of(task().loops, None, compiled)
    assert every[0].kernel() is every[0].kernel() and asked == ["softmax_row", every[0].template]


class Losing(Local):
    """An executor that has lost its last GPU after two candidates."""

    def measured(self, kernels: Sequence[Kernel]) -> Iterator[tuple[int, Outcome]]:
        yield from islice(super().measured(kernels), 2)
        raise Lost("no GPU is left")


def test_where_no_gpu_is_left_the_best_that_is_known_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXECUTORS, "local", Losing)  # type: ignore[misc]
    (at,) = tuned(task(), SIZES, options(tmp_path, {})).shapes
    assert (at.stopped, at.measured, at.us) == ("no GPU is left", 2, OTHERS) and len(kept(tmp_path)) == 2


def test_what_hangs_while_it_compiles_ends_with_the_time(tmp_path: Path) -> None:
    began = time.monotonic()
    found = tuned(task(), SIZES, options(tmp_path, {"softmax_row": "hangs to compile"}, seconds=4.0, workers=1))
    assert time.monotonic() - began < 30
    assert found.shapes[0].us is None and found.shapes[0].stopped == TIME


@pytest.mark.slow
def test_a_search_goes_on_where_it_was(tmp_path: Path) -> None:
    plan = {"BLOCK_M=2 num_warps=16": 42.0}
    first = tuned(task(), SIZES, Options(**{**vars(options(tmp_path, plan)), "trials": 3}))
    before = set(runs(tmp_path))
    assert first.shapes[0].measured == 3 == len(before)
    (tmp_path / "log").unlink()
    again = tuned(task(), SIZES, options(tmp_path, plan))
    assert again.shapes[0].known == 3 and again.shapes[0].us == 42.0
    # The default is timed beside the finalists once more; nothing else is.
    assert len(before & set(runs(tmp_path))) == 1 < len(set(runs(tmp_path)))
    (tmp_path / "log").unlink()
    third = tuned(task(), SIZES, options(tmp_path, plan))
    assert third.shapes[0].us == 42.0 and third.shapes[0].best == again.shapes[0].best
    # A record may be anybody's: what is taken is compared.
    assert len(runs(tmp_path)) == 1 and "BLOCK_M=2 num_stages=2 num_warps=16" in runs(tmp_path)[0]
    assert not again.shapes[0].failed
    # Another size is another search.
    assert tuned(task(), {"rows": 4, "cols": 41}, options(tmp_path, plan, seconds=0.001)).shapes[0].known == 0


@pytest.mark.slow
def test_another_process_finds_what_was_measured_of_a_calibrated_gpu(tmp_path: Path) -> None:
    """Strings hash anew in each process; and what the GPU's constants were found to be changes no time."""
    script = tmp_path / "run.py"
    script.write_text(
        f"from dataclasses import replace\n"
        f"from pathlib import Path\n"
        f"from neptune.tune.model.calibrated import with_measured\n"
        f"from tests.unit.autotune.test_calibrate import Planted, calibrate\n"
        f"from tests.unit.autotune.test_tuner import SIZES, options, task, tuned\n"
        f"own = replace(task(), machine=with_measured(task().machine, calibrate(Planted()).constants, True))\n"
        f"assert own.machine.name != own.machine.device\n"
        f"found = tuned(own, SIZES, replace(options(Path({str(tmp_path)!r}), {{}}), trials=2)).shapes[0]\n"
        f"print(found.known, found.measured)\n"
    )
    said = []
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}
        made = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, timeout=200)
        assert made.returncode == 0, made.stderr
        said.append(made.stdout.split())
    (none, first), (known, _) = said
    assert none == "0" < known == first
    assert {r.device for r in store(tmp_path).all()} == {task().machine.device}


@pytest.mark.slow
def test_what_failed_is_not_tried_again_by_the_same_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = {"BLOCK_M=2 num_warps=16": "wrong", "BLOCK_M=2 num_warps=8": "raises", "BLOCK_M=4": 50.0}
    first = tuned(task(), SIZES, options(tmp_path, plan))
    assert sorted(f.how for f in store(tmp_path).failures()) == ["failed", "wrong"] and len(first.shapes[0].failed) == 2
    (tmp_path / "log").unlink()
    mended = {"BLOCK_M=2": 3.0, "BLOCK_M=4": 50.0}
    again = tuned(task(), SIZES, options(tmp_path, mended)).shapes[0]
    assert again.us == 50.0 and not again.failed and again.known == first.shapes[0].measured
    assert not [x for x in runs(tmp_path) if "BLOCK_M=2 " in x and ("=16" in x or "num_warps=8" in x)]
    # Other versions may have mended it.
    now = versions()
    monkeypatch.setattr(journal, "versions", lambda: {**now, "triton": "99"})
    assert tuned(task(), SIZES, options(tmp_path, mended)).shapes[0].us == 3.0


@pytest.mark.slow
def test_the_order_follows_from_what_was_measured_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = Options(**{**vars(options(tmp_path, {})), "trials": 2})
    tuned(task(), SIZES, few)
    seen: list[Lesson] = []

    def backwards(forms: Any, trials: Any, lessons: Any, sizes: Any, machine: Any) -> Any:
        seen.extend(lessons)
        made = [replace(t, us=1e3 / t.us) for t in trials]
        return tuple(sorted(made, key=lambda t: t.us)), "backwards"

    monkeypatch.setattr(module, "ordered", backwards)
    (tmp_path / "log").unlink()
    other = {"rows": 4, "cols": 100}
    tuned(task(), other, few)
    assert {x.choice.template for x in seen} == {"softmax_row"} and all(
        x.sizes == SIZES and x.us == OTHERS for x in seen
    )
    last = trials(task().forms, other, task().machine)[-1]
    assert any(all(f"{n}={v}" in line.split() for n, v in last.params.items()) for line in runs(tmp_path))


def test_what_other_versions_put_first_is_measured_first_and_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = {"BLOCK_M": 8, "num_warps": 16, "num_stages": 2}
    others = [{**last, "BLOCK_M": b} for b in (1, 2, 4)]
    assert str(task().default(SIZES).params) not in map(str, (last, *others))
    for us, params in ((1.0, last), *((9.0, p) for p in others)):
        made = {"structure": structure_of(softmax()), "device": "H200", "template": "softmax_row", "sizes": SIZES}
        store(tmp_path).append(Record(**made, params=params, us=[us], versions={**versions(), "triton": "0"}))
    few = Options(**{**vars(options(tmp_path, {"BLOCK_M=1 num_warps=4": 7.0})), "trials": 3})
    (at,) = tuned(task(), SIZES, few).shapes
    assert at.known == 0 and at.us is not None and at.us >= 7.0
    assert any("BLOCK_M=8 num_stages=2 num_warps=16" in x for x in runs(tmp_path))


@pytest.mark.slow
def test_nothing_is_lost_when_the_tuner_is_killed(tmp_path: Path) -> None:
    """kill -9 in the middle: each candidate that was timed is there, the workers end, and the next search goes on."""
    script = tmp_path / "run.py"
    plan = {"BLOCK_M=2 num_warps=16": 42.0}
    script.write_text(
        f"from pathlib import Path\n"
        f"from tests.unit.autotune.test_tuner import SIZES, options, task, tuned\n"
        f"tuned(task(), SIZES, options(Path({str(tmp_path)!r}), {plan}, seconds_each=0.5))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, str(script)], env=env)
    deadline = time.monotonic() + 120
    while len(kept(tmp_path)) < 2 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = kept(tmp_path)
    assert len(done) >= 2 and len(set(done)) == len(done)
    ran = runs(tmp_path)
    # What had begun may not have been kept; everything before it is.
    assert len(ran) - 1 <= len(done) <= len(ran)
    time.sleep(2)
    assert runs(tmp_path) in (ran, runs(tmp_path)[: len(ran) + 1])
    (tmp_path / "log").unlink()
    found = tuned(task(), SIZES, options(tmp_path, plan))
    assert found.shapes[0].known == len(done)
    # The default and the fastest are timed beside each other once more.
    assert len(set(runs(tmp_path)) & set(ran[: len(done)])) <= 2 < len(set(runs(tmp_path)))


@pytest.mark.slow
def test_several_shapes_make_a_family(tmp_path: Path) -> None:
    """Each shape has a winner of its own, and launches take it."""
    shapes = [{"rows": 2, "cols": 16}, {"rows": 6, "cols": 96}]
    found = tuned(
        task(), shapes, options(tmp_path, {"BLOCK_M=2 num_warps=4 at 2×16": 10.0, "BLOCK_M=4 num_warps=8 at 6×96": 9.0})
    )
    assert [t.us for t in found.shapes] == [10.0, 9.0]
    assert [found.kernel.chosen(**s).params["BLOCK_M"] for s in shapes] == [2, 4]
    check_right(found.kernel)
    for s in shapes:
        x = torch.randn(s["rows"], s["cols"])
        torch.testing.assert_close(found.kernel(x), torch.softmax(x, -1))
    found.kernel.save(tmp_path / "saved")
    assert neptune.load(tmp_path / "saved", target="llvm").chosen(**shapes[1]).params["BLOCK_M"] == 4


@pytest.mark.slow
def test_candidates_are_compared_where_the_reference_fits(tmp_path: Path) -> None:
    """With little memory the reference runs at smaller sizes: there what is wrong shows as well, and at the sizes that
    are timed what is not written does."""
    plan = {"BLOCK_M=1": "wrong", "BLOCK_M=2": "unwritten at 64×128", "BLOCK_M=4": 50.0}
    found = tuned(task(), {"rows": 64, "cols": 128}, options(tmp_path, plan, room=800))
    (at,) = found.shapes
    assert at.best.params["BLOCK_M"] in (4, 8) and at.us == 50.0
    assert {why.partition(":")[0] for why in at.failed.values()} == {"wrong"}
    assert any("not written" in why for why in at.failed.values())
    assert any("32×32" in line for line in runs(tmp_path))


@pytest.mark.slow
def test_a_kernel_is_tuned_on_tensors_of_the_callers(tmp_path: Path) -> None:
    kernel = neptune.compile(softmax(), "softmax_row", target="llvm")
    x = torch.randn(40, 4).t().contiguous()[:, :33]
    found = tune_kernel(kernel, (x,), options(tmp_path, {"BLOCK_M=4 num_warps=8": 3.0}))
    assert found.shapes[0].sizes == {"rows": 4, "cols": 33} and found.shapes[0].us == 3.0
    check_right(found.kernel)


def test_a_promise_of_bits_is_kept() -> None:
    """Other templates add up in another order: only values of the kernel's own are tried, and the promise stays."""
    kernel = neptune.compile(softmax(), target="llvm", batch_invariant=True)
    own = task_of_kernel(kernel, (torch.ones(4, 40),), SIZES)
    assert [f.template for f in own.forms] == [kernel.chosen(**SIZES).template]
    made = own.kernel(own.default(SIZES).choice)
    assert "batch_invariant" in str(made.explain(json=True)["promises"])
    assert len(task_of_kernel(neptune.compile(softmax(), target="llvm"), (), SIZES).forms) > 1


def test_without_a_gpu_the_model_chooses(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kernel = neptune.autotune(softmax(), shapes=[SIZES], target="llvm", budget="1s")
    check_right(kernel)
    assert NO_GPU in capfd.readouterr().err
    assert kernel.params == neptune.compile(softmax(), target="llvm", shapes=SIZES).params
    assert neptune.compile(softmax(), "softmax_row", target="llvm").tune(torch.ones(4, 40), quiet=True).inputs == ("x",)
    assert not capfd.readouterr().err


@pytest.mark.slow
def test_values_that_are_given_stay(tmp_path: Path) -> None:
    fixed = task_of(softmax(), "softmax_row", target="llvm", params={"num_warps": 8})
    found = tuned(fixed, SIZES, options(tmp_path, {"BLOCK_M=4": 5.0}))
    assert found.kernel.params["num_warps"] == 8 and found.shapes[0].us == 5.0
    assert all("num_warps=8" in x for x in runs(tmp_path))


def test_the_package_is_the_tuner() -> None:
    import neptune.autotune.space  # binds the package's name

    assert callable(neptune.autotune) and neptune.autotune.tuner.autotune.__doc__
    with pytest.raises(neptune.NeptuneError, match="no number with a unit"):
        neptune.autotune(softmax(), shapes=[SIZES], budget="60")


def test_a_tuning_as_json(tmp_path: Path) -> None:
    said = Tuning.as_json(tuned(task(), SIZES, options(tmp_path, {}, seconds=0.001)))
    assert said["shapes"][0]["stopped"] == TIME and said["shapes"][0]["best"]["us"] is None


@pytest.mark.slow
def test_a_record_of_a_wrong_candidate_is_not_believed(tmp_path: Path) -> None:
    """It may have been imported: the fastest by the records is compared before it is taken."""
    tuned(task(), SIZES, options(tmp_path, {"BLOCK_M=2 num_warps=16": 42.0}))
    found = tuned(task(), SIZES, options(tmp_path, {"BLOCK_M=2 num_warps=16": "wrong"}))
    (at,) = found.shapes
    assert at.us == OTHERS and at.known == at.measured + 1
    assert list(at.failed) == ["softmax_row BLOCK_M=2 num_warps=16 num_stages=2"]
    check_right(found.kernel)
