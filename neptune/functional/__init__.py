"""Operators on torch tensors, under torch's names where torch has one: on a GPU by Triton, else on the CPU.

    import neptune
    o = neptune.functional.attention(q, k, v, causal=True, softcap=50.0)

Kernels are compiled at the first call with some structure (dtypes, options, depth, group), and serve all lengths.
"""

from __future__ import annotations

from neptune.functional.attention import attention as attention
