"""`torch.ops.neptune.attention`: the options that are no functions."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from neptune.functional.mods import Mod, traced
from neptune.functional.operators import operator
from neptune.functional.softmax_attention import Mods, Options, call, of_scores
from neptune.functional.tensors import lengths_of, refuse, shape_of

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
    attn_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """o, like q; see `neptune.functional.attention`."""
    options = Options(causal, window, softcap, scale, enable_gqa)
    given = given_mask("attention", attn_mask, q, k)
    result: Tensor = call(q, k, v, options, alibi_slopes, sinks, *given)
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
    attn_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, lse); see `neptune.functional.attention`."""
    options = Options(causal, window, softcap, scale, enable_gqa, lse=True)
    given = given_mask("attention", attn_mask, q, k)
    result: tuple[Tensor, Tensor] = call(q, k, v, options, alibi_slopes, sinks, *given)
    return result


@operator
def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """torch's function of this name: softmax(query keyᵀ · scale + attn_mask) value, in one kernel.

    `is_causal` is aligned as torch does, top-left: query i sees the keys j ≤ i (`attention(causal=True)` is aligned
    bottom-right). `attn_mask`: bool (which keys are seen) or float (added to the scores), broadcast to [batch, heads,
    s_q, s_kv]. A row that sees no key is 0. `dropout_p` must be 0.
    """
    name = "scaled_dot_product_attention"
    if dropout_p:
        refuse(name, f"dropout_p={dropout_p}", legal=["0.0"], hint="attention without dropout, as in inference")
    if attn_mask is not None and is_causal:
        refuse(name, "both attn_mask and is_causal were given", hint="one of them")
    options = Options(scale=scale, enable_gqa=enable_gqa)
    mods, captured = (Mods(mask=_top_left()), []) if is_causal else given_mask(name, attn_mask, query, key)
    result: Tensor = call(query, key, value, options, mods=mods, captured=captured)
    return result


@cache
def _top_left() -> Mod:
    return traced(lambda b, h, q_idx, kv_idx: kv_idx <= q_idx, "mask_mod")


# --- attn_mask: which keys are seen, or what is added to the scores, as a mod that reads the tensor -------------------


def given_mask(name: str, attn_mask: Tensor | None, query: Tensor, key: Tensor) -> tuple[Mods, list[Tensor]]:
    """The mod that reads `attn_mask`, broadcast to [batch, heads, s_q, s_kv], and what it reads.

    Dimensions of one element are read at 0: a mask of keys alone, [batch, 1, 1, s_kv], is a row to the kernel. Raises
    ShapeError for a mask that cannot be broadcast.
    """
    if attn_mask is None:
        return Mods(), []
    wanted = lengths_of(query, key)
    mask = attn_mask.reshape((1,) * (4 - attn_mask.dim()) + tuple(attn_mask.shape))
    fits = mask.dim() == 4 and query.dim() <= 4
    if not fits or any(n not in (1, w) for n, w in zip(mask.shape, wanted, strict=True)):
        refuse(name, f"attn_mask is {shape_of(attn_mask)}", legal=[f"what broadcasts to {list(map(int, wanted))}"])
    if attn_mask.dtype != torch.bool and not attn_mask.is_floating_point():
        refuse(name, f"attn_mask is {attn_mask.dtype}", legal=["torch.bool", "a dtype of floats"])
    mod = _read(attn_mask.dtype, tuple(bool(n == 1) for n in mask.shape), of_scores(query))
    return (Mods(mask=mod) if attn_mask.dtype == torch.bool else Mods(score=mod)), [mask]


@cache
def _read(dtype: torch.dtype, alike: tuple[bool, ...], wide: str) -> Mod:
    """A mod that reads a mask of this dtype: a condition, or what is added to the score; `alike`: at 0 there."""
    mask = torch.zeros(1, 1, 1, 1, dtype=dtype, device="cpu")

    def at(*index: Any) -> Any:
        return mask[tuple(0 if same else i for i, same in zip(index, alike, strict=True))]

    def shown(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return at(b, h, q_idx, kv_idx)

    def added(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + at(b, h, q_idx, kv_idx)

    return traced(shown, "mask_mod") if dtype == torch.bool else traced(added, "score_mod", wide=wide)
