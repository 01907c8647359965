"""The shipped operators as things to measure: expression, template, reference, inputs by size, errors by row."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from bench.references import Outputs, Reference, attention, figure1, softmax
from neptune import Program
from neptune.ir.integers import evaluate_size
from neptune.ops import softmax as rows
from neptune.ops.attention import OPERATORS, operator
from neptune.verify.numerics import Errors, Tensors, rel_error
from neptune.versions import versions

ATTENTION = tuple(OPERATORS)
KV_HEADS = 2
"""Key heads of the grouped operators here; their groups are as large as in the paper."""
TEMPLATES = {
    "figure1": ("softmax_online", "softmax_row"),
    "softmax": ("softmax_online", "softmax_row"),
    **dict.fromkeys(OPERATORS, ("flash_attention", "attention_unfused")),
}


@dataclass(frozen=True)
class Case:
    """One operator, fused by one template. `depth`, `layout`, `lse` and `window` are those of attention."""

    operator: str
    template: str
    dtype: str = "float32"
    depth: int = 64
    layout: str = "bhsd"
    lse: bool = False
    window: int = 48

    def __str__(self) -> str:
        words = [self.operator, self.template, self.dtype]
        if self.operator in ATTENTION:
            words += [f"d{self.depth}", self.layout, *(["lse"] if self.lse else [])]
        return " ".join(words)

    @cached_property
    def options(self) -> dict[str, Any]:
        """Of an attention, its row of the table: heads symbolic, those of a grouped one fewer."""
        row = dict(OPERATORS[self.operator])
        heads = row.pop("heads")
        if "kv_heads" in row:
            row |= {"heads": heads // row["kv_heads"] * KV_HEADS, "kv_heads": KV_HEADS}
        if "window" in row:
            row |= {"window": self.window}
        return row

    @cached_property
    def program(self) -> Program:
        if self.operator in ATTENTION:
            return operator(
                self.operator,
                **({"heads": None} | self.options),
                depth=self.depth,
                dtype=self.dtype,
                layout=self.layout,
                lse=self.lse,
            )
        return rows.figure1() if self.operator == "figure1" else rows.softmax(self.dtype)

    @cached_property
    def reference(self) -> Reference:
        if self.operator in ATTENTION:
            named = {k: v for k, v in self.options.items() if k in ("causal", "softcap", "alibi", "window")}
            return attention(layout=self.layout, lse=self.lse, **named)
        return figure1() if self.operator == "figure1" else softmax()

    def shapes(self, queries: int, length: int, outer: int) -> dict[str, tuple[int, ...]]:
        """The shapes of the inputs: `outer` heads of `queries` by `length`, or `outer` rows of `length`.

        An operator that has a number of heads or queries of its own keeps it.
        """
        attention_sizes = {"batch": 1, "heads": outer, "s_q": queries, "s_kv": length}
        sizes = attention_sizes | {"rows": outer, "cols": length, "m": outer, "n": length}
        return {b.name: tuple(evaluate_size(d, sizes) for d in b.shape) for b in self.program.inputs}

    def rounded(self, arrays: Tensors) -> list[torch.Tensor]:
        """Arrays by name as inputs in the order of a call; slopes are those of ALiBi, whatever is given for them."""
        given = arrays | {n: alibi_slopes(x.shape[0]) for n, x in arrays.items() if n == "slopes"}
        return [torch.from_numpy(given[b.name]).to(getattr(torch, b.dtype)) for b in self.program.inputs]


def alibi_slopes(heads: int) -> np.ndarray:
    """2^(-8/heads), 2^(-16/heads), …: larger ones leave weights that float32 cannot hold.

    >>> alibi_slopes(2)
    array([0.0625    , 0.00390625])
    """
    return np.asarray(2.0 ** (-8.0 * np.arange(1, heads + 1) / heads))


def attention_cases(dtypes: tuple[str, ...] = ("float16", "bfloat16", "float32"), **options: Any) -> list[Case]:
    """Every template of plain and of causal attention, in every dtype."""
    plain = ("prefill_global", "prefill_causal")
    return [Case(op, template, dtype, **options) for op in plain for template in TEMPLATES[op] for dtype in dtypes]


def operator_cases(dtypes: tuple[str, ...] = ("float16",), **options: Any) -> list[Case]:
    """The first template of every other attention."""
    plain = ("prefill_global", "prefill_causal")
    return [Case(op, TEMPLATES[op][0], dtype, **options) for op in ATTENTION if op not in plain for dtype in dtypes]


def row_cases() -> list[Case]:
    """Every template of every operator on rows."""
    return [Case(op, template) for op in TEMPLATES if op not in ATTENTION for template in TEMPLATES[op]]


def poisoned(program: Program, like: Outputs, device: str = "cpu") -> list[torch.Tensor]:
    """Outputs full of NaN, so that an unwritten element shows."""
    kinds = (getattr(torch, b.dtype) for b in program.outputs)
    return [torch.full(t.shape, float("nan"), dtype=kind, device=device) for t, kind in zip(like, kinds, strict=True)]


def errors(out: torch.Tensor, exact: torch.Tensor) -> Errors:
    """Errors in the norm of docs/design/numerics.md, "Numerics": of the whole tensor, and of its worst row."""
    return rel_error(out.double().cpu().numpy(), exact.double().cpu().numpy())


def worse(a: Errors, b: Errors) -> Errors:
    return Errors(*map(max, a, b))


def environment() -> dict[str, Any]:
    """Versions and the machine, for a file of results: nothing that names a place or a person."""
    found: dict[str, Any] = {**versions("numpy", "sympy", "apache-tvm")}
    found |= {"platform": f"{platform.system()} {platform.machine()}"}
    found |= {"cores": os.cpu_count(), "torch threads": torch.get_num_threads()}
    if torch.cuda.is_available():
        found |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda or torch.version.hip}
    return found
