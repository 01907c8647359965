"""Every wrong argument: a ShapeError that names it, says what was given, and what is legal."""

from __future__ import annotations

import pytest
import torch

import neptune
from neptune.errors import ShapeError
from neptune.ops.attention import prefill_global
from neptune.runtime.arguments import Signature
from tests.kernel_examples import pair_program, rows_fused, rows_program

X, W = torch.zeros(4, 6), torch.zeros(6)
ROWS = Signature(rows_program(), "cpu", {"m": 8})
PAIR = Signature(pair_program(), "cpu")
ATTENTION = Signature(prefill_global(depth=8, dtype="float32"), "cpu")


def refused(signature: Signature, *args: object, out: object = None) -> str:
    with pytest.raises(ShapeError) as info:
        signature.bind(args, out)
    text = str(info.value)
    assert len(text.splitlines()) <= 10
    assert text.startswith(f"call of kernel `{signature.program.name}`")
    assert f"at: {signature}" in text
    return text


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((X,), ["1 arguments were given", "takes 4: x, w, scale, shift"]),
        ((X, W, 1.0, 0, 0), ["5 arguments were given"]),
        (([1.0], W, 1.0, 0), ["argument `x` is list [1.0]", "legal here: a torch.Tensor"]),
        ((X, 3, 1.0, 0), ["argument `w` is int 3"]),
        ((X.to_sparse(), W, 1.0, 0), ["argument `x` has layout torch.sparse_coo", "torch.strided"]),
        ((X.half(), W, 1.0, 0), ["argument `x` is torch.float16", "legal here: torch.float32", "x.to(torch.float32)"]),
        ((X, X, 1.0, 0), ["argument `w` has 2 dimensions, [4, 6]", "1 dimensions, [n]"]),
        ((torch._neg_view(X), W, 1.0, 0), ["argument `x` is a lazily negated view", "x.resolve_neg()"]),
        ((X.clone().requires_grad_(), W, 1.0, 0), ["argument `x` requires a gradient", "torch.no_grad()"]),
        ((X.to("meta"), W, 1.0, 0), ["argument `x` is on meta", "legal here: cpu"]),
        ((X, W.to("meta"), 1.0, 0), ["argument `w` is on meta"]),
        ((torch.zeros(6, 4).t(), W, 1.0, 0), ["strides (1, 4)", "a last one of 1", "x.contiguous()"]),
        ((X, torch.zeros(12)[::2], 1.0, 0), ["argument `w` has strides (2,)"]),
        ((X, torch.zeros(5), 1.0, 0), ["`x` (dimension 1)", "`w` (dimension 0)", "size n", "has 6", "second 5"]),
        ((torch.zeros(9, 6), W, 1.0, 0), ["size m of argument `x` (dimension 0) is 9", "legal here: 0 to 8"]),
        ((X, W, "a", 0), ["argument `scale` is str 'a'", "a float32"]),
        ((X, W, True, 0), ["argument `scale` is bool True"]),
        ((X, W, torch.tensor(1.0), 0), ["argument `scale` is a tensor", ".item()"]),
        ((X, W, 1.0, 0.5), ["argument `shift` is 0.5", "an integer (int32)"]),
        ((X, W, 1.0, 10), ["argument `shift` is 10", "0 to 9"]),
        ((X, W, 1.0, -1), ["argument `shift` is -1", "0 to 9"]),
    ],
)
def test_rows(args, said):
    text = refused(ROWS, *args)
    for words in said:
        assert words in text


def test_what_is_legal_is_taken():
    call = ROWS.bind([X, W, 2, 9])
    assert call.scalars == {"m": 4, "n": 6, "scale": 2.0, "shift": 9}
    assert call.inputs[0] is X and call.outputs[0].shape == (4,)
    # A last dimension of one element has no stride to speak of.
    ROWS.bind([torch.zeros(4, 6)[:, 2:3], torch.zeros(1), 1.0, 0])
    # Rows may be anywhere, also on top of each other: they are only read.
    ROWS.bind([torch.zeros(6).expand(4, 6), W, 1.0, 0])


def test_sizes_are_32_bit_and_tensors_are_not():
    wide = Signature(rows_program(), "meta")
    x, w = (torch.empty(shape, device="meta") for shape in ((2, 2**31 - 1), (2**31 - 1,)))
    assert wide.bind([x, w, 1.0, 0]).scalars["n"] == 2**31 - 1
    x, w = (torch.empty(shape, device="meta") for shape in ((2, 2**31), (2**31,)))
    text = refused(wide, x, w, 1.0, 0)
    assert "size n of argument `x` (dimension 1) is 2147483648" in text and "0 to 2147483647" in text


def test_constant_dimensions_and_divisors():
    x = torch.zeros(2, 4, 64, dtype=torch.float16)
    bias = torch.zeros(2, 4, dtype=torch.float16)
    total, twice = PAIR.bind([x, bias]).outputs
    assert (total.shape, twice.shape) == ((2, 4), (2, 8, 64))
    assert "dimension 2 is 32" in refused(PAIR, x[..., :32], bias)
    assert "legal here: 64" in refused(PAIR, x[..., :32], bias)
    assert "is 3" in refused(PAIR, x[:, :3], bias[:, :3])
    assert "a multiple of 2" in refused(PAIR, x[:, :3], bias[:, :3])


def test_keys_and_values_of_different_lengths():
    q, k, v = torch.zeros(1, 2, 5, 8), torch.zeros(1, 2, 7, 8), torch.zeros(1, 2, 6, 8)
    text = refused(ATTENTION, q, k, v)
    assert "`k` (dimension 2) and `v` (dimension 2) share the size s_kv" in text
    assert "has 7 and the second 6" in text


def test_out_has_to_fit():
    x, bias = torch.zeros(2, 4, 64).half(), torch.zeros(2, 4).half()
    total, twice = PAIR.bind([x, bias]).outputs
    assert PAIR.bind([x, bias], (total, twice)).outputs == (total, twice)
    assert "out= is 1 tensors" in refused(PAIR, x, bias, out=total)
    assert "2 tensor(s): total, twice" in refused(PAIR, x, bias, out=[total])
    assert "out= is int" in refused(PAIR, x, bias, out=3)
    assert "`total` is torch.float16" in refused(PAIR, x, bias, out=(total.half(), twice))
    assert "`twice` has shape [2, 4, 64]; dimension 1 is 4" in refused(PAIR, x, bias, out=(total, twice[:, :4]))
    assert "legal here: 8 (2 * rows)" in refused(PAIR, x, bias, out=(total, twice[:, :4]))
    assert "is on meta" in refused(PAIR, x, bias, out=(total.to("meta"), twice))


def test_out_may_not_share_memory():
    x, w = torch.zeros(4, 6), torch.zeros(6)
    assert "out= `y` overlaps `w` in memory" in refused(ROWS, x, w, 1.0, 0, out=w[:4])
    assert "out= `y` overlaps `x` in memory" in refused(ROWS, x, w, 1.0, 0, out=x[1, :4])
    x, bias = torch.zeros(1, 2, 64).half(), torch.zeros(1, 2).half()
    both = torch.zeros(1, 4, 64).half()
    assert "out= `twice` overlaps `x`" in refused(PAIR, both[:, :2], bias, out=(torch.zeros(1, 2), both))


def test_slices_of_one_packed_tensor_are_fine():
    q, k, v, o = torch.zeros(1, 1, 4, 4, 8).unbind(3)
    assert ATTENTION.bind([q, k, v], o).outputs == (o,)
    assert "out= `o` overlaps `k`" in refused(ATTENTION, q, k, v, out=k)


def test_out_may_not_lie_on_itself():
    q = torch.zeros(1, 1, 4, 8)
    assert "lie on top of each other" in refused(ATTENTION, q, q, q, out=torch.zeros(8).expand(1, 1, 4, 8))


def test_a_layout_that_has_passed_does_not_let_another_pass():
    signature = Signature(rows_program(), "cpu", {"m": 8})
    for _ in range(2):
        assert signature.bind([X, W, 1.0, 0]).scalars["n"] == 6
        assert "share the size n" in refused(signature, X, torch.zeros(5), 1.0, 0)
        assert "strides" in refused(signature, torch.zeros(6, 4).t(), W, 1.0, 0)
        assert "torch.float64" in refused(signature, X.double(), W, 1.0, 0)
        assert "argument `w` is int" in refused(signature, X, 3, 1.0, 0)
        assert "argument `shift` is 10" in refused(signature, X, W, 1.0, 10)
        assert "negated view" in refused(signature, torch._neg_view(X), W, 1.0, 0)
        assert "requires a gradient" in refused(signature, X.clone().requires_grad_(), W, 1.0, 0)
    with torch.no_grad():
        signature.bind([X.clone().requires_grad_(), W, 1.0, 0])
    assert "requires a gradient" in refused(signature, X.clone().requires_grad_(), W, 1.0, 0)
    call = signature.bind([X, W, 1.0, 3])
    call.scalars["n"] = 99
    assert signature.bind([X, W, 1.0, 0]).scalars == {"m": 4, "n": 6, "scale": 1.0, "shift": 0}


def test_a_refused_call_writes_nothing():
    kernel = neptune.compile(rows_program(), rows_fused, target="llvm")
    y = torch.full((4,), 5.0)
    with pytest.raises(ShapeError):
        kernel(X, torch.zeros(5), 1.0, 0, out=y)
    assert torch.equal(y, torch.full((4,), 5.0))
