"""stagewise where a stage has no loop but those that it folds over: one kernel, whose last tile is masked."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

import neptune
from neptune.frontend import builder as nb

N, M = nb.var("n"), nb.var("m")
LENGTHS = (1, 2, 255, 256, 257, 1000)


def folded(fold):
    """Everything of x[n] as one number."""
    x, k = nb.placeholder((N,), "float32", "x"), nb.reduce_axis((0, N), "k")
    return nb.build([nb.compute((), lambda: fold(x[k], axis=k), "y")], name="f")


def columns():
    """Σ_k x[k, i] for three i, which are no grid."""
    x, k = nb.placeholder((N, 3), "float32", "x"), nb.reduce_axis((0, N), "k")
    return nb.build([nb.compute((3,), lambda i: nb.sum(x[k, i], axis=k), "y")], name="f")


def chain():
    """Σ exp(x[k] - max x)."""
    x, k, j = nb.placeholder((N,), "float32", "x"), nb.reduce_axis((0, N), "k"), nb.reduce_axis((0, N), "j")
    top = nb.compute((), lambda: nb.max(x[k], axis=k), "top")
    return nb.build([nb.compute((), lambda: nb.sum(nb.exp(x[j] - top[()]), axis=j), "y")], name="f")


PROGRAMS = {
    "sum": (lambda: folded(nb.sum), lambda x: x.sum()),
    "max": (lambda: folded(nb.max), lambda x: x.max()),
    "min": (lambda: folded(nb.min), lambda x: x.min()),
    "columns": (columns, lambda x: x.sum(0)),
    "chain": (chain, lambda x: (x - x.max()).exp().sum()),
}


def compiled(program, target):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", neptune.NeptunePerformanceWarning)
        return neptune.compile(program, "stagewise", target=target)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("target", ["llvm", "interpret"])
def test_the_tail_is_a_masked_tile(name, target):
    make, reference = PROGRAMS[name]
    kernel = compiled(make(), target)
    assert len(kernel.facts.kernels) == (2 if name == "chain" else 1)
    codes = {w.code for w in kernel.warnings}
    assert not codes & {"scalar-loop", "memory-inside"}
    assert not any(d["kind"] == "lowering" for d in kernel.explain(json=True)["decisions"])
    for n in LENGTHS:
        torch.manual_seed(n)
        x = torch.randn(n, *([3] if name == "columns" else []))
        # The signs show what a mask would add: of a maximum of numbers below 0 a zero, of a minimum above it, too.
        for given in (x, x.abs() + 1, -x.abs() - 1, x * 1e30 if name != "chain" else x * 1e3):
            want = reference(given.double())
            found = torch.full(want.shape, math.nan)
            kernel(given, out=found)
            size = given.double().abs().sum(0) if name in ("sum", "columns") else want.abs()
            assert ((found - want).abs() <= 1e-6 * size).all(), (n, found, want)


def test_minus_infinity_and_nan_in_the_tail():
    kernel = compiled(folded(nb.max), "interpret")
    x = torch.full((257,), -math.inf)
    x[256] = -3e38
    assert kernel(x) == x[256]
    total = compiled(folded(nb.sum), "interpret")
    x = torch.ones(257)
    x[256] = math.nan
    assert total(x).isnan() and total(x[:256]) == 256


def test_inside_another_loop_the_tail_is_still_cut_off():
    """Σ over rows and columns: the rows stand around, so that only the last tile of a row is masked."""
    x = nb.placeholder((M, N), "float32", "x")
    r, k = nb.reduce_axis((0, M), "r"), nb.reduce_axis((0, N), "k")
    kernel = compiled(nb.build([nb.compute((), lambda: nb.sum(x[r, k], axis=[r, k]), "y")], name="f"), "llvm")
    assert len(kernel.facts.kernels) == 1 and "n // ROW_N" in [f.trips for f in kernel.facts.kernels[0].loops]
    x = torch.randn(5, 700)
    assert (kernel(x) - x.double().sum()).abs() < 1e-6 * x.double().abs().sum()
