"""The attention and the mask interface of transformers: which masks are made, and a model end to end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from neptune import models
from neptune.errors import ShapeError
from neptune.models.interface import attention_forward, attention_mask, says_no_more

transformers = pytest.importorskip("transformers")
masking = pytest.importorskip("transformers.masking_utils")

B, Q = 2, 5


def asked(function: Callable[..., Any] | None = None, kv: int = Q, offset: int = 0, **options: Any) -> Any:
    return attention_mask(
        batch_size=B,
        q_length=Q,
        kv_length=kv,
        q_offset=offset,
        mask_function=function or masking.causal_mask_function,
        **options,
    )


def test_causality_and_windows_need_no_mask() -> None:
    assert asked() is None and asked(kv=9, offset=4) is None
    window = masking.sliding_window_causal_mask_function(3)
    assert asked(window, local_size=3) is None
    assert asked(attention_mask=torch.ones(B, Q, dtype=torch.bool)) is None


def test_padding_is_one_row_of_keys() -> None:
    keep = torch.ones(B, 9, dtype=torch.bool)
    keep[1, :3] = False
    made = asked(kv=9, offset=4, attention_mask=keep)
    assert made is not None and torch.equal(made, keep)


def test_what_says_more_is_a_dense_mask() -> None:
    left = torch.zeros(B, dtype=torch.long)
    chunked = masking.chunked_causal_mask_function(2, left)
    # A window of another size than the layer's, chunks, a static cache whose last keys are not there yet.
    for made in (
        asked(masking.sliding_window_causal_mask_function(2), local_size=3),
        asked(chunked, local_size=2),
        asked(kv=9, offset=2),
    ):
        assert made is not None and made.dim() == 4 and made.dtype == torch.bool
    assert not says_no_more(chunked, 2)
    i, j = torch.arange(Q)[:, None] + 2, torch.arange(9)[None]
    assert torch.equal(asked(kv=9, offset=2)[0, 0], j <= i)


def test_dropout_is_refused() -> None:
    x = torch.zeros(1, 2, 3, 16)
    with pytest.raises(ShapeError, match=r"dropout is 0\.1"):
        attention_forward(torch.nn.Module(), x, x, x, None, dropout=0.1)


SMALL = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
GEMMA = {"head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 16}
MODELS = {
    "Llama": ("LlamaConfig", {"head_dim": 16}),
    "Gemma2": ("Gemma2Config", GEMMA),
    "Gemma3": ("Gemma3TextConfig", GEMMA),
    "Qwen3": ("Qwen3Config", {"head_dim": 16}),
    "GptOss": ("GptOssConfig", {"head_dim": 16, "sliding_window": 4, "num_local_experts": 4, "num_experts_per_tok": 2}),
}


def logits(name: str, implementation: str, padded: bool) -> torch.Tensor:
    """Of a prompt, and of four tokens that are decoded behind it, past the window."""
    config, more = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, config)(**{**SMALL, **more})).eval()
    model.set_attn_implementation(implementation)
    ids = torch.randint(0, 61, (2, 9))
    keep = torch.ones_like(ids)
    keep[1, : 3 * padded] = 0
    with torch.no_grad():
        first = model(ids, attention_mask=keep).logits[keep.bool()]
        more = model.generate(
            ids,
            attention_mask=keep,
            max_new_tokens=4,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
    return torch.cat([first, *more.logits])


def agrees(name: str, padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEPTUNE_TARGET", "llvm")
    models.register()
    models.register()
    found, eager = (logits(name, implementation, padded) for implementation in ("neptune", "eager"))
    assert found.shape == eager.shape and float((found - eager).norm() / eager.norm()) < 2e-6


@pytest.mark.compared
def test_a_llama_agrees_with_eager_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    agrees("Llama", False, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_models_agree_with_eager_attention_padded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Softcaps, windows, groups, sinks; prefill, padding, decoding past the window."""
    agrees(name, True, monkeypatch)
