"""Any program on a GPU: the zoo by several templates, choices, operators, products; each called twice."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import neptune
from neptune.frontend import builder as nt
from neptune.ops.linear import matmul
from tests.examples.any_programs import BY_NAME, CASES, SOME, TEMPLATES, Case, run

pytestmark = pytest.mark.gpu


def check(case: Case, template: str) -> None:
    """One compilation, called twice: the second call replays the first."""
    kernel = neptune.compile(case.make(), TEMPLATES[template], target="cuda", name="prog")
    for _ in range(2):
        run(case, kernel, "cuda", "cuda")


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_automatic(case: Case) -> None:
    check(case, "automatic")


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_identity(case: Case) -> None:
    check(case, "identity")


@pytest.mark.parametrize("template", ["cut", "turned"])
@pytest.mark.parametrize("name", SOME)
def test_partial(name: str, template: str) -> None:
    check(BY_NAME[name], template)


# --- choices ---------------------------------------------------------------------------------------


def rows_of_best(sch: neptune.Schedule) -> None:
    i, j = sch.loops("best")
    i0, *_ = sch.tile([i, j], [sch.param("BLOCK_M", [16]), sch.param("BLOCK_N", [64])])
    sch.bind(i0, "grid.x")
    for stage in sch.stages:
        if stage != "best":
            sch.fuse_at(stage, i0)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32"])
@pytest.mark.parametrize("name", ["argmax", "argmin", "top_1", "top_2", "top_4", "top_8"])
def test_choices(name: str, dtype: str) -> None:
    m, n = nt.var("m"), nt.var("n")
    x, j = nt.placeholder((m, n), dtype, "x"), nt.reduce_axis((0, n), "j")
    k = int(name[4:]) if name.startswith("top") else 1
    fold: Any = getattr(nt, name, None)

    def best(i: Any) -> Any:
        return nt.top_k(x[i, j], k, axis=j) if fold is None else fold(x[i, j], axis=j)

    parts = nt.compute((m,), best, "best")
    made = [nt.stack(parts[:k], "values"), nt.stack(parts[k:], "indices")] if fold is None else list(parts)
    kernel = neptune.compile(made, rows_of_best, target="cuda")
    for cols in (1, 17, 64, 1000):
        t = torch.randint(-9, 9, (37, cols)).to(getattr(torch, dtype))
        if t.dtype.is_floating_point:
            t[1], t[2, -1] = float("-inf"), float("-inf")
        values, indices = (r.cpu().reshape(37, -1) for r in kernel(t.cuda()))
        sign = -1 if name == "argmin" else 1
        order = torch.sort(sign * t.double(), dim=1, descending=True, stable=True)
        have = min(k, cols)
        assert torch.equal(values[:, :have].double(), sign * order.values[:, :have])
        assert torch.equal(indices[:, :have].long(), order.indices[:, :have])


# --- operators -------------------------------------------------------------------------------------

FUNCTIONS = {
    "erf": torch.erf,
    "sin": torch.sin,
    "cos": torch.cos,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "trunc": torch.trunc,
    "log2": torch.log2,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, dtype: str) -> None:
    n = nt.var("n")
    x = nt.placeholder((n,), dtype, "x")
    kernel = neptune.compile(nt.compute((n,), lambda i: getattr(nt, name)(x[i]), "y"), target="cuda")
    odd = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, float("inf"), float("-inf"), float("nan")]
    t = torch.tensor(odd + torch.linspace(-4, 4, 90).tolist()).to(getattr(torch, dtype))
    t = t.abs() + 0.25 if name == "log2" else t
    expected = FUNCTIONS[name](t.double())
    got = kernel(t.cuda()).cpu().double()
    step = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-6}[dtype]
    torch.testing.assert_close(got, expected, rtol=step, atol=step, equal_nan=True)


@pytest.mark.parametrize("name", ["floordiv", "mod"])
def test_division_rounds_down(name: str) -> None:
    n = nt.var("n")
    a, b = nt.placeholder((n,), "int32", "a"), nt.placeholder((n,), "int32", "b")
    y = nt.compute((n,), lambda i: a[i] // b[i] if name == "floordiv" else a[i] % b[i], "y")
    kernel = neptune.compile(y, inputs=[a, b], target="cuda")
    pairs = torch.tensor([(p, q) for p in range(-9, 10) for q in range(-5, 6) if q], dtype=torch.int32)
    ours = kernel(pairs[:, 0].contiguous().cuda(), pairs[:, 1].contiguous().cuda()).cpu()
    function = torch.div if name == "floordiv" else torch.remainder
    expected = function(*pairs.T, rounding_mode="floor") if name == "floordiv" else function(*pairs.T)
    assert torch.equal(ours, expected.int())


# --- products --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "orders", [(False, False), (False, True), (True, False), (True, True)], ids=["nn", "nt", "tn", "tt"]
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_products(dtype: str, orders: tuple[bool, bool]) -> None:
    program = matmul(dtype, trans_a=orders[0], trans_b=orders[1], bias=True, activation="gelu", residual=True)
    kernel = neptune.compile(program, "matmul", target="cuda")
    # A lone element may cancel: its relative error is then a matter of the draw, also in torch.
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    for m, n, k in ((128, 128, 64), (1, 1, 1), (130, 17, 200), (300, 257, 129)):
        a = torch.randn((k, m) if orders[0] else (m, k), device="cuda").to(kind)
        b = torch.randn((n, k) if orders[1] else (k, n), device="cuda").to(kind)
        bias, residual = torch.randn(n, device="cuda").to(kind), torch.randn(m, n, device="cuda").to(kind)
        left, right = (a.T if orders[0] else a).double(), (b.T if orders[1] else b).double()
        wanted = torch.nn.functional.gelu(left @ right + bias.double()) + residual.double()
        named = {"a": a, "b": b, "bias": bias, "residual": residual}
        got = kernel(*(named[name] for name in kernel.inputs)).double()
        error = ((got - wanted).norm() / wanted.norm()).item()
        assert error < {"float16": 6e-4, "bfloat16": 5e-3, "float32": 1e-6}[dtype]
