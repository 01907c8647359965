"""Shipped operators asked for something that they do not have."""

from __future__ import annotations

from neptune.errors import ExpressionError
from neptune.ops.cross_entropy import cross_entropy
from neptune.ops.norm import rms_norm
from neptune.ops.softmax import softmax
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
