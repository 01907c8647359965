"""Scaled rows, routing, quantisation, statistics and densities against numpy and torch in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import neptune
from neptune.errors import ExpressionError
from neptune.ops import mixture, quantise, route, scaled, statistics
from tests.unit.ops.checks import hard, kernel_agrees, meaning, same

X, Y, W = hard("tails", 5, 8), hard("random", 5, 8, seed=1), hard("random", 8, 3, seed=2)


def t(x):
    return torch.from_numpy(x)


# --- in front of a product --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "out", "width"), [("float16", None, None), ("float32", None, 3), ("float16", "float32", 3)]
)
def test_scaled_rows(dtype, out, width):
    options, g = {"eps": 1e-3, "out": out, "width": width}, hard("random", 8)
    same(scaled.rms_linear(dtype, **options), [F.rms_norm(t(X), (8,), t(g), 1e-3) @ t(W)], X, g, W)
    same(scaled.rms_linear(dtype, gain=False, **options), [F.rms_norm(t(X), (8,), None, 1e-3) @ t(W)], X, W)
    same(scaled.standardise_linear(dtype, **options), [F.layer_norm(t(X), (8,), eps=1e-3) @ t(W)], X, W)
    same(scaled.l2_normalise_matmul(dtype, **options), [X / np.sqrt((X * X).sum(1, keepdims=True) + 1e-3) @ W], X, W)


# --- routing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_routing_is_softmax_and_top_k(k, renormalise):
    x = hard("huge", 6, 11)
    x[0, ::2] = x[0, 0]  # of equals the first
    x[1, 3] = -np.inf
    weights, experts = torch.softmax(t(x), -1).sort(dim=-1, descending=True, stable=True)
    weights = weights[:, :k] / (weights[:, :k].sum(-1, keepdim=True) if renormalise else 1)
    same(route.softmax_top_k("float16", k=k, renormalise=renormalise), [weights, experts[:, :k]], x)


def test_fewer_experts_than_asked_for():
    weights, experts = meaning(route.softmax_top_k(k=2), np.array([[3.0], [-1.0]]))
    assert weights.tolist() == [[1.0, -np.inf]] * 2 and experts.tolist() == [[0, 2**31 - 1]] * 2


def test_routing_on_a_kernel():
    program = route.softmax_top_k("bfloat16", k=2, renormalise=True)
    kernel = neptune.compile(program, target="llvm")

    def exact(x):
        weights, experts = torch.softmax(x, -1).sort(dim=-1, descending=True, stable=True)
        return [weights[:, :2] / weights[:, :2].sum(-1, keepdim=True), experts[:, :2]]

    # Far apart, so that rounding makes no ties; and one row of nothing but ties.
    x = np.random.default_rng(0).permuted(np.tile(np.arange(8.0), (7, 1)), axis=1)
    x[3] = 1.0
    kernel_agrees(kernel, program, exact, x)


# --- quantisation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("to", quantise.HIGHEST)
def test_rows_are_quantised_by_their_largest(to):
    x = X.copy()
    x[2] = 0
    unit = np.maximum(np.abs(x).max(1, keepdims=True) / quantise.HIGHEST[to], quantise.SMALLEST)
    z = torch.from_numpy(x / unit)
    z = z.round() if to == "int8" else z.to(getattr(torch, to)).double()
    found, units = meaning(quantise.quantise("float32", to=to), x, rounded=to != "int8")
    np.testing.assert_allclose(units, unit[:, 0], rtol=1e-6)
    assert (found != z.numpy()).mean() <= 0.05  # where float32 and float64 fall on either side of a tie
    assert np.abs(found).max() <= quantise.HIGHEST[to]


@pytest.mark.parametrize("trans_b", [False, True])
def test_a_product_of_quantised_rows(trans_b):
    w, scale = np.random.default_rng(3).integers(-127, 128, (8, 3)), np.array([1e-3, 1.0, 30.0])
    unit = np.maximum(np.abs(X).max(1, keepdims=True), 1e-6) / 127.0
    exact = np.rint(X / unit) @ w * unit * scale
    program = quantise.quantise_matmul(trans_b=trans_b, scales=True, width=3)
    same(program, [exact], X, w.T.copy() if trans_b else w, scale)


def test_a_product_of_rows_quantised_to_float8():
    program = quantise.quantise_matmul("float16", to="float8_e4m3fn", trans_b=True, scales=True, out="bfloat16")
    kernel = neptune.compile(program, target="llvm")
    w = torch.from_numpy(hard("random", 16, 32)).to(torch.float8_e4m3fn).double().numpy()

    def exact(x, w, scale):
        unit = (x.abs().amax(1, keepdim=True).float() / 448.0).clamp_min(quantise.SMALLEST).float()
        z = (x.float() / unit).to(torch.float8_e4m3fn).double()
        return [z @ w.T * unit.double() * scale]

    for kind in ("random", "huge", "needle", "zeros"):
        kernel_agrees(kernel, program, exact, hard(kind, 5, 32), w, np.linspace(0.1, 2.0, 16))


# --- statistics -------------------------------------------------------------------------------------


@pytest.mark.parametrize("correction", [0, 1])
def test_moments_are_torchs(correction):
    far = X + 1000
    same(statistics.variance(correction=correction), [t(far).var(-1, correction=correction)], far)
    both = [t(far).mean(-1), t(far).var(-1, correction=correction)]
    same(statistics.variance("float16", correction=correction, mean=True), both, far)
    same(statistics.covariance(correction=correction), [torch.cov(t(far), correction=correction)], far, far)


def test_a_row_of_one_element_has_no_unbiased_variance():
    assert np.isnan(meaning(statistics.variance(correction=1), np.ones((2, 1)))[0]).all()


def test_weighted_statistics():
    w = np.abs(Y) + 0.1
    mean = (w * X).sum(1) / w.sum(1)
    spread = (w * (X - mean[:, None]) ** 2).sum(1) / w.sum(1)
    same(statistics.weighted_mean("float16"), [mean], X, w)
    same(statistics.weighted_variance("bfloat16"), [mean, spread], X, w)
    cy = (w * Y).sum(1) / w.sum(1)
    exact = (w * ((X - mean[:, None]) ** 2 + (Y - cy[:, None]) ** 2)).sum(1)
    same(statistics.moment_of_inertia(), [exact], X, Y, w)


def test_cosine_similarity_is_torchs():
    x = X.copy()
    x[1], x[2] = 0, x[2] * 1e-12
    same(statistics.cosine_similarity("float16"), [F.cosine_similarity(t(x), t(Y))], x, Y)


@pytest.mark.parametrize(("mean", "dtype"), [(True, "float16"), (False, "bfloat16")])
def test_moments_on_a_kernel(mean, dtype):
    program = statistics.variance(dtype, correction=1, mean=mean)
    kernel = neptune.compile(program, target="llvm")
    assert kernel.facts.temporaries == ()
    for kind in ("random", "huge", "needle", "zeros"):
        kernel_agrees(kernel, program, lambda x: [x.mean(-1)] * mean + [x.var(-1)], hard(kind, 5, 41))


# --- densities --------------------------------------------------------------------------------------


def test_densities():
    x, y, precision, weight = hard("random", 5, 4), hard("tails", 6, 4), hard("random", 6, 4) ** 2, hard("random", 6)
    squares = (x[:, None] - y[None]) ** 2
    same(mixture.kernel_density(4), [torch.logsumexp(t(-0.5 * squares.sum(-1)), -1)], x, y)
    score = t(weight - 0.5 * (squares * precision).sum(-1))
    exact = [torch.softmax(score, -1), torch.logsumexp(score, -1)]
    same(mixture.gaussian_mixture(4, "float16"), exact, x, y, precision, weight)


def test_the_e_step_is_that_of_a_mixture():
    """The log-likelihood of points under two Gaussians, from the weights that the docstring names."""
    x, mu, precision = hard("random", 5, 2), hard("random", 2, 2, seed=1), np.array([[1.0, 4.0], [0.5, 2.0]])
    share = np.array([0.3, 0.7])
    weight = np.log(share) + 0.5 * np.log(precision.prod(1)) - np.log(2 * np.pi)
    normal = torch.distributions.Normal(t(mu), t(precision**-0.5))
    each = normal.log_prob(t(x)[:, None]).sum(-1) + t(np.log(share))
    found = meaning(mixture.gaussian_mixture(2), x, mu, precision, weight)
    np.testing.assert_allclose(found[1], torch.logsumexp(each, -1), rtol=1e-12)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: route.softmax_top_k(k=9), "at most 8 are kept"),
        (lambda: quantise.quantise(to="int4"), "to = 'int4' is no value"),
        (lambda: statistics.variance(correction=-1), "correction = -1"),
        (lambda: mixture.kernel_density(0), "depth is 0"),
        (lambda: scaled.rms_linear(width=0), "width is 0"),
    ],
)
def test_what_is_no_option_is_refused(build, said):
    with pytest.raises(ExpressionError, match=said):
        build()
