"""Run an operator on every target and judge its errors by design §8."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

import neptune
from bench.guards import guarded
from bench.references import Outputs, Reference
from neptune import Kernel, Program
from neptune.codegen.llvm import LLVMKernel, compile_llvm
from neptune.ir.program import Buffer
from neptune.verify.numerics import Errors, allowance, rel_error

TARGETS = ("llvm", "interpret")


@dataclass(frozen=True)
class Judged:
    """One output of one run, against float64 and beside the unfused expression."""

    where: str
    dtype: str
    error: Errors
    unfused: Errors
    zeros: bool  # whether rows that are 0 came out as exactly 0

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
        """Compiled once for every target."""
        return {target: self.kernel(target) for target in TARGETS}

    @cached_property
    def unfused(self) -> LLVMKernel:
        """The expression as it is written, with all its casts: one nest after the other, on this CPU."""
        return compile_llvm(self.program)


def run(kernel: Kernel, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], strided: bool) -> Outputs:
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
    inputs: Sequence[torch.Tensor],
    *,
    targets: Sequence[str] = TARGETS,
    strided: bool = False,
) -> Iterator[Judged]:
    """Every output on every target."""
    exact = subject.reference.float64(*inputs)
    unfused = [poison(b, t) for b, t in zip(subject.program.outputs, exact, strict=True)]
    subject.unfused(inputs, unfused)
    for target in targets:
        found = run(subject.kernels[target], inputs, unfused, strided)
        for b, out, ref, plain in zip(subject.program.outputs, found, exact, unfused, strict=True):
            errors = [rel_error(t.double().numpy(), ref.numpy()) for t in (out, plain)]
            empty = (ref == 0).all(-1)
            yield Judged(f"{target} {b.name}", b.dtype, errors[0], errors[1], bool((out[empty] == 0).all()))


def poison(buffer: Buffer, like: torch.Tensor) -> torch.Tensor:
    """An output full of NaN."""
    return torch.full(like.shape, float("nan"), dtype=getattr(torch, buffer.dtype))


def check(subject: Subject, families: Mapping[str, Sequence[torch.Tensor]], **options: bool) -> None:
    """Assert that every output passes on every target, for every family of inputs."""
    failures = [
        f"{name}: {j}" for name, inputs in families.items() for j in judge(subject, inputs, **options) if not j.passes
    ]
    assert not failures, "\n".join(failures)
