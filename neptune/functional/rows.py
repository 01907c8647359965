"""Functions of rows: softmax and its relatives, norms, similarities, rotary positions. Signatures are torch's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from neptune.functional.kernels import run, structure
from neptune.functional.operators import operator
from neptune.functional.tensors import Rows, check_size, dense, dtype_of, refuse, shape_of
from neptune.ops import norm, route, statistics
from neptune.ops import rope as ropes
from neptune.ops import softmax as softmaxes
from neptune.runtime.custom_op import UNTYPED

Tensor = torch.Tensor


def _row_wise(name: str, x: Tensor, dim: int) -> Rows:
    """The rows of a tensor along a dimension; ShapeError where there is no such one."""
    # A tensor without dimensions is a row of one element, as in torch.
    last = max(x.dim(), 1) - 1
    if not -last - 1 <= dim <= last:
        refuse(name, f"dim={dim}", legal=[f"{-last - 1} to {last}"])
    return Rows.of(x, dim) if x.dim() else replace(Rows.of(x.reshape(1)), lead=())


@operator
def softmax(input: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """exp(x) / Σ exp(x) along `dim`, computed in float32; of the shape and dtype of `input`."""
    rows, dtype = _row_wise("softmax", input, dim), dtype_of("softmax", input=input)
    kind = structure("softmax", dtype=dtype)
    return rows.back(run(kind, lambda: softmaxes.softmax(dtype), rows.flat))


@operator
def log_softmax(input: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """x - log Σ exp(x) along `dim`, computed in float32; of the shape and dtype of `input`."""
    rows, dtype = _row_wise("log_softmax", input, dim), dtype_of("log_softmax", input=input)
    kind = structure("log_softmax", dtype=dtype)
    return rows.back(run(kind, lambda: softmaxes.log_softmax(dtype), rows.flat))


@operator
def logsumexp(input: torch.Tensor, dim: int = -1, keepdim: bool = False) -> torch.Tensor:
    """log Σ exp(x) along `dim`, computed in float32; of the dtype of `input`, without `dim` unless `keepdim`."""
    rows, dtype = _row_wise("logsumexp", input, dim), dtype_of("logsumexp", input=input)
    kind = structure("logsumexp", dtype=dtype)
    y = rows.folded(run(kind, lambda: softmaxes.logsumexp(dtype), rows.flat))
    return y.unsqueeze(dim) if keepdim and input.dim() else y


@operator
def softmax_top_k(input: torch.Tensor, k: int, renormalise: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """(weights, experts): the `k` (1 to 8) largest of softmax(input, -1), descending, and where they stand; of equals
    the first.

    weights: float32 […, k], over their sum with `renormalise`; experts: int32 […, k], torch.topk's being int64.
    """
    name = "softmax_top_k"
    rows, dtype = _row_wise(name, input, -1), dtype_of(name, input=input)
    if not input.dim():
        refuse(name, "`input` has no dimensions", legal=["[…, n]"])
    if not 1 <= k <= input.shape[-1]:
        refuse(name, f"k={k} of {input.shape[-1]}", legal=["a number from 1 to the length of the last dimension"])
    options: dict[str, Any] = {"k": k, "renormalise": renormalise}
    results = run(structure(name, dtype=dtype, **options), lambda: route.softmax_top_k(dtype, **options), rows.flat)
    weights, experts = (t.reshape((*input.shape[:-1], options["k"])) for t in results)
    return weights, experts


@operator
def rms_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    """x / √(mean(x²) + eps) · weight over the last dimensions, which are `normalized_shape`; computed in float32.

    `weight`: of that shape. `eps` is that of float32, in which it is computed, by default, as torch's.
    """
    rows, dtype, (g,) = _norm("rms_norm", input, normalized_shape, weight=weight)
    e = _epsilon(eps)
    kind = structure("rms_norm", dtype=dtype, eps=e, gain=g is not None)
    return rows.back(run(kind, lambda: norm.rms_norm(dtype, eps=e, gain=g is not None), rows.flat, *_given(g)))


@operator
def layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """(x - mean) / √(var + eps) · weight + bias over the last dimensions, which are `normalized_shape`."""
    rows, dtype, (g, b) = _norm("layer_norm", input, normalized_shape, weight=weight, bias=bias)
    has = {"gain": g is not None, "bias": b is not None}
    kind = structure("layer_norm", dtype=dtype, eps=eps, **has)
    return rows.back(run(kind, lambda: norm.layer_norm(dtype, eps=eps, **has), rows.flat, *_given(g, b)))


@operator
def add_rms_norm(
    input: torch.Tensor,
    residual: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rms_norm(h), h) of h = input + residual, which is rounded to their dtype first; the rest as in `rms_norm`."""
    name = "add_rms_norm"
    rows, dtype, (g,) = _norm(name, input, normalized_shape, weight=weight)
    dtype_of(name, input=input, residual=residual)
    check_size(name, "residual", residual, tuple(input.shape), "as input")
    e, other = _epsilon(eps), Rows.of(residual, width=len(normalized_shape))
    kind = structure(name, dtype=dtype, eps=e, gain=g is not None)
    y, h = run(kind, lambda: norm.add_rms_norm(dtype, eps=e, gain=g is not None), rows.flat, other.flat, *_given(g))
    return rows.back(y), rows.back(h)


@operator
def group_norm(
    input: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Each of `num_groups` groups of channels, normalised; input: [n, channels, …], weight and bias: [channels]."""
    name = "group_norm"
    dtype = dtype_of(name, input=input, weight=weight, bias=bias)
    if input.dim() < 2 or num_groups < 1 or input.shape[1] % num_groups:
        shape = f"[{', '.join(map(str, input.shape))}]"
        refuse(name, f"{shape} in {num_groups} groups", legal=["[n, channels, …], of channels that the groups divide"])
    channels = input.shape[1]
    for argument, t in (("weight", weight), ("bias", bias)):
        if t is not None:
            check_size(name, argument, t, (channels,), "a number per channel")
    each = channels // num_groups
    pixels = 1
    for n in input.shape[2:]:
        pixels = pixels * n
    x = dense(input.reshape(input.shape[0], num_groups, each * pixels))
    # The channels of a group are a size of the kernel even where neither weight nor bias tells it.
    g = input.new_ones(num_groups, each) if weight is None else dense(weight.reshape(num_groups, each))
    b = None if bias is None else dense(bias.reshape(num_groups, each))
    kind = structure(name, dtype=dtype, eps=eps, bias=b is not None)
    y: Tensor = run(kind, lambda: norm.group_norm(dtype, eps=eps, bias=b is not None), x, g, *_given(b))
    return y.reshape(input.shape)


@operator
def cosine_similarity(x1: torch.Tensor, x2: torch.Tensor, dim: int = 1, eps: float = 1e-8) -> torch.Tensor:
    """Σ x1·x2 / (max(|x1|, eps) · max(|x2|, eps)) along `dim`; the shapes broadcast, as torch's."""
    name = "cosine_similarity"
    dtype = dtype_of(name, x1=x1, x2=x2)
    x, y = UNTYPED.broadcast_tensors(x1, x2)
    left, right = _row_wise(name, x, dim), _row_wise(name, y, dim)
    kind = structure(name, dtype=dtype, eps=eps)
    return left.folded(run(kind, lambda: statistics.cosine_similarity(dtype, eps=eps), left.flat, right.flat))


def _norm(
    name: str, x: Tensor, normalized_shape: Sequence[int], **vectors: Tensor | None
) -> tuple[Rows, str, list[Tensor | None]]:
    """Rows over the last dimensions, the dtype, and weight and bias as vectors."""
    shape, dtype = tuple(normalized_shape), dtype_of(name, input=x, **vectors)
    if not shape or tuple(x.shape[x.dim() - len(shape) :]) != shape or len(shape) > x.dim():
        wrong = f"`input` is [{', '.join(map(str, x.shape))}], normalized_shape {list(shape)}"
        refuse(name, wrong, legal=["the last dimensions of `input`"])
    for argument, t in vectors.items():
        if t is not None:
            check_size(name, argument, t, shape, "normalized_shape")
    return Rows.of(x, width=len(shape)), dtype, [None if t is None else dense(t.reshape(-1)) for t in vectors.values()]


def _epsilon(eps: float | None) -> float:
    return torch.finfo(torch.float32).eps if eps is None else eps


def _given(*tensors: Tensor | None) -> list[Tensor]:
    return [t for t in tensors if t is not None]


# --- rotary positions -------------------------------------------------------------------------------


@operator
def rope(
    input: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None = None,
    convention: str = "half",
    layout: str = "bhsd",
) -> torch.Tensor:
    """Pairs (a, b) of each row turned: (a cos - b sin, b cos + a sin), computed in float32 and rounded once.

    input and the result: [batch, heads, rows, depth] (`layout="bshd"`: [batch, rows, heads, depth]); cos and sin:
    [rows, depth/2], those of each row's position, or with `positions`, int64 [batch, rows], tables whose rows it names.
    `convention` "half" pairs d with d + depth/2 (NeoX, Llama), "interleaved" 2d with 2d + 1 (GPT-J).
    """
    name = "rope"
    dtype = dtype_of(name, input=input)
    dtype_of(name, cos=cos, sin=sin)
    if input.dim() != 4:
        refuse(name, f"`input` is {shape_of(input)}", legal=["[batch, heads, rows, depth]"])
    depth, rows = int(input.shape[-1]), input.shape[1 if layout == "bshd" else 2]
    check_size(name, "cos", cos, (cos.shape[0] if positions is not None and cos.dim() else rows, depth // 2), "half")
    check_size(name, "sin", sin, tuple(cos.shape), "as cos")
    more = [dense(t.float()) for t in (cos, sin)]
    if positions is not None:
        if positions.dtype != torch.int64:
            refuse(name, f"`positions` is {positions.dtype}", legal=["torch.int64"])
        check_size(name, "positions", positions, (input.shape[0], rows), "[batch, rows]")
        more.append(dense(positions))
    options: dict[str, Any] = {
        "convention": convention,
        "depth": depth,
        "layout": layout,
        "positions": positions is not None,
    }
    kind = structure(name, dtype=dtype, **options)
    y: torch.Tensor = run(kind, lambda: ropes.rope(dtype, **options), dense(input), *more)
    return y
