"""Graphs that Neptune cannot take still run right: unknown operators, changes in place, branches on data, gradients.

Regions are found and left here without a compilation, so that these tests are quick: `take="none"`, or nothing to take.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

import neptune
from neptune.errors import ExpressionError
from neptune.graph.backend import inductor_here as found

Tensor = torch.Tensor


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1) @ v


def test_an_operator_without_a_row_is_inductors_and_says_so() -> None:
    made = neptune.fuse(lambda x: x.median(-1).values * 2, target="llvm", take="all")
    x = torch.randn(5, 7)
    with torch.no_grad():
        assert torch.equal(made(x), x.median(-1).values * 2)
    assert "the operator aten.median.dim is not in neptune.graph.aten" in made.explain()


def test_a_boundary_between_two_reductions_is_named() -> None:
    def sorted_softmax(x: Tensor) -> Tensor:
        e = torch.exp(x - x.amax(-1, keepdim=True)).cumsum(-1)
        return e / e.sum(-1, keepdim=True)

    made = neptune.fuse(sorted_softmax, target="llvm", take="none")
    x = torch.randn(5, 7)
    with torch.no_grad():
        assert torch.allclose(made(x), sorted_softmax(x))
    assert "the operator aten.cumsum.default is not in" in made.explain()


def test_a_maximum_that_keeps_nan_has_it() -> None:
    def scaled(x: Tensor) -> Tensor:
        return x / x.abs().amax(-1, keepdim=True)

    made = neptune.fuse(scaled, target="llvm", take="all")
    x = torch.tensor([[1.0, float("nan"), 2.0], [1.0, 3.0, 2.0]])
    with torch.no_grad():
        assert torch.equal(made(x).isnan(), scaled(x).isnan())
    assert made.reports[0].taken


def test_changes_in_place_are_made() -> None:
    def normalise(x: Tensor) -> Tensor:
        x -= x.mean(-1, keepdim=True)
        return x.pow(2).sum(-1)

    made = neptune.fuse(normalise, target="llvm", take="none")
    x, y = torch.randn(4, 6), torch.empty(0)
    y = x.clone()
    with torch.no_grad():
        assert torch.allclose(made(x), normalise(y)) and torch.allclose(x, y)


def test_branches_on_data_split_the_graph_and_run_right() -> None:
    def either(x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x.softmax(-1)
        return -x

    made = neptune.fuse(either, target="llvm", take="none")
    with torch.no_grad():
        for sign in (1, -1):
            x = sign * torch.rand(3, 4)
            assert torch.allclose(made(x), either(x))
    assert len(made.reports) >= 2


def test_a_call_that_needs_gradients_is_inductors_and_has_them(caplog: pytest.LogCaptureFixture) -> None:
    made = neptune.fuse(attention, target="llvm", take="all")
    q, k, v = (torch.randn(2, 5, 4, requires_grad=True) for _ in range(3))
    with caplog.at_level(logging.WARNING, "neptune.graph"):
        made(q, k, v).sum().backward()
    assert q.grad is not None and v.grad is not None
    grad = torch.autograd.grad(attention(q, k, v).sum(), q)[0]
    assert torch.allclose(q.grad, grad, atol=1e-6)
    lines = [r.getMessage() for r in caplog.records if "gradients" in r.getMessage()]
    assert len(lines) == 1 and "torch.no_grad()" in lines[0]
    assert "gradients are asked for" in made.explain()


def test_arguments_that_are_no_tensors_and_tensors_of_nothing() -> None:
    def scaled(x: Tensor, factor: float, name: str = "a", *, flip: bool = False) -> Tensor:
        y = (x * factor).softmax(-1)
        return -y if flip else y

    made = neptune.fuse(scaled, target="llvm", take="none")
    x = torch.randn(3, 4)
    with torch.no_grad():
        assert torch.allclose(made(x, 2.0, flip=True), scaled(x, 2.0, flip=True))
        assert made(torch.empty(0, 4), 2.0).shape == (0, 4)


def test_what_is_no_function_and_no_way_to_take_regions_is_refused() -> None:
    bad: Any = 3
    with pytest.raises(ExpressionError, match="3 is not a function"):
        neptune.fuse(bad)
    with pytest.raises(ExpressionError, match="legal here: predicted, all, none"):
        neptune.fuse(attention, take=bad)


def test_a_defect_of_ours_leaves_the_graph_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph: Any, refused: Any) -> Any:
        raise RuntimeError("planted")

    monkeypatch.setattr("neptune.graph.backend.proposed", broken)
    made = neptune.fuse(attention, target="llvm", take="all")
    args = [torch.randn(2, 5, 4) for _ in range(3)]
    with torch.no_grad():
        assert torch.allclose(made(*args), attention(*args), atol=1e-6)
    assert "planted" in made.explain()


def test_explain_before_a_call_asks_for_one() -> None:
    assert "call it" in neptune.fuse(attention).explain()


def test_the_backend_is_registered() -> None:
    import neptune.graph

    assert neptune.graph.neptune_backend is not None
    made = torch.compile(lambda x: x * 2 + 1, backend="neptune")
    with torch.no_grad():
        assert torch.equal(made(torch.ones(3)), torch.full((3,), 3.0))


def test_without_a_compiler_the_rest_runs_op_by_op_and_says_so_once(caplog: Any) -> None:
    def none_here() -> str:
        raise RuntimeError("no C++ compiler\nmore")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", none_here)
        found.cache_clear()  # the tests before this one have asked, where there is a compiler
        with caplog.at_level(logging.WARNING, "neptune.graph"):
            assert [found(device) is None for device in ("cpu", "cpu", "cuda")] == [False, False, True]
    found.cache_clear()
    lines = [r.getMessage() for r in caplog.records if "op by op" in r.getMessage()]
    assert lines == ["Inductor has no C++ compiler here (no C++ compiler): the rest runs op by op"]
