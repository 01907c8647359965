"""Rows of `qa.flex_suite`: scores and masks of one line, and calls, as FlexAttention's tests and its users write them.

A line is an expression of s (the score), b, h, i (the query) and j (the key), and of what `held` makes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, and_masks, create_block_mask, or_masks

Tensor = torch.Tensor
BATCH, HEADS, DEPTH, S_Q, S_KV = 2, 4, 8, 12, 16


def held() -> dict[str, Any]:
    """What lines read: tables, positions, numbers."""
    draw = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw)

    longest = max(S_Q, S_KV)
    return {
        "torch": torch,
        "math": math,
        "F": torch.nn.functional,
        "bias": random(HEADS, longest, longest),
        "half_bias": random(HEADS, longest, longest).half(),
        "whole_bias": random(BATCH, HEADS, longest, longest),
        "by_batch": random(BATCH),
        "by_head": random(HEADS),
        "by_key": random(longest),
        "by_query": random(longest),
        "table": random(HEADS, 2 * longest),
        "slopes": torch.exp2(-(torch.arange(HEADS) + 1) * 8.0 / HEADS),
        "number": torch.tensor(0.7),
        "whole": torch.tensor(3),
        "document": torch.arange(longest) // 5,
        "documents": torch.arange(BATCH * longest).view(BATCH, longest) // 7,
        "lengths": torch.tensor([9, 14], dtype=torch.int32),
        "offset": torch.tensor([3, 1]),
        "starts": torch.tensor([0, 5, 9, longest]),
        "modality": torch.tensor([0, 0, 1, 1, 1, 0, 2, 2, 2, 2, 0, 0, 1, 1, 0, 0]),
        "seen": random(longest, longest) > 0,
        "flags": torch.arange(longest) % 3 == 0,
        "page": torch.tensor([[2, 0, 1, 3], [1, 3, 0, 2]]),
        "ids": torch.arange(longest, dtype=torch.int16),
        "buckets": (torch.arange(2 * longest) // 3).clamp(max=7),
        "by_bucket": random(8, HEADS),
        "keep": torch.ones(BATCH, longest, dtype=torch.bool).tril(3),
        "window": 5,
        "w": 4,
        "scale": 1.5,
        "cap": 20.0,
        "inf": float("inf"),
        "numbers": [1, 2, 3],
        "config": {"window": 6, "scale": 0.5},
    }


SCORES = """
s
s * 2
s * scale
-s
s + (i - j)
s + 0.1 * (j - i)
s - torch.abs(i - j)
s - (i - j).abs() * 0.25
s + slopes[h] * (j - i)
s - slopes[h] * (i - j).abs()
s + slopes[h] * (j - i).float()
s + torch.exp2(-((h + 1) * 8.0 / 4)) * (j - i)
s + 2 ** (-8.0 * (h + 1) / 4) * (j - i)
s + bias[h, i, j]
s + half_bias[h, i, j]
s + whole_bias[b, h, i, j]
s + whole_bias[b, h][i][j]
s + bias[h, i, :][j]
s + bias[h][i, j]
s + bias[0, i, j]
s + bias[-1, i, j]
s + by_key[j]
s + by_query[i]
s + by_head[h]
s * by_head[h]
s + by_batch[b] * by_head[h]
s + table[h, i - j + 16]
s + table[h][i - j]
s + table[h, torch.clamp(j - i, -3, 3) + 3]
s + table[h, (j - i).clamp(-5, 5)]
s + table[h, torch.minimum(torch.abs(i - j), whole)]
s + by_bucket[buckets[torch.abs(i - j)], h]
s * number
s * number + whole
s / number
s / 3
s // 1
cap * torch.tanh(s / cap)
20 * torch.tanh(s / 20)
torch.tanh(s)
torch.tanh(s / config["scale"]) * config["scale"]
torch.where(i >= j, s, -inf)
torch.where(i >= j, s, float("-inf"))
torch.where(i >= j, s, -1e9)
torch.where(j <= i, s, torch.finfo(torch.float32).min)
torch.where((i - j).abs() <= w, s, -inf)
torch.where(document[i] == document[j], s, -inf)
torch.where(j < lengths[b], s, -inf)
torch.where(seen[i, j], s, s - 2)
torch.where(flags[j], s, s * 0.5)
torch.where(h == 0, s + 1, s)
torch.where(h % 2 == 0, s, s * 0.5)
torch.where(torch.abs(j - i) % 2 == 1, s * 0.5, s)
torch.where(modality[i] == modality[j], s + 0.5, s - 0.5)
torch.where(b == 1, s, s + by_key[j])
s * s
s ** 2
s.pow(2)
torch.pow(s, 3)
torch.sin(torch.cos(s))
torch.sin(s) + torch.tan(b)
torch.relu(s)
F.relu(s)
torch.sigmoid(s)
torch.exp(s) * 0.1
torch.log(torch.abs(s) + 1)
torch.log1p(torch.abs(s))
torch.sqrt(torch.abs(s))
torch.rsqrt(1 + s * s)
F.silu(s)
F.gelu(s)
F.gelu(s, approximate="tanh")
F.softplus(s)
F.leaky_relu(s)
F.elu(s)
torch.clamp(s, -1, 1)
s.clamp(min=-0.5)
torch.maximum(s, by_key[j])
torch.minimum(s, number)
s.masked_fill(i < j, -inf)
torch.masked_fill(s, j > i, -1e4)
torch.lerp(s, by_key[j].to(s.dtype), 0.25)
torch.nan_to_num(s)
torch.erf(s)
torch.floor(s * 4) / 4
torch.round(s * 4) / 4
torch.fmod(s, 1.5)
torch.remainder(s, 1.5)
torch.sign(s) * s
torch.add(s, by_key[j], alpha=2)
torch.sub(s, by_head[h], alpha=0.5)
torch.addcmul(s, by_head[h], by_key[j], value=0.5)
s + torch.log(j + 1)
s * torch.log(torch.tensor(16.0)) / math.log(512)
s + math.log(16)
s + ids[j].float() * 0.1
s + ids[i]
s + (i - j) ** 2 * 0.01
s + (i / 4 - j / 4)
s + torch.cos(i * 0.1) * torch.cos(j * 0.1)
s + (i // 4 == j // 4) * 0.5
s + (i >= j).float()
s + (i >= j) * -1.0
s + torch.logical_and(i >= j, h > 1).to(s.dtype)
s + sum(n * 0.1 for n in numbers)
s + table[h, i * 2 - j]
s.to(torch.float32) * 1.25
s - torch.where(i > j, (i - j) * 0.5, (j - i) * 0.25)
s + torch.sinh(s * 0.1)
torch.logaddexp(s, by_key[j])
torch.hypot(s, by_key[j])
torch.expm1(s * 0.1)
torch.atan(s)
F.hardtanh(s)
F.logsigmoid(s)
s + bias.transpose(1, 2)[h, j, i]
s + bias.permute(1, 2, 0)[i, j, h]
s + bias.view(4, -1)[h, i * 16 + j]
s + by_key.unsqueeze(0)[0, j]
s + (by_head * 2)[h]
s + bias.take((i * 16 + j).long())
""".strip().splitlines()

MASKS = """
i >= j
j <= i
i > j
i + 4 >= j
i + (16 - 12) >= j
(i >= j) & (i - j <= w)
(i >= j) & (i - j < window)
(i - j).abs() <= w
torch.abs(i - j) < config["window"]
(i - w <= j) & (j <= i + w)
(j < 3) | ((i >= j) & (i - j < w))
(j < 4) | (i >= j)
j < 7
j >= lengths[b] - 6
j < lengths[b]
(j < lengths[b]) & (i < lengths[b])
(i >= j) & (j < lengths[b])
i + offset[b] >= j
document[i] == document[j]
(document[i] == document[j]) & (i >= j)
documents[b, i] == documents[b, j]
documents[b][i] == documents[b][j]
(documents[b, i] == documents[b, j]) & (j <= i)
starts[document[i]] <= j
seen[i, j]
seen[i][j]
seen[i, j] | (i == j)
~seen[i, j]
keep[b, j]
flags[j] | (i >= j)
flags[i] & flags[j] | (i == j)
i // 4 == j // 4
i // 4 >= j // 4
(i // 4 - j // 4).abs() <= 1
((i - j).abs() <= 6) & ((i - j) % 2 == 0)
(i - j) % 3 == 0
(i % 4 == j % 4) & (i >= j)
(j % 4 == 0) | (i - j < 3) & (i >= j)
(i // 4 - j // 4).abs() + (i % 4 - j % 4).abs() <= 2
(((i // 4).clamp(1, 2) - j // 4).abs() <= 1) & (((i % 4).clamp(1, 2) - j % 4).abs() <= 1)
(modality[i] > 0) & (modality[i] == modality[j]) | (i >= j)
(modality[j] == 0) | (modality[i] == modality[j])
(b == 0) | (i >= j)
(h < 2) | (i >= j)
(h == 0) & (i >= j) | (h > 0) & (i - j < 3)
i - j < h + 2
i - j <= 2 ** h
torch.where(h % 2 == 0, i >= j, i <= j)
torch.logical_and(i >= j, j > 2)
torch.logical_or(i >= j, j < 2)
torch.logical_not(i < j)
torch.logical_xor(i >= j, j == 5)
torch.ge(i, j)
i.ge(j) & j.lt(9)
(i ^ j) < 8
(i & 3) == (j & 3)
(i >> 2) >= (j >> 2)
i >= (j << 1)
page[b, j // 4] * 4 + j % 4 <= i + 4
torch.isfinite(by_key[j])
by_key[j] > 0
by_key[i] * by_key[j] > -0.5
(by_key[j] > 0) | (j == 0)
j == j
torch.ones_like(i, dtype=torch.bool)
i < 0
""".strip().splitlines()


# --- calls -------------------------------------------------------------------------------------------

Call = tuple[tuple[Tensor, ...], dict[str, Any]]


def qkv(s_q: int = S_Q, s_kv: int = S_KV, heads: int = HEADS, kv_heads: int = HEADS, depth_v: int = DEPTH) -> Any:
    draw = torch.Generator().manual_seed(s_q + heads)
    shapes = ((BATCH, heads, s_q, DEPTH), (BATCH, kv_heads, s_kv, DEPTH), (BATCH, kv_heads, s_kv, depth_v))
    return tuple(torch.randn(shape, generator=draw) for shape in shapes)


def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i >= j


def blocks(mask: Any, s_q: int = S_Q, s_kv: int = S_KV, b: Any = None, h: Any = None, size: Any = 4) -> BlockMask:
    return create_block_mask(mask, b, h, s_q, s_kv, device="cpu", BLOCK_SIZE=size)


class Scale:
    """A score as an object."""

    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s * self.by

    def method(self, s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + self.by


def grouped_heads_with_a_bias_of_heads() -> Call:
    bias = torch.randn(8, 12)
    return qkv(heads=8, kv_heads=4), {"enable_gqa": True, "score_mod": lambda s, b, h, i, j: s + bias[h, i]}


def masks_of_masks() -> Call:
    low = lambda b, h, i, j: j < 3  # noqa: E731
    near = lambda b, h, i, j: i - j < 6  # noqa: E731
    return qkv(), {"block_mask": blocks(and_masks(or_masks(low, near), causal))}


def parts_of_one_tensor() -> Call:
    whole = torch.randn(BATCH, S_Q, 3, HEADS, DEPTH, generator=torch.Generator().manual_seed(1))
    return tuple(t.transpose(1, 2) for t in whole.unbind(2)), {}


def scores_of_scores() -> Call:
    first: Any = lambda s, b, h, i, j: torch.tanh(s / 5) * 5  # noqa: E731
    second: Any = lambda s, b, h, i, j: s + (j - i) * 0.5  # noqa: E731
    return qkv(), {"score_mod": lambda s, b, h, i, j: second(first(s, b, h, i, j), b, h, i, j)}


def two_reads_of_one_table() -> Call:
    table = torch.randn(16)
    return qkv(), {"score_mod": lambda s, b, h, i, j: s + table[i] - table[j]}


def a_table_that_is_a_view() -> Call:
    table = torch.randn(8, 32)[::2, 3:30:1]
    return qkv(), {"score_mod": lambda s, b, h, i, j: s + table[h, j]}


def a_table_that_is_expanded() -> Call:
    table = torch.randn(1, 16).expand(HEADS, 16)
    return qkv(), {"score_mod": lambda s, b, h, i, j: s + table[h, j]}


def a_parameter() -> Call:
    table = torch.nn.Parameter(torch.randn(HEADS))
    return qkv(), {"score_mod": lambda s, b, h, i, j: s * table[h]}


def an_assignment_in_a_mod() -> Call:
    def mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        s += i - j
        return s * 2

    return qkv(), {"score_mod": mod}


def selected_blocks() -> Call:
    counts = torch.tensor([[[1, 2, 0]]], dtype=torch.int32)
    index = torch.tensor([[[[2, 0, 0, 0], [3, 1, 0, 0], [0, 0, 0, 0]]]], dtype=torch.int32)
    return qkv(), {"block_mask": BlockMask.from_kv_blocks(counts, index, BLOCK_SIZE=4, seq_lengths=(S_Q, S_KV))}


CALLS: dict[str, Callable[[], Call]] = {
    "nothing given": lambda: (qkv(), {}),
    "a scale": lambda: (qkv(), {"scale": 0.3}),
    "a scale of 0": lambda: (qkv(), {"scale": 0.0}),
    "grouped heads": lambda: (qkv(heads=8, kv_heads=2), {"enable_gqa": True, "block_mask": blocks(causal)}),
    "one key head": lambda: (qkv(kv_heads=1), {"enable_gqa": True, "score_mod": lambda s, b, h, i, j: s + h}),
    "grouped heads with a bias of heads": grouped_heads_with_a_bias_of_heads,
    "sums": lambda: (qkv(), {"return_lse": True, "block_mask": blocks(causal)}),
    "sums and maxima": lambda: (
        qkv(),
        {"return_aux": AuxRequest(lse=True, max_scores=True), "score_mod": lambda s, b, h, i, j: s * 2},
    ),
    "maxima alone": lambda: (qkv(), {"return_aux": AuxRequest(max_scores=True), "block_mask": blocks(causal)}),
    "nothing beside": lambda: (qkv(), {"return_aux": AuxRequest()}),
    "kernel options": lambda: (qkv(), {"kernel_options": {"BLOCK_M": 32, "num_stages": 2, "PRESCALE_QK": True}}),
    "rows that see nothing": lambda: (
        qkv(),
        {"block_mask": blocks(lambda b, h, i, j: (i > 3) & (j < i - 2)), "return_lse": True},
    ),
    "a score and a mask": lambda: (
        qkv(),
        {"score_mod": lambda s, b, h, i, j: s + (j - i), "block_mask": blocks(causal)},
    ),
    "blocks of two sizes": lambda: (qkv(), {"block_mask": blocks(causal, size=(2, 8))}),
    "blocks of a batch": lambda: (qkv(), {"block_mask": blocks(lambda b, h, i, j: i + 4 * b >= j, b=BATCH)}),
    "blocks of a head": lambda: (qkv(), {"block_mask": blocks(lambda b, h, i, j: i + h >= j, h=HEADS)}),
    "blocks larger than all": lambda: (qkv(), {"block_mask": blocks(causal, size=128)}),
    "blocks that are adjusted": lambda: (qkv(9, 11), {"block_mask": blocks(causal)._adjust(9, 11)}),
    "masks of masks": masks_of_masks,
    "one query": lambda: (qkv(1, 16), {"block_mask": blocks(lambda b, h, i, j: i + 10 >= j, s_q=1)}),
    "one key": lambda: (qkv(5, 1), {"score_mod": lambda s, b, h, i, j: s - i}),
    "more queries than keys": lambda: (qkv(16, 5), {"block_mask": blocks(causal, 16, 5)}),
    "another depth of values": lambda: (qkv(depth_v=3), {"block_mask": blocks(causal)}),
    "tensors laid out by rows": lambda: (tuple(t.transpose(1, 2).contiguous().transpose(1, 2) for t in qkv()), {}),
    "a depth that is not dense": lambda: (
        tuple(t.transpose(2, 3).contiguous().transpose(2, 3) for t in qkv()),
        {"block_mask": blocks(causal)},
    ),
    "parts of one tensor": parts_of_one_tensor,
    "an object as a score": lambda: (qkv(), {"score_mod": Scale(1.5)}),
    "a method as a score": lambda: (qkv(), {"score_mod": Scale(1.5).method}),
    "a partial as a score": lambda: (qkv(), {"score_mod": functools.partial(lambda by, s, b, h, i, j: s * by, 1.5)}),
    "scores of scores": scores_of_scores,
    "two reads of one table": two_reads_of_one_table,
    "a table that is a view": a_table_that_is_a_view,
    "a table that is expanded": a_table_that_is_expanded,
    "a parameter": a_parameter,
    "an assignment in a mod": an_assignment_in_a_mod,
    "selected blocks": selected_blocks,
}
