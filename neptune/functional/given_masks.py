"""`attn_mask`: a tensor that says which keys are seen, or what is added to the scores, as a mod that reads it."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from neptune.functional.mods import Mod, traced
from neptune.functional.softmax_attention import Mods, of_scores
from neptune.functional.tensors import refuse, shape_of

Tensor = torch.Tensor


def given_mask(name: str, attn_mask: Tensor | None, query: Tensor, key: Tensor) -> tuple[Mods, list[Tensor]]:
    """The mod that reads `attn_mask`, broadcast to [batch, heads, s_q, s_kv], and what it reads.

    Dimensions of one element are read at 0: a mask of keys alone, [batch, 1, 1, s_kv], is a row to the kernel. Raises
    ShapeError for a mask that cannot be broadcast.
    """
    if attn_mask is None:
        return Mods(), []
    lead = (query.shape[0] if query.dim() > 3 else 1, query.shape[-3] if query.dim() > 2 else 1)
    wanted = (*lead, query.shape[-2], key.shape[-2])
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
