"""Regions of torch graphs: what they give is eager's, and what is no region is said to be none for a reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch

import neptune
from neptune.errors import ShapeError
from neptune.graph import backend
from neptune.ir.text.printer import print_program
from qa.fuzz_graphs import by_evaluator, trial

Tensor = torch.Tensor
NAN, INF = math.nan, math.inf


@pytest.fixture(autouse=True)
def _op_by_op(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What Neptune leaves runs op by op, and nothing is differentiated."""
    monkeypatch.setattr(backend, "inductor_here", lambda device: "left out by the tests")
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def fused(fn: Callable[..., Any], *args: Any, target: str = "") -> tuple[Any, str]:
    """What the fused function gives, and what became of its graph; by the evaluator where no target is named."""
    made = neptune.fuse(fn, target=target or "llvm", take="all")
    with nullcontext() if target else by_evaluator():
        found = made(*args)
    report = made.reports[0]
    lines = [f"{c.region.name}: {'Neptune' if c.taken else 'Inductor'}, {c.why}" for c in report.choices]
    return found, "\n".join([*lines, *report.reasons.values(), report.whole])


def taken(text: str) -> int:
    return text.count(": Neptune, ")


def loops_of(fn: Callable[..., Any], *args: Any) -> str:
    """The Program of the only region of a function, as text."""
    made = neptune.fuse(fn, target="llvm", take="all")
    with by_evaluator():
        made(*args)
    (one,) = made.reports[0].taken
    return print_program(one.made.program)


def same(fn: Callable[..., Any], *args: Any, target: str = "") -> str:
    """Hold a fused function against eager, which is exact here; one region at least is Neptune's."""
    found, text = fused(fn, *args, target=target)
    exact = fn(*args)
    pairs = zip(found, exact, strict=True) if isinstance(exact, tuple) else [(found, exact)]
    for ours, theirs in pairs:
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert "defect" not in text, text
    assert taken(text), text
    return text


# --- W2: positions -----------------------------------------------------------------------------------


def moment(x: Tensor) -> Tensor:
    i = torch.arange(x.shape[-1]) * 10000
    return (x.softmax(-1) * (i * i)).sum(-1)


def distances(x: Tensor) -> Tensor:
    i = torch.arange(x.shape[-1])
    far = (i[:, None] * 3000 - i[None] * 3000) ** 2
    return (x.softmax(-1)[:, None, :] * far).sum(-1)


def far_start(x: Tensor) -> Tensor:
    i = torch.arange(2**31 - 4, 2**31 - 4 + 9)
    return (x * (i - (2**31 - 4))).sum(-1)


def large_step(x: Tensor) -> Tensor:
    return (x.softmax(-1) * torch.arange(0, 9 * 10**9, 10**9)).sum(-1)


def masked(x: Tensor) -> Tensor:
    i = torch.arange(x.shape[-1])
    return x.masked_fill(i * 1000000007 > 4 * 1000000007, -INF).softmax(-1).sum(-1)


def large_number(x: Tensor) -> Tensor:
    return ((x.argmax(-1) + 2**40) - 2**40) * 3


def sizes(x: Tensor) -> Tensor:
    return x.sum(-1) * (x.shape[-1] * 2**30)


def counted(x: Tensor) -> Tensor:
    return (x > 0).sum(-1) * 2**31


@pytest.mark.parametrize(
    "fn", [moment, distances, far_start, large_step, masked, large_number, sizes, counted], ids=lambda f: f.__name__
)
def test_w2_positions_are_int64_as_in_torch(fn: Callable[..., Any]) -> None:
    same(fn, torch.randn(2, 9))


@pytest.mark.parametrize("target", ["llvm", "interpret"])
def test_w2_kernels_count_in_64_bits(target: str) -> None:
    def several(x: Tensor) -> Tensor:
        i = torch.arange(x.shape[-1])
        kept = x.masked_fill(i * 1000000007 > 4 * 1000000007, -INF)
        return (kept.softmax(-1) * (i * 10000) ** 2).sum(-1)

    same(several, torch.randn(2, 9), target=target)


def test_w2_positions_that_fit_stay_narrow() -> None:
    """A mask of positions alone is what the bounds of loops are solved for: its text has no 64 bits."""

    def causal(x: Tensor) -> Tensor:
        i, j = torch.arange(x.shape[-2])[:, None], torch.arange(x.shape[-1])[None]
        keep = (j <= i + (x.shape[-1] - x.shape[-2])) & (i - j < 4)
        return x.masked_fill(~keep, -INF).softmax(-1).sum(-1)

    assert "i64" not in loops_of(causal, torch.randn(7, 9))


# --- names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["max", "min"])
def test_l7_the_largest_of_a_row_is_a_region(word: str) -> None:
    x = torch.randn(3, 9)
    same(lambda x: tuple(getattr(x * 2, word)(-1)), x, target="llvm")
    same(lambda x: getattr(x, word)(-1).values + 1, x)


def test_l7_any_name_of_a_node_makes_a_region() -> None:
    """Nodes are named after arguments and operators: such as generated code has for itself are names like others."""

    def named(tl: Tensor, offs_q: Tensor, grid: Tensor) -> Tensor:
        torch_ = (tl + offs_q).softmax(-1)
        return (torch_ * grid).sum(-1)

    same(named, torch.randn(3, 9), torch.randn(3, 9), torch.randn(9), target="llvm")
    same(lambda x: x.abs().amin(-1) + x.floor().sum(-1), torch.randn(3, 9))


# --- L9, L10 -----------------------------------------------------------------------------------------


def test_l9_a_mean_in_another_dtype() -> None:
    x, i = torch.randn(3, 9), torch.arange(27).view(3, 9)
    same(lambda x: x.mean(-1, dtype=torch.float64), x)
    same(lambda x: x.sum(-1, dtype=torch.float64), x)
    same(lambda x: x.mean(-1, dtype=torch.float32), x.half())
    same(lambda i: i.float().mean(-1), i)
    same(lambda i: i.sum(-1, dtype=torch.float32), i)
    same(lambda i: i.mean(-1, dtype=torch.float32), i)
    same(lambda x: torch.var_mean(x.double(), -1), x)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.sum().sum() + x.sum(-1).mean(),
        lambda x: x.sum().softmax(0) * x.softmax(-1),
        lambda x: x.sum().amax() + x.sum(-1),
        lambda x: x.sum().max(0).values + x.sum(-1),
        lambda x: x.sum().argmax() + x.sum(-1),
        lambda x: x.sum().mean() + x.sum().var(correction=0) + x.sum(-1),
        lambda x: x.sum().prod() * x.prod(-1),
        lambda x: x.sum().logsumexp(0) + x.sum(-1),
        lambda x: x.sum().topk(1).values + x.sum(-1),
    ],
    ids=["sum", "softmax", "amax", "max", "argmax", "mean", "prod", "logsumexp", "topk"],
)
def test_l10_reductions_of_a_tensor_without_dimensions(fn: Callable[..., Any]) -> None:
    same(fn, torch.rand(3, 9))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.split(4, -1)[0].softmax(-1),
        lambda x: torch.cat([p.softmax(-1) for p in x.split([3, 6], -1)], -1),
        lambda x: x.sort(-1).values.softmax(-1),
        lambda x: (x.argsort(-1) * x.softmax(-1)).sum(-1),
        lambda x: x.chunk(3, -1)[1].sum(-1),
        lambda x: x.unbind(0)[1].softmax(-1),
        lambda x: x.kthvalue(2, -1).values.softmax(0),
        lambda x: x.cummax(-1).values.softmax(-1),
    ],
    ids=["split", "parts", "sort", "argsort", "chunk", "unbind", "kthvalue", "cummax"],
)
def test_l10_what_gives_several_stands_in_front_of_a_chain(fn: Callable[..., Any]) -> None:
    same(fn, torch.randn(3, 9))


def test_l10_integer_powers() -> None:
    i = torch.arange(-4, 5).repeat(3, 1)
    for k in (0, 1, 2, 3, 5):
        same(lambda i, k=k: (i**k).sum(-1), i)
    _, text = fused(lambda i: (torch.tensor(2) ** i.abs()).sum(-1), i)
    assert "defect" not in text


def test_l10_the_rest_of_a_region_is_taken_where_one_node_is_none() -> None:
    """What cannot be said is a boundary: the chain behind it is a region all the same."""

    def behind(x: Tensor) -> Tensor:
        whole = (x * 3).to(torch.int32) ** torch.tensor([0, 1, 2], dtype=torch.int32)
        return (whole.float() * 0.1).softmax(-1)

    same(behind, torch.randn(4, 3))


# --- W4: indices of a gather --------------------------------------------------------------------------------


def loss(x: Tensor, target: Tensor) -> Tensor:
    return -torch.log_softmax(x, -1).gather(1, target[:, None])[:, 0]


def nll(x: Tensor, target: Tensor) -> Tensor:
    return torch.nn.functional.nll_loss(torch.log_softmax(x, -1), target, reduction="none")


@pytest.mark.parametrize("fn", [loss, nll])
def test_w4_an_index_that_leads_out_is_refused_as_torch_does(fn: Callable[..., Any]) -> None:
    x, good = torch.randn(4, 10), torch.tensor([1, 0, 9, 3])
    run = neptune.fuse(fn, target="llvm", take="all")
    with torch.no_grad():
        torch.testing.assert_close(run(x, good), fn(x, good))
        assert "gather: kernel of region 0" in run.explain() or "gather" in run.reports[0].choices[0].region.name
        for bad in (10, -1, 2**40):
            with pytest.raises(ShapeError, match=f"index {bad} of a dimension of 10"):
                run(x, torch.tensor([1, 0, bad, 3]))


def test_w4_an_index_that_a_region_computes() -> None:
    def best(x: Tensor) -> Tensor:
        p = torch.softmax(x, -1)
        return p.gather(1, p.argmax(-1, keepdim=True))

    same(best, torch.randn(4, 10))


# --- L11 ---------------------------------------------------------------------------------------------


class Model:
    scale = 2.0

    @neptune.fuse(target="llvm", take="all")
    def scaled(self, x: Tensor) -> Tensor:
        return (x * self.scale).softmax(-1)

    @classmethod
    @neptune.fuse(target="llvm", take="all")
    def of_class(cls, x: Tensor) -> Tensor:
        return (x * cls.scale).softmax(-1)

    @staticmethod
    @neptune.fuse(target="llvm", take="all")
    def of_none(x: Tensor) -> Tensor:
        return (x * 3).softmax(-1)


def test_l11_a_method_is_bound_to_its_instance() -> None:
    a, b, x = Model(), Model(), torch.randn(3, 9)
    b.scale = 5.0
    for m in (a, b, a):
        torch.testing.assert_close(m.scaled(x), (x * m.scale).softmax(-1))
    a.scale = -1.0
    torch.testing.assert_close(a.scaled(x), (x * -1).softmax(-1))
    torch.testing.assert_close(Model.scaled(b, x), (x * 5).softmax(-1))
    assert ": Neptune, " in a.scaled.explain(x)
    assert len(a.scaled.reports) == len(Model.scaled.reports) > 0
    assert a.scaled.__name__ == "scaled" and a.scaled.__self__ is a


def test_l11_methods_of_classes_and_of_none() -> None:
    class Outside:
        scale = 7.0
        of_class = neptune.fuse(classmethod(lambda cls, x: (x * cls.scale).softmax(-1)), target="llvm", take="all")
        of_none = neptune.fuse(staticmethod(lambda x: (x * 3).softmax(-1)), target="llvm", take="all")

    x = torch.randn(3, 9)
    for owner in (Model, Model()):
        torch.testing.assert_close(owner.of_class(x), (x * 2).softmax(-1))
        torch.testing.assert_close(owner.of_none(x), (x * 3).softmax(-1))
    for outside in (Outside, Outside()):
        torch.testing.assert_close(outside.of_class(x), (x * 7).softmax(-1))
        torch.testing.assert_close(outside.of_none(x), (x * 3).softmax(-1))


class Layer(torch.nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(n))
        self.factor = 1.0

    @neptune.fuse(target="llvm", take="all")
    def forward(self, x: Tensor) -> Tensor:
        y = x * self.weight * self.factor
        return y.softmax(-1) if self.training else y.softmax(-1) * 2


def test_l11_forward_of_modules_sees_their_state_of_now() -> None:
    x, layers = torch.randn(3, 9), [Layer(9), Layer(9)]
    for m in (*layers, *layers):
        torch.testing.assert_close(m(x), (x * m.weight).softmax(-1))
    layers[0].weight.mul_(2)
    layers[1].weight = torch.nn.Parameter(torch.randn(9))
    layers[1].factor = 3.0
    layers[1].eval()
    torch.testing.assert_close(layers[0](x), (x * layers[0].weight).softmax(-1))
    torch.testing.assert_close(layers[1](x), (x * layers[1].weight * 3).softmax(-1) * 2)


# --- the twin of L0 ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.softmax(-1).topk(2, -1).indices,
        lambda x: x.topk(2, -1).indices,
        lambda x: x.softmax(-1).argmax(-1),
        lambda x: x.log_softmax(-1).max(-1).indices,
        lambda x: (x.softmax(-1) * 2).min(-1, keepdim=True).indices,
        lambda x: x.softmax(-1).topk(1, -1).indices + 1,
    ],
    ids=["of softmax", "alone", "argmax", "max", "min", "of one"],
)
def test_l0_only_the_indices_of_a_choice_are_read(fn: Callable[..., Any]) -> None:
    same(fn, torch.randn(3, 9), target="llvm")


# --- P5, P8 ------------------------------------------------------------------------------------------


def test_p5_a_read_that_leads_out_has_the_code_of_reads() -> None:
    from neptune.frontend.builder import compute, placeholder, reduce_axis, sum, var

    n = var("n")
    x, w = placeholder((n,), "float32", "x"), placeholder((4,), "float32", "w")
    d = reduce_axis((0, 4), "d")
    for shift in (-3, 1):
        y = compute((n,), lambda t, shift=shift: sum(x[t + d + shift] * w[d], axis=d), "y")
        with pytest.raises(neptune.NeptuneError) as caught:
            neptune.compile(y, target="interpret")
        assert caught.value.code == "NPT-E003"


def test_p5_reasons_are_words_not_codes() -> None:
    def behind(x: Tensor) -> Tensor:
        return (x.long() ** torch.arange(9)).sum(-1)

    _, text = fused(behind, torch.randn(3, 9))
    assert "code: NPT" not in text and "NPT-" not in text


def test_p8_gradients_on_a_cold_cache_and_after_a_call_without(caplog: Any) -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return (x * w).softmax(-1).sum(0)

    made = neptune.fuse(fn, target="llvm", take="all")
    for n in (5, 6, 8):
        x, w = torch.randn(3, n), torch.randn(n)
        with torch.enable_grad():
            w.requires_grad_()
            (made(x, w) * torch.arange(n)).sum().backward()
            found, w.grad = w.grad, None
            (fn(x, w) * torch.arange(n)).sum().backward()
        torch.testing.assert_close(found, w.grad)
        torch.testing.assert_close(made(x, w), fn(x, w))


# --- W11 and NaN ---------------------------------------------------------------------------------------

ROWS = torch.tensor(
    [[-INF] * 4, [INF] * 4, [NAN, 1.0, 2.0, -INF], [1.0, NAN, INF, -INF], [-0.0, 0.0, 3.0, 2.0], [NAN] * 4]
)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.amax(-1),
        lambda x: x.amin(-1, keepdim=True),
        lambda x: x.max(-1).values,
        lambda x: torch.aminmax(x, dim=-1).max,
        lambda x: x.abs().amax(-1, keepdim=True) * x.sum(-1, keepdim=True),
        lambda x: x.amax(),
        lambda x: x.max() + x.min(),
        lambda x: x.amax((-1, 0)),
        lambda x: (x - x.amax(-1, keepdim=True)).sum(-1),
        lambda x: x.relu().sum(-1),
        lambda x: x.clamp(-1, 1).sum(-1),
        lambda x: torch.maximum(x, x.flip(-1)).amax(-1),
        lambda x: x.double().amax(-1),
        lambda x: x.half().amin(-1),
        lambda x: (x > 0).amax(-1),
        lambda x: x.nan_to_num(1.0, 2.0, -2.0).long().amax(-1),
        lambda x: x.norm(INF, -1),
        lambda x: x.isnan().float().amax(-1),
    ],
)
def test_w11_and_nan_maxima_are_torchs(fn: Callable[..., Any]) -> None:
    found, text = fused(fn, ROWS)
    torch.testing.assert_close(found, fn(ROWS), equal_nan=True)
    assert found.dtype == fn(ROWS).dtype and "defect" not in text


def test_w11_a_maximum_of_numbers_is_one_fold() -> None:
    """What cannot hold NaN is folded by itself; what can carries it beside."""
    text = loops_of(lambda x: x.isnan().float().amax(-1), ROWS)
    assert "or=" not in text and "init -inf" in text


def test_softmax_keeps_its_shape_of_one_maximum() -> None:
    text = loops_of(lambda x: x.softmax(-1), ROWS)
    assert text.count("max=") == 1 and "or=" not in text


@pytest.mark.parametrize("target", ["llvm", "interpret"])
def test_w11_kernels_have_nan_and_infinities_of_rows(target: str) -> None:
    same(lambda x: (x.amax(-1), x.amin(-1)), ROWS, target=target)


# --- what else reads regions ---------------------------------------------------------------------------


def test_results_have_the_strides_that_torch_promised() -> None:
    """What reads a result may rest on its strides: a view that eager's result has."""

    def viewed(x: Tensor) -> tuple[Tensor, ...]:
        y = x.mT.softmax(-1)
        return y, y.mT.reshape(-1), y.permute(2, 0, 1).flatten(1)

    x = torch.randn(2, 3, 4)
    found, text = fused(viewed, x)
    for ours, theirs in zip(found, viewed(x), strict=True):
        torch.testing.assert_close(ours, theirs)
        assert ours.stride() == theirs.stride()
    assert taken(text) and "defect" not in text


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0), (0, 2, 1)])
def test_results_have_the_order_of_strides_of_eagers(order: tuple[int, ...]) -> None:
    def shifted(x: Tensor) -> Tensor:
        v = x.permute(order)
        v = v - v.amax(-2, keepdim=True)
        return torch.fmax(v, v)

    for x in (torch.randn(2, 3, 4), torch.randn(4, 1, 3), torch.randn(1, 5, 5)):
        found, text = fused(shifted, x)
        assert taken(text)
        torch.testing.assert_close(found, shifted(x))
        same = [
            a == b or n == 1
            for a, b, n in zip(found.stride(), shifted(x).stride(), x.permute(order).shape, strict=True)
        ]
        assert all(same)


def test_the_best_along_any_dimension() -> None:
    x = torch.randn(3, 4, 5, 2)
    for d in range(4):
        same(lambda x, d=d: tuple(x.topk(2, d)), x)
        same(lambda x, d=d: tuple((x > 0).max(d)), x)


def test_integers_wrap_around_in_torchs_dtype() -> None:
    """int32 of torch's leaves int32 at rows of any length: neither a proof nor a wider dtype may take it for exact."""

    def masked(seen: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.where(seen, q @ k.mT, -1e9).softmax(-1) @ v

    def in_int32(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        i = torch.arange(q.shape[-2], dtype=torch.int32)
        return masked(i[:, None] * 1_000_000_000 <= i * 1_000_000_000, q, k, v)

    def cut_off(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        i = torch.arange(q.shape[-2]) * 1_000_000_000
        return masked(i[:, None].int() <= i.int(), q, k, v)

    for f in (in_int32, cut_off):
        same(f, *(torch.randn(1, 2, 20, 16) for _ in range(3)))


# --- the net, and what it rejects ----------------------------------------------------------------------


@pytest.mark.parametrize("seed", [58, 1011, 1045, 2016, 2000, 2001])
def test_random_graphs_are_eagers(seed: int) -> None:
    found = trial(seed)
    assert found.kind == "right", f"{found.reason}\n{found.case}"


def test_a_bound_that_always_fits_is_widened_where_a_program_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neptune.graph.narrow.fits", lambda e: True)
    same(moment, torch.randn(2, 9))


def test_a_maximum_that_passes_over_nan_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neptune.graph.aten.no_nan", lambda x: True)
    with pytest.raises(AssertionError):
        same(lambda x: x.amax(-1), ROWS)
