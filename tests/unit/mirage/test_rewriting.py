"""Temporaries with their dimensions in another order: the same results, and another text."""

import numpy as np
import pytest
import torch

import neptune
from neptune.frontend.builder import build, compute, exp, placeholder, reduce_axis, var
from neptune.frontend.builder import sum as fold
from neptune.ir.program import Program
from neptune.mirage.ir import Graph
from neptune.mirage.lower import lowered
from neptune.mirage.lowering.rewriting import permuted
from tests.unit.mirage.test_layouts import split_by_two


def program() -> Program:
    m = var("m")
    a = placeholder((m, 64), "float32", "A")
    t = compute((m, 64), lambda i, j: exp(a[i, j]), "T")
    i = reduce_axis((0, m), "i")
    return build(compute((64,), lambda j: fold(t[i, j], axis=i), "S"), name="two_kernels")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return split_by_two()


def test_the_same_results_from_another_layout(graph: Graph) -> None:
    plain, other = (lowered(graph, program(), orders=o) for o in ({}, {"T": ("i", "j")}))
    # Without a wish, axes are in the order of results and of the graph.
    assert "T[j, i] = exp(A[i, j])" in str(plain.definitions) and "T[i, j] = exp(A[i, j])" in str(other.definitions)
    assert other.template.text != plain.template.text
    assert [d.subject for d in other.decisions if d.kind == "layout"] == ["T"]
    given = torch.from_numpy(np.random.default_rng(0).standard_normal((37, 64)).astype("float32"))
    for made in (plain, other):
        kernel = neptune.compile(program(), made.template, target="interpret")
        assert torch.allclose(kernel(given).double(), given.double().exp().sum(0), rtol=1e-5)


def test_orders_that_are_no_change_are_none(graph: Graph) -> None:
    same = lowered(graph, program(), orders={"T": ("j", "i"), "X": ("i",)})
    assert not [d for d in same.decisions if d.kind == "layout"]
    made = same.definitions
    assert permuted(permuted(made, {"T": (1, 0)}), {"T": (1, 0)}) == made
