"""Every wrong argument: a ShapeError that names it, says what was given, and what is legal."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import neptune
from neptune.errors import ShapeError
from neptune.ops.attention import prefill_global
from neptune.runtime.calls.arguments import Signature
from tests.examples.kernel_examples import pair_program, rows_fused, rows_program

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
    "args",
    [
        (X, W, 1.0, 0, 0),
        (X, 3, 1.0, 0),
        (X, W.to("meta"), 1.0, 0),
        (X, torch.zeros(12)[::2], 1.0, 0),
        (X, W, True, 0),
        (X, W, 1.0, -1),
    ],
)
def test_rows(args):
    """Beside what `cases/calls.py` shows."""
    refused(ROWS, *args)


def test_what_is_legal_is_taken():
    call = ROWS.bind([X, W, 2, 9])
    assert call.scalars == {"m": 4, "n": 6, "scale": 2.0, "shift": 9}
    assert call.inputs[0] is X and call.outputs[0].shape == (4,)
    # A last dimension of one element has no stride to speak of.
    ROWS.bind([torch.zeros(4, 6)[:, 2:3], torch.zeros(1), 1.0, 0])
    # Nor have those of tensors without elements, which numpy says are 0.
    empty = torch.from_numpy(np.zeros((0, 6), "float32"))
    assert empty.stride() == (0, 0) and ROWS.bind([empty, W, 1.0, 0]).outputs[0].shape == (0,)
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
    refused(PAIR, x[..., :32], bias)
    refused(PAIR, x[:, :3], bias[:, :3])


def test_keys_and_values_of_different_lengths():
    q, k, v = torch.zeros(1, 2, 5, 8), torch.zeros(1, 2, 7, 8), torch.zeros(1, 2, 6, 8)
    text = refused(ATTENTION, q, k, v)
    assert "`k` (dimension 2) and `v` (dimension 2) share the size s_kv" in text
    assert "has 7 and the second 6" in text


def test_out_has_to_fit():
    x, bias = torch.zeros(2, 4, 64).half(), torch.zeros(2, 4).half()
    total, twice = PAIR.bind([x, bias]).outputs
    assert PAIR.bind([x, bias], (total, twice)).outputs == (total, twice)
    for out in (total, [total], 3, (total.half(), twice), (total, twice[:, :4]), (total.to("meta"), twice)):
        refused(PAIR, x, bias, out=out)


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
    wrong = (
        (X, torch.zeros(5), 1.0, 0),
        (torch.zeros(6, 4).t(), W, 1.0, 0),
        (X.double(), W, 1.0, 0),
        (X, 3, 1.0, 0),
        (X, W, 1.0, 10),
        (torch._neg_view(X), W, 1.0, 0),
        (X.clone().requires_grad_(), W, 1.0, 0),
    )
    for _ in range(2):
        assert signature.bind([X, W, 1.0, 0]).scalars["n"] == 6
        for args in wrong:
            refused(signature, *args)
    with torch.no_grad():
        signature.bind([X.clone().requires_grad_(), W, 1.0, 0])
    refused(signature, X.clone().requires_grad_(), W, 1.0, 0)
    call = signature.bind([X, W, 1.0, 3])
    call.scalars["n"] = 99
    assert signature.bind([X, W, 1.0, 0]).scalars == {"m": 4, "n": 6, "scale": 1.0, "shift": 0}


def test_a_refused_call_writes_nothing():
    kernel = neptune.compile(rows_program(), rows_fused, target="llvm")
    y = torch.full((4,), 5.0)
    with pytest.raises(ShapeError):
        kernel(X, torch.zeros(5), 1.0, 0, out=y)
    assert torch.equal(y, torch.full((4,), 5.0))
