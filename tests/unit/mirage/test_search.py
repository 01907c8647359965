"""What the search finds, and that it is always the same."""

import subprocess
import sys
import time

import pytest

from bench.mirage_programs import BENCHMARKS
from neptune.errors import ExpressionError
from neptune.mirage.builder import GraphBuilder
from neptune.mirage.enumeration.abstract import Labels, values
from neptune.mirage.enumeration.algebra import Algebra
from neptune.mirage.enumeration.enumerate import Enumerator
from neptune.mirage.enumeration.operators import PRUNES
from neptune.mirage.enumeration.problems import Bounds
from neptune.mirage.ir import SPLIT, Graph, Node
from neptune.mirage.ops import OPS
from neptune.mirage.reference import reference
from neptune.mirage.search import Search, search
from neptune.mirage.types import graph_types
from neptune.mirage.verifier.candidates import Candidates
from tests.unit.mirage import programs_by_hand as programs
from tests.unit.mirage.graphs import GRAPHS, SPLITS

ONE = 1


def operators(graph: Graph) -> list[str]:
    (kernel,) = graph.kernels
    return sorted(n.op for n in kernel.nodes)


@pytest.mark.parametrize(
    ("program", "size", "loop", "ops"),
    [
        (programs.RMS_NORM, 9, "k", "acc acc_sum div matmul scale sqr sqrt"),
        (programs.LORA, 10, "k", "acc acc add matmul matmul matmul"),
        (programs.GATED_MLP, 9, "k", "acc acc matmul matmul mul silu"),
        (programs.GQA, 9, "n", "acc acc_sum div exp matmul matmul"),
        (programs.LESSER, 8, "k", "acc acc matmul matmul minimum"),
    ],
)
def test_the_known_graphs_are_found(program: Graph, size: int, loop: str, ops: str) -> None:
    found = list(search(program, Bounds(size, ONE)))
    assert any(operators(f.graph) == ops.split() and f.graph.kernels[0].loop == loop for f in found)


def test_what_is_found_is_valid_and_computes_the_reference() -> None:
    for program in (programs.RMS_NORM, programs.LORA, programs.GQA):
        labels = Labels(Algebra(), tuple(program.axes))
        wanted = values(program, labels)[program.steps[-1].name]
        found = list(search(program, Bounds(8)))
        assert found
        for f in found:
            graph_types(f.graph)
            assert values(f.graph, labels)["out"] == wanted


def keys(found: Search) -> list[str]:
    return [f.key for f in found]


def test_graphs_are_the_same_for_any_workers_and_after_other_searches() -> None:
    bounds = Bounds(10, ONE)
    one = search(programs.RMS_NORM, bounds)
    first = keys(one)
    assert len(first) == len(set(first)) > 4
    keys(search(programs.GQA, Bounds(9, ONE)))
    two = search(programs.RMS_NORM, bounds, workers=2)
    assert keys(two) == first
    assert two.counts == one.counts and two.exhausted and one.exhausted


def test_graphs_are_the_same_for_any_seed_of_hashing() -> None:
    text = (
        "from neptune.mirage.search import *; from tests.unit.mirage.programs_by_hand import GQA;"
        "print([f.key for f in search(GQA, Bounds(7))])"
    )
    printed = {
        subprocess.run([sys.executable, "-c", text], env={"PYTHONHASHSEED": s, "PYTHONPATH": ":".join(sys.path)},
                       capture_output=True, text=True, check=True).stdout
        for s in ("1", "2")
    }  # fmt: skip
    assert len(printed) == 1 and "matmul" in printed.pop()


def test_the_deadline_ends_a_search_with_what_it_has() -> None:
    for seconds in (1.5, 6.0, 24.0):  # the first takes half a second, of the processor's
        s = search(programs.N_TRANS, Bounds(12, ONE), deadline=time.process_time() + seconds)
        found = list(s)
        assert not s.exhausted and not s.interrupted and s.seconds < seconds + 9
        if found:
            break
    assert found
    assert not list(search(programs.GQA, deadline=time.process_time() - 1))


def test_a_deadline_while_work_is_cut_into_shares_ends_a_search_with_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, cut = Enumerator.prefixes, []

    def late(self: Enumerator, depth: int, length: int) -> tuple[list[tuple[int, ...]], bool]:
        cut.append(depth)
        return ([], False) if depth > 5 else real(self, depth, length)

    monkeypatch.setattr(Enumerator, "prefixes", late)
    s = search(programs.GQA, Bounds(10, ONE), deadline=time.process_time() + 1e3)
    assert list(s) and max(cut) > 5 and not s.exhausted


def test_an_interrupt_ends_a_search_with_what_it_has() -> None:
    def stop(graph: Graph) -> bool:
        if s.found == 2:
            raise KeyboardInterrupt
        return True

    s = search(programs.RMS_NORM, Bounds(11, ONE), accept=stop)
    assert len(list(s)) == 2 and s.interrupted and not s.exhausted


def test_graphs_that_are_refused_are_not_given() -> None:
    every = list(search(programs.GQA, Bounds(8)))
    some = search(programs.GQA, Bounds(8), accept=lambda g: g.kernels[0].loop == "n")
    kept = list(some)
    assert kept and all(f.graph.kernels[0].loop == "n" for f in kept) and some.rejected and some.exhausted
    assert {f.key for f in every if f.graph.kernels[0].loop == "n"} <= {f.key for f in kept}


TINY = {
    "sum of exp": programs.graph({"X": "ik"}, "i", Node("e", "exp", ("X",)), Node("o", "sum", ("e",), axis="k")),
    "max": programs.graph({"X": "ik"}, "i", Node("m", "max", ("X",), axis="k"), Node("o", "exp", ("m",))),
    "product of sums": programs.graph(
        {"X": "ik", "Y": "ik"},
        "i",
        Node("t", "add", ("X", "Y")),
        Node("s", "sum", ("t",), axis="k"),
        Node("r", "sum", ("X",), axis="k"),
        Node("o", "mul", ("s", "r")),
    ),
}


@pytest.mark.parametrize(
    ("program", "size", "operators"),
    [
        (TINY["sum of exp"], 5, "exp sum acc_sum acc mul div add"),
        (TINY["max"], 6, "exp max acc_max add"),
        (TINY["product of sums"], 6, "add mul sum acc_sum acc div"),
        (programs.RMS_NORM, 6, "sqr sum sqrt scale div matmul acc acc_sum"),
        (programs.GQA, 7, "matmul exp sum div acc acc_sum"),
        (programs.LORA, 9, "matmul add acc"),
        (programs.GATED_MLP, 8, "matmul silu mul acc"),
    ],
)
def test_without_the_expressions_nothing_more_is_found(program: Graph, size: int, operators: str) -> None:
    bounds = Bounds(size, ONE, operators=frozenset(operators.split()))
    pruned, whole = search(program, bounds), search(program, bounds, prune=False)
    assert sorted(keys(pruned)) == sorted(keys(whole))
    assert pruned.counts.states <= whole.counts.states


def test_the_bound_on_operators_left_loses_nothing() -> None:
    bounds = Bounds(7, ONE, operators=frozenset(["sqr", "sum", "sqrt", "scale", "div", "matmul", "acc", "acc_sum"]))
    every, free = (search(programs.RMS_NORM, bounds, prune=p) for p in (PRUNES, PRUNES - {"unused"}))
    assert sorted(keys(every)) == sorted(keys(free)) and 3 * every.counts.states < free.counts.states


def test_a_plain_product_may_be_a_library_operator() -> None:
    every = [f.graph for f in search(programs.RMS_NORM, Bounds(8, 2))]
    (mixed,) = (g for g in every if isinstance(g.steps[-1], Node))
    product = mixed.steps[-1]
    assert isinstance(product, Node) and (product.op, product.axis) == ("matmul", "k") and len(mixed.kernels) == 1


def test_the_prune_matters() -> None:
    bounds = Bounds(5, ONE, operators=frozenset(["exp", "sum", "acc_sum", "acc", "mul", "div", "add"]))
    pruned, whole = (search(TINY["sum of exp"], bounds, prune=p) for p in (True, False))
    assert keys(pruned) and keys(whole) and whole.counts.states > 20 * pruned.counts.states


def text(graph: Graph) -> tuple[str, ...]:
    """What a graph does, without names, grids and the order of operators."""
    at = {t.name: t.name for t in graph.inputs}

    def node(n: Node, reads: dict[str, str]) -> str:
        args = [reads[o] for o in n.operands]
        args = sorted(args) if OPS[n.op].commutes else args
        return f"{n.op}({', '.join(args)}; {n.axis} {sorted(n.parts)} {n.constant})"

    for step in graph.kernels:
        inside = {x.name: at[x.tensor] for x in step.loads}
        for n in step.nodes:
            inside[n.name] = node(n, inside)
        at |= {s.name: f"kernel[{step.loop}]({inside[s.value]})" for s in step.saves}
    return tuple(at[o.value] for o in graph.outputs)


def test_a_graph_with_a_running_maximum_has_no_form() -> None:
    g = GraphBuilder("g", i="m", k="k")
    x = g.input("x", "i k")
    with g.kernel("fused", grid="i", loop="k") as f:
        a = f.load(x)
        highest = a.max("k").acc_max()
        f.save("y", (a - highest).exp().sum("k").acc_rescaled(highest, 1.0))
    with pytest.raises(ExpressionError, match="no form for it") as error:
        search(g.output("y", "i").graph())
    assert "acc_sum" in error.value.legal and "acc_rescaled" not in error.value.legal


@pytest.mark.parametrize("name", list(GRAPHS))
def test_the_best_graph_of_each_benchmark_is_found(name: str) -> None:
    wanted = GRAPHS[name]()
    draws = Candidates(reference(BENCHMARKS[name].program()))
    found = search(draws.reference, Bounds(11, ONE), accept=lambda g: text(g) == text(wanted) and draws.accept(g))
    assert next(found).graph.kernels
    found.close()


@pytest.mark.parametrize("name", ["GQA", "GatedMLP", "RMSNorm"])
def test_the_split_graphs_are_found(name: str) -> None:
    """As they are written by hand, with the same axes in their grids, valid, and agreeing with the program in draws."""
    wanted = SPLITS[name]()
    draws = Candidates(reference(BENCHMARKS[name].program()))
    seen: list[bool] = []

    def accept(graph: Graph) -> bool:
        if len(graph.kernels) == 1 or text(graph) != text(wanted):
            return len(graph.kernels) == 1
        seen.append(draws.accept(graph))
        return seen[-1]

    found = search(draws.reference, Bounds(9, 2), accept=accept)
    split = next(f.graph for f in found if len(f.graph.kernels) == 2)
    found.close()
    assert seen[-1] and graph_types(split) and text(split) == text(wanted)
    axis = wanted.kernels[0].grid[-1]
    assert [axis in k.grid for k in split.kernels] == [True, False] and split.kernels[0].loop == axis
    assert any(n.parts == SPLIT and n.axis == axis for n in split.kernels[1].nodes)


def test_grids_are_wide_and_narrow() -> None:
    grids = {f.graph.kernels[0].grid for f in search(programs.GQA, Bounds(9, ONE))}
    assert grids == {("b", "m", "e"), ("b", "m")}
