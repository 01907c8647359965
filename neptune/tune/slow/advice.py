"""What makes a kernel slower than it need be: a table of rules, each with its words.

A rule's test yields what it is about (a stage, an input or a kernel) and the words that its message and its remedy
leave open. No rule speaks of what is the best that can be had, such as a matrix times a vector off the matrix unit.

    advice(subject)  →  (Remark("lost-product", "c", "`c` multiplies in float16 …", 'cast the operands: …'),)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from neptune.runtime.facts import Remark
from neptune.tune.slow.loops import (
    idle_processors,
    narrow_sums,
    prefixes,
    repeated_passes,
    scalar_loops,
    temporaries_inside,
)
from neptune.tune.slow.products import Found, lost_expansions, lost_products, unknown_widths, widened_products
from neptune.tune.subject import Subject


@dataclass(frozen=True)
class Rule:
    """A rule: its code word, what it finds, and its message and remedy with {words} that a finding fills in."""

    code: str
    test: Callable[[Subject], Iterable[Found]]
    message: str
    remedy: str


RULES = (
    Rule(
        "lost-product",
        lost_products,
        "`{stage}` is a product of matrices off the matrix unit: it {why}",
        "{remedy}",
    ),
    Rule(
        "unexpanded-product",
        lost_expansions,
        "`{stage}` is summed over `{d}` element by element, off the matrix unit; multiplied out it is products of "
        "matrices: one factor of `{i}` and `{d}`, one of `{j}` and `{d}`",
        "expand the square: q² - 2qk + k², each term a sum of its own; it loses digits where q and k are nearer to "
        "each other than to 0",
    ),
    Rule(
        "widened-product",
        widened_products,
        '`{stage}` multiplies {why}, with input_precision="ieee": at the rate of float32, several times as '
        "slow as 16 bits",
        "{remedy}",
    ),
    Rule(
        "unknown-width",
        unknown_widths,
        "`{stage}` runs over `{axis}`, as long as {sizes}, which only a call knows: no tile is, and {elements} written "
        "to memory",
        "a tile axis is a constant or a param: give {sizes} as a number; predicted {times} times as fast at {at}",
    ),
    Rule(
        "scalar-loop",
        scalar_loops,
        "{names} computed one element at a time: {where} of {kernel} works on no tile",
        "split its loops by params, so that a program works on a tile, and bind the outer ones; or no template",
    ),
    Rule(
        "memory-inside",
        temporaries_inside,
        "{names} written to memory and read back within {kernel}",
        'sch.set_scope("{stage}", "tile"), which says what keeps it from staying on chip; or no template',
    ),
    Rule(
        "repeated-passes",
        repeated_passes,
        "input `{stage}` is read {often}",
        "rolling_update or fuse_at of the stages that read it into one loop; or no template",
    ),
    Rule(
        "narrow-sum",
        narrow_sums,
        "`{stage}` is summed in {dtype}, to which every addition rounds",
        'sum in float32 and round once: sum(x.astype("float32"), …), then .astype("{dtype}")',
    ),
    Rule(
        "quadratic-prefix",
        prefixes,
        "`{stage}` folds the elements along `{k}` up to `{j}` anew for every `{j}`: quadratic work for what a scan "
        "does in linear time",
        "a cumulative sum before or behind the kernel (torch.cumsum); Neptune has no scan",
    ),
    Rule(
        "idle-processors",
        idle_processors,
        "{stage} has {programs} for the {processors} processors of {machine}{at}",
        "bind all loops of independent elements, smaller tiles, or sch.split_k of the axis that it folds (templates "
        "flash_decoding and matmul_split)",
    ),
)
"""Of several findings about one stage, all are told; the table's order is that of explain()."""
COVERED = {"narrow-sum": ("lost-product",)}
"""What is not told of a stage beside another rule's word, whose remedy is the same."""


def advice(s: Subject) -> tuple[Remark, ...]:
    """What makes a kernel slower than it need be, each thing once."""
    remarks: list[Remark] = []
    for rule in RULES:
        for stage, words in rule.test(s):
            codes = {r.code for r in remarks if r.stage == stage}
            if not codes & {*COVERED.get(rule.code, ()), rule.code}:
                text = {**words, "stage": stage}
                remarks.append(Remark(rule.code, stage, rule.message.format(**text), rule.remedy.format(**text)))
    return tuple(remarks)
