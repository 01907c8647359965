"""Run an operator on every target and judge its errors (docs/design/numerics.md, "Numerics").

The error of the unfused expression is that of the worse of two ways to run it: sums folded in the order of the
Program (compiled for this CPU), and pairwise. Where two large scores nearly tie, the result hangs on their last
bits, and on the same inputs one of the two may be right by luck where the other is 30 times as far off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch

import neptune
from bench.references import Outputs, Reference
from neptune import Kernel, Program
from neptune.codegen.llvm import LLVMKernel, compile_llvm
from neptune.ir.evaluate.floats import Rounded
from neptune.ir.expr import Var
from neptune.ir.program import Buffer
from neptune.runtime.modules import Form
from neptune.runtime.processes.interpret import run_interpreted
from neptune.verify.evaluate import evaluate
from neptune.verify.numerics import Errors, allowance, rel_error
from qa.guards import guarded

TARGETS = ("llvm", "interpret")
Families = Mapping[str, Sequence[torch.Tensor]]
"""Inputs in call order, by the name of what is special about them; of one shape each."""


@dataclass(frozen=True)
class Judged:
    """One output of one run, against float64 and beside the unfused expression."""

    where: str
    dtype: str
    error: Errors
    unfused: Errors
    zeros: bool  # see `zeros`

    @property
    def passes(self) -> bool:
        """The criterion, for the whole tensor and for the worst row."""
        pairs = zip(self.error, self.unfused, strict=True)
        return self.zeros and all(mine <= allowance(self.dtype, theirs) for mine, theirs in pairs)

    def __str__(self) -> str:
        limits = Errors(*(allowance(self.dtype, u) for u in self.unfused))
        return (
            f"{self.where} ({self.dtype}): total {self.error.total:.3e} of {limits.total:.3e}, "
            f"worst row {self.error.row:.3e} of {limits.row:.3e}{'' if self.zeros else ', zero rows are not zero'}"
        )


@dataclass(frozen=True)
class Subject:
    """What is tested: an expression, its template and tile sizes, and what it should give."""

    program: Program
    template: str
    reference: Reference
    params: Mapping[str, int]

    def kernel(self, target: str) -> Kernel:
        return neptune.compile(self.program, self.template, target=target, params=self.params)

    @cached_property
    def kernels(self) -> dict[str, Kernel]:
        """For every target; compiled once, since they differ in nothing but what runs them."""
        kernel = self.kernel(TARGETS[0])
        return {target: kernel.for_target(target) for target in TARGETS}

    @cached_property
    def unfused(self) -> LLVMKernel:
        """The expression as it is written, with all its casts: one nest after the other, on this CPU."""
        return compile_llvm(self.program)

    def pairwise(self, inputs: Sequence[torch.Tensor]) -> Outputs:
        """The same with sums folded pairwise: slow, and as legitimate (any order of folding is)."""
        arrays = {b.name: t.double().numpy() for b, t in zip(self.program.inputs, inputs, strict=True)}
        sizes = {
            d.name: n
            for b, t in zip(self.program.inputs, inputs, strict=True)
            for d, n in zip(b.shape, t.shape, strict=True)
            if isinstance(d, Var)
        }
        found = evaluate(self.program, arrays, sizes, Rounded())
        return tuple(torch.from_numpy(found[b.name]) for b in self.program.outputs)


class Callee(Protocol):
    """A kernel, or something that is called like one."""

    @property
    def target(self) -> str: ...

    def __call__(self, *args: Any, out: Any = None) -> Any: ...


@dataclass(frozen=True)
class Interpreted:
    """One form of a kernel's Triton module in the interpreter, whichever form a call would choose."""

    kernel: Kernel
    form: Form

    @property
    def target(self) -> str:
        return f"interpret, {self.form.loads}{', int64' if self.form.int64_offsets else ''}"

    def __call__(self, *args: Any, out: Any = None) -> Any:
        source = self.kernel.executable.modules.source(self.form)
        run_interpreted(source, self.kernel.name, [*args, *out], (), self.kernel.params)


def run(kernel: Callee, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], strided: bool) -> Outputs:
    """One call, with poison around every tensor and in every output; `outputs` give shapes and dtypes."""
    given = [guarded(t.shape, t.dtype, strided=strided, fill=t) for t in inputs]
    made = [guarded(t.shape, t.dtype, strided=strided) for t in outputs]
    kernel(*(g.view for g in given), out=[g.view for g in made])
    for g, t in zip(given, inputs, strict=True):
        assert g.intact() and same(g.view, t), f"{kernel.target}: an input was changed"
    assert all(g.intact() for g in made), f"{kernel.target}: written outside of an output"
    return tuple(g.view for g in made)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bitwise equality, but for which NaN."""
    return bool(((a == b) & (a.signbit() == b.signbit()) | a.isnan() & b.isnan()).all())


def judge(
    subject: Subject,
    families: Families,
    *,
    kernels: Mapping[str, Callee] | None = None,
    strided: bool = False,
) -> Iterator[Judged]:
    """Every output of every family on every target, in one call: families lie side by side in the first dimension.

    `kernels`, by target, stand in for those of the subject.
    """
    inputs = [torch.cat(tensors) for tensors in zip(*families.values(), strict=True)]
    exact = subject.reference.float64(*inputs)
    unfused = [poison(b, t) for b, t in zip(subject.program.outputs, exact, strict=True)]
    subject.unfused(inputs, unfused)
    for target, kernel in (subject.kernels if kernels is None else kernels).items():
        found = run(kernel, inputs, unfused, strided)
        for k, b in enumerate(subject.program.outputs):
            parts = zip(
                families.items(), *(split(t, len(families)) for t in (found[k], exact[k], unfused[k])), strict=True
            )
            for (name, given), out, ref, plain in parts:
                judged = Judged(
                    f"{name}: {target} {b.name}", b.dtype, errors(out, ref), errors(plain, ref), zeros(out, ref)
                )
                if not judged.passes:
                    other = errors(subject.pairwise(given)[k], ref)
                    judged = replace(judged, unfused=Errors(*map(max, judged.unfused, other)))
                yield judged


def split(t: torch.Tensor, count: int) -> Sequence[torch.Tensor]:
    """The parts of `count` families."""
    return t.split(t.shape[0] // count)


def errors(out: torch.Tensor, ref: torch.Tensor) -> Errors:
    return rel_error(out.double().numpy(), ref.double().numpy())


def zeros(out: torch.Tensor, ref: torch.Tensor) -> bool:
    """Whether rows that are 0 are exactly 0."""
    return bool((out[(ref == 0).all(-1)] == 0).all())


def poison(buffer: Buffer, like: torch.Tensor) -> torch.Tensor:
    """An output full of NaN, of integers full of -7."""
    dtype = getattr(torch, buffer.dtype)
    return torch.full(like.shape, float("nan") if dtype.is_floating_point else -7, dtype=dtype)


def check(subject: Subject, families: Families, **options: Any) -> None:
    """Assert that every output passes on every target, for every family of inputs."""
    failures = [str(j) for j in judge(subject, families, **options) if not j.passes]
    assert not failures, "\n".join(failures)
