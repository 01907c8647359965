"""torch's operators as regions and mods have them: defects that were found, by kind."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from qa.graphs import evaluated, modded

TINY = torch.tensor([[0.0, -0.0, 1e-30, -1e-30, 1e-9, -1e-9, 2.0**-24, 1e-5, -1e-5, 1e-3, 0.1]])
J = np.arange(16)
ZERO = np.zeros(16, int)


def mod(function: Callable[..., Any], score: Any = None, j: Any = J) -> np.ndarray:
    """A score_mod's values over scores or keys."""
    score = np.zeros(len(j)) if score is None else score
    j = np.arange(len(score)) if len(j) != len(score) else j
    zero = np.zeros(len(j), int)
    return modded(function, "score_mod", score, zero, zero, zero, j)


def torchs(function: Callable[..., Any], score: Any = None, j: Any = J) -> np.ndarray:
    """The same by torch, one point after another: 0-d tensors, as FlexAttention's are."""
    score = np.zeros(len(j)) if score is None else score
    j = np.arange(len(score)) if len(j) != len(score) else j
    zero = torch.tensor(0)
    points = [(torch.tensor(float(s)), zero, zero, zero, torch.tensor(int(k)))
              for s, k in zip(score, j, strict=True)]  # fmt: skip
    return np.array([float(function(*p)) for p in points])


# --- W3 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        torch.log1p, torch.expm1, F.logsigmoid, lambda x: F.softplus(x - 20), lambda x: torch.logaddexp(x, x - 18),
        torch.sinh, torch.cosh, torch.asinh, torch.atanh, torch.tan, torch.asin, torch.atan, torch.sinc, F.elu,
        F.celu, F.selu,
        lambda x: torch.acosh(1 + x.abs()), lambda x: torch.erfc(x + 4), torch.erfinv,
        lambda x: torch.special.ndtr(x - 5), torch.special.erfcx,
        lambda x: torch.special.entr(x.abs()),
        lambda x: torch.hypot(x, x / 2),
        F.mish, F.tanhshrink, lambda x: torch.special.xlog1py(x, x),
        lambda x: F.binary_cross_entropy_with_logits(x - 18, torch.ones_like(x), reduction="none"),
        lambda x: F.binary_cross_entropy(x.abs(), torch.zeros_like(x), reduction="none"),
    ],
)  # fmt: skip
def test_w3_functions_keep_their_digits_near_zeros_and_poles(function: Callable[..., Any]) -> None:
    (made,) = evaluated(function, TINY)
    right = function(TINY.double())
    # tanhshrink and mish themselves lose digits in torch: no more than torch, and else a few units of float32.
    bound = 4 * (function(TINY).double() - right).abs() + 8e-7 * right.abs() + 1e-44
    assert ((made.double() - right).abs() <= bound).all(), (made, right)


# --- W4 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x == 0.1, lambda x: x > 0.1, lambda x: x <= 0.1, lambda x: torch.where(x < 0.7, x, 0.7),
        lambda x: torch.ne(x, torch.full((), 0.1)), lambda x: (x * 0.3 == 0.03).sum(-1), lambda x: torch.isclose(x, x),
        lambda x: x.masked_fill(x <= 0.2, 0.0), lambda x: torch.heaviside(x * 0.1, x), lambda x: x // 0.1,
        lambda x: x / 3 == x * (1 / 3), lambda x: torch.floor(x * 30), lambda x: (x * 10 + 0.5).round(),
        lambda x: (x * 30).int(), lambda x: (x * 10 + 0.5).long(),
    ],
)  # fmt: skip
def test_w4_16_bit_values_meet_numbers_as_torch_rounds_them(function: Callable[..., Any], dtype: Any) -> None:
    x = torch.tensor([[0.1, 0.2, 0.3, 0.7, 0.0, -0.0, 1.5]], dtype=dtype)
    (made,) = evaluated(function, x)
    assert made.dtype == function(x).dtype and torch.equal(made, function(x)), (made, function(x))


def test_w4_a_mod_compares_a_captured_bfloat16_as_torch_does() -> None:
    table = torch.tensor([0.1, 0.2, 0.3, 0.7] * 4).bfloat16()

    def function(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return torch.where(table[j] == 0.1, 1.0, torch.where(table[j] * 0.3 < 0.03, 2.0, 3.0))

    assert np.array_equal(mod(function), torchs(function))


# --- W9 ------------------------------------------------------------------------------------------------

SCORES = np.array([0.0, -0.0, 0.5, -0.5, 1.5, -7.25, 1e30, -1e30, math.inf, -math.inf, math.nan, 1e-40], np.float32)


@pytest.mark.parametrize(
    "function",
    [
        lambda s, b, h, i, j: (j * 0.1) // 0.1, lambda s, b, h, i, j: (j * 0.1) % 0.1,
        lambda s, b, h, i, j: torch.div(j * 0.1, -0.1, rounding_mode="floor"),
        lambda s, b, h, i, j: torch.remainder(j * 0.3, 0.1), lambda s, b, h, i, j: 0.7 // (j + 1) / 0.1,
    ],
)  # fmt: skip
def test_w9_quotients_and_remainders_at_multiples_are_torchs(function: Callable[..., Any]) -> None:
    assert np.array_equal(mod(function), torchs(function), equal_nan=True)


@pytest.mark.parametrize("by", [math.inf, -math.inf, 0.0, 2.0, -3.0, 0.1])
def test_w9_quotients_and_remainders_of_edges_are_torchs(by: float) -> None:
    for function in (
        lambda s, b, h, i, j: s % by, lambda s, b, h, i, j: s // by, lambda s, b, h, i, j: torch.fmod(s, by),
        lambda s, b, h, i, j: by % s, lambda s, b, h, i, j: torch.div(s, by, rounding_mode="trunc"),
    ):  # fmt: skip
        assert np.array_equal(mod(function, SCORES), torchs(function, SCORES), equal_nan=True)


def test_w9_regions_divide_as_torch_does() -> None:
    x = torch.arange(16.0)[None] * 0.1
    for function in (
        lambda x: x // 0.1,
        lambda x: x % 0.1,
        lambda x: torch.floor_divide(x, x.t()),
        lambda x: x // -0.1,
    ):
        (made,) = evaluated(function, x)
        assert torch.equal(made.nan_to_num(7.5), function(x).nan_to_num(7.5))


# --- L8 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge", "pow", "remainder",
                                  "fmod", "floor_divide", "rsub", "clamp_min", "clamp_max", "bitwise_and", "bitwise_or",
                                  "bitwise_xor", "xlogy", "masked_fill", "leaky_relu", "hardtanh"])  # fmt: skip
def test_l8_every_overload_of_an_operator_is_a_row(word: str) -> None:
    from torch._inductor.decomposition import select_decomp_table

    from neptune.graph.aten import ROWS

    taken = {*ROWS, *select_decomp_table()}
    packet = getattr(torch.ops.aten, word)
    for name in packet.overloads():
        schema = getattr(packet, name)._schema
        takes_tensor = any(str(a.type) == "Tensor" for a in schema.arguments)
        if not takes_tensor or schema.is_mutable or any(a.is_out for a in schema.arguments):
            continue
        assert getattr(packet, name) in taken, f"{word}.{name}"


def test_l8_rms_norm_as_torch_writes_it_is_imported() -> None:
    x, w = torch.randn(3, 8), torch.randn(8)
    (made,) = evaluated(
        lambda x, w: torch.ops.aten.add.Scalar(x.pow(2).mean(-1, keepdim=True), 1e-6).rsqrt() * x * w, x, w
    )
    torch.testing.assert_close(made, F.rms_norm(x, (8,), w, 1e-6))


# --- L15 -----------------------------------------------------------------------------------------------

POINTWISE = [
    lambda s: s.masked_fill(s > 0, 2.0), torch.log1p, torch.expm1, F.softplus, F.leaky_relu, F.elu, F.celu, F.selu,
    F.hardtanh, F.logsigmoid, lambda s: torch.lerp(s, s * 2, 0.3), torch.nan_to_num,
    lambda s: torch.logaddexp(s, s + 1),
    torch.erfc, torch.sinh, torch.cosh, torch.asinh, torch.atan, torch.sign, torch.signbit, torch.frac, F.mish,
    F.hardswish, F.hardsigmoid, F.softsign, F.relu6, torch.square, torch.positive, torch.logit, torch.isfinite,
    lambda s: torch.addcmul(s, s, s, value=0.5), lambda s: torch.addcdiv(s, s, s + 3, value=0.5), torch.deg2rad,
    lambda s: torch.copysign(s, -s), lambda s: torch.hypot(s, s), lambda s: torch.atan2(s, s + 1), torch.log10,
    lambda s: F.threshold(s, 0.1, 20), lambda s: torch.heaviside(s, s), lambda s: torch.fmax(s, s * 2), torch.isposinf,
    lambda s: torch.xlogy(s, s), lambda s: torch.clip(s, -1, 1), lambda s: F.hardshrink(s), lambda s: F.softshrink(s),
    torch.digamma, torch.special.i1e, lambda s: torch.polygamma(2, s), lambda s: torch.special.ndtri(s), torch.i0,
    lambda s: torch.special.chebyshev_polynomial_t(s, 9), lambda s: s.int(), torch.angle,
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(POINTWISE)))
def test_l15_a_pointwise_function_of_torchs_is_one_of_mods(index: int) -> None:
    function = POINTWISE[index]
    points = np.array([-3.0, -0.5, -0.0, 0.0, 1e-7, 0.25, 0.5, 2.0, 30.0, 100.0])
    ours, right = (f(lambda s, b, h, i, j: function(s) * 1.0, points) for f in (mod, torchs))
    np.testing.assert_allclose(ours, right, rtol=2e-6, atol=1e-37)


INTEGERS = [
    lambda j: j << 2, lambda j: j >> 1, lambda j: (j - 8) >> 2, lambda j: torch.fmod(j - 8, 3), lambda j: 1 << j,
    lambda j: torch.div(j - 8, 3, rounding_mode="trunc"), lambda j: torch.div(j - 8, -3, rounding_mode="floor"),
    lambda j: (j - 8) ** 3, lambda j: j ** 5, lambda j: torch.remainder(j - 8, -3), lambda j: ~j, lambda j: -j // 3,
    lambda j: (j > 3) + (j > 5), lambda j: (j > 3) * 2, lambda j: torch.sign(j - 8), lambda j: torch.abs(j - 8),
    lambda j: torch.bitwise_left_shift(j, 40), lambda j: j / 3, lambda j: j.float() // 2, lambda j: torch.square(j - 8),
    lambda j: torch.clamp(j, 2, 9),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(INTEGERS)))
def test_l15_integers_of_mods_are_torchs(index: int) -> None:
    function = INTEGERS[index]
    ours, right = (f(lambda s, b, h, i, j: function(j) * 1.0) for f in (mod, torchs))
    assert np.array_equal(ours, right)


TABLE = torch.arange(64.0).reshape(4, 16) / 7
WORDS = torch.tensor([5, 1, 12, 9])
VIEWS = [
    lambda j: TABLE[1, :][j], lambda j: TABLE.t()[j, 2], lambda j: TABLE.unsqueeze(0)[0, 3, j],
    lambda j: TABLE.permute(1, 0)[j][1], lambda j: TABLE.view(64)[j + 16],
    lambda j: TABLE.view(4, 4, 4)[1, j // 4, j % 4],
    lambda j: TABLE.take(j.long() + 3), lambda j: TABLE[:, 1:][2, j % 15], lambda j: torch._neg_view(TABLE)[1, j],
    lambda j: TABLE.reshape(-1)[j * 2], lambda j: TABLE.select(0, 2)[j], lambda j: TABLE.expand(2, 4, 16)[1, 2, j],
    lambda j: TABLE.flatten()[j], lambda j: (TABLE * 2)[1, j], lambda j: TABLE[..., j][2], lambda j: TABLE[-1, j],
    lambda j: TABLE.index_select(1, j.reshape(1))[3, 0],
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(VIEWS)))
def test_l15_views_of_captures_are_read(index: int) -> None:
    function = VIEWS[index]
    ours, right = (f(lambda s, b, h, i, j: s + function(j)) for f in (mod, torchs))
    np.testing.assert_allclose(ours, right, rtol=1e-6)


FOLDS = [
    lambda j: TABLE[:, 3].sum() * j, lambda j: torch.dot(TABLE[:, 1], TABLE[:, 2]) + j, lambda j: (j == WORDS).any(),
    lambda j: (j < WORDS).sum(), lambda j: (j < WORDS).all(), lambda j: TABLE[:, j].max(), lambda j: TABLE[:, j].mean(),
    lambda j: torch.searchsorted(torch.tensor([2, 5, 11]), j),
    lambda j: torch.bucketize(j, torch.tensor([2, 5, 11]), right=True),
    lambda j: torch.isin(j, WORDS), lambda j: (TABLE[1, :4] * TABLE[2, :4]).sum() * j,
    lambda j: (j - WORDS).abs().min(),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(FOLDS)))
def test_l15_folds_over_small_captured_vectors(index: int) -> None:
    function = FOLDS[index]
    ours, right = (f(lambda s, b, h, i, j: s + function(j)) for f in (mod, torchs))
    np.testing.assert_allclose(ours, right, rtol=1e-6)


def test_l15_what_a_mod_lacks_is_refused_by_its_reason() -> None:
    from neptune.errors import ExpressionError

    for function, reason in ((torch.special.bessel_j0, "bessel_j0"), (lambda s: s.add_(1), "writes")):
        with pytest.raises(ExpressionError, match=reason):
            mod(lambda s, b, h, i, j, f=function: f(s))


# --- L11, the mod half ---------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [math.inf, -math.inf, math.nan, 0.0, 0, 1, 2.5, -1, -2, 7, 1e300])
def test_l11_powers_of_a_score_are_torchs(power: float) -> None:
    ours, right = (f(lambda s, b, h, i, j: s**power, SCORES) for f in (mod, torchs))
    np.testing.assert_allclose(ours, right, rtol=1e-6)
    ours, right = (f(lambda s, b, h, i, j: torch.pow(power, s), SCORES) for f in (mod, torchs))
    np.testing.assert_allclose(ours, right, rtol=1e-6)
