"""The attention and the mask that `transformers` calls for `attn_implementation="neptune"`.

Its models hand over queries, keys and values with what their layer says beside (scale, window, softcap, sinks), and a
mask that the mask interface has made for all layers of a kind. Ours makes none where causality and the window say all:

    mask made          when                                             what the kernel sees
    None               causal, or a causal window, and nothing padded   causal=True, window=…
    bool [b, s_kv]     the same with padding                            besides: attn_mask[b, 0, 0, j]
    bool [b, 1, q, k]  anything else (packed sequences, static caches)  attn_mask[b, 0, i, j]

A model that may change the mask that it gets, by what it says or by its class, gets all of it; a model whose attention
is its own is refused (neptune/models/classes.py), and so is a layer that hands over what is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from neptune.base.boundary import public
from neptune.errors import ShapeError
from neptune.functional import attention
from neptune.models.classes import Masks, ask_before_models_are_made, masks_of

NAME = "neptune"
Tensor = torch.Tensor


@public
def register(name: str = NAME) -> None:
    """Make `attn_implementation=name` known to transformers' models. Calling it again changes nothing.

    Models take it at construction (`from_pretrained(…, attn_implementation="neptune")`) or later
    (`model.set_attn_implementation("neptune")`). It is for inference: a call that needs gradients is a ShapeError, and
    so is a model with attention of its own, when it is made or asks for its first mask (docs/transformers.md).
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)
    ask_before_models_are_made(name)


@public
def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    indices: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer. query: [b, heads, s_q, d]; key, value: [b, kv_heads, s_kv, d]; gives [b, s_q, heads, d].

    `s_aux` are sinks, [heads]. `indices`, [b, s_q, selected], are the keys that a query sees of those that the mask
    shows. Keys beyond those of a mask, which static caches leave, are not read. Raises ShapeError for dropout, and for
    options of a layer that are not known here.
    """
    _demand_known(module, others)
    if dropout:
        raise ShapeError("attention of a model", f"dropout is {dropout}", hint="model.eval(), or attention_dropout = 0")
    causal = is_causal if is_causal is not None else bool(getattr(module, "is_causal", True))
    window = sliding_window
    mask = attention_mask
    if mask is not None and mask.dim() == 4:
        # It says everything, causality and windows included.
        causal, window = False, None
        mask = mask[..., : key.shape[-2]]
    elif mask is not None:
        mask = mask[:, None, None, :]
    if indices is not None:
        mask = _selected(indices, mask, key.shape[-2])
    if position_bias is not None:
        mask = position_bias if mask is None else _added(position_bias, mask)
    o = attention(
        query,
        key,
        value,
        causal=causal,
        window=window if causal else None,
        softcap=softcap,
        attn_mask=mask,
        sinks=None if s_aux is None else s_aux.float(),
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(o, Tensor)
    return o.transpose(1, 2).contiguous(), None


def _added(bias: Tensor, mask: Tensor) -> Tensor:
    """What both say is added to the scores."""
    return bias.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else bias + mask


def _selected(indices: Tensor, mask: Tensor | None, keys: int) -> Tensor:
    """The mask of the selected keys, of those that `mask` shows."""
    b, rows, _ = indices.shape
    picked = indices.new_zeros((b, 1, rows, keys), dtype=torch.bool).scatter(-1, indices[:, None].long(), True)
    if mask is None:
        return picked
    return mask & picked if mask.dtype == torch.bool else _added(mask, picked)


_IDLE = {
    "cache_position", "cu_seq_lens_k", "cu_seq_lens_q", "deterministic", "labels", "logits_to_keep", "max_length_k",
    "max_length_q", "num_items_in_batch", "output_attentions", "output_hidden_states", "output_router_logits",
    "past_key_values", "position_embeddings", "position_ids", "return_dict", "seq_idx", "use_cache",
}  # fmt: skip
"""Options of layers that say nothing of the result, or what the mask says too."""


def _demand_known(module: torch.nn.Module, options: Mapping[str, Any]) -> None:
    unknown = [n for n, v in options.items() if v is not None and n not in _IDLE]
    if unknown:
        raise ShapeError(
            f"attention of {type(module).__name__}",
            f"its layer passes {', '.join(unknown)}; what that means for the result is not known",
            hint='attn_implementation="eager"',
            kind="model_class",
        )


# --- the mask interface --------------------------------------------------------------------------


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    **options: Any,
) -> Tensor | None:
    """The mask for all layers of a kind, as the table above says; arguments are transformers' own."""
    from transformers.masking_utils import causal_mask_function, prepare_padding_mask, sdpa_mask

    config = options.get("config")
    taken = Masks() if config is None else _masks_of(type(config))
    function = mask_function or causal_mask_function
    aligned = isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length
    # The option is False for a model that goes on to change the mask that it gets.
    may_be_less = aligned and options.get("allow_is_causal_skip", True) and (taken.windows or local_size is None)
    if may_be_less and (
        _said(options, local_size) if torch.compiler.is_compiling() else says_no_more(function, local_size)
    ):
        padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
        if padding is None:
            return None
        keep = padding[:, kv_offset : kv_offset + kv_length]
        # Asking for the values would break the graph that is being traced.
        if not torch.compiler.is_compiling() and bool(keep.all()):
            return None
        if taken.rows:
            return keep
    options["allow_is_causal_skip"] = options["allow_is_bidirectional_skip"] = False
    dense: Any = sdpa_mask
    mask: Tensor | None = dense(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=function,
        attention_mask=attention_mask,
        local_size=local_size,
        **options,
    )
    return mask


# Which classes there are is no part of what is traced.
_masks_of = torch.compiler.assume_constant_result(masks_of)  # type: ignore[no-untyped-call]


def _said(options: Mapping[str, Any], local_size: int | None) -> bool:
    """The same, where torch traces and does not show what functions hold: transformers says that nothing was added to a
    causal mask, and its configuration that what is local is a window."""
    config = options.get("config")
    window = getattr(config, "sliding_window", None), getattr(config, "attention_chunk_size", None)
    return bool(options.get("allow_is_causal_skip")) and (local_size is None or window == (local_size, None))


def says_no_more(function: Callable[..., Any], local_size: int | None) -> bool:
    """True for transformers' causal mask, and its causal window of `local_size`: what a layer says by itself."""
    from transformers.masking_utils import and_masks, causal_mask_function, sliding_window_overlay

    if function is causal_mask_function:
        return True
    if local_size is None or _code(function) is not _code(and_masks(causal_mask_function)):
        return False
    parts = [c.cell_contents for c in function.__closure__ or ()]
    masks = next((p for p in parts if isinstance(p, tuple)), ())
    window = sliding_window_overlay(local_size)
    others = [m for m in masks if m is not causal_mask_function]
    return (
        len(masks) == 2 and len(others) == 1 and _code(others[0]) is _code(window) and _held(others[0]) == _held(window)
    )


def _code(function: Callable[..., Any]) -> Any:
    return getattr(function, "__code__", None)


def _held(function: Callable[..., Any]) -> list[Any]:
    return [c.cell_contents for c in function.__closure__ or ()]
