"""Matrix products with what follows them. Weights are [n, k], as nn.Linear's; a transposed view is read as it lies."""

from __future__ import annotations

from typing import Any

import torch

from neptune.functional.kernels import run, structure
from neptune.functional.operators import operator
from neptune.functional.tensors import Rows, check_size, dense, dtype_of, refuse, shape_of
from neptune.ir.program import Program
from neptune.ops import cross_entropy
from neptune.ops import linear as linears

Tensor = torch.Tensor
REDUCTIONS = ("mean", "sum", "none")


@operator
def linear(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """activation(input weightᵀ + bias) + residual, summed in float32; `activation`: gelu, relu, silu or tanh.

    input: […, k], weight: [n, k], bias: [n], residual and the result: […, n], of one dtype.
    """
    name = "linear"
    dtype = dtype_of(name, input=input, weight=weight, bias=bias, residual=residual)
    rows = _rows(name, input, weight)
    n = weight.shape[0]
    more: list[Tensor] = []
    if bias is not None:
        check_size(name, "bias", bias, (n,), "a number per row of the weight")
        more.append(dense(bias))
    if residual is not None:
        check_size(name, "residual", residual, (*input.shape[:-1], n), "the result's shape")
        more.append(Rows.of(residual).flat)
    w, trans_b = _as_it_lies(weight)
    has: dict[str, Any] = {
        "bias": bias is not None,
        "residual": residual is not None,
        "activation": activation,
        "trans_b": trans_b,
    }
    of = structure(name, dtype=dtype, **has)
    y: Tensor = run(of, lambda: linears.matmul(dtype, **has), rows, w, *more)
    return y.reshape((*input.shape[:-1], n))


@operator
def gated_linear(input: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: str = "silu") -> torch.Tensor:
    """activation(input gateᵀ) · (input upᵀ): SwiGLU with "silu", GeGLU with "gelu".

    input: […, k], gate and up: [n, k], the result: […, n], of one dtype; products are summed in float32.
    """
    name = "gated_linear"
    dtype = dtype_of(name, input=input, gate=gate, up=up)
    rows = _rows(name, input, gate)
    check_size(name, "up", up, tuple(gate.shape), "as gate")
    (w, trans_b), (u, trans_u) = _as_it_lies(gate), _as_it_lies(up)
    if trans_b != trans_u:
        w, u, trans_b = gate.contiguous(), up.contiguous(), True
    of = structure(name, dtype=dtype, activation=activation, trans_b=trans_b)
    y: Tensor = run(of, lambda: linears.gated_linear(dtype, activation=activation, trans_b=trans_b), rows, w, u)
    return y.reshape((*input.shape[:-1], gate.shape[0]))


@operator
def linear_cross_entropy(
    input: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
) -> torch.Tensor:
    """cross_entropy(input weightᵀ + bias, target), of logits that are never stored; float32.

    input: […, k], weight: [classes, k], bias: [classes], of one dtype; target: […], int64 or int32, in [0, classes) or
    `ignore_index`, which counts neither in the loss nor in the mean. `softcap` c: logits c·tanh(logit / c).
    """
    name = "linear_cross_entropy"
    dtype = dtype_of(name, input=input, weight=weight, bias=bias)
    if reduction not in REDUCTIONS:
        refuse(name, f"reduction={reduction!r}", legal=REDUCTIONS)
    if target.dtype not in (torch.int64, torch.int32):
        refuse(name, f"`target` is {target.dtype}", legal=["torch.int64", "torch.int32"])
    rows = _rows(name, input, weight)
    check_size(name, "target", target, tuple(input.shape[:-1]), "one for each row of `input`")
    more: list[Tensor] = []
    if bias is not None:
        check_size(name, "bias", bias, (weight.shape[0],), "a number per class")
        more.append(dense(bias))
    options: dict[str, Any] = {
        "label_smoothing": label_smoothing,
        "ignore_index": ignore_index,
        "softcap": softcap,
        "bias": bias is not None,
        "targets": str(target.dtype).removeprefix("torch."),
    }
    of = structure(name, dtype=dtype, **options)
    flat = dense(target.reshape(-1))

    def make() -> Program:
        return cross_entropy.linear_cross_entropy(dtype, **options)

    loss: Tensor = run(of, make, rows, dense(weight), *more, flat)
    if reduction == "none":
        return loss.reshape(target.shape)
    total = loss.sum()
    return total if reduction == "sum" else total / (flat != ignore_index).sum()


def _rows(name: str, x: Tensor, weight: Tensor) -> Tensor:
    """[rows, k] of an input […, k] that fits a weight [n, k]."""
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
        wrong = f"`input` is {shape_of(x)}, the weight {shape_of(weight)}"
        refuse(name, wrong, legal=["[…, k] and [n, k]"])
    return Rows.of(x).flat


def _as_it_lies(weight: Tensor) -> tuple[Tensor, bool]:
    """A weight [n, k] as the kernel reads it: (itself, True), or its transpose where that is what is dense."""
    if weight.stride(-1) == 1 or weight.shape[-1] <= 1:
        return weight, True
    return (weight.t(), False) if weight.stride(0) == 1 else (weight.contiguous(), True)
