"""What a user of torch hands over that is no function, no way to take regions, and no inference."""

from __future__ import annotations

from typing import Any

import torch

import neptune
from neptune.errors import ExpressionError, ShapeError
from neptune.models.classes import demand
from neptune.models.interface import attention_forward
from tests.errors.table import case


@case(ExpressionError)
def fuse_a_number():
    function: Any = 3
    neptune.fuse(function)


@case(ExpressionError)
def fuse_some_regions():
    take: Any = "some"
    neptune.fuse(torch.softmax, take=take)


@case(ShapeError)
def dropout_in_the_attention_of_a_model():
    x = torch.zeros(1, 2, 3, 16)
    attention_forward(torch.nn.Module(), x, x, x, None, dropout=0.1)


@case(ShapeError)
def a_model_with_attention_of_its_own():
    from transformers import BloomForCausalLM

    demand(BloomForCausalLM)


@case(ShapeError)
def an_option_of_a_layer_that_is_not_known():
    x = torch.zeros(1, 2, 3, 16)
    attention_forward(torch.nn.Module(), x, x, x, None, block_indices=torch.zeros(1, dtype=torch.int32))
