"""The tables of µGraphs: that they say what they are for, and that they notice what they look for."""

from dataclasses import replace

import numpy as np
import torch

from bench.mirage_ablation import ablated
from bench.mirage_eager import llama_blocks as eager_blocks
from bench.mirage_llama import SMALL, llama64, llama_blocks
from bench.mirage_partition import inputs
from bench.mirage_programs import BENCHMARKS
from bench.mirage_search import Searched, Way, differing, exhausted, measured
from neptune.ir.evaluate.floats import Float64
from neptune.ir.evaluate.program import evaluate
from neptune.tune.machine import DEFAULT


def test_blocks_of_a_llama_compute_what_they_are_compared_with() -> None:
    program = llama_blocks(2)
    given = [x.double().numpy() for x in inputs(program, SMALL, "float16")]
    arrays = dict(zip((b.name for b in program.inputs), given, strict=True))
    out = evaluate(program, arrays, SMALL, Float64())[program.outputs[0].name]
    exact = llama64(*given)
    assert np.linalg.norm(out - exact) < 1e-9 * np.linalg.norm(exact) and np.linalg.norm(exact - given[0]) > 1
    eager = eager_blocks(*map(torch.from_numpy, given)).numpy()
    assert np.linalg.norm(eager - exact) < 1e-9 * np.linalg.norm(exact)


def test_searches_that_differ_are_told() -> None:
    one = measured("LoRA", 1, 60.0, Way())
    assert one.row["exhausted"] and one.sure() == len(one.chain) == one.row["graphs"]
    assert differing([one, one]) == [] and one.row["compared"] == len(one.chain)
    other = Searched({**one.row, "workers": 2}, (*one.chain[:-1], (one.chain[-1][0], "other")))
    assert differing([one, other]) == ["LoRA has other graphs with 2 processes and hash seed 0"]
    # Of a search that was ended, the last size says nothing.
    ended = replace(one, row={**one.row, "exhausted": False}, chain=one.chain[:-1])
    assert ended.sure() < len(ended.chain) and differing([one, ended]) == []


def test_nothing_is_found_without_prunes_that_they_miss() -> None:
    rows = exhausted("LoRA", 2.0)
    assert rows[-1]["graphs"] and rows[-1]["states of all"] > 10 * rows[-1]["states"]
    assert not any(r["missed"] or r["more"] for r in rows)


def test_what_the_optimizer_brings_is_not_less_than_nothing() -> None:
    of = BENCHMARKS["LoRA"]
    found = ablated(of.program(), of.sizes(8), DEFAULT, 2.0)
    assert found is not None and all(made <= plain for made, plain in found.values())
    assert found["memory"][0] < found["memory"][1]
