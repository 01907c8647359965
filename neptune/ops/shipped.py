"""The shipped operators by name, for the command line, benchmarks and pages; each is imported when it is made."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from neptune.ir.program import Program
from neptune.ir.text.printer import print_buffer


@dataclass(frozen=True)
class Shipped:
    """An operator: `function` of neptune.ops.`family`, with `options`, of which `task` says what it is for."""

    name: str
    task: str
    family: str
    function: str
    options: Mapping[str, Any] = field(default_factory=dict)
    said: str | None = None

    @property
    def builder(self) -> Callable[..., Program]:
        """The function that makes its Program."""
        function: Callable[..., Program] = getattr(importlib.import_module(f"neptune.ops.{self.family}"), self.function)
        return function

    def __call__(self, **options: Any) -> Program:
        """Its Program; `options` replace those of the table."""
        return self.builder(**{**self.options, **options})

    @property
    def summary(self) -> str:
        """What it is: the first paragraph of its description, without what follows about stages and errors."""
        first = " ".join((self.said or self.builder.__doc__ or "").split("\n\n")[0].split())
        return re.split(r"\.? (?:Stages|Errors|Shapes and)\b", first)[0].rstrip(".")

    @property
    def call(self) -> str:
        """How a user makes it: `norm.rms_norm()`."""
        return f"{self.family}.{self.function}({', '.join(f'{n}={v!r}' for n, v in self.options.items())})"


def signature(program: Program) -> str:
    """The inputs of a program as text: `x: f16[rows, cols], g: f16[cols]`."""
    return ", ".join(map(print_buffer, program.inputs))


def _rows(task: str, family: str, *names: str, **options: Any) -> tuple[Shipped, ...]:
    return tuple(Shipped(n, task, family, n, options) for n in names)


def _attention(name: str, said: str, **options: Any) -> Shipped:
    return Shipped(name, "attention", "attention", "attention", {"causal": True, **options}, said)


_PAPER = {
    "prefill_global": "every query sees every key, 32 heads",
    "prefill_causal": "keys up to the query's own, 32 heads",
    "prefill_alibi": "causal, with a slope per head (ALiBi), 32 heads",
    "prefill_gqa": "causal, 64 heads that share 8 key heads",
    "prefill_softcap": "causal, scores capped at 50, 32 heads of 16 key heads",
    "prefill_window": "the last 4096 keys, scores capped at 50, 32 heads of 8 key heads",
    "decode_causal": "one query to all keys, 32 heads",
    "decode_alibi": "one query, with a slope per head (ALiBi), 32 heads",
    "decode_gqa": "one query, 64 heads that share 8 key heads",
    "decode_softcap": "one query, scores capped at 50, 32 heads of 16 key heads",
}


def _paper(name: str) -> Shipped:
    return Shipped(name, "attention of the paper", "attention", "operator", {"name": name}, _PAPER[name])


_TABLE = (
    *_rows("softmax", "softmax", "softmax", "log_softmax", "logsumexp"),
    *_rows("norms", "norm", "rms_norm", "layer_norm", "group_norm", "add_rms_norm", "add_layer_norm"),
    *_rows("norms in front of a product", "norm", "rms_norm_linear", "layer_norm_linear"),
    *_rows("norms in front of a product", "scaled", "rms_linear", "standardise_linear", "l2_normalise_matmul"),
    *_rows("products", "linear", "matmul", "linear", "gated_linear", "lora_linear"),
    Shipped(
        "swiglu",
        "products",
        "linear",
        "gated_linear",
        {"activation": "silu", "trans_b": True},
        "y = silu(x wᵀ) · (x uᵀ)",
    ),
    Shipped(
        "geglu",
        "products",
        "linear",
        "gated_linear",
        {"activation": "gelu_tanh", "trans_b": True},
        "y = gelu(x wᵀ) · (x uᵀ), by tanh",
    ),
    *_rows("losses", "cross_entropy", "cross_entropy", "linear_cross_entropy", "linear_logsumexp"),
    *_rows("8 bits", "quantise", "quantise", "quantise_matmul", "abs_max_matmul"),
    *_rows("8 bits", "float8", "float8_linear"),
    *_rows("routing", "route", "softmax_top_k"),
    *_rows("positions", "rope", "rope"),
    *map(_paper, _PAPER),
    *_rows("attention", "attention", "attention"),
    _attention("attention_sinks", "causal, with a score per head that takes weight and gives no value", sinks=True),
    _attention("rope_attention", "causal, rows of q and k turned by their positions first", rope="half"),
    _attention("qk_norm_attention", "causal, rows of q and k over the root of their mean square first", qk_norm=True),
    Shipped(
        "float8_attention",
        "attention",
        "attention",
        "attention",
        {"queries": 1, "kv_dtype": "float8_e4m3fn", "kv_scales": "head"},
        "one query to keys and values of 8 bits with a scale for each head",
    ),
    *_rows("attention", "attention_variants", "off_by_one_attention", "sigmoid_attention", "linear_attention"),
    *_rows("attention", "attention_variants", "differential_attention", "distance_attention"),
    *_rows("statistics", "statistics", "variance", "covariance", "cosine_similarity"),
    *_rows("statistics", "statistics", "weighted_mean", "weighted_variance", "moment_of_inertia"),
    *_rows("densities", "mixture", "kernel_density", "gaussian_mixture", depth=64),
)
OPERATORS: Mapping[str, Shipped] = {s.name: s for s in _TABLE}
"""Every shipped operator; `OPERATORS["rms_norm"](dtype="bfloat16")` is its Program."""
