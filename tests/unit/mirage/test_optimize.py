"""Candidates of a program: verified, estimated, best last."""

import runpy
from dataclasses import replace
from pathlib import Path

import pytest

import neptune.mirage
from bench.mirage_programs import BENCHMARKS
from neptune.errors import NeptuneError
from neptune.mirage import optimize
from neptune.mirage.enumeration.problems import Bounds
from neptune.mirage.optimize import ALIKE, BEST, Goal, Lowering, Optimizer, candidate_of, predicted, tidied
from neptune.mirage.reference import reference
from neptune.mirage.verifier.candidates import Candidates, Outcome
from neptune.tune.model.machine import DEFAULT

from .graphs import GRAPHS, SPLITS, with_kernel

PROGRAM = BENCHMARKS["GatedMLP"].program()
SIZES = BENCHMARKS["GatedMLP"].sizes(1)


def test_candidates_come_one_by_one_and_the_best_is_last() -> None:
    found = list(neptune.mirage.search(PROGRAM, shapes=SIZES, budget="60s", max_block_ops=9, max_kernels=1))
    assert found and found[-1].cost.us == min(c.cost.us for c in found)
    draws = Candidates(reference(PROGRAM), seed=7)
    for c in found[-3:]:
        assert c.outcome.accepted and draws.accept(c.graph) and tidied(c.graph) == c.graph
    with pytest.raises(NeptuneError, match="search with budget"):
        neptune.mirage.search(PROGRAM, budget="0s")


def test_the_best_are_told_apart_by_how_they_are_scheduled_and_predicted() -> None:
    goal = Goal(reference(PROGRAM), SIZES, DEFAULT, Bounds(9, 1))
    told = []
    found = Optimizer(goal, progress=told.append)
    every = list(found)
    assert every and len(found.best) <= BEST
    forms = [tuple((k.grid, k.loop) for k in c.graph.kernels) for c in found.best]
    assert max(map(forms.count, forms)) <= ALIKE
    assert [c.cost.us for c in found.best] == sorted(c.cost.us for c in found.best)
    assert told and told[-1].states <= found.search.counts.states and "verified" in str(told[-1])
    ways = [predicted(c, PROGRAM, goal) for c in found.best]
    lowered = [w for w in ways if not isinstance(w, str)]
    assert lowered and all(0 < w.prediction.us < 1e4 for w in lowered)
    assert all(w for w in ways if isinstance(w, str))


@pytest.mark.parametrize("name", ["GQA", "QKNorm"])
def test_few_parts_of_keys_are_combined_in_little_time(name: str) -> None:
    """What splits have left is as long as there are parts, and a tile of it is no longer than that is worth."""
    sizes = BENCHMARKS[name].sizes(8)
    program, accepted = BENCHMARKS[name].program("float16", **sizes), Outcome(True, 64, 64)
    us: list[float] = []
    for graph in (GRAPHS[name](**sizes), SPLITS[name](**sizes)):
        goal = Goal(graph, {}, DEFAULT)
        made = predicted(candidate_of(graph, accepted, goal), program, goal)
        assert isinstance(made, Lowering), made
        us.append(made.prediction.us)
    whole, split = us
    combine = made.prediction.kernels[-1]
    assert split < 0.7 * whole and combine.us < 0.25 * made.prediction.kernels[0].us


def test_axes_of_like_names_have_tiles_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Depth p and rank p_1: with one name for both tiles the rank has none. What works on no tile is refused."""
    program = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "graph_lora.py"))["program"]()
    goal, accepted = Goal(reference(program), BENCHMARKS["LoRA"].sizes(1), DEFAULT), Outcome(True, 64, 64)
    body = ["xw = matmul(x, w) over p", "xa = matmul(x, a) over p", "up = matmul(xa, b) over p_1", "z = add(xw, up)"]
    graph = with_kernel(reference(program), "i, j", "p", *body, "s = acc(z) over p")
    candidate = candidate_of(graph, accepted, goal)
    assert isinstance(made := predicted(candidate, program, goal), Lowering), made
    monkeypatch.setattr("neptune.mirage.optimize.scalar_loops", lambda s: iter([("z", {"names": "`z` is"})]))
    assert predicted(candidate, program, goal) == "`z` is computed one element at a time"


def test_order_and_layouts_can_be_off() -> None:
    goal = Goal(reference(PROGRAM), SIZES, DEFAULT, Bounds(9, 2), without=frozenset({"order", "layouts"}))
    plain = list(Optimizer(goal))
    ordered = list(Optimizer(replace(goal, without=frozenset())))
    assert [tidied(c.graph) for c in plain] == [c.graph for c in ordered]
    assert any(p.graph != o.graph for p, o in zip(plain, ordered, strict=True))
    split = next(c for c in ordered if len(c.graph.kernels) == 2)
    assert optimize._orders(split, goal) == {} and optimize._orders(split, replace(goal, without=frozenset()))
