"""One kernel of what was the fastest: numbers of parts are taken where they were measured, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

import neptune
from neptune.autotune.search import Tuned
from neptune.autotune.space import Trial, trials
from neptune.autotune.task import Task, task_of, task_of_kernel
from neptune.autotune.tuner import together, tuned
from neptune.base.choice import Choice
from neptune.ops.linear import matmul
from tests.unit.autotune.test_tuner import options, runs, store

NUMBER = "NUM_SPLITS"
SHAPES = [{"m": 16, "n": 64, "k": 4096}, {"m": 16, "n": 64, "k": 8192}, {"m": 16, "n": 64, "k": 2048}]
PARAMS = {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 2}


@cache
def task() -> Task:
    return task_of(matmul(), "matmul_split", target="llvm")


def parts(kernel: neptune.Kernel, sizes: Mapping[str, int]) -> int:
    """The number of parts that a launch takes."""
    of = kernel.chosen(**sizes).kernel.executable
    return of._numbers.of_call(of._sizes(sizes), torch.device("cpu"))[NUMBER]


def found(sizes: Mapping[str, int], params: Mapping[str, int], us: float) -> Tuned:
    best = Trial(Choice("matmul_split", params), us)
    return Tuned(sizes, best, best, us, us, 1, 1, 0, {}, "", {best.choice: us})


def check_right(kernel: neptune.Kernel, sizes: Mapping[str, int]) -> None:
    a, b = torch.randn(sizes["m"], sizes["k"]).half(), torch.randn(sizes["k"], sizes["n"]).half()
    torch.testing.assert_close(kernel(a, b).double(), a.double() @ b.double(), rtol=2e-3, atol=0.1)


def test_a_measured_number_is_that_of_its_shape_alone(tmp_path: Path) -> None:
    usual = [parts(task().kernel(Choice("matmul_split", PARAMS)), s) for s in SHAPES]
    assert not {6, 5} & {*usual}
    numbered = [{**PARAMS, NUMBER: 6}, {**PARAMS, NUMBER: 5}, PARAMS]
    kernel = together(
        task().kernel, [found(s, p, 9.0) for s, p in zip(SHAPES, numbered, strict=True)], frozenset({NUMBER})
    )
    # One variant: it differs in nothing that is compiled.
    assert len(kernel.variants) == 1 and NUMBER not in kernel.params
    assert [parts(kernel, s) for s in SHAPES] == [6, 5, usual[2]]
    other = {**SHAPES[0], "m": 15}
    assert parts(kernel, other) == parts(task().kernel(Choice("matmul_split", PARAMS)), other)
    kernel.save(tmp_path / "kernel")
    loaded = neptune.load(tmp_path / "kernel", target="llvm")
    assert [parts(loaded, s) for s in SHAPES] == [6, 5, usual[2]]
    for s in SHAPES:
        check_right(loaded, s)
    # Of other tiles nothing was measured; a caller's own number goes first.
    assert parts(kernel.with_params(BLOCK_K=128), SHAPES[0]) != 6
    assert parts(kernel.with_params({NUMBER: 3}), SHAPES[0]) == 3


def test_several_variants_each_with_its_numbers() -> None:
    wide = {**PARAMS, "num_warps": 8}
    two = [found(SHAPES[2], {**PARAMS, NUMBER: 6}, 3.0), found(SHAPES[1], {**wide, NUMBER: 5}, 4.0)]
    kernel = together(task().kernel, two, frozenset({NUMBER}))
    assert [kernel.chosen(**t.sizes).params["num_warps"] for t in two] == [4, 8]
    assert [parts(kernel, t.sizes) for t in two] == [6, 5]


def test_a_number_that_the_caller_gave_is_that_of_all_shapes() -> None:
    given = task_of(matmul(), "matmul_split", target="llvm", params={NUMBER: 3})
    assert given.numbers == frozenset()
    kernel = together(given.kernel, [found(SHAPES[0], {**PARAMS, NUMBER: 3}, 9.0)], given.numbers)
    assert [parts(kernel, s) for s in SHAPES] == [3, 3, 3]


def test_where_bits_or_one_shape_were_promised_numbers_stay() -> None:
    args = (torch.ones(16, 4096).half(), torch.ones(4096, 64).half())
    assert task().numbers == {NUMBER}
    assert task_of(matmul(), "matmul_split", target="llvm", bounds=SHAPES[1]).numbers == frozenset()
    for promise in ({"deterministic": True}, {"batch_invariant": True}):
        kernel = neptune.compile(matmul(), "matmul_split", target="llvm", **promise)  # type: ignore[arg-type]
        assert task_of_kernel(kernel, args, SHAPES[0]).numbers == frozenset()
    plain = neptune.compile(matmul(), "matmul_split", target="llvm")
    assert task_of_kernel(plain, args, SHAPES[0]).numbers == {NUMBER}


@pytest.mark.slow
def test_the_tuner_finds_a_number(tmp_path: Path) -> None:
    """It is kept as what the launch was given, and a search that goes on knows it."""
    sizes = {"m": 16, "n": 64, "k": 2048}
    (first, *_) = (t for t in trials(task().forms, sizes, task().machine) if NUMBER in t.params)
    plan = {" ".join(f"{n}={v}" for n, v in first.params.items()): 20.0}
    done = tuned(task(), sizes, replace(options(tmp_path, plan), trials=6))
    (at,) = done.shapes
    assert at.us == 20.0 and at.best.params == first.params
    assert parts(done.kernel, sizes) == first.params[NUMBER] and NUMBER not in done.kernel.params
    (record, *_) = (r for r in store(tmp_path).all() if min(r.us) == 20.0)
    assert record.numbers == {NUMBER: first.params[NUMBER]} and NUMBER not in record.params
    again = tuned(task(), sizes, replace(options(tmp_path, plan), seconds=1.0))
    assert again.shapes[0].known == at.measured
    assert runs(tmp_path)
    check_right(done.kernel, sizes)
