"""The calls of `bench.default`, as a user writes them, and the same by torch and its libraries.

A row's columns are calls of no arguments over tensors on the GPU. "functional" is `neptune.functional`, "compile" is
`neptune.compile(expr)` of the operator of the same name; neither is told sizes, and nothing is picked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import cross_entropy, gelu, layer_norm, linear, rms_norm, scaled_dot_product_attention, silu

import neptune
import neptune.functional as F
from neptune.ops.attention import operator

OURS, COMPILE, EAGER, TORCH = "functional", "compile", "eager", "torch.compile"
CUDNN, FLASH2, FLEX = "cuDNN", "FlashAttention-2", "FlexAttention"
TFLOPS, GBS = "TFLOP/s", "GB/s"
Call = Callable[[], Any]
Calls = Mapping[str, Call]
BACKENDS = {CUDNN: SDPBackend.CUDNN_ATTENTION, FLASH2: SDPBackend.FLASH_ATTENTION}
TOKENS, LENGTHS, EPS = 16384, (1024, 4096, 16384), 1e-6


@dataclass(frozen=True)
class Row:
    """One call: `work` are its operations of floating point (of what masks let see) or the bytes it has to move. It is
    `captured` as a CUDA graph, unless calls take another way there."""

    group: str
    name: str
    work: float
    unit: str
    calls: Callable[[], Calls]
    captured: bool = True


def _normal(*shape: int, dtype: torch.dtype = torch.float16, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype) * scale


def _compiled(call: Callable[..., Any], *given: Any) -> Call:
    return partial(torch.compile(call, dynamic=False), *given)


# --- attention -------------------------------------------------------------------------------------------------------


def _by_backend(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor, **options: bool) -> Tensor:
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(q, k, v, **options)  # type: ignore[arg-type]


def _attention(shape: tuple[int, int, int, int, int, int], causal: bool, name: str, dtype: torch.dtype) -> Calls:
    batch, heads, kv_heads, queries, keys, depth = shape
    q = _normal(batch, heads, queries, depth, dtype=dtype)
    k, v = (_normal(batch, kv_heads, keys, depth, dtype=dtype) for _ in range(2))
    grouped = heads != kv_heads
    given: dict[str, Any] = {"depth": depth, "dtype": str(dtype).split(".")[1], "heads": heads}
    given |= {"kv_heads": kv_heads} if grouped else {}
    kernel = neptune.compile(operator(name, **given))
    calls: dict[str, Call] = {
        OURS: partial(F.attention, q, k, v, causal=causal, enable_gqa=grouped),
        COMPILE: partial(kernel, q, k, v),
    }
    # Torch's causal begins at the first key: with as many queries as keys it is the same.
    return calls | {
        n: partial(_by_backend, b, q, k, v, is_causal=causal, enable_gqa=grouped) for n, b in BACKENDS.items()
    }


def _prefill() -> Iterator[Row]:
    for depth, causal, length in [
        (d, c, n) for d in (64, 128, 256) for c in (True, False) for n in (1024, 4096, 16384)
    ]:
        shape = (TOKENS // length, 16, 16, length, length, depth)
        work = 4 * TOKENS * length * 16 * depth / (2 if causal else 1)
        name = "prefill_causal" if causal else "prefill_global"
        made = partial(_attention, shape, causal, name, torch.float16)
        yield Row("prefill", f"depth {depth} {'causal' if causal else 'full'} {length}", work, TFLOPS, made)
    for length in (1024, 4096, 16384):
        shape = (TOKENS // length, 32, 8, length, length, 128)
        made = partial(_attention, shape, True, "prefill_gqa", torch.bfloat16)
        yield Row(
            "prefill", f"depth 128 causal {length}, 32/8 heads, bf16", 2 * TOKENS * length * 32 * 128, TFLOPS, made
        )


def _decode() -> Iterator[Row]:
    for batch, keys in ((1, 8192), (1, 131072), (16, 8192), (64, 8192), (64, 1024)):
        shape = (batch, 32, 8, 1, keys, 128)
        made = partial(_attention, shape, False, "decode_gqa", torch.float16)
        yield Row("decode", f"{batch} × {keys}", 2 * batch * 8 * keys * 128 * 2, GBS, made)


def _option(name: str) -> Calls:
    """4 × 16 heads × 4096, depth 128; torch's form by FlexAttention."""
    q, k, v = (_normal(4, 16, 4096, 128) for _ in range(3))
    slopes = torch.tensor([2.0 ** (-0.5 * h) for h in range(1, 17)], device="cuda")
    documents = torch.arange(4096, device="cuda", dtype=torch.int32) // 500

    def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return i >= j

    def window(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (i >= j) & (i - j < 256)

    def within(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (documents[i] == documents[j]) & (i >= j)

    def capped(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return 30 * torch.tanh(s / 30)

    def biased(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return s + slopes[h] * (j - i)

    every: dict[str, dict[str, Any]] = {
        "softcap": {"causal": True, "softcap": 30.0},
        "window": {"window": 256},
        "ALiBi": {"causal": True, "alibi_slopes": slopes},
        "documents": {"mask_mod": within},
        "documents, as a BlockMask": {},
    }
    score = {"softcap": capped, "ALiBi": biased}.get(name)
    seen = within if name.startswith("documents") else {"window": window}.get(name, causal)
    blocks = create_block_mask(seen, None, None, 4096, 4096)
    given = every[name] or {"block_mask": blocks}
    flex = torch.compile(flex_attention, dynamic=False)
    return {OURS: partial(F.attention, q, k, v, **given), FLEX: partial(flex, q, k, v, score, blocks)}


def _options() -> Iterator[Row]:
    pairs = {"softcap": 4096 * 4097 / 2, "ALiBi": 4096 * 4097 / 2, "window": 256 * 4096 - 255 * 128}
    pairs["documents"] = pairs["documents, as a BlockMask"] = 8 * 500 * 501 / 2 + 96 * 97 / 2
    for name, seen in pairs.items():
        # While a graph is captured, blocks are looked up.
        yield Row("options", name, 4 * 64 * 128 * seen, TFLOPS, partial(_option, name), "BlockMask" not in name)


# --- rows and products -----------------------------------------------------------------------------------------------


def _columns(ours: Callable[..., Any], torchs: Callable[..., Any], *given: Any) -> Calls:
    return {OURS: partial(ours, *given), EAGER: partial(torchs, *given), TORCH: _compiled(torchs, *given)}


def _row_calls(name: str, rows: int, cols: int) -> Calls:
    x, y, w = _normal(rows, cols), _normal(rows, cols), _normal(cols)

    def added(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return rms_norm(x + y, (cols,), w, EPS), x + y

    return {
        "softmax": lambda: _columns(F.softmax, partial(torch.softmax, dim=-1), x),
        "RMSNorm": lambda: _columns(
            lambda x, w: F.rms_norm(x, (cols,), w, EPS), lambda x, w: rms_norm(x, (cols,), w, EPS), x, w
        ),
        "LayerNorm": lambda: _columns(
            lambda x, w: F.layer_norm(x, (cols,), w, w), lambda x, w: layer_norm(x, (cols,), w, w), x, w
        ),
        "add + RMSNorm": lambda: _columns(lambda x, y, w: F.add_rms_norm(x, y, (cols,), w, EPS), added, x, y, w),
        "logsumexp": lambda: _columns(F.logsumexp, partial(torch.logsumexp, dim=-1), x),
    }[name]()


def _rows() -> Iterator[Row]:
    moved = {"softmax": 2, "RMSNorm": 2, "LayerNorm": 2, "add + RMSNorm": 4, "logsumexp": 1}
    for name, times in moved.items():
        for rows, cols in ((8192, 4096), (2048, 32768), (4096, 131072), (16, 4096)):
            made = partial(_row_calls, name, rows, cols)
            yield Row("rows", f"{name} {rows} × {cols}", times * rows * cols * 2, GBS, made)


def _product_calls(name: str, m: int, n: int, k: int) -> Calls:
    x, w = _normal(m, k), _normal(n, k, scale=k**-0.5)
    if name == "linear":
        return _columns(F.linear, linear, x, w)
    if name == "gelu":
        return _columns(partial(F.linear, activation="gelu"), lambda x, w: gelu(linear(x, w)), x, w)
    if name == "residual":
        r = _normal(m, n)
        return _columns(lambda x, w, r: F.linear(x, w, residual=r), lambda x, w, r: linear(x, w) + r, x, w, r)
    if name == "gated":
        u = _normal(n, k, scale=k**-0.5)
        return _columns(F.gated_linear, lambda x, w, u: silu(linear(x, w)) * linear(x, u), x, w, u)
    target = torch.randint(n, (m,), device="cuda")
    return _columns(F.linear_cross_entropy, lambda x, w, t: cross_entropy(linear(x, w), t), x, w, target)


def _products() -> Iterator[Row]:
    for name, m, n, k in (
        ("linear", 4096, 4096, 4096),
        ("linear", 128, 4096, 4096),
        ("linear", 16, 14336, 4096),
        ("linear", 1, 4096, 4096),
        ("gelu", 8192, 4096, 4096),
        ("residual", 8192, 4096, 4096),
        ("gated", 8192, 14336, 4096),
        ("gated", 16, 14336, 4096),
        ("cross-entropy", 4096, 128256, 4096),
    ):
        work = 2.0 * m * n * k * (2 if name == "gated" else 1)
        yield Row("products", f"{name} {m} × {n} × {k}", work, TFLOPS, partial(_product_calls, name, m, n, k))


ROWS = {f"{r.group}: {r.name}": r for made in (_prefill, _decode, _options, _rows, _products) for r in made()}
