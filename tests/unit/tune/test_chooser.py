"""At a call's own sizes the model tells variants apart: by class, machine and records alone."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from random import Random

import numpy as np
import pytest

import neptune
from bench import classes
from neptune.base.choice import Choice
from neptune.errors import ShapeError
from neptune.ir.program import Program
from neptune.ops.attention import attention
from neptune.ops.linear import matmul
from neptune.ops.softmax import softmax
from neptune.runtime.family import pick
from neptune.tune.choose import candidates
from neptune.tune.chooser import Chooser, counts_of
from neptune.tune.family import Family, Wishes
from neptune.tune.gains import Gain
from neptune.tune.measured import Sample
from neptune.tune.model.machine import DEFAULT, DEVICES
from neptune.tune.points import class_sizes, sizes_of

PROGRAMS = {"attention": lambda: attention(depth=64), "matmul": matmul, "softmax": softmax}


@cache
def family(name: str) -> tuple[Program, Family]:
    program = PROGRAMS[name]()
    found = next(candidates(program)).family
    assert found is not None
    return program, found


def of(program: Program, found: Family, fixed: dict[str, int] | None = None) -> Chooser:
    described = {"own": 0, "variants": [c.plain() for c in found.choices]}
    return Chooser.read(counts_of(found, fixed or {}), json.loads(json.dumps(described)), program, DEFAULT)


def drawn(program: Program, count: int) -> list[dict[str, int]]:
    draw = Random(0)
    return [{n: round(2 ** draw.uniform(0, 14)) for n in sizes_of(program)} for _ in range(count)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_taken_is_little_slower_than_the_best_of_the_whole_space(name: str) -> None:
    program, found = family(name)
    chooser, lost = of(program, found), []
    for sizes in drawn(program, 40):
        at = class_sizes(program, sizes)
        number, best = chooser.number(sizes), next(candidates(program, None, Wishes(at))).family
        assert number is not None and best is not None
        choice = found.choices[number]
        lost.append(found.rows[choice.template].predicted([choice.params], [at])[0, 0] / best.us())
    assert np.exp(np.log(lost).mean()) < 1.02 and max(lost) < 1.25


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_text_that_is_kept_predicts_what_the_compilation_did(name: str) -> None:
    program, found = family(name)
    made, read = Chooser(found.choices, found.rows, program), of(program, found)
    for sizes in drawn(program, 20):
        assert np.array_equal(made.times(sizes), read.times(sizes))


def test_all_sizes_of_a_class_take_the_same_in_any_order() -> None:
    program, found = family("matmul")
    calls = drawn(program, 60)
    first, again = of(program, found), of(program, found)
    numbers = [first.number(s) for s in calls]
    assert [again.number(s) for s in reversed(calls)] == numbers[::-1]
    assert [first.number(class_sizes(program, s)) for s in calls] == numbers
    assert len(set(numbers)) > 4


def test_a_gain_and_what_was_measured_outlast_the_text() -> None:
    program = matmul()
    here = {"m": 700, "n": 3000, "k": 5000}
    slow = {"BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 8, "num_warps": 8, "num_stages": 2}
    fast = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 8, "num_stages": 3}
    sample = Sample(here, {Choice("matmul", slow): 1.0, Choice("matmul", fast): 2.0}, 1.0)
    found = next(candidates(program, None, Wishes(samples=(sample,)))).family
    assert found is not None
    number = of(program, found).number(here)
    assert number is not None and found.choices[number].params == slow
    small = {"m": 64, "n": 64, "k": 64}
    before = of(program, found).times(small)
    for rows in found.rows.values():
        rows.gains = Gain((small,), (0.5,))
    after = of(program, found).times(small)
    # What the kernel's own template gains is for its form to say.
    own = np.array([c.template == found.choices[0].template for c in found.choices])
    assert np.allclose(after[~own], before[~own] / 2) and np.array_equal(after[own], before[own])


def test_sizes_that_may_not_decide_do_not() -> None:
    kernel = neptune.compile(softmax(), target="llvm", batch_invariant=True)
    assert len(kernel.variants) > 1
    one, many = (kernel.chosen(rows=rows, cols=5000) for rows in (1, 100000))
    assert one == many and one.why == many.why != ""
    with pytest.raises(ShapeError, match="cols"):
        kernel.chosen(rows=1)


def test_a_model_that_fails_leaves_it_to_the_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    program, found = family("softmax")
    chooser = of(program, found)
    monkeypatch.setattr(Chooser, "times", lambda self, sizes: 1 / 0)
    monkeypatch.setenv("NEPTUNE_STRICT", "0")
    assert chooser.number({"rows": 1, "cols": 99}) is None
    monkeypatch.setattr(Chooser, "times", lambda self, sizes: np.full(3, np.inf))
    assert chooser.number({"rows": 2, "cols": 99}) is None


def test_a_kernel_tells_what_it_takes_and_why_and_a_saved_one_goes_by_its_tree(tmp_path) -> None:
    kernel = neptune.compile(softmax(), target="llvm")
    told = kernel.chosen(rows=4096, cols=4096)
    assert "predicted" in told.why and "on H200; next: " in told.why and told.why in repr(told)
    kernel.save(tmp_path / "rows")
    saved = neptune.load(tmp_path / "rows", target="llvm")
    assert not saved.executable.artifact.counts and not list(tmp_path.rglob("counts.json"))
    sizes = {"rows": 4096, "cols": 4096}
    expected = pick(saved.executable.members.tree, sizes)
    assert saved.chosen(**sizes).name == kernel.variants[expected].name and saved.chosen(**sizes).why == ""
    assert "at most above" in str(kernel.explain()).replace("\n", " ")


def test_sizes_of_0_take_the_comparisons_and_have_no_prediction() -> None:
    kernel = neptune.compile(softmax(), target="llvm")
    for sizes in ({"rows": 0, "cols": 5}, {"rows": 5, "cols": 0}):
        assert kernel.chosen(**sizes).why == "nothing is predicted of sizes below 1"
    kernel.warm(rows=0, cols=0)


def test_another_target_chooses_for_its_own_machine() -> None:
    kernel = neptune.compile(matmul(), target="cuda:90")
    there = kernel.for_target("cuda:80")
    assert there._family is not None and there._family.chooser.rows["matmul"].machine == DEVICES["A100"]
    assert "on A100" in there.chosen(m=512, n=512, k=512).why


def test_two_processes_choose_alike(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One compiles, the other finds the kernel in the cache."""
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path))
    asked = [sys.executable, "-m", "bench.classes", "--numbers", "--count", "40"]
    one, other = (subprocess.run(asked, capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert one == other and len(set(json.loads(one))) > 3


def test_a_thousand_sizes_are_told_about(capsys: pytest.CaptureFixture[str]) -> None:
    assert classes.main(["--count", "30", "--regret", "10"]) == 0
    said = capsys.readouterr().out
    assert "30 calls of" in said and "in another order: True; in another process: True" in said
