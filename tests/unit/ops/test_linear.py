"""Products with what follows them, against torch's in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import neptune
from neptune.errors import ExpressionError
from neptune.ops.linear import ACTIVATIONS, gated_linear, linear, lora_linear
from tests.unit.ops.checks import hard, kernel_agrees, same

TORCH = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}
X, W, U, B, R = (
    hard(kind, *shape, seed=seed)
    for seed, (kind, shape) in enumerate(
        [("random", (4, 6)), ("tails", (5, 6)), ("random", (5, 6)), ("random", (5,)), ("random", (4, 5))]
    )
)
x, w, u, b, r = (torch.from_numpy(t) for t in (X, W, U, B, R))


def test_there_is_a_reference_for_every_activation():
    assert TORCH.keys() == ACTIVATIONS.keys()


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_linear_is_torchs(activation):
    f = TORCH.get(activation, lambda y: y)
    same(linear(activation=activation), [f(F.linear(x, w))], X, W)
    same(linear(activation=activation, bias=True, residual=True), [f(F.linear(x, w, b)) + r], X, W, B, R)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gated_linear_is_two_products(activation):
    same(gated_linear(activation=activation, trans_b=True), [TORCH[activation](x @ w.T) * (x @ u.T)], X, W, U)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_keep_nan(activation):
    hardest = X.copy()
    hardest[0, 0], hardest[1] = float("nan"), 0.0
    there, weight = torch.from_numpy(hardest).float(), w.float()
    kernel = neptune.compile(linear("float32", activation=activation), target="llvm")
    found, wanted = kernel(there, weight), TORCH[activation](there @ weight.T)
    assert found[0].isnan().all() and torch.equal(found.isnan(), wanted.isnan())


@pytest.mark.parametrize("bias", [False, True])
def test_a_low_rank_correction(bias):
    low, high = hard("random", 2, 6), hard("random", 5, 2)
    exact = x @ w.T + 0.5 * (x @ torch.from_numpy(low).T) @ torch.from_numpy(high).T
    same(lora_linear(rank=2, scale=0.5, bias=bias), [exact + b * bias], X, W, low, high, *[B] * bias)


def test_a_kernel_with_a_low_rank_correction():
    program = lora_linear("bfloat16", rank=16, scale=2.0)
    kernel = neptune.compile(program, target="llvm")
    for kind in ("random", "needle", "zeros"):
        inputs = [hard(kind, 9, 33), *(hard("random", *s) for s in ((17, 33), (16, 33), (17, 16)))]
        kernel_agrees(kernel, program, _lora64, *inputs)


def _lora64(x, w, a, b):
    # The expression rounds x aᵀ to bfloat16.
    return [x @ w.T + 2.0 * (x @ a.T).bfloat16().double() @ b.T]


@pytest.mark.parametrize(("options", "said"), [({"rank": 0}, "rank is 0"), ({"scale": float("inf")}, "not finite")])
def test_what_is_no_option_is_refused(options, said):
    with pytest.raises(ExpressionError, match=said):
        lora_linear(**options)
