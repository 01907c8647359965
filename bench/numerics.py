"""Errors of generated kernels against float64, beside those of the unfused expression and of torch.

    python -m bench.numerics [--json numerics.json] [--targets llvm interpret cuda] [--lengths 17 128 1000]

Errors are relative 2-norms, of the whole output and of its worst row, over random inputs of several seeds. *unfused*
is the expression as it is written, with the same casts, one nest after the other on this CPU; *torch* is the function
a user would otherwise call, in the same dtype (attention in its math form, with an explicit mask aligned
bottom-right). A kernel passes when both errors are at most 1.1 (float16, bfloat16) or 10 (float32) times the unfused
ones, or one unit in the last place. The figures of a row of the table are the worst of its seeds, *of limit* the
largest error as a share of what is allowed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.nn.attention import SDPBackend, sdpa_kernel

import neptune
from bench.cases import ATTENTION, Case, attention_cases, environment, errors, operator_cases, poisoned, row_cases
from bench.references import Outputs
from neptune.codegen.llvm import compile_llvm
from neptune.errors import TargetError
from neptune.runtime.launch import parse_target
from neptune.verify.numerics import Errors, allowance

TARGETS = ("llvm", "interpret", "cuda")
LENGTHS = (17, 128, 1000)
SMALL = 256
"""Lengths up to this one are measured with several seeds and heads; longer ones hold enough rows."""


@dataclass(frozen=True)
class Sample:
    """One run of one kernel. `unfused_by` says what made the unfused errors."""

    operator: str
    template: str
    dtype: str
    depth: int | None
    length: int
    target: str
    seed: int
    shapes: dict[str, tuple[int, ...]]
    error: Errors
    unfused: Errors
    unfused_by: str
    torch: Errors

    @property
    def of_limit(self) -> float:
        """The larger of the two errors as a share of its limit: above 1 it fails."""
        return max(e / allowance(self.dtype, u) for e, u in zip(self.error, self.unfused, strict=True))

    def as_json(self) -> dict[str, Any]:
        split = {name: getattr(self, name)._asdict() for name in ("error", "unfused", "torch")}
        return asdict(self) | split | {"of_limit": self.of_limit, "passes": self.of_limit <= 1}


class Subject:
    """A case on every target, compiled once: targets differ in nothing but what runs the kernel."""

    def __init__(self, case: Case, targets: Sequence[str]) -> None:
        kernel = neptune.compile(case.program, case.template, target="interpret")
        self.case = case
        self.kernels = {t: kernel.for_target(t) for t in targets}

    @cached_property
    def unfused_by(self) -> str:
        """The expression compiled for this CPU; without TVM, the same steps in torch."""
        try:
            compile_llvm(self.case.program)
        except TargetError:
            return "torch"
        return "llvm"

    def unfused(self, inputs: Sequence[torch.Tensor], like: Outputs) -> Outputs:
        if self.unfused_by == "torch":
            return self.case.reference.unfused(*inputs)
        outputs = poisoned(self.case.program, like)
        compile_llvm(self.case.program)(inputs, outputs)
        return tuple(outputs)

    def samples(self, length: int, seed: int, outer: int) -> Iterator[Sample]:
        """The errors of every target on the same inputs."""
        case = self.case
        shapes = case.shapes(length, length, outer)
        rng = np.random.default_rng(seed)
        inputs = case.rounded({name: rng.standard_normal(shape) for name, shape in shapes.items()})
        exact = case.reference.float64(*inputs)
        plain = errors(self.unfused(inputs, exact)[0], exact[0])
        with sdpa_kernel(SDPBackend.MATH):
            theirs = errors(case.reference.torchs(*inputs)[0], exact[0])
        depth = case.depth if case.operator in ATTENTION else None
        for target, kernel in self.kernels.items():
            device = parse_target(target).device
            (out,) = poisoned(case.program, exact, device)
            kernel(*(t.to(device) for t in inputs), out=out)
            yield Sample(
                case.operator,
                case.template,
                case.dtype,
                depth,
                length,
                target,
                seed,
                shapes,
                errors(out, exact[0]),
                plain,
                self.unfused_by,
                theirs,
            )


def present_targets() -> list[str]:
    """What can run here: the CPU where TVM is installed, the interpreter, the GPU where there is one."""
    found = ["interpret"]
    if environment()["apache-tvm"] is not None:
        found.insert(0, "llvm")
    if torch.cuda.is_available() and not torch.version.hip:
        found.append("cuda")
    return found


def measure(
    cases: Iterable[Case], targets: Sequence[str], lengths: Sequence[int], seeds: int, heads: int
) -> Iterator[list[Sample]]:
    """The samples of all seeds for one case, length and target at a time."""
    for case in cases:
        subject = Subject(case, targets)
        for length in lengths:
            count, outer = (seeds, heads) if length <= SMALL else (1, 1)
            outer *= 1 if case.operator in ATTENTION else 32
            runs = [list(subject.samples(length, seed, outer)) for seed in range(count)]
            yield from (list(group) for group in zip(*runs, strict=True))


# --- output ---------------------------------------------------------------------------------------


def table() -> Table:
    made = Table(box=None, pad_edge=False)
    for name in ("operator", "template", "dtype", "length", "target", "seeds"):
        made.add_column(name, no_wrap=True)
    for name in ("error", "unfused", "torch", "row error", "unfused", "torch", "of limit"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("")
    return made


def cells(group: Sequence[Sample]) -> list[str]:
    """A row of the table: the worst of the samples of one case, length and target."""
    first = group[0]
    kinds = [[getattr(s, name) for s in group] for name in ("error", "unfused", "torch")]
    figures = [f"{max(e[part] for e in kind):.2e}" for part in (0, 1) for kind in kinds]
    share = max(s.of_limit for s in group)
    named = [first.operator, first.template, first.dtype, str(first.length), first.target, str(len(group))]
    return [*named, *figures, f"{share:.2f}", "pass" if share <= 1 else "[red]FAIL[/red]"]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.numerics", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the environment and all samples")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, help="by default all that are here")
    parser.add_argument("--operators", nargs="+", metavar="NAME", help="by default all")
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--depth", type=int, default=64)
    parser.add_argument("--heads", type=int, default=2, help=f"for lengths up to {SMALL}; rows: 32 times as many")
    parser.add_argument("--seeds", type=int, default=4, help=f"for lengths up to {SMALL}")
    options = parser.parse_args(argv)
    cases = [*row_cases(), *attention_cases(depth=options.depth), *operator_cases(depth=options.depth)]
    chosen = [c for c in cases if c.operator in (options.operators or {c.operator for c in cases})]
    if not chosen or options.seeds < 1:
        parser.error("nothing to measure")
    targets = options.targets or present_targets()
    groups, shown = [], table()
    for group in measure(chosen, targets, options.lengths, options.seeds, options.heads):
        groups.append(group)
        shown.add_row(*cells(group))
    Console(width=None if sys.stdout.isatty() else 180).print(shown)
    samples = [s for group in groups for s in group]
    failed = sum(s.of_limit > 1 for s in samples)
    print(f"{len(samples)} samples, {failed} above the limit")
    if options.json:
        content = {"environment": environment(), "samples": [s.as_json() for s in samples]}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
