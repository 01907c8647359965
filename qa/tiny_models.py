"""Tiny models of transformers, made from each configuration class by shrinking the usual fields."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any

import torch

HIDDEN, HEADS, LAYERS, VOCABULARY = 32, 4, 2, 97
LARGEST = 3_000_000
"""Parameters of a model that is still tiny."""

# (field, its value), first match; a value of None leaves the field alone. `_` of a word is not written.
_SIZES: tuple[tuple[str, Any], ...] = (
    (r"vocab_size(_.*)?|.*_vocab_size|n_vocab|vocabulary_size", VOCABULARY),
    (r"max_.*position.*|n_positions|n_ctx|max_seq_len.*|seq_length|max_sequence_length|block_size_cfg", 64),
    (r"sliding_window|attention_window|window_size|local_attention|attention_chunk_size|chunk_size|attn_window.*", 4),
    (r"qk_nope_head_dim|qk_rope_head_dim|v_head_dim|qk_head_dim|rotary_dim|index_head_dim|d_kv", 8),
    (r".*lora_rank|.*_rank", 16),
    (r"(global_)?head_dim|attention_head_dim|head_size|kv_channels|mamba_d_head|mamba_head_dim|linear_.*_head_dim", 16),
    (r".*num_key_value_heads|num_kv_heads|n_head_kv|multi_query_group_num|num_global_key_value_heads|kv_heads", "kv"),
    (r"(.*_)?n(um)?_(.*_)?heads?|.*attention_heads|n_heads|heads", HEADS),
    (r"(.*_)?num_experts_per_tok(en)?|moe_(top)?k|top_k_experts|(experts_)?topk|n_experts_per_token", 2),
    (r"(num_|n_)?(routed_|local_)?experts|num_experts.*|n_routed_experts|moe_num_experts|num_local_experts", 4),
    (r"n_group|topk_group|num_expert_groups?|num_limited_groups", 1),
    (r"n_shared_experts|num_shared_experts|moe_num_shared_experts", 1),
    (r"first_k_dense_replace|moe_layer_start_index|num_kv_shared_layers|num_hash_layers", 0),
    (r"query_pre_attn_scalar", 16),
    (r"hidden_size_per_layer_input", 8),
    (r".*intermediate_(size|dim).*|.*ffn_dim.*|.*ff_dim|d_ff|n_inner|dim_feedforward|ffn_hidden_size|mlp_dim", 48),
    (r".*num_hidden_layers|n_layers?|(num_)?((en|de)coder_)?layers|num_decoder_blocks|depth", LAYERS),
    (r"hidden_size|d_model|n_embd|embed_dim|embedding_size|dim|hidden_dim|d_embed|(en|de)coder_hidden_size"
     r"|lru_width|word_embed_proj_dim|projection_dim|.*_embed_dim|model_dim|emb_dim|token_embedding_size"
     r"|projection_size", HIDDEN),
    (r"relative_attention_num_buckets|num_buckets", 8),
    (r"image_size", 16), (r"patch_size", 8),
    (r"mamba_d_state|state_size|ssm_state_size", 8), (r"mamba_n_groups|n_groups", 1),
    (r"index_topk", 4),
)  # fmt: skip


def _shrunk(name: str, value: Any, kv: int) -> Any:
    """What stands in the place of a field's value, or the value."""
    if name.endswith(("_token_id", "_token_index", "_token_ids")) and isinstance(value, int):
        return value if 0 <= value < VOCABULARY else VOCABULARY - 1
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    for pattern, size in _SIZES:
        if re.fullmatch(pattern, name):
            size = kv if size == "kv" else size
            return min(size, value) if value >= 0 else value
    return value


def _first(fields: dict[str, Any], *names: str) -> int | None:
    return next((fields[n] for n in names if isinstance(fields.get(n), int)), None)


def tiny(config_class: Any, **more: Any) -> Any:
    """A configuration of `config_class` (an instance, too) whose sizes are small; `more` are fields as they are."""
    default = config_class() if isinstance(config_class, type) else config_class
    fields = default.to_dict()
    heads = next(
        (fields[n] for n in ("num_attention_heads", "n_head", "num_heads") if isinstance(fields.get(n), int)), 0
    )
    given = next((fields[n] for n in ("num_key_value_heads", "num_kv_heads") if isinstance(fields.get(n), int)), heads)
    kv = HEADS if given == heads else 1 if given == 1 else 2
    changed = {
        n: small
        for n, v in fields.items()
        if n not in ("transformers_version", "model_type") and (small := _shrunk(n, v, kv)) is not v
    }
    for name in getattr(default, "sub_configs", None) or ():
        inner = getattr(default, name, None)
        if inner is not None:
            changed[name] = tiny(inner).to_dict()
    made = type(default)(**{**changed, **more})
    if getattr(made, "is_encoder_decoder", False):
        made.decoder_start_token_id = 0
    return made


@dataclass(frozen=True)
class Family:
    """A model class of transformers, by the name of its configurations."""

    name: str
    kind: str
    """decoder, encoder, seq2seq, vision"""
    model: str
    """The class."""


def families() -> list[Family]:
    """Every family that transformers knows, once: as a decoder, else as seq2seq, else as an encoder."""
    from transformers.models.auto import modeling_auto as auto

    found: dict[str, Family] = {}
    for kind, names in (
        ("decoder", auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
        ("seq2seq", auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES),
        ("decoder", auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES),
        ("encoder", auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
        ("encoder", auto.MODEL_MAPPING_NAMES),
    ):
        for name, model in names.items():
            first: Any = model[0] if isinstance(model, tuple) else model
            of_both = kind == "decoder" and name in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
            found.setdefault(name, Family(name, "encoder" if of_both else kind, first))
            if of_both:
                found[name] = Family(name, "encoder", auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES[name])
    return sorted(found.values(), key=lambda f: f.name)


def classes(family: Family) -> tuple[Any, Any]:
    """(its configuration, its model)."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[family.name], getattr(transformers, family.model)


WINDOWED = {"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 0}
"""Fields that give a family a window whose default has none."""


def windowed(config_class: Any) -> dict[str, Any]:
    """The fields of `WINDOWED` that a family has; none where it has no window."""
    have = config_class().to_dict()
    return {n: v for n, v in WINDOWED.items() if n in have} if "sliding_window" in have else {}


def built(family: Family, implementation: str, dtype: torch.dtype = torch.float64, window: bool = False) -> Any:
    """The tiny model with random weights, whose attention is `implementation`; with `window`, of a window."""
    config_class, model_class = classes(family)
    config = tiny(config_class, **(windowed(config_class) if window else {}))
    config._attn_implementation = implementation
    # Products by groups of rows know no float64.
    config._experts_implementation = "eager"
    with torch.device("meta"):
        config_of_size = tiny(config_class)
        size = sum(p.numel() for p in model_class(config_of_size).parameters())
    if size > LARGEST:
        raise ValueError(f"{size:,} parameters")
    torch.manual_seed(0)
    model = model_class(config).to(dtype).eval()
    with torch.no_grad():
        # Weights by `initializer_range` are so small that attention is nearly uniform, and zeros hide what is behind.
        draw = torch.Generator().manual_seed(1)
        for p in model.parameters():
            if p.is_floating_point():
                spread = 0.5 / max(p.shape[-1], 1) ** 0.5 * 2 if p.dim() > 1 else 0.1
                p.copy_((p if p.dim() == 1 else 0) + torch.randn(p.shape, generator=draw, dtype=torch.float64) * spread)
    return model


def takes(model: Any, name: str) -> bool:
    """Whether its forward has a parameter of the name."""
    return name in inspect.signature(model.forward).parameters
