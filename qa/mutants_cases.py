"""The operators whose mutants are made: the paper's ten, every chain of `bench.chains`, and further templates.

A new operator is one row: an expression and the template that fuses it (None: what fuses most).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import neptune
from bench.chain_attention import ATTENTION
from bench.chain_programs import ROW_CHAINS
from bench.chains import fusing
from neptune.driver.pipeline import as_program
from neptune.frontend.builder import placeholder, var
from neptune.ir.analysis.ranges import RangePredicate
from neptune.ir.program import Program
from neptune.ops import masks
from neptune.ops import softmax as rows
from neptune.ops.attention import OPERATORS, operator
from neptune.templates.flash_attention import flash_attention
from neptune.tile.ir import TileProgram
from neptune.verify.shrink import shrink

DEPTH = 16


@dataclass(frozen=True)
class Forms:
    """What is compared: the expression, and the two forms made of it; large constants made small.

    `finite` names the inputs that a repair takes to be finite, `ranges` is what it assumes of their ranges.
    """

    original: Program
    fused: Program
    tiles: TileProgram
    finite: frozenset[str] = frozenset()
    ranges: tuple[RangePredicate, ...] = ()


@dataclass(frozen=True, eq=False)
class Case:
    """A row. `template` as `neptune.compile` takes it; None: that which fuses most (`bench.chains.fusing`)."""

    make: Callable[[], Program]
    template: Any = None

    @cache  # noqa: B019 (rows live as long as the module)
    def forms(self) -> Forms:
        """Compile."""
        template = fusing(as_program(self.make())) if self.template is None else self.template
        made = neptune.compile(self.make(), template, target="interpret").build
        original, fused, tiles = shrink(made.loops, made.fused, made.tiles)
        assert isinstance(original, Program) and isinstance(fused, Program) and isinstance(tiles, TileProgram)
        finite = frozenset(name for d in made.decisions for name in d.finite)
        return Forms(original, fused, tiles, finite, tuple(r for d in made.decisions for r in d.ranges))


def _with_lengths() -> Program:
    """Grouped heads, and for each batch row as many keys as it has."""
    kv_len = placeholder((var("batch"),), "int32", "kv_len")
    return operator("decode_gqa", heads=4, kv_heads=2, depth=DEPTH, mask=masks.lengths(kv_len))


CASES: dict[str, Case] = {
    **{name: Case(partial(operator, name, lse=True), "flash_attention") for name in OPERATORS},
    **{chain.name: Case(partial(chain.build, DEPTH)) for chain in (*ROW_CHAINS, *ATTENTION)},
    "figure1": Case(rows.figure1, "softmax_online"),
    "softmax_online": Case(rows.softmax, "softmax_online"),
    "softmax_row": Case(rows.softmax, "softmax_row"),
    "softmax_three_kernel": Case(rows.softmax, "softmax_three_kernel"),
    "attention_unfused": Case(partial(operator, "prefill_causal", dtype="float32"), "attention_unfused"),
    "decode_split": Case(partial(operator, "decode_causal", depth=DEPTH, lse=True), "flash_decoding"),
    "decode_split_window": Case(
        partial(operator, "prefill_window", heads=4, kv_heads=2, depth=DEPTH, window=100), "flash_decoding"
    ),
    "decode_split_gqa": Case(partial(operator, "decode_gqa", heads=4, kv_heads=2, depth=DEPTH), "flash_decoding"),
    "decode_split_lengths": Case(_with_lengths, "flash_decoding"),
    "variance_split": Case(partial(next(c for c in ROW_CHAINS if c.name == "variance").build, DEPTH), "flash_decoding"),
    "packed_gqa": Case(
        partial(operator, "prefill_gqa", heads=6, kv_heads=2, depth=DEPTH, lse=True),
        flash_attention.with_choices(packed=True),
    ),
    "sinks_window": Case(partial(operator, "prefill_gqa", heads=4, kv_heads=2, window=100, sinks=True, lse=True)),
}
