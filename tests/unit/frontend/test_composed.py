"""Functions that make several stages, beside torch's in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import neptune
import neptune.frontend.builder as nb
from neptune.errors import ExpressionError

M, N = nb.var("m"), nb.var("n")
HOSTILE = (
    [0.0, -0.0, 0.0, 0.0],
    [1e-30, -1e-30, 1e-38, 1.0],
    [80.0, 81.0, -80.0, 0.0],
    [3e38, -3e38, 1.0, 2.0],
    [float("-inf"), 1.0, 2.0, float("-inf")],
    [float("-inf")] * 4,
    [float("inf"), 1.0, 2.0, 3.0],
    [float("nan"), 1.0, 2.0, 3.0],
)


def of_values(function):
    x = nb.placeholder((M, N))
    return nb.compute((M,), lambda i: function(lambda j: x[i, j]), "y")


def of_tensor(function, dtype="float32"):
    x = nb.placeholder((M, N), dtype)
    y = function(x)
    assert y.name == "y" and y.dtype == dtype
    return y


VALUES = {
    "mean": (nb.mean, lambda x: x.mean(1)),
    "variance": (nb.variance, lambda x: x.var(1, correction=0)),
    "variance of a sample": (lambda f: nb.variance(f, correction=1), lambda x: x.var(1)),
    "norm": (nb.norm, lambda x: x.norm(dim=1)),
    "logsumexp": (nb.logsumexp, lambda x: x.logsumexp(1)),
}
TENSORS = {
    "softmax": (nb.softmax, lambda x: x.softmax(-1)),
    "log_softmax": (nb.log_softmax, lambda x: x.log_softmax(-1)),
    "rms_norm": (nb.rms_norm, lambda x: F.rms_norm(x, x.shape[-1:], None, 1e-6)),
    "layer_norm": (nb.layer_norm, lambda x: F.layer_norm(x, x.shape[-1:])),
}


def close(got: torch.Tensor, function, x: torch.Tensor, *, alike: bool = False) -> None:
    """As near to float64 as torch's own float32, up to a factor; infinities and NaN where torch has them."""
    exact, own = function(x.double()), function(x)
    if alike:
        assert torch.equal(torch.isnan(got), torch.isnan(own)), (got, own)
        assert torch.equal(torch.isinf(got), torch.isinf(own)), (got, own)
    known = torch.isfinite(exact) & torch.isfinite(own)
    error, usual = ((y.double() - exact)[known].abs() for y in (got, own))
    allowed = 8 * usual.max() + 4 * torch.finfo(x.dtype).eps * exact[known].abs().max()
    assert not known.any() or error.max() <= allowed, (error.max(), allowed)


@pytest.mark.parametrize("name", VALUES)
def test_functions_of_values(name):
    function, wanted = VALUES[name]
    kernel = neptune.compile(of_values(function), target="llvm")
    for x in (torch.randn(5, 33), 30 * torch.randn(3, 1000), 1e-4 * torch.randn(3, 7) + 5.0):
        close(kernel(x), wanted, x)
    if name in ("mean", "logsumexp"):
        close(kernel(torch.tensor(HOSTILE)), wanted, torch.tensor(HOSTILE), alike=True)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", TENSORS)
def test_functions_of_tensors(name, dtype):
    function, wanted = TENSORS[name]
    kernel = neptune.compile(of_tensor(function, dtype), target="llvm")
    for x in (torch.randn(5, 33), 30 * torch.randn(3, 1000)):
        close(kernel(x.to(getattr(torch, dtype))), wanted, x.to(getattr(torch, dtype)))
    if name.endswith("softmax"):
        x = torch.tensor(HOSTILE).to(getattr(torch, dtype))
        close(kernel(x), wanted, x, alike=True)


def test_norms_with_weights_in_three_dimensions():
    x = nb.placeholder((2, M, N))
    w, b = nb.placeholder((N,)), nb.placeholder((N,))
    y, z = nb.rms_norm(x, w, eps=1e-3), nb.layer_norm(x, w, b)
    a, weight, bias = torch.randn(2, 5, 12), torch.randn(12), torch.randn(12)
    got = neptune.compile(y, target="llvm")(a, weight)
    torch.testing.assert_close(got, F.rms_norm(a, (12,), weight, 1e-3))
    got = neptune.compile(z, target="llvm")(x=a, w=weight, b=bias)
    torch.testing.assert_close(got, F.layer_norm(a, (12,), weight, bias))


def test_attention_by_letters_is_one_kernel():
    heads, q_rows, k_rows = nb.var("heads"), nb.var("q_rows"), nb.var("k_rows")
    q, k, v = (nb.placeholder((heads, n, 16), "float16", x) for n, x in ((q_rows, "q"), (k_rows, "k"), (k_rows, "v")))
    s = nb.einsum("hqd,hkd->hqk", q, k)
    p = nb.softmax(s)
    o = nb.einsum("hqk,hkd->hqd", p, v)
    kernel = neptune.compile(o, target="interpret")
    assert kernel.explain(json=True)["template"] == "flash_attention" and kernel.name == "o"
    a, b, c = (torch.randn(2, n, 16).half() for n in (20, 40, 40))
    wanted = F.scaled_dot_product_attention(a.double(), b.double(), c.double(), scale=1.0)
    unfused = ((a @ b.mT).softmax(-1) @ c).double()
    assert (kernel(a, b, c).double() - wanted).abs().max() <= 2 * (unfused - wanted).abs().max()


@pytest.mark.parametrize(
    ("pattern", "shapes"),
    [("ij->ji", [(3, 4)]), ("ij->", [(3, 4)]), ("ij,jk,k->i", [(3, 4), (4, 5), (5,)]), ("i,j->ij", [(3,), (4,)])],
)
def test_einsum(pattern, shapes):
    tensors = [nb.placeholder(shape, "float32", f"t{k}") for k, shape in enumerate(shapes)]
    values = [torch.randn(shape) for shape in shapes]
    got = neptune.compile(nb.einsum(pattern, *tensors), target="llvm")(**{f"t{k}": v for k, v in enumerate(values)})
    torch.testing.assert_close(got, torch.einsum(pattern, *values))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: nb.einsum("ij", x), "it needs letters"),
        (lambda x: nb.einsum("ii->i", x), "it needs letters"),
        (lambda x: nb.einsum("ij->k", x), "it needs letters"),
        (lambda x: nb.einsum("ijk->i", x), "`ijk` does not fit"),
        (lambda x: nb.einsum("ij,ji->i", x, x), "axis `j` has two lengths"),
        (lambda x: nb.softmax(x[0, 0]), "it takes a tensor of floats"),
        (lambda x: nb.rms_norm(nb.placeholder((M,), "int32")), "it takes a tensor of floats"),
        (lambda x: nb.compute((M,), lambda i: nb.mean(lambda j: j, 4)), "not a float"),
    ],
)
def test_what_is_refused(call, said):
    with pytest.raises(ExpressionError, match=said):
        call(nb.placeholder((M, N)))


@pytest.mark.parametrize("name", ["mean", "variance", "norm", "logsumexp"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_floats_are_folded_in_float32(name, dtype):
    function, expected = VALUES[name]
    x = nb.placeholder((M, N), dtype)
    kernel = neptune.compile(nb.compute((M,), lambda i: function(lambda j: x[i, j])), target="llvm")
    a = torch.stack([torch.randn(3000) + 100, torch.full((3000,), 1000.0)]).to(getattr(torch, dtype))
    assert kernel(a).dtype == a.dtype
    torch.testing.assert_close(kernel(a), expected(a.double()).to(a.dtype))


def test_variance_of_fewer_values_than_its_correction_is_torchs():
    x = nb.placeholder((M, N))
    kernel = neptune.compile(nb.compute((M,), lambda i: nb.variance(lambda j: x[i, j], correction=2)), target="llvm")
    for n in (0, 1, 2, 3):
        a = torch.rand(2, n)
        torch.testing.assert_close(kernel(a), a.var(1, correction=2), equal_nan=True)
