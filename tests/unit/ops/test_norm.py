"""Norms alone, behind a sum and in front of a product, against torch's in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import neptune
from neptune.errors import ExpressionError
from neptune.ops import norm
from tests.unit.ops.checks import HARD, hard, kernel_agrees, meaning, same

EPS = 1e-3


def rms(x, g=None, eps=EPS):
    return F.rms_norm(x, x.shape[-1:], g, eps)


def layer(x, g=None, b=None, eps=EPS):
    return F.layer_norm(x, x.shape[-1:], g, b, eps)


def added(f):
    return lambda x, r, *vectors: [f(x + r, *vectors), x + r]


def tensors(*arrays):
    return [torch.from_numpy(a) for a in arrays]


@pytest.mark.parametrize("cols", [1, 12])
@pytest.mark.parametrize("gain", [False, True])
def test_rms_norms_are_torchs(cols, gain):
    x, r, g = hard("tails", 4, cols), hard("random", 4, cols), hard("random", cols)
    vectors = [g] * gain
    same(norm.rms_norm(eps=EPS, gain=gain), [rms(*tensors(x, *vectors))], x, *vectors)
    same(norm.add_rms_norm(eps=EPS, gain=gain), added(rms)(*tensors(x, r, *vectors)), x, r, *vectors)


@pytest.mark.parametrize("cols", [1, 12])
@pytest.mark.parametrize(("gain", "bias"), [(True, True), (True, False), (False, False)])
def test_layer_norms_are_torchs(cols, gain, bias):
    x, r, g, b = hard("tails", 4, cols), hard("random", 4, cols), hard("random", cols), hard("tails", cols)
    vectors, options = [g] * gain + [b] * bias, {"eps": EPS, "gain": gain, "bias": bias}
    same(norm.layer_norm(**options), [layer(*tensors(x, *vectors))], x, *vectors)
    same(norm.add_layer_norm(**options), added(layer)(*tensors(x, r, *vectors)), x, r, *vectors)


@pytest.mark.parametrize(("gain", "bias"), [(True, True), (False, False)])
def test_group_norm_is_torchs(gain, bias):
    x = hard("random", 2, 6, 3, 5)
    vectors = [hard("tails", 6)] * gain + [hard("random", 6)] * bias
    exact = F.group_norm(*tensors(x), 3, *tensors(*vectors), eps=EPS).view(2, 3, 30)
    program = norm.group_norm(eps=EPS, gain=gain, bias=bias)
    same(program, [exact], x.reshape(2, 3, 30), *(v.reshape(3, 2) for v in vectors))


@pytest.mark.parametrize("trans_b", [False, True])
def test_norms_in_front_of_a_product(trans_b):
    x, g, b, w = hard("random", 4, 7), hard("random", 7), hard("random", 7), hard("random", 7, 3)
    given = w.T.copy() if trans_b else w
    wide, options = torch.from_numpy(w), {"eps": EPS, "trans_b": trans_b}
    same(norm.rms_norm_linear(**options), [rms(*tensors(x, g)) @ wide], x, g, given)
    same(norm.layer_norm_linear(**options), [layer(*tensors(x, g, b)) @ wide], x, g, b, given)
    same(norm.layer_norm_linear(**options, gain=False, bias=False), [layer(*tensors(x)) @ wide], x, given)


def test_the_sum_is_rounded_before_it_is_normed():
    """2048 + 1 is 2048 in float16: a norm of what was not rounded would be another one."""
    x, r = np.array([[2048.0, 1.0]]), np.array([[1.0, 0.0]])
    y, h = meaning(norm.add_layer_norm("float16", eps=0.0, gain=False, bias=False), x, r, rounded=True)
    assert h.tolist() == [[2048.0, 1.0]] and y.tolist() == [[1.0, -1.0]]


SHIPPED = {
    "rms_norm": ("bfloat16", lambda x, g: [rms(x, g)]),
    "add_rms_norm": ("float16", added(rms)),
    "layer_norm": ("float16", lambda x, g, b: [layer(x, g, b)]),
    "add_layer_norm": ("float32", added(layer)),
}


@pytest.mark.parametrize("name", SHIPPED)
def test_kernels_are_as_exact_as_the_expression(name):
    dtype, exact = SHIPPED[name]
    program = getattr(norm, name)(dtype, eps=EPS)
    kernel = neptune.compile(program, target="llvm")
    assert len(kernel.facts.kernels) == 1 and kernel.facts.temporaries == ()
    for kind in HARD:
        inputs = [hard(kind, *((5, 41) if len(b.shape) == 2 else (41,)), seed=s) for s, b in enumerate(program.inputs)]
        if name.startswith("add"):  # h is compared where the sum is exact
            inputs[1] = np.round(inputs[1]) * 0
        kernel_agrees(kernel, program, exact, *inputs)


def test_group_norm_on_a_kernel():
    program = norm.group_norm("float16")
    kernel = neptune.compile(program, target="llvm")

    def exact(x, g, b):
        y = F.group_norm(x.reshape(2, 6, 14), 3, g.reshape(6), b.reshape(6), eps=1e-5)
        return [y.reshape(2, 3, 28)]

    for kind in HARD:
        kernel_agrees(kernel, program, exact, hard(kind, 2, 3, 28), hard("random", 3, 2), hard("tails", 3, 2))


@pytest.mark.parametrize(
    ("options", "said"),
    [({"eps": -1.0}, "eps is -1.0"), ({"eps": None}, "eps is None"), ({"gain": 1}, "gain = 1 is neither")],
)
def test_what_is_no_option_is_refused(options, said):
    with pytest.raises(ExpressionError, match=said):
        norm.rms_norm(**options)
