"""W12, W13: models of transformers that do not use Neptune's attention, or change the masks that they ask for.

Attention is a formula in float64 here: what is compared is which masks models get, and what they are asked to pass on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import neptune
from neptune import models
from neptune.models.interface import attention_forward, attention_mask

transformers = pytest.importorskip("transformers")
masking = pytest.importorskip("transformers.masking_utils")

from qa.tiny_models import Family, built, families  # noqa: E402
from qa.transformers_families import by_formula, examined, padded_right, plain, whole_digits  # noqa: E402


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    models.register()
    with by_formula(), whole_digits():
        yield


def family(name: str) -> Family:
    return next(f for f in families() if f.name == name)


# Decoders that were not causal, encoders that saw padding, a KeyError, an AttributeError, eager attention unasked,
# an encoder of blocks beside a decoder of the interface, masks multiplied by another.
OUTSIDE = (
    "bloom", "codegen", "mpt", "gptj", "falcon", "deberta-v2", "roformer", "mpnet", "squeezebert", "led",
    "bigbird_pegasus", "nllb-moe", "pegasus_x", "trocr",
)  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
def test_w12_a_class_outside_the_attention_interface_is_refused(name: str) -> None:
    found = examined(family(name))
    assert found.status == "refused" and "attention interface" in found.reason, found


@pytest.mark.parametrize("name", ["bloom", "codegen", "roformer", "led"])
def test_w12_the_first_mask_refuses_what_no_constructor_has_seen(name: str) -> None:
    model = built(family(name), "eager")
    model.config._attn_implementation = "neptune"
    with pytest.raises(neptune.NeptuneError, match="attention interface"), torch.no_grad():
        plain(model)


def test_w12_a_part_of_a_model_that_is_outside_is_named() -> None:
    text = transformers.BloomConfig(vocab_size=61, hidden_size=32, n_layer=1, n_head=4)
    vision = transformers.CLIPVisionConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4, image_size=16, patch_size=8
    )
    config = transformers.LlavaConfig(text_config=text, vision_config=vision)
    config._attn_implementation = "neptune"
    with pytest.raises(neptune.NeptuneError, match=r"BloomModel\n.*attention interface"):
        transformers.LlavaForConditionalGeneration(config)


@pytest.mark.parametrize("name", ["doge", "t5gemma2"])
def test_w13_models_that_change_the_mask_get_one(name: str) -> None:
    found = examined(family(name))
    assert found.status == "served", found


@pytest.mark.parametrize("name", ["deepseek_v32", "glm_moe_dsa"])
def test_w12_keys_that_a_layer_selects_are_all_that_is_seen(name: str) -> None:
    """The layer folds its selection into the mask for eager attention and SDPA, and hands it to others."""
    found = examined(family(name))
    assert found.status == "served", found


@pytest.mark.parametrize("option", ["sinks", "block_indices", "cache"])
def test_w12_an_option_of_a_layer_that_is_not_known_is_refused(option: str) -> None:
    x = torch.zeros(1, 2, 3, 16)
    with pytest.raises(neptune.NeptuneError, match=option):
        attention_forward(torch.nn.Module(), x, x, x, None, **{option: torch.zeros(1)})


@pytest.mark.parametrize("name", ["qwen2_moe", "phimoe", "mistral"])
def test_w12_a_window_of_the_mask_is_kept_where_layers_say_none(name: str) -> None:
    found = examined(family(name))
    assert found.status == "served" and found.cases["plain, window"] == "right", found


@pytest.mark.parametrize("name", ["llama", "gemma2", "bert", "bart", "t5", "distilbert"])
def test_w12_classes_of_the_interface_are_served(name: str) -> None:
    found = examined(family(name))
    assert found.status == "served" and found.asked, found


def mask_of(function: Any, **options: Any) -> Any:
    return attention_mask(batch_size=2, q_length=5, kv_length=5, mask_function=function, **options)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("padded", [False, True])
def test_w13_a_mask_that_may_not_be_left_out_is_dense(window: int | None, padded: bool) -> None:
    function = masking.sliding_window_causal_mask_function(window) if window else masking.causal_mask_function
    keep = torch.ones(2, 5, dtype=torch.bool)
    keep[1, : 2 * padded] = False
    made = mask_of(function, local_size=window, attention_mask=keep, allow_is_causal_skip=False)
    i, j = torch.arange(5)[:, None], torch.arange(5)[None]
    seen = (j <= i) & (i - j < (window or 5)) & keep[:, None, None, :]
    assert made.shape == (2, 1, 5, 5) and torch.equal(made, seen)


def test_w12_a_padded_encoder_sees_no_padding() -> None:
    right, found = (padded_right(built(family("bert"), name)) for name in ("eager", "neptune"))
    assert float((found - right).detach().norm() / right.detach().norm()) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_w12_no_family_is_served_wrongly(part: int) -> None:
    """Each sixteenth family of transformers; all of them: python -m qa.transformers_families."""
    for of in families()[part * 4 :: 16]:
        found = examined(of)
        assert found.status not in ("wrong", "raised"), found
