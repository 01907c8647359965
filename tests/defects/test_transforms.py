"""What torch does around a call: recorders that write operators down, derivatives, batches, default devices."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import neptune
import neptune.functional as F
from neptune.errors import ExpressionError, NeptunePerformanceWarning, ShapeError
from neptune.functional import flex
from neptune.ops.softmax import softmax
from neptune.runtime import custom_op, transforms
from neptune.runtime.calls import arguments
from neptune.runtime.launching import plans
from qa.evaluated import evaluated

pytestmark = pytest.mark.compared
Tensor = torch.Tensor
DRAW = torch.Generator().manual_seed(26)
X, Q, BIAS = (torch.randn(shape, generator=DRAW) for shape in ((3, 5), (1, 2, 4, 8), (3, 2)))


@pytest.fixture(autouse=True)
def _evaluated() -> Iterator[None]:
    with evaluated():
        yield


@pytest.fixture(scope="module")
def kernel() -> neptune.Kernel:
    return neptune.compile(softmax("float32"), target="llvm")


def by_distance(q: Tensor) -> Tensor:
    return F.attention(q, q, q, score_mod=lambda s, b, h, i, j: s + i - j)


def biased(q: Tensor, t: Tensor) -> Tensor:
    return F.attention(q, q, q, score_mod=lambda s, b, h, i, j: s + t[h])


def by_lse(q: Tensor) -> Any:
    return F.attention(q, q, q, causal=True, return_lse=True)


Call = tuple[Callable[[Tensor], Tensor], Tensor]
CALLS = ("rows", "mods", "options", "kernel")


@pytest.fixture(params=CALLS)
def call(request: pytest.FixtureRequest, kernel: neptune.Kernel) -> Call:
    return {
        "rows": (lambda x: F.softmax(x), X),
        "mods": (by_distance, Q),
        "options": (lambda q: F.attention(q, q, q, causal=True), Q),
        "kernel": (lambda x: kernel(x), X),
    }[request.param]


# --- recorders ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pre_dispatch", [False, True])
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_a_recorded_graph_computes_the_call_for_other_tensors(call: Call, mode: str, pre_dispatch: bool) -> None:
    function, x = call
    graph = make_fx(function, tracing_mode=mode, pre_dispatch=pre_dispatch)(x)
    assert torch.equal(graph(x + 1), function(x + 1))
    assert "neptune" in graph.code


def test_a_torchscript_trace_computes_the_call_for_other_tensors(call: Call) -> None:
    function, x = call
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = torch.jit.trace(function, (x,))
    assert torch.equal(graph(x + 1), function(x + 1))


def test_what_no_operator_has_is_refused_while_a_graph_is_made(kernel: neptune.Kernel) -> None:
    with pytest.raises(ShapeError, match="makes a graph of operators"):
        make_fx(lambda x: kernel(x, out=torch.empty_like(x)))(X)
    with FlopCounterMode(display=False):
        assert torch.equal(kernel(X, out=torch.empty_like(X)), kernel(X))


def test_an_empty_recording_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neptune.functional.operators.is_recorded", lambda: False)
    graph = make_fx(lambda x: F.softmax(x))(X)
    assert not torch.equal(graph(X + torch.arange(5.0)), F.softmax(X + torch.arange(5.0)))


# --- derivatives --------------------------------------------------------------------------------------------


def forward_mode(function: Callable[[Tensor], Tensor], x: Tensor) -> list[Callable[[], Any]]:
    def dual() -> Any:
        with forward_ad.dual_level():
            return function(forward_ad.make_dual(x, x))

    return [
        dual,
        lambda: torch.func.jvp(function, (x,), (x,)),
        lambda: torch.func.jacfwd(function)(x),
        lambda: torch.func.jvp(lambda x: torch.func.jvp(function, (x,), (x,))[1], (x,), (x,)),
    ]


def test_a_tangent_is_refused(call: Call) -> None:
    for made in forward_mode(*call):
        with pytest.raises(ShapeError, match="has a tangent"):
            made()
        with torch.no_grad(), pytest.raises(ShapeError, match="has a tangent"):
            made()


def test_an_operator_of_a_kernel_refuses_a_tangent(kernel: neptune.Kernel) -> None:
    operator = kernel.torch_op("neptune_tests::tangents")
    for made in forward_mode(operator, X):
        with pytest.raises(ShapeError, match="has a tangent"):
            made()


def test_a_tensor_without_its_tangent_is_taken(call: Call) -> None:
    function, x = call
    with forward_ad.dual_level():
        assert torch.equal(function(forward_ad.make_dual(x, x).detach()), function(x))
        assert torch.equal(function(x), function(x))


def test_a_fused_function_has_the_tangent_that_torch_gives() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.softmax(x * 2, -1)

    fused = neptune.fuse(function, take="all", target="llvm")
    with torch.no_grad():
        assert torch.allclose(fused(X), function(X))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X, X)
        found, wanted = (forward_ad.unpack_dual(f(dual)).tangent for f in (fused, function))
    assert torch.allclose(found, wanted)


def test_a_mod_that_reads_what_has_a_derivative_is_refused() -> None:
    t = BIAS[0]
    with pytest.raises(ExpressionError, match="`t` has a tangent"):
        torch.func.jvp(lambda t: biased(Q, t), (t,), (t,))
    with pytest.raises(ExpressionError, match="`t` requires a gradient"):
        torch.func.grad(lambda t: biased(Q, t).sum())(t)


def test_dropped_tangents_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    for where in (arguments, custom_op, transforms):
        monkeypatch.setattr(where, "derivative_of", lambda t: None)
    monkeypatch.setattr("neptune.functional.operators.derivative_of", lambda t: None)
    monkeypatch.setattr(plans, "takes_tangents", lambda: False)
    with forward_ad.dual_level():
        assert forward_ad.unpack_dual(F.softmax(forward_ad.make_dual(X, X))).tangent is None


# --- batches ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lse", [False, True])
def test_vmap_over_attention_with_mods(lse: bool) -> None:
    def function(q: Tensor) -> Any:
        return F.attention(q, q, q, score_mod=lambda s, b, h, i, j: s + i * j, return_lse=lse)

    batch = torch.stack([Q, Q + 1, Q * 2])
    transforms._tell_vmap.cache_clear()
    with pytest.warns(NeptunePerformanceWarning, match="once for each member"):
        found = torch.vmap(function)(batch)
    each = [function(q) for q in batch]
    wanted = tuple(map(torch.stack, zip(*each, strict=True))) if lse else torch.stack(each)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["rows", "mods", "options"])
def test_vmap_over_an_empty_batch(name: str) -> None:
    function, x = {"rows": (lambda x: F.softmax(x), X), "mods": (by_distance, Q), "options": (by_lse, Q)}[name]
    found, wanted = torch.vmap(function)(x.new_empty((0, *x.shape))), function(x)
    shapes = [t.shape for t in (found if isinstance(found, tuple) else (found,))]
    assert shapes == [(0, *t.shape) for t in (wanted if isinstance(wanted, tuple) else (wanted,))]


def test_vmap_over_what_a_mod_reads_is_refused() -> None:
    with pytest.raises(ExpressionError, match=r"`t`, which torch\.vmap goes over"):
        torch.vmap(biased, in_dims=(None, 0))(Q, BIAS)


# --- default devices ----------------------------------------------------------------------------------------


def test_another_default_device_changes_nothing(kernel: neptune.Kernel) -> None:
    target, labels, mask = torch.ones(4, 5), torch.tensor([1, 2, 3]), torch.zeros(4, 4)
    calls: list[Callable[[], Any]] = [
        lambda: kernel(X),
        lambda: neptune.compile(softmax("float32"), target="interpret")(X),
        lambda: F.softmax(X),
        lambda: by_distance(Q),
        lambda: F.attention(Q, Q, Q, mask_mod=lambda b, h, i, j: True),
        lambda: F.attention(Q, Q, Q, attn_mask=mask),
        lambda: F.linear_cross_entropy(X, target, labels),
        lambda: F.group_norm(X[None], 3),
    ]
    wanted = [c() for c in calls]
    F.kernels._KERNELS.clear()
    flex._MODS.clear()
    with torch.device("meta"):
        found = [c() for c in calls]
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
