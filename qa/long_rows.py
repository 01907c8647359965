"""Errors of shipped operators on long rows, target llvm beside torch on the CPU: each against torch in float64.

    python -m qa.long_rows [--columns 65536] [--only softmax]

The status is 1 where an error is more than twice torch's. Offsets of 10^4 are where sums lose their digits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import click
import torch

import neptune
from neptune.ir.program import Program
from neptune.ops import linear, norm, softmax, statistics
from neptune.ops.cross_entropy import cross_entropy

Tensor = torch.Tensor
F = torch.nn.functional
ROWS, FLOOR = 3, 3e-8
"""FLOOR: half a unit in the last place of float32, by which the result is rounded."""


@dataclass(frozen=True)
class Case:
    """An operator on rows: its program, what torch says of the same tensors, and how many of them are rows."""

    name: str
    program: Callable[[], Program]
    torch: Callable[..., Tensor]
    rows: int = 1
    columns: int = 0
    """Vectors of as many columns."""
    targets: bool = False


def _variance(x: Tensor) -> Tensor:
    return x.var(1, unbiased=False)


def _mean(x: Tensor, w: Tensor) -> Tensor:
    return (x * w).sum(1) / w.sum(1)


CASES = (
    Case("softmax", softmax.softmax, lambda x: F.softmax(x, 1)),
    Case("log_softmax", softmax.log_softmax, lambda x: F.log_softmax(x, 1)),
    Case("logsumexp", softmax.logsumexp, lambda x: torch.logsumexp(x, 1)),
    Case(
        "cross_entropy",
        cross_entropy,
        lambda x, t: F.cross_entropy(x, t, reduction="none"),
        targets=True,
    ),
    Case("rms_norm", lambda: norm.rms_norm(dtype="float32"), lambda x, g: F.rms_norm(x, g.shape, g, 1e-6), columns=1),
    Case(
        "layer_norm",
        lambda: norm.layer_norm(dtype="float32"),
        lambda x, g, b: F.layer_norm(x, g.shape, g, b),
        columns=2,
    ),
    Case("variance", statistics.variance, _variance),
    Case("cosine_similarity", statistics.cosine_similarity, lambda x, y: F.cosine_similarity(x, y, 1), rows=2),
    Case("weighted_mean", statistics.weighted_mean, _mean, rows=2),
    Case("matmul", lambda: linear.matmul(dtype="float32", trans_b=True), lambda x, w: x @ w.mT, rows=2),
)


def inputs(case: Case, columns: int, offset: float) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    made = [torch.randn(ROWS, columns, generator=draw).abs() + offset for _ in range(case.rows)]
    made += [torch.randn(columns, generator=draw) for _ in range(case.columns)]
    return made + [torch.randint(columns, (ROWS,), generator=draw)] * case.targets


def off(found: Tensor, right: Tensor) -> float:
    return float((found.double() - right).norm() / right.norm())


def errors(case: Case, columns: int, offset: float) -> tuple[float, float]:
    """(ours, torch's)"""
    given = inputs(case, columns, offset)
    right = case.torch(*(x.double() if x.is_floating_point() else x for x in given))
    kernel = neptune.compile(case.program(), target="llvm")
    ours = kernel(*given)
    return off(ours if isinstance(ours, Tensor) else ours[0], right), off(case.torch(*given), right)


@click.command(help=__doc__)
@click.option("--columns", default=65536, show_default=True)
@click.option("--only", default="")
def main(columns: int, only: str) -> None:
    bad = 0
    print(f"{'operator':20} {'offset':>8} {'llvm':>9} {'torch':>9}")
    for case in CASES:
        for offset in (0.0, 1e4):
            if only in case.name:
                ours, theirs = errors(case, columns, offset)
                wrong = ours > 2 * theirs + FLOOR
                bad += wrong
                print(
                    f"{case.name:20} {offset:8.0f} {ours:9.1e} {theirs:9.1e} {'  more than twice' * wrong}", flush=True
                )
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
