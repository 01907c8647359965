"""Functions on tensors: what does not fit, and mods that are no expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.masked import masked_tensor
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask

import neptune.functional as F
from neptune.errors import ExpressionError, ShapeError
from tests.errors.table import case

X, W = torch.ones(2, 12), torch.ones(7, 12)
Q, KV = torch.ones(1, 4, 3, 16), torch.ones(1, 2, 5, 16)
TABLE = torch.ones(4)


def attended(q: torch.Tensor = KV, k: torch.Tensor = KV, v: torch.Tensor = KV, **options: Any) -> object:
    return F.attention(q, k, v, **options)


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


# --- tensors ----------------------------------------------------------------------------------------


@case(ShapeError)
def an_argument_that_is_missing() -> None:
    F.linear(X)


@case(ShapeError)
def a_list_for_a_tensor() -> None:
    F.softmax([1.0, 2.0])


@case(ShapeError)
def tensors_on_two_devices() -> None:
    F.linear(X, W.to("meta"))


@case(ShapeError)
def a_tensor_that_requires_a_gradient() -> None:
    F.softmax(torch.ones(2, 3, requires_grad=True))


@case(ShapeError)
def a_dtype_that_kernels_do_not_compute() -> None:
    F.softmax(torch.ones(2, 3, dtype=torch.float64))


@case(ShapeError)
def two_dtypes() -> None:
    F.linear(X, W.half())


@case(ShapeError)
def a_bias_of_another_size() -> None:
    F.linear(X, W, torch.ones(12))


@case(ShapeError)
def a_weight_that_does_not_fit() -> None:
    F.linear(X, W.t())


@case(ShapeError)
def a_dimension_that_there_is_not() -> None:
    F.softmax(X, 2)


@case(ShapeError)
def another_normalized_shape() -> None:
    F.rms_norm(X, (3,))


@case(ShapeError)
def groups_that_do_not_divide() -> None:
    F.group_norm(X, 5)


@case(ShapeError)
def an_unknown_reduction() -> None:
    F.linear_cross_entropy(X, W, torch.zeros(2, dtype=torch.int64), reduction="max")


@case(ShapeError)
def targets_that_are_floats() -> None:
    F.linear_cross_entropy(X, W, torch.zeros(2))


@case(ShapeError)
def weights_that_are_not_of_8_bits() -> None:
    F.quantised_linear(X, W)


@case(ShapeError)
def more_experts_than_there_are() -> None:
    F.softmax_top_k(X, 13)


@case(ShapeError)
def a_row_to_turn() -> None:
    F.rope(X, X, X)


@case(ShapeError)
def positions_of_32_bits() -> None:
    tables = torch.ones(8, KV.shape[3] // 2)
    F.rope(KV, tables, tables, torch.zeros(KV.shape[0], KV.shape[2], dtype=torch.int32))


# --- attention ----------------------------------------------------------------------------------------


@case(ShapeError)
def ranks_that_differ() -> None:
    attended(k=KV[0])


@case(ShapeError)
def depths_that_differ() -> None:
    attended(k=KV[..., :8])


@case(ShapeError)
def values_of_another_length() -> None:
    attended(v=KV[:, :, :4])


@case(ShapeError)
def batches_that_differ() -> None:
    attended(q=torch.cat([KV] * 2), k=torch.cat([KV] * 3), v=torch.cat([KV] * 3))


@case(ShapeError)
def fewer_key_heads_unasked() -> None:
    attended(q=Q)


@case(ShapeError)
def key_heads_that_do_not_divide() -> None:
    attended(q=Q[:, :3], enable_gqa=True)


@case(ShapeError)
def slopes_of_half_precision() -> None:
    attended(alibi_slopes=torch.ones(2).half())


@case(ShapeError)
def a_mask_that_cannot_be_broadcast() -> None:
    attended(attn_mask=torch.ones(3, 3, dtype=torch.bool))


@case(ShapeError)
def leading_dimensions_that_differ() -> None:
    attended(
        q=KV[None].expand(2, 3, -1, -1, -1), k=KV[None].expand(3, 2, -1, -1, -1), v=KV[None].expand(3, 2, -1, -1, -1)
    )


@case(ShapeError)
def a_mask_of_integers() -> None:
    attended(attn_mask=torch.ones(1, 1, dtype=torch.int64))


@case(ShapeError)
def a_mask_and_a_mod() -> None:
    attended(attn_mask=torch.ones(1, 1).bool(), mask_mod=lambda b, h, q_idx, kv_idx: q_idx >= kv_idx)


@case(ShapeError)
def dropout() -> None:
    F.scaled_dot_product_attention(KV, KV, KV, dropout_p=0.1)


@case(ShapeError)
def two_masks() -> None:
    F.scaled_dot_product_attention(KV, KV, KV, torch.ones(5, 5), is_causal=True)


@case(ShapeError)
def a_mask_of_five_dimensions() -> None:
    F.scaled_dot_product_attention(KV, KV, KV, torch.ones(1, 1, 1, 5, 5))


@case(ShapeError)
def a_block_mask_beside_a_mask() -> None:
    attended(mask_mod=causal, block_mask=create_block_mask(causal, 1, 2, 5, 5, device="cpu"))


@case(ShapeError)
def a_block_mask_that_is_none() -> None:
    attended(block_mask=TABLE)


@case(ShapeError)
def a_block_mask_of_other_lengths() -> None:
    attended(block_mask=create_block_mask(causal, 1, 2, 4, 4, device="cpu"))


# --- mods ---------------------------------------------------------------------------------------------


@case(ExpressionError)
def a_mod_that_is_no_function() -> None:
    attended(mask_mod=3)


@case(ExpressionError)
def a_mod_of_other_arguments() -> None:
    def mask(q_idx: Any, kv_idx: Any) -> Any:
        return q_idx >= kv_idx

    attended(mask_mod=mask)


@case(ExpressionError)
def a_branch_on_an_index() -> None:
    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        if q_idx > 3:
            return kv_idx < 3
        return kv_idx >= 3

    attended(mask_mod=mask)


@case(ExpressionError)
def a_mod_that_fails() -> None:
    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return q_idx.below(kv_idx)

    attended(mask_mod=mask)


@case(ExpressionError)
def a_mod_that_counts() -> None:
    calls: list[int] = []

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        calls.append(1)
        return q_idx - kv_idx < len(calls)

    attended(mask_mod=mask)


@case(ExpressionError)
def a_mod_that_writes() -> None:
    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        TABLE[0] = 2.0
        return TABLE[h] > 1

    attended(mask_mod=mask)


@case(ExpressionError)
def a_mod_that_computes_in_eight_bits() -> None:
    bits = TABLE.to(torch.uint8)
    attended(score_mod=lambda score, b, h, q_idx, kv_idx: score + bits[h] * 3)


@case(ExpressionError)
def a_captured_tensor_of_another_dtype() -> None:
    numbers = torch.ones(4, dtype=torch.complex64)
    attended(mask_mod=lambda b, h, q_idx, kv_idx: numbers[h] == 0)


@case(ExpressionError)
def a_mod_that_returns_a_row() -> None:
    rows = torch.ones(4, 4, dtype=torch.bool)
    attended(mask_mod=lambda b, h, q_idx, kv_idx: rows[h])


@case(ExpressionError)
def a_mod_that_returns_nothing() -> None:
    nothing: Callable[..., Any] = lambda b, h, q_idx, kv_idx: None  # noqa: E731
    attended(mask_mod=nothing)


@case(ExpressionError)
def a_mask_that_is_a_number() -> None:
    attended(mask_mod=lambda b, h, q_idx, kv_idx: q_idx - kv_idx)


@case(ExpressionError)
def a_score_that_is_a_condition() -> None:
    attended(score_mod=lambda score, b, h, q_idx, kv_idx: q_idx >= kv_idx)


@case(ShapeError)
def a_captured_tensor_that_is_too_short() -> None:
    attended(score_mod=lambda score, b, h, q_idx, kv_idx: score + TABLE[kv_idx])


@case(ShapeError)
def a_captured_tensor_on_another_device() -> None:
    far = TABLE.to("meta")
    attended(score_mod=lambda score, b, h, q_idx, kv_idx: score + far[h])


# --- FlexAttention's face ----------------------------------------------------------------------------


@case(ShapeError)
def a_nested_tensor() -> None:
    attended(torch.nested.nested_tensor([torch.ones(3, 16), torch.ones(2, 16)], layout=torch.jagged))


@case(ShapeError)
def a_block_mask_that_is_a_slice() -> None:
    F.flex_attention(KV, KV, KV, block_mask=create_block_mask(causal, None, None, 5, 5, device="cpu")[0])


@case(ShapeError)
def a_block_mask_of_other_heads() -> None:
    F.flex_attention(KV, KV, KV, block_mask=create_block_mask(causal, 1, 3, 5, 5, device="cpu"))


@case(ShapeError)
def sums_asked_for_twice() -> None:
    F.flex_attention(KV, KV, KV, return_lse=True, return_aux=AuxRequest(lse=True))


@case(ShapeError)
def a_target_that_is_no_class() -> None:
    F.linear_cross_entropy(X, W, torch.tensor([0, 7]))


# --- around a call ----------------------------------------------------------------------------------


def biased(t: torch.Tensor) -> object:
    return attended(score_mod=lambda s, b, h, q_idx, kv_idx: s + t[h])


@case(ShapeError)
def a_dimension_that_is_a_float() -> None:
    F.softmax(X, 1.0)


@case(ShapeError)
def a_sparse_tensor() -> None:
    F.softmax(X.to_sparse())


class Named(torch.Tensor):
    pass


@case(ShapeError)
def a_masked_tensor() -> None:
    F.softmax(masked_tensor(X, X > 0))


@case(ExpressionError)
def a_mod_that_reads_a_tensor_of_another_class() -> None:
    named = TABLE.as_subclass(Named)
    attended(score_mod=lambda s, b, h, q_idx, kv_idx: s + named[h])


@case(ShapeError)
def experts_of_a_number() -> None:
    F.softmax_top_k(torch.tensor(1.0), 1)


@case(ShapeError)
def a_tensor_that_has_a_tangent() -> None:
    with forward_ad.dual_level():
        F.softmax(forward_ad.make_dual(X, X))


@case(ExpressionError)
def a_mod_that_reads_a_member_of_a_batch() -> None:
    torch.vmap(biased)(torch.ones(3, 2))


@case(ExpressionError)
def a_mod_that_reads_what_has_a_tangent() -> None:
    torch.func.jvp(biased, (TABLE,), (TABLE,))
