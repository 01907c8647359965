"""Operators at sizes, of which kernels were measured (`results/h200-choice-*.json`): what the cost model is judged on.

Prefill, decode, products and rows at twelve sizes each, chains at eight; float16 but for softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from neptune.ir.program import Program
from neptune.ops.attention import operator
from neptune.ops.linear import gated_linear, matmul
from neptune.ops.norm import rms_norm_linear
from neptune.ops.softmax import softmax

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
"""Templates whose kernels were others when they were measured: their parts are added otherwise now."""
ROWS = (
    (4096, 16384), (65536, 1024), (256, 131072), (262144, 128), (8192, 8192), (128, 512), (16384, 4096),
    (32768, 2048), (1024, 65536), (2048, 32768), (4096, 1000), (100000, 256),
)  # fmt: skip
PRODUCT_SETUPS: tuple[tuple[str, Callable[[], Program], tuple[tuple[int, int, int], ...]], ...] = (
    ("matmul", matmul, PRODUCTS), ("rms_norm_linear", rms_norm_linear, CHAINS), ("gated_linear", gated_linear, CHAINS),
)  # fmt: skip


@dataclass(frozen=True)
class Setup:
    """One operator at one size."""

    name: str
    program: Callable[[], Program]
    sizes: Mapping[str, int]


def setups() -> Iterator[Setup]:
    """Every operator at every size."""
    for depth, causal, batch, heads, length in PREFILL:
        name = "prefill_causal" if causal else "prefill_global"
        sizes = {"batch": batch, "heads": heads, "s_q": length, "s_kv": length}
        program = partial(operator, name, heads=None, depth=depth)
        yield Setup(f"{name} d{depth} {batch}×{heads}×{length}", program, sizes)
    decode = partial(operator, "decode_gqa", heads=32, kv_heads=8)
    for batch, length in DECODE:
        yield Setup(f"decode_gqa b{batch} {length}", decode, {"batch": batch, "s_kv": length})
    for name, product, shapes in PRODUCT_SETUPS:
        for m, n, k in shapes:
            yield Setup(f"{name} {m}×{n}×{k}", product, {"m": m, "n": n, "k": k})
    for rows, cols in ROWS:
        yield Setup(f"softmax {rows}×{cols}", softmax, {"rows": rows, "cols": cols})
