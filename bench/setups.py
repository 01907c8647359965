"""Operators at sizes: what the default is judged on, each with what torch has for it.

Prefill, decode, products and rows at twelve sizes each, chains at eight; float16 but for softmax. `python -m
bench.choice` measures them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from neptune.ir.program import Program
from neptune.ops.attention import operator
from neptune.ops.linear import gated_linear, matmul
from neptune.ops.norm import rms_norm_linear
from neptune.ops.softmax import softmax

Shape = tuple[int, ...]
PREFILL = (
    *((depth, causal, 4, 16, 4096) for depth in (128, 64) for causal in (False, True)),
    *((128, True, *shape) for shape in ((1, 16, 512), (16, 16, 1024), (1, 16, 16384), (1, 4, 2048), (2, 16, 8192))),
    (128, False, 1, 16, 2048), (64, True, 8, 16, 2048), (64, False, 1, 8, 1024),
)  # fmt: skip
DECODE = (
    (1, 1024), (1, 4096), (1, 8192), (1, 131072), (4, 4096), (4, 32768), (8, 1024), (16, 1024), (16, 8192),
    (32, 4096), (64, 1024), (64, 8192),
)  # fmt: skip
PRODUCTS = (
    (4096, 4096, 4096), (16, 6144, 4096), (512, 4096, 4096), (8192, 8192, 8192), (1024, 1024, 1024), (1, 4096, 4096),
    (64, 14336, 4096), (16384, 1024, 4096), (256, 256, 16384), (2048, 2048, 8192), (4096, 14336, 4096),
    (8, 4096, 14336),
)  # fmt: skip
CHAINS = ((16, 6144, 4096), (128, 4096, 4096), (1024, 4096, 4096), (4096, 4096, 4096))
OTHERWISE = ("matmul_split",)
"""Templates whose kernels were others when `bench.choice` measured them: their parts are added otherwise now."""
ROWS = (
    (4096, 16384), (65536, 1024), (256, 131072), (262144, 128), (8192, 8192), (128, 512), (16384, 4096),
    (32768, 2048), (1024, 65536), (2048, 32768), (4096, 1000), (100000, 256),
)  # fmt: skip


@dataclass(frozen=True)
class Setup:
    """One operator at one size; `peers` are what torch has for it, `shapes` are those of the inputs in order."""

    name: str
    program: Callable[[], Program]
    sizes: Mapping[str, int]
    shapes: tuple[Shape, ...]
    peers: Mapping[str, Callable[..., torch.Tensor]]
    dtype: torch.dtype = torch.float16

    @property
    def operator(self) -> str:
        """What all setups of one program share."""
        return str(self.program())


def cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> torch.Tensor:
    """cuDNN's attention; query heads may be more than key heads."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


def normed(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """RMSNorm → linear in torch."""
    return rms_norm(x, x.shape[-1:], g, 1e-6) @ w


def gated(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """SwiGLU in torch."""
    return silu(x @ w) * (x @ u)


def both(of: Callable[..., torch.Tensor]) -> Mapping[str, Callable[..., torch.Tensor]]:
    """Eager torch and torch.compile, which measures forms of products and takes the fastest."""
    return {"torch": of, "torch.compile": torch.compile(of, mode="max-autotune-no-cudagraphs", dynamic=False)}


def setups() -> Iterator[Setup]:
    """The table of what a user gets by default."""
    for depth, causal, batch, heads, length in PREFILL:
        name = "prefill_causal" if causal else "prefill_global"
        program = partial(operator, name, heads=None, depth=depth)
        sizes = {"batch": batch, "heads": heads, "s_q": length, "s_kv": length}
        shape = (batch, heads, length, depth)
        words = f"{name} d{depth} {batch}×{heads}×{length}"
        yield Setup(words, program, sizes, (shape,) * 3, {"torch": partial(cudnn, causal=causal)})
    decode = partial(operator, "decode_gqa", heads=32, kv_heads=8)
    for batch, length in DECODE:
        keys = (batch, 8, length, 128)
        sizes = {"batch": batch, "s_kv": length}
        yield Setup(f"decode_gqa b{batch} {length}", decode, sizes, ((batch, 32, 1, 128), keys, keys), {"torch": cudnn})
    for m, n, k in PRODUCTS:
        of = {"m": m, "n": n, "k": k}
        yield Setup(f"matmul {m}×{n}×{k}", matmul, of, ((m, k), (k, n)), {"torch": torch.matmul})
    for m, n, k in CHAINS:
        sizes, shapes = {"m": m, "n": n, "k": k}, ((m, k), (k, n), (k, n))
        yield Setup(f"rms_norm_linear {m}×{n}×{k}", rms_norm_linear, sizes, ((m, k), (k,), (k, n)), both(normed))
        yield Setup(f"gated_linear {m}×{n}×{k}", gated_linear, sizes, shapes, both(gated))
    for rows, cols in ROWS:
        eager = {"torch": partial(torch.softmax, dim=-1)}
        at = {"rows": rows, "cols": cols}
        yield Setup(f"softmax {rows}×{cols}", softmax, at, ((rows, cols),), eager, torch.float32)
