"""Matrix products with what follows them. Weights are [n, k], as nn.Linear's; a transposed view is read as it lies."""

from __future__ import annotations

from typing import Any

import torch

from neptune.functional.kernels import has_no_data, run, structure
from neptune.functional.operators import operator
from neptune.functional.tensors import Rows, check_size, dense, dtype_of, refuse, shape_of
from neptune.ir.program import Program
from neptune.ops import cross_entropy
from neptune.ops import linear as linears
from neptune.ops.quantise import HIGHEST, quantise_matmul
from neptune.runtime.calls.indices import may_look

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
    kind = structure(name, dtype=dtype, **has)
    y: Tensor = run(kind, lambda: linears.matmul(dtype, **has), rows, w, *more)
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
    kind = structure(name, dtype=dtype, activation=activation, trans_b=trans_b)
    y: Tensor = run(kind, lambda: linears.gated_linear(dtype, activation=activation, trans_b=trans_b), rows, w, u)
    return y.reshape((*input.shape[:-1], gate.shape[0]))


@operator
def lora_linear(
    input: torch.Tensor,
    weight: torch.Tensor,
    lora_a: torch.Tensor,
    lora_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    scale: float = 1.0,
) -> torch.Tensor:
    """input weightᵀ + scale · (input lora_aᵀ) lora_bᵀ + bias: a linear layer with a correction of low rank.

    input: […, k], weight: [n, k], lora_a: [rank, k], lora_b: [n, rank], bias: [n], the result: […, n], of one dtype.
    Products are summed in float32; input lora_aᵀ is rounded to the dtype, as where a layer of its own makes it.
    """
    name = "lora_linear"
    dtype = dtype_of(name, input=input, weight=weight, lora_a=lora_a, lora_b=lora_b, bias=bias)
    rows, n, k = _rows(name, input, weight), weight.shape[0], weight.shape[1]
    rank = int(lora_a.shape[0]) if lora_a.dim() else 0
    check_size(name, "lora_a", lora_a, (rank, k), "[rank, k]")
    check_size(name, "lora_b", lora_b, (n, rank), "[n, rank]")
    more = [dense(t) for t in (weight, lora_a, lora_b)]
    if bias is not None:
        check_size(name, "bias", bias, (n,), "a number per row of the weight")
        more.append(dense(bias))
    options: dict[str, Any] = {"rank": rank, "scale": scale, "bias": bias is not None}
    kind = structure(name, dtype=dtype, **options)
    y: Tensor = run(kind, lambda: linears.lora_linear(dtype, **options), rows, *more)
    return y.reshape((*input.shape[:-1], n))


@operator
def quantised_linear(input: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
    """input weightᵀ · scale, of 8 bits: each row of `input` is quantised by its largest element to the weight's dtype.

    input: […, k]; weight: [n, k], int8 (summed in int32), float8_e4m3fn or float8_e5m2 (in float32); scale: [n], what
    each row of the weight is to be multiplied by. The result: […, n], of the dtype of `input`, rounded once.
    """
    name = "quantised_linear"
    dtype, to = dtype_of(name, input=input), str(weight.dtype).removeprefix("torch.")
    if to not in HIGHEST:
        refuse(name, f"`weight` is {weight.dtype}", legal=[f"torch.{n}" for n in HIGHEST])
    rows = _rows(name, input, weight)
    w, trans_b = _as_it_lies(weight)
    more: list[Tensor] = []
    if scale is not None:
        dtype_of(name, scale=scale)
        check_size(name, "scale", scale, (weight.shape[0],), "a number per row of the weight")
        more.append(dense(scale.float()))
    options: dict[str, Any] = {"to": to, "trans_b": trans_b, "scales": scale is not None, "out": dtype}
    kind = structure(name, dtype=dtype, **options)
    y: Tensor = run(kind, lambda: quantise_matmul(dtype, **options), rows, w, *more)
    return y.reshape((*input.shape[:-1], weight.shape[0]))


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
    `ignore_index`, which counts neither in the loss nor in the mean. `softcap` c: logits c·tanh(logit / c). Another
    target is a ShapeError on a CPU; on a GPU it is looked for with NEPTUNE_CHECK=1 alone, and no logit is its own.
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
    kind = structure(name, dtype=dtype, **options)
    flat = dense(target.reshape(-1))

    def make() -> Program:
        return cross_entropy.linear_cross_entropy(dtype, **options)

    _check_targets(name, flat, weight.shape[0], ignore_index)
    loss: Tensor = run(kind, make, rows, dense(weight), *more, flat)
    if reduction == "none":
        return loss.reshape(target.shape)
    total = loss.sum()
    return total if reduction == "sum" else total / (flat != ignore_index).sum()


def _check_targets(name: str, target: Tensor, classes: int, ignored: int) -> None:
    """Raise ShapeError for a target that is no class, where to look costs no wait for a GPU or is asked for."""
    if has_no_data(target) or not may_look(target):
        return
    wrong = ((target < 0) | (target >= classes)) & (target != ignored)
    if wrong.any():
        row = int(wrong.nonzero()[0])
        refuse(name, f"`target` {row} is {int(target[row])}", legal=[f"0 to {classes - 1}", f"ignore_index={ignored}"])


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
