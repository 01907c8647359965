"""Shipped operators asked for something that they do not have."""

from __future__ import annotations

from neptune.errors import ExpressionError
from neptune.ops.attention_variants import sigmoid_attention
from neptune.ops.cross_entropy import cross_entropy
from neptune.ops.norm import rms_norm
from neptune.ops.quantise import quantise
from neptune.ops.rope import rope
from neptune.ops.route import softmax_top_k
from neptune.ops.softmax import softmax
from neptune.ops.statistics import variance
from tests.errors.table import case


@case(ExpressionError)
def softmax_of_integers():
    softmax("int32")


@case(ExpressionError)
def a_negative_epsilon():
    rms_norm(eps=-1e-6)


@case(ExpressionError)
def smoothing_by_more_than_all():
    cross_entropy(label_smoothing=10)


@case(ExpressionError)
def a_class_to_ignore_that_is_no_index():
    cross_entropy(ignore_index=-1.0)


@case(ExpressionError)
def targets_that_are_probabilities():
    cross_entropy(targets="float32")


@case(ExpressionError)
def more_experts_than_are_kept():
    softmax_top_k(k=16)


@case(ExpressionError)
def rows_quantised_to_four_bits():
    quantise(to="int4")


@case(ExpressionError)
def a_correction_that_is_no_number_of_degrees():
    variance(correction=0.5)


@case(ExpressionError)
def sigmoid_attention_with_heads_that_do_not_divide():
    sigmoid_attention(heads=5, kv_heads=2)


@case(ExpressionError)
def a_depth_without_pairs_to_rotate():
    rope(depth=15)
