"""Mirage's JSON on the axes of expressions: what it computes, and what it gets wrong."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.mirage_programs import BENCHMARKS
from neptune.errors import ExpressionError
from neptune.mirage.foreign import read_mirage
from neptune.mirage.ir import Graph
from neptune.mirage.reference import reference
from neptune.mirage.types import graph_types
from neptune.mirage.verifier.evaluate import Evaluator, Reals
from neptune.mirage.verifier.indexed import prove_equal
from neptune.mirage.verifier.verdict import verify
from neptune.mirage.verifier.witness import draw_inputs, witness
from tests.unit.mirage import mirage_json

FILES = {"RMSNorm": mirage_json.rms_norm, "GatedMLP": mirage_json.gated_mlp, "GQA": mirage_json.gqa}


def read(name: str, file: object, **sizes: int) -> Graph:
    return read_mirage(json.dumps([file]), BENCHMARKS[name].program(**sizes))


def results(wanted: Graph, graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Both on the same numbers, at small lengths."""
    numbers, at = Reals(3), witness(wanted)
    inputs, scalars = draw_inputs(numbers, wanted, at, np.random.default_rng(5))
    evaluator = Evaluator(numbers, at, inputs, scalars)
    (expected,), (found,) = (evaluator.outputs(g).values() for g in (wanted, graph))
    return np.asarray(expected), np.asarray(found)


@pytest.mark.parametrize("name", FILES)
def test_published_graphs_mean_what_they_should(name: str) -> None:
    graph, wanted = read(name, FILES[name]()), reference(BENCHMARKS[name].program())
    graph_types(graph)
    assert (graph.inputs, dict(graph.axes)) == (wanted.inputs, dict(wanted.axes))
    expected, found = results(wanted, graph)
    np.testing.assert_allclose(found, expected, rtol=1e-11)
    assert prove_equal(graph, wanted).proved
    fixed = read(name, FILES[name](), **BENCHMARKS[name].sizes(8))
    assert fixed.scalars == () and [k.grid for k in fixed.kernels] == [k.grid for k in graph.kernels]


def test_a_kernel_of_the_norm() -> None:
    (kernel,) = read("RMSNorm", mirage_json.rms_norm()).kernels
    assert (kernel.grid, kernel.loop) == (("j",), "p")
    assert [n.op for n in kernel.nodes] == ["sqr", "acc_sum", "scale", "sqrt", "matmul", "acc", "div"]


def test_a_split_is_added_up() -> None:
    graph = read("GQA", mirage_json.gqa())
    first, second = graph.kernels
    assert (first.grid, first.loop, second.grid, second.loop) == (("h", "j", "i"), "j", ("h", "i"), None)
    assert read("GQA", mirage_json.gqa(steps=4)) == graph
    assert [(n.op, n.axis, n.parts) for n in second.nodes][:2] == [("sum", "j", frozenset({"grid"}))] * 2


def test_the_wrong_graph_cuts_three_axes_by_one_dimension() -> None:
    with pytest.raises(ExpressionError) as info:
        read("QKNorm", mirage_json.qk_norm())
    assert info.value.wrong == (
        "dimension y of the grid cuts axis `i` of `q` and axis `d_1` of `k` and axis `j` of `v`: they are not one axis"
    )


def test_its_mistake_on_axes_that_fit_is_rejected() -> None:
    graph = read("QKNorm", mirage_json.qk_norm_unsplit())
    expected, found = results(reference(BENCHMARKS["QKNorm"].program()), graph)
    assert np.abs(expected - found).max() > 1e-3
    verdict = verify(graph, BENCHMARKS["QKNorm"].program())
    assert not verdict.equal and verdict.counterexample is not None


def test_the_axes_of_a_file_by_itself() -> None:
    graph = read_mirage(json.dumps([[], mirage_json.rms_norm()][1:]))
    assert [t.axes for t in graph.inputs] == [("n16", "n4096"), ("n4096", "n6144")]
    assert graph.kernels[0].grid == ("n6144",)
    with pytest.raises(ExpressionError, match="two dimensions of length 4096"):
        read_mirage(json.dumps(mirage_json.gated_mlp()))


def test_maps_may_be_lists() -> None:
    file = mirage_json.rms_norm()
    text = json.dumps([file]).replace('{"x": 1, "y": -1, "z": -1}', "[1, -1, -1]")
    assert "[1, -1, -1]" in text
    assert read_mirage(text, BENCHMARKS["RMSNorm"].program()) == read("RMSNorm", file)


def test_files_have_several_graphs() -> None:
    text = json.dumps([mirage_json.rms_norm(), mirage_json.gated_mlp()])
    assert len(read_mirage(text, BENCHMARKS["GatedMLP"].program(), number=1).kernels) == 1


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_damage_is_told(data: st.DataObject) -> None:
    """One place of a file taken away or given another value: it is read, or refused."""
    file = json.loads(json.dumps(data.draw(st.sampled_from([mirage_json.rms_norm(), mirage_json.gqa()]))))
    at = file
    while True:
        key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
        if not isinstance(at[key], dict | list) or not at[key] or data.draw(st.integers(0, 3)) == 0:
            break
        at = at[key]
    odd = st.sampled_from([None, True, -1, 0, 1, 2, 7, 1.5, 10000001, 20000006, "tb_exp_op", [], {}, [1, 1, 1]])
    if data.draw(st.booleans()):
        at[key] = data.draw(odd)
    else:
        del at[key]
    name = "GQA" if len(json.dumps(file)) > 5000 else "RMSNorm"
    with contextlib.suppress(ExpressionError):
        graph_types(read(name, file))


def test_a_file_that_is_nested_too_deeply() -> None:
    with pytest.raises(ExpressionError, match=r"nested too deeply|no JSON"):
        read_mirage("[" * 200000)
