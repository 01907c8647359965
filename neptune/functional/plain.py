"""`torch.ops.neptune.attention`: the options that are no functions."""

from __future__ import annotations

import torch

from neptune.functional.operators import operator
from neptune.functional.softmax_attention import Options, call

Tensor = torch.Tensor


@operator
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """o, like q; see `neptune.functional.attention`."""
    options = Options(causal, window, softcap, scale, enable_gqa)
    result: Tensor = call(q, k, v, options, alibi_slopes, sinks)
    return result


@operator
def attention_with_lse(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, lse); see `neptune.functional.attention`."""
    options = Options(causal, window, softcap, scale, enable_gqa, lse=True)
    result: tuple[Tensor, Tensor] = call(q, k, v, options, alibi_slopes, sinks)
    return result
