"""Attention of every shape: each two values of different factors meet in some case."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

from tests.numerics.cases import DTYPES, OPERATORS, attention_sizes, attention_subject, random_inputs
from tests.numerics.harness import check
from tests.numerics.pairwise import pairwise
from tests.tiers import sampled

LENGTHS = (1, 17, 127, 128, 1000, 1021)
FACTORS: dict[str, tuple[Any, ...]] = {
    "s_q": LENGTHS,
    "s_kv": LENGTHS,
    "depth": (16, 32, 64, 128, 256, 80, 96),
    "tiles": ((16, 16), (32, 64), (64, 32), (128, 128)),
    "dtype": DTYPES,
    "batch_heads": ((1, 1), (1, 3), (2, 2)),
    "operator": tuple(OPERATORS),
    "template": ("flash_attention", "attention_unfused"),
    "layout": ("bhsd", "bshd"),
    "lse": (False, True),
}


def quick(row: dict[str, Any]) -> bool:
    """What the interpreter runs in seconds: long sequences at small depths, two long ones not in small tiles, and
    few rows where each is a program of its own."""
    long = sum(row.get(name, 0) >= 1000 for name in ("s_q", "s_kv"))
    if row.get("template") == "attention_unfused" and row.get("s_q", 1) * prod(row.get("batch_heads", (1, 1))) > 400:
        return False
    if not long:
        return True
    small = row.get("depth", 16) <= 32 and row.get("batch_heads", (1, 1)) == (1, 1)
    return small and (long < 2 or row.get("tiles") != (16, 16))


LONG_UNFUSED = {
    "s_q": 1021,
    "s_kv": 1000,
    "depth": 16,
    "tiles": (128, 128),
    "dtype": "bfloat16",
    "batch_heads": (1, 1),
    "operator": "prefill_causal",
    "template": "attention_unfused",
    "layout": "bshd",
    "lse": True,
}
CASES = [*pairwise(FACTORS, quick), LONG_UNFUSED]


def name(row: dict[str, Any]) -> str:
    flat = [x for v in row.values() for x in (v if isinstance(v, tuple) else (v,))]
    return "-".join("lse" if x is True else str(x) for x in flat if x is not False)


def test_every_value_of_every_factor_occurs() -> None:
    for factor, values in FACTORS.items():
        assert {row[factor] for row in CASES} == set(values)
    lengths = {(row["s_q"], row["s_kv"]) for row in CASES}
    assert lengths == {(a, b) for a in LENGTHS for b in LENGTHS}


# Lengths recur every six rows: a step of five meets all of them.
@pytest.mark.parametrize("row", sampled(CASES, 5), ids=name)
def test_attention(row: dict[str, Any]) -> None:
    choices = {k: v for k, v in row.items() if k not in ("s_q", "s_kv", "batch_heads")}
    subject = attention_subject(**choices)
    sizes = attention_sizes(row["s_q"], row["s_kv"], *row["batch_heads"])
    number = CASES.index(row)
    # Every third one in the interpreter, too, which is slow: among them are rows of both tiers.
    kernels = {t: k for t, k in subject.kernels.items() if t == "llvm" or number % 3 == 1}
    check(subject, {"random": random_inputs(subject.program, sizes, seed=number)}, kernels=kernels)
