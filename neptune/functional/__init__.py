"""Operators on torch tensors, under torch's names where torch has one: on a GPU by Triton, else on the CPU.

    import neptune
    o = neptune.functional.attention(q, k, v, causal=True, softcap=50.0)

Kernels are compiled at the first call with some structure (dtypes, options, depth, group), and serve all lengths.
"""

from __future__ import annotations

from neptune.functional.attention import attention, flex_attention
from neptune.functional.kernels import settle
from neptune.functional.plain import scaled_dot_product_attention
from neptune.functional.products import gated_linear, linear, linear_cross_entropy, lora_linear, quantised_linear
from neptune.functional.rows import (
    add_rms_norm,
    cosine_similarity,
    group_norm,
    layer_norm,
    log_softmax,
    logsumexp,
    rms_norm,
    rope,
    softmax,
    softmax_top_k,
)

__all__ = [
    "add_rms_norm",
    "attention",
    "cosine_similarity",
    "flex_attention",
    "gated_linear",
    "group_norm",
    "layer_norm",
    "linear",
    "linear_cross_entropy",
    "log_softmax",
    "logsumexp",
    "lora_linear",
    "quantised_linear",
    "rms_norm",
    "rope",
    "scaled_dot_product_attention",
    "settle",
    "softmax",
    "softmax_top_k",
]
