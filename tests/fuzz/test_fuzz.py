"""A bounded part of `qa.fuzz`, the cases that it has found, and that it would find what is broken."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm")
import neptune
from neptune.frontend import builder as nt
from neptune.fusion.schedule import PRIMITIVES
from qa import fuzz, harness
from qa.fuzzing import draw, schedules, unsound
from qa.fuzzing.judge import Effort, Failure, Verdict, judge, program_of
from qa.fuzzing.programs import MODES, arrays_of, results, walk
from qa.fuzzing.shrink import shrink
from tests.fuzz.bugs import BUGS, NOT_BELIEVED, planted
from tests.tiers import sampled

pytestmark = pytest.mark.uncached

SEEDS = range(0, 24)
PARTS = (SEEDS[:4], SEEDS[4:14], SEEDS[14:])
NEAR, FAR = 12, range(3000, 3100)
"""Within so many programs from its first seed a planted bug is found; where the compiler has changed, within these."""
SAVED = sorted((Path(__file__).parent / "saved").glob("*.json"))


@pytest.mark.parametrize("seeds", sampled(PARTS, 3), ids=str)
def test_random_programs_and_schedules(seeds: range) -> None:
    found = [fuzz.run_one(seed) for seed in seeds]
    assert not [o.failures for o in found if o.failures]
    assert sum(o.fused for o in found) >= len(found) // 5
    assert sum(o.exact.get("fused") == "accepted" for o in found) >= len(found) // 2


@pytest.mark.parametrize("path", sampled(SAVED, len(SAVED)), ids=lambda p: p.stem)
def test_saved(path: Path) -> None:
    case = json.loads(path.read_text())
    assert not judge(case, Effort(interpret=True)).failures


@pytest.mark.parametrize("name", sampled(unsound.UNSOUND, 8))
def test_what_has_no_repair_is_refused(name: str) -> None:
    for seed in range(3):
        case = unsound.draw(seed, name)
        verdict = judge(case, Effort(llvm=False))
        assert not verdict.failures
        assert "rolling_update" in [asked for asked, _ in verdict.refused]


@pytest.mark.parametrize("name", sampled(BUGS, len(BUGS)))
def test_planted_bugs_are_found(name: str) -> None:
    bug = BUGS[name]
    with planted(bug):
        seeds = [*range(bug.first, bug.first + NEAR), *FAR]
        assert any(fuzz.run_one(s, Effort(llvm=False), small=False).failures for s in seeds)


def test_a_solver_that_is_wrong_is_not_believed() -> None:
    n, k = nt.var("n"), nt.var("k")
    x, j, p = nt.placeholder((n, k), "float32", "x"), nt.reduce_axis((0, k), "j"), nt.reduce_axis((0, k), "p")
    m = nt.compute((n,), lambda i: nt.max(x[i, j], axis=j), "m")
    value = nt.compute((n,), lambda i: nt.sum(nt.select(x[i, p] > m[i] - 1.0, x[i, p], 0.0), axis=p), "l")
    program = nt.build(value, inputs=[x], name="choice")
    with pytest.raises(neptune.FusionError, match="which branch is taken depends on r"):
        neptune.compile(program, "softmax_online", target="llvm")
    with planted(NOT_BELIEVED), pytest.raises(neptune.FusionError, match="was not proved"):
        neptune.compile(program, "softmax_online", target="llvm")


# --- what is drawn ---------------------------------------------------------------------------------


def _expressions(doc: Any) -> Iterator[Any]:
    for s in doc["stages"]:
        yield from (n for n in walk(s["value"]))


def test_every_kind_of_program_is_drawn() -> None:
    docs = [draw.draw(seed) for seed in range(400)]
    folds = [s for d in docs for s in d["stages"] if "fold" in s]
    assert {s["fold"] for s in folds} == {"sum", "prod", "max", "min", "argmax", "argmin", "top2"}
    assert {"where", "init"} <= {k for s in folds for k in s}
    assert {"", "i", "bi", "ie"} <= {s["at"] for s in folds} and {"d", "j"} == {s["over"] for s in folds}
    counts = {sum(s.get("fold") is not None and s["over"] == "j" for s in d["stages"]) for d in docs}
    assert {2, 3, 4, 5} <= counts
    heads = {n[0] for d in docs for n in _expressions(d) if isinstance(n, list)}
    assert {"exp", "div", "tanh", "abs", "sqrt", "rsqrt", "select", "cast", "scalar", "le", "size", "log"} <= heads
    inputs = [t for d in docs for t in d["inputs"]]
    assert {"float32", "float16", "int32"} == {t["dtype"] for t in inputs} and {"ij", "ji"} <= {t["at"] for t in inputs}
    assert any(len(d["outputs"]) > 2 for d in docs) and any(
        not symbolic for d in docs for _, symbolic in d["sizes"].values()
    )
    assert len({results(s)[0] for d in docs[:1] for s in d["stages"]}) == len(docs[0]["stages"])


def test_cases_are_json_and_drawn_alike() -> None:
    for seed in range(5):
        doc = draw.draw(seed)
        assert json.loads(json.dumps(doc)) == doc == draw.draw(seed)
        steps = schedules.draw(program_of(doc), seed).steps
        case = {"program": doc, "steps": steps, "data": seed}
        assert json.loads(fuzz.case_text(case)) == json.loads(json.dumps(case))
        assert schedules.run(program_of(doc), steps).sch.program == schedules.draw(program_of(doc), seed).sch.program


def test_every_primitive_is_asked_for() -> None:
    import random

    driver = schedules.Driver(program_of(draw.draw(1)))
    rng = random.Random(0)
    assert all(schedules.arguments(driver.sch, p, rng) is not None for p in PRIMITIVES)


@pytest.mark.parametrize("mode", MODES)
def test_data_has_the_shapes_of_the_program(mode: str) -> None:
    doc = draw.draw(3)
    arrays = arrays_of(doc, 0, mode)
    assert {t["name"]: len(t["at"]) for t in doc["inputs"]} == {n: a.ndim for n, a in arrays.items()}


# --- shrinking -------------------------------------------------------------------------------------


def test_a_failure_shrinks_to_what_it_is_about() -> None:
    """Of a large program what remains is the one operator that fails, and the one request."""
    seed = next(s for s in range(50) if any(n[0] == "tanh" for n in _expressions(draw.draw(s)) if isinstance(n, list)))
    doc = draw.draw(seed)
    steps = [["split", {"stage": "r0", "loop": "j"}, 4], ["partition", {"stage": "r0", "loop": "j0"}]]

    def check(case: Any) -> Verdict:
        program_of(case["program"])
        fails = any(isinstance(n, list) and n[0] == "tanh" for n in _expressions(case["program"]))
        asked = any(s[0] == "partition" for s in case["steps"])
        return Verdict([Failure("tanh", "")] if fails and asked else [])

    case = {"program": doc, "steps": steps, "data": 99}
    small = shrink(case, Failure("tanh", ""), check=check)
    assert [s[0] for s in small["steps"]] == ["partition"]
    assert len(small["program"]["stages"]) == 1 and small["data"] < 9
    assert all(value == 1 for value, _ in small["program"]["sizes"].values())
    assert shrink(case, Failure("tanh", ""), check=check) == small


@pytest.mark.slow
def test_a_planted_bug_shrinks_to_a_few_stages() -> None:
    bug = BUGS["the rescale is dropped"]
    with planted(bug):
        found = next(
            o
            for s in [*range(bug.first, bug.first + NEAR), *FAR]
            if (o := fuzz.run_one(s, Effort(llvm=False))).failures
        )
    assert found.case is not None and len(found.case["program"]["stages"]) <= 3
    assert judge(found.case, Effort(llvm=False)).failures == []


def test_what_failed_is_printed_as_a_case_that_can_be_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    case = {"program": draw.draw(1), "steps": [], "data": 1}
    failed = fuzz.Outcome(1, failures=[("llvm", "y is off")], case=case)
    monkeypatch.setattr(fuzz, "run_one", {1: failed, 2: fuzz.Outcome(2, accepted=["split"])}.__getitem__)
    found = fuzz.trial(1)
    assert (found.kind, found.reason) == ("wrong", "llvm: y is off") and fuzz.trial(2).kind == "right"
    assert json.loads(found.case) == json.loads(json.dumps({**case, "seen": "llvm: y is off"}))


@pytest.mark.slow
def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "fuzz.json"
    monkeypatch.setattr("sys.argv", ["fuzz", "--count", "2", "--seed", "5", "--json", str(out)])
    with pytest.raises(SystemExit) as status:
        harness.command(fuzz.trial, fuzz.__doc__)
    assert status.value.code == 0 and "2 cases in" in capsys.readouterr().out
    assert json.loads(out.read_text())["failed"] == []
