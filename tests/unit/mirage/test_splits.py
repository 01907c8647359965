"""Loops that are shared out among programs: the sums' parts in one kernel, what is behind in another."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import neptune
from bench.mirage_programs import BENCHMARKS
from neptune.mirage.builder import GraphBuilder
from neptune.mirage.enumeration.problems import Bounds
from neptune.mirage.ir import SPLIT, Graph
from neptune.mirage.lower import lowered
from neptune.mirage.optimize import Goal, Optimizer, candidate_of, predicted
from neptune.mirage.reference import reference
from neptune.mirage.splits import splits
from neptune.mirage.types import graph_types
from neptune.mirage.verifier.candidates import Candidates
from neptune.mirage.verifier.verdict import ACCEPTED, verify
from neptune.tune.model.machine import DEFAULT

from .graphs import GRAPHS, SPLITS, n_trans

FORMS = {
    "GatedMLP": (("i", "j", "p"), "p", 2, None),
    "RMSNorm": (("i", "j", "p"), "p", 1, "p"),
    "LoRA": (("i", "j", "p"), "p", 1, "p"),
    "GQA": (("h", "i", "j"), "j", 2, None),
    "QKNorm": (("h", "i", "j"), "j", 2, None),
}
"""Of the kernel for parts the grid, the loop and the number of sums; the loop of the kernel behind it."""


def only(graph: Graph) -> Graph:
    (made,) = splits(graph)
    return made


@pytest.mark.parametrize("name", FORMS)
def test_sums_that_every_program_has_are_exported_and_others_are_computed_behind(name: str) -> None:
    made = only(GRAPHS[name]())
    parts, behind = made.kernels
    assert (parts.grid, parts.loop, len(parts.saves), behind.loop) == FORMS[name]
    assert behind.grid == parts.grid[:-1] and behind.saves == GRAPHS[name]().kernels[0].saves
    types = graph_types(made)
    assert all(types[s.name][parts.loop or ""] == SPLIT for s in parts.saves)
    # Nothing is computed that no result needs.
    for kernel in made.kernels:
        read = {o for n in kernel.nodes for o in n.operands} | {s.value for s in kernel.saves}
        assert {x.name for x in (*kernel.loads, *kernel.nodes)} == read


@pytest.mark.parametrize("name", FORMS)
def test_the_draws_accept_a_split_graph_and_no_split_of_another(name: str) -> None:
    tier = Candidates(reference(BENCHMARKS[name].program()))
    made = only(GRAPHS[name]())
    assert tier.accept(made)
    parts, behind = made.kernels
    # Without the grid part each program's sum is all there is.
    assert not tier.accept(made.with_steps(replace(parts, grid=parts.grid[:-1]), behind))


@pytest.mark.parametrize("name", ["GatedMLP", "RMSNorm", "GQA"])
def test_a_split_graph_is_proved(name: str) -> None:
    verdict = verify(only(GRAPHS[name]()), BENCHMARKS[name].program())
    assert verdict.equal and verdict.accepted, verdict.why
    assert any("proof" in t.name and t.outcome == ACCEPTED for t in verdict.tiers)


def test_what_has_no_loop_or_no_room_in_its_grid_is_not_split() -> None:
    assert not [*splits(n_trans())]
    assert not [*splits(SPLITS["GatedMLP"]())]
    gqa = GRAPHS["GQA"]()
    (kernel,) = gqa.kernels
    assert not [*splits(gqa.with_steps(replace(kernel, grid=("h", "i", "d"))))]


def test_names_that_are_taken_are_not_used_again() -> None:
    graph = GRAPHS["GatedMLP"]()
    inputs = tuple(replace(t, name="acc_parts", buffer="u") if t.name == "u" else t for t in graph.inputs)
    (kernel,) = graph.kernels
    loads = tuple(replace(x, tensor="acc_parts") if x.tensor == "u" else x for x in kernel.loads)
    made = only(replace(graph, inputs=inputs).with_steps(replace(kernel, loads=loads)))
    assert len(graph_types(made)) == 6


@pytest.mark.parametrize("kernels", [1, 2])
def test_a_search_has_both_products_in_one_split_kernel_if_two_kernels_are_asked_for(kernels: int) -> None:
    sizes = BENCHMARKS["GatedMLP"].sizes(8)
    found = Optimizer(Goal(reference(BENCHMARKS["GatedMLP"].program()), sizes, DEFAULT, Bounds(9, kernels)))
    assert [*found]
    shared = [c for c in found.best if len(c.graph.kernels[0].saves) == 2 and "p" in c.graph.kernels[0].grid]
    assert bool(shared) == (kernels > 1) and all(c.outcome.accepted for c in shared)


@pytest.mark.parametrize("parts", [1, 3])
def test_a_norm_behind_a_split_product_is_that_of_float64(parts: int) -> None:
    program = BENCHMARKS["RMSNorm"].program()
    made = neptune.compile(program, template=lowered(only(GRAPHS["RMSNorm"]()), program).template, target="interpret")
    drawn = np.random.default_rng(0)
    x, w = (torch.tensor(drawn.standard_normal(s) * 10).half() for s in ((5, 150), (150, 70)))
    want = BENCHMARKS["RMSNorm"].reference(x.double().numpy(), w.double().numpy())
    got = made.with_params(NUM_SPLITS=parts)(x, w).double().numpy()
    assert np.abs(got - want).max() <= 2e-3 * np.abs(want).max()


def test_why_a_split_cannot_be_lowered_is_said() -> None:
    """What is linear may go on with parts in a graph; definitions have one sum, which the kernel behind completes."""
    program = BENCHMARKS["LoRA"].program()
    g = GraphBuilder.like(reference(program))
    with g.kernel("fused", grid="i j", loop="p") as f:
        x, w, a, b = map(f.load, g.tensors)
        f.save("y", (x.matmul(w, "p") + x.matmul(a, "p").matmul(b, "e")).acc())
    goal = Goal(reference(program), BENCHMARKS["LoRA"].sizes(8), DEFAULT)
    tier = Candidates(goal.reference)
    made = only(g.graph())
    assert tier.accept(made)
    why = predicted(candidate_of(made, tier.outcome(made), goal), program, goal)
    assert isinstance(why, str) and "which does not vary along `j`" in why
