"""Every shipped operator: the form that its kernels take on Hopper, or why they take the other one."""

from __future__ import annotations

import pytest

from neptune.errors import Unsupported
from neptune.hopper.bodies.write import role_bodies
from neptune.hopper.ir import Levers
from neptune.ops.shipped import OPERATORS
from neptune.tile.ir import TileKernel, TileProgram
from tests.examples.walks import tiles_of

NO_PRODUCT = "it has no product of matrices"
FEW = "it never has more than 64 rows"
FLOAT32 = "it multiplies float32"
LATE = "late: acc"
PLAIN = "plain"

FORMS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("softmax", "log_softmax"), ("softmax_row", NO_PRODUCT)),
    **dict.fromkeys(("rms_norm", "layer_norm", "group_norm"), ("softmax_row", NO_PRODUCT)),
    **dict.fromkeys(("add_rms_norm", "add_layer_norm", "quantise"), ("softmax_row", NO_PRODUCT)),
    **dict.fromkeys(("logsumexp", "cross_entropy", "softmax_top_k"), ("softmax_online", NO_PRODUCT)),
    **dict.fromkeys(("variance", "cosine_similarity", "weighted_mean"), ("softmax_online", NO_PRODUCT)),
    **dict.fromkeys(("weighted_variance", "moment_of_inertia"), ("softmax_online", NO_PRODUCT)),
    "rope": ("stagewise", NO_PRODUCT),
    "rms_norm_linear": ("stagewise", PLAIN),
    "layer_norm_linear": ("stagewise", PLAIN),
    "rms_linear": ("stagewise", FLOAT32),
    "standardise_linear": ("stagewise", FLOAT32),
    "l2_normalise_matmul": ("norm_linear_rolling", PLAIN),
    "matmul": ("matmul", PLAIN),
    "linear": ("matmul", PLAIN),
    "gated_linear": ("matmul", PLAIN),
    "lora_linear": ("stagewise", PLAIN),
    "swiglu": ("matmul", PLAIN),
    "geglu": ("matmul", PLAIN),
    "linear_cross_entropy": ("flash_attention", PLAIN),
    "linear_logsumexp": ("flash_attention", PLAIN),
    "quantise_matmul": ("stagewise", "w has rows of int8 across the depth of the product"),
    "abs_max_matmul": ("stagewise", PLAIN),
    "float8_linear": ("stagewise", PLAIN),
    **dict.fromkeys(("prefill_global", "prefill_causal", "prefill_alibi"), ("flash_attention", LATE)),
    **dict.fromkeys(("prefill_gqa", "prefill_softcap", "prefill_window"), ("flash_attention", LATE)),
    **dict.fromkeys(("decode_causal", "decode_alibi", "decode_gqa", "decode_softcap"), ("flash_attention", FEW)),
    **dict.fromkeys(("attention", "attention_sinks", "rope_attention"), ("flash_attention", LATE)),
    **dict.fromkeys(("qk_norm_attention", "off_by_one_attention"), ("flash_attention", LATE)),
    "sigmoid_attention": ("flash_attention", LATE),
    "float8_attention": ("flash_attention", FEW),
    "linear_attention": ("flash_attention", FLOAT32),
    "differential_attention": ("flash_attention", "late: acc1, acc2"),
    "distance_attention": ("flash_attention", PLAIN),
    "covariance": ("stagewise", FLOAT32),
    "kernel_density": ("flash_attention", NO_PRODUCT),
    "gaussian_mixture": ("flash_attention", NO_PRODUCT),
}
OPTIONS = {"kernel_density": {"depth": 16}, "gaussian_mixture": {"depth": 16}}


def test_all_are_listed() -> None:
    assert set(FORMS) == set(OPERATORS)


@pytest.mark.parametrize("name", FORMS)
def test_form(name: str) -> None:
    template, wanted = FORMS[name]
    _, tiles = tiles_of(name, template, **OPTIONS.get(name, {}))
    assert {said(tiles, k) for k in tiles.kernels} - {NO_PRODUCT} == {wanted} - {NO_PRODUCT}


def said(tiles: TileProgram, kernel: TileKernel) -> str:
    """The form of a kernel, or why it has none."""
    try:
        found = role_bodies(tiles, kernel, Levers())
    except Unsupported as refusal:
        assert refusal.legal, "nothing to go by"
        return refusal.why
    return f"late: {', '.join(found.late)}" if found.late else PLAIN
