"""Saved kernels of every shipped operator with what they gave, so that a later version is seen to give the same bits.

    python -m qa.saved write FOLDER [--target interpret] [--only softmax …]   # by the version that is kept
    python -m qa.saved check FOLDER                                           # by the version at hand; 1: a difference

A kernel's folder holds `kernel/` (as `kernel.save` writes it) and `calls.pt` (the tensors of a call and its results).
Kernels of GPUs are saved in both forms; without `--target` they are for the GPU at hand. With `--run interpret` kernels
of `--target cuda:90` are called without a GPU: `tests/golden/saved.tar.xz` is made so (unit/runtime/test_corpus.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import torch

import neptune
from bench.operator_references import REFERENCES
from bench.operators import inputs_of
from neptune.ops.shipped import OPERATORS

DTYPES = ("float32", "float16")


def programs(only: Sequence[str]) -> Iterator[tuple[str, Any, list[torch.Tensor]]]:
    """(name, expression, inputs) of each operator in each dtype that it has."""
    for name, reference in REFERENCES.items():
        if only and name not in only:
            continue
        for dtype in DTYPES:
            try:
                program = OPERATORS[name](dtype=dtype, **reference.options)
            except neptune.NeptuneError:
                continue  # an operator of 8 bits has no such dtype
            yield f"{name}-{dtype}", program, inputs_of(program, reference, "random")


def results(kernel: Any, given: Sequence[torch.Tensor], target: str | None) -> list[torch.Tensor]:
    """What a kernel gives, for a target or for the GPU at hand."""
    made = kernel(*(x.to("cpu" if target else "cuda") for x in given))
    return [x.cpu() for x in (made if isinstance(made, tuple) else (made,))]


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--target", help="By default the GPU at hand, in both forms.")
@click.option("--run", help="The target on which kernels are called; by default their own.")
@click.option("--only", multiple=True, help="Operators.")
def write(folder: Path, target: str | None, run: str | None, only: Sequence[str]) -> None:
    """Compile, call and save."""
    run = run or target
    for name, program, given in programs(only):
        for form in ("triton", "asynchronous") if target in (None, "cuda:90") else (None,):
            try:
                kernel = neptune.compile(program, target=target, form=form)
            except neptune.NeptuneError as error:
                click.echo(f"{name} {form or target}: refused: {str(error).splitlines()[0]}")
                continue
            made = results(kernel.for_target(run) if run and run != target else kernel, given, run)
            at = folder / f"{name}-{form or target}"
            at.mkdir(parents=True)
            kernel.save(at / "kernel")
            torch.save({"given": given, "made": made, "target": run}, at / "calls.pt")
            click.echo(f"{at.name}: {len(made)} results")


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
def check(folder: Path) -> None:
    """Load, call and compare bits."""
    differ, count = [], 0
    for at in sorted(p.parent for p in folder.glob("*/calls.pt")):
        call = torch.load(at / "calls.pt")
        made = results(neptune.load(at / "kernel", target=call["target"]), call["given"], call["target"])
        same = len(made) == len(call["made"]) and all(map(_same_bits, made, call["made"]))
        count += 1
        if not same:
            differ.append(at.name)
            click.echo(f"{at.name}: other bits")
    click.echo(f"{count} kernels, {len(differ)} with other bits")
    sys.exit(bool(differ) or not count)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


if __name__ == "__main__":
    main()
