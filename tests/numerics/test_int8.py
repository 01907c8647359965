"""Products of int8, summed in int32, on the matrix unit and exact."""

from __future__ import annotations

from itertools import product as combinations

import pytest
import torch

import neptune
from neptune.errors import ScheduleError
from neptune.frontend.builder import build, compute, placeholder, reduce_axis, sum, var
from neptune.ir.program import Program
from neptune.ops.quantise import quantise_matmul

M, N, K = var("m"), var("n"), var("k")


def int8_linear(dtype: str = "int8", *, trans_b: bool = False) -> Program:
    """y = (a b) s with a scale for each row."""
    a = placeholder((M, K), "int8", "a")
    b, s = placeholder((N, K) if trans_b else (K, N), dtype, "b"), placeholder((M,), "float32", "s")
    p = reduce_axis((0, K), "p")

    def term(i, j):
        return a[i, p].astype("int32") * (b[j, p] if trans_b else b[p, j]).astype("int32")

    c = compute((M, N), lambda i, j: sum(term(i, j), axis=p), "c")
    y = compute((M, N), lambda i, j: (c[i, j].astype("float32") * s[i]).astype("float16"), "y")
    return build(y, inputs=[a, b, s], name="int8_linear")


def _tensors(m: int, n: int, k: int, trans_b: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    a = torch.randint(-128, 128, (m, k), dtype=torch.int8)
    b = torch.randint(-128, 128, (n, k) if trans_b else (k, n), dtype=torch.int8)
    a[0], b[0] = -128, -128
    return [a, b, torch.rand(m) * 1e-4]


@pytest.mark.parametrize(("trans_b", "depth"), list(combinations((False, True), (16, 64))))
def test_every_bit_is_right(trans_b: bool, depth: int) -> None:
    """Also with a depth of tiles that is too short for 8 bits."""
    params = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": depth}
    kernel = neptune.compile(int8_linear(trans_b=trans_b), "matmul", target="llvm", params=params)
    assert kernel.source.count("_dot_int8(") == 3  # its definition, the loop, what is left
    for m, n, k in ((37, 45, 100), (1, 1, 1), (16, 32, 64), (3, 5, 0)):
        a, b, s = (
            _tensors(m, n, k, trans_b) if k else (torch.zeros(m, 0).char(), torch.zeros(n, 0).char(), torch.rand(m))
        )
        if not k and not trans_b:
            b = b.T.contiguous()
        whole = a.int() @ (b.int().T if trans_b else b.int())
        wanted = (whole.float() * s[:, None]).half()
        for target in ("llvm", "interpret"):
            assert torch.equal(kernel.for_target(target)(a, b, s), wanted)


@pytest.mark.parametrize(
    ("target", "instruction"),
    [("cuda:90", "k32.s32.s8.s8"), ("cuda:80", "m16n8k32.row.col.satfinite.s32.s8.s8.s32"), ("hip:gfx942", "_i8")],
)
def test_the_unit_multiplies_eight_bits(target: str, instruction: str) -> None:
    params = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "num_warps": 4}
    kernel = neptune.compile(int8_linear(trans_b=True), "matmul", target=target, params=params)
    (text,) = kernel.asm().values()
    assert instruction in text


def test_quantised_rows_in_one_kernel() -> None:
    """The largest of each row, the rounding to int8, the product and the scale."""
    one = neptune.compile(quantise_matmul(width=64), "norm_linear", target="llvm")
    apart = neptune.compile(quantise_matmul(width=64), "stagewise", target="llvm")
    assert len(one.facts.kernels) == 1 and one.source.count("_dot_int8(") == 3
    torch.manual_seed(0)
    x, w = torch.randn(20, 100).half(), torch.randint(-128, 128, (100, 64), dtype=torch.int8)
    assert torch.equal(one(x, w), apart(x, w))
    assert torch.equal(one.for_target("interpret")(x, w), apart(x, w))


def test_other_integers_have_no_unit() -> None:
    with pytest.raises(ScheduleError, match="multiplies int8 and int32 in int32: the matrix unit takes int8"):
        neptune.compile(int8_linear("int32"), "matmul", target="llvm")
