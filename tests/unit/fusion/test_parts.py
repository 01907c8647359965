"""Parts of tuples, and of folds that start from something: that they are combined right, on hostile data too."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch

import neptune
from neptune.frontend import builder as te
from neptune.frontend.builder import (
    argmax,
    argmin,
    build,
    compute,
    exp,
    log,
    max_sumexp,
    placeholder,
    reduce_axis,
    rsqrt,
    top_k,
    var,
)
from neptune.ir.decompose import decompose
from neptune.ir.expr import Const, Expr, Load, Op
from neptune.ir.program import Program, Stage, Update, rewrite_stmt
from neptune.ir.text.parser import parse_program
from neptune.tile.arrange import arrange, started
from neptune.tile.localize import localize
from neptune.verify.evaluate import evaluate
from neptune.verify.exact import check_exact
from tests.examples.chains import cells, check_same, matrix, per_row
from tests.examples.mutants import change
from tests.tiers import sampled
from tests.unit.fusion.test_split_k import SIZES, _loops, log_sum_exp, split

pytestmark = pytest.mark.compared
R, N = var("r"), var("n")
LOWEST = "-3.4028234663852886e+38"
NAN, INF = math.nan, math.inf


def best(fold: Callable[..., te.TupleReduction], name: str, *args: int) -> Program:
    x, j = matrix("x"), reduce_axis((0, N), "j")
    return build(compute((R,), lambda i: fold(x[i, j], *args, axis=j), "best"), name=name)


def sum_of_exponentials() -> Program:
    x, j = matrix("x"), reduce_axis((0, N), "j")
    m, total = compute((R,), lambda i: max_sumexp(x[i, j], axis=j), "t")
    return build(compute((R,), lambda i: m[i] + log(total[i]), "y"), name="sum_of_exponentials")


def softmax_top_k(k: int) -> Program:
    x, j = matrix("x"), reduce_axis((0, N), "j")
    m = per_row(lambda i, j: x[i, j], "m", te.max)
    p = cells(lambda i, j: exp(x[i, j] - m[i]), "p")
    total = per_row(lambda i, j: p[i, j], "l")
    q = cells(lambda i, j: p[i, j] / total[i], "q")
    return build(compute((R,), lambda i: top_k(q[i, j], k, axis=j), "best"), name=f"softmax_top_{k}")


def about_the_best() -> Program:
    """The first part of a pair as the maximum of a softmax, and its index besides."""
    x, j = matrix("x"), reduce_axis((0, N), "j")
    top, where = compute((R,), lambda i: argmax(x[i, j], axis=j), "best")
    return build((per_row(lambda i, j: exp(x[i, j] - top[i]), "l"), where), name="about_the_best")


def scaled_sum() -> Program:
    """One that waits and starts from something: `o`."""
    x, b = matrix("x"), placeholder((R,), "float32", "b")
    ss = per_row(lambda i, j: x[i, j] * x[i, j], "ss")
    o = per_row(lambda i, j: x[i, j] * rsqrt(ss[i] + 1.0), "o")
    return build(o, inputs=[x, b], name="scaled_sum")


def starting(make: Callable[[], Program], stage: str, init: str, *, by_row: bool = False) -> Program:
    """The program with a reduction that starts from `init`."""
    lines = str(make()).splitlines()
    (at,) = (k for k, line in enumerate(lines) if line.strip().startswith(f"{stage}: "))
    lines[at] = lines[at][: lines[at].index(" init ")] + f" init {init}"
    if by_row and not any(" in b:" in line for line in lines):
        lines.insert(1, "  in b: f32[r]")
    return parse_program("\n".join(lines) + "\n")


MADE: Mapping[str, tuple[Callable[[], Program], str]] = {
    "argmax": (lambda: best(argmax, "argmax"), "best"),
    "argmin": (lambda: best(argmin, "argmin"), "best"),
    "top 3": (lambda: best(top_k, "top_3", 3), "best"),
    "top 8": (lambda: best(top_k, "top_8", 8), "best"),
    "sum of exponentials": (sum_of_exponentials, "t"),
    "softmax top 1": (lambda: softmax_top_k(1), "m"),
    "softmax top 4": (lambda: softmax_top_k(4), "m"),
    "about the best": (about_the_best, "best"),
    "max from -inf": (lambda: starting(log_sum_exp, "m", "-inf"), "m"),
    "max from data": (lambda: starting(log_sum_exp, "m", "b[i]", by_row=True), "m"),
    "sum from data": (lambda: starting(log_sum_exp, "l", "b[i] * b[i]", by_row=True), "m"),
    "what waits, from data": (lambda: starting(scaled_sum, "o", "b[i]"), "ss"),
    "argmax from TE's start": (lambda: starting(lambda: best(argmax, "te"), "best", f"{LOWEST}, -1"), "best"),
}  # fmt: skip


def combined(name: str, multiple_of: int = 2) -> Program:
    make, stage = MADE[name]
    return localize(arrange(started(split(make(), stage, multiple_of).program)), strict=False)


@pytest.mark.parametrize("name", MADE)
def test_parts_say_what_the_whole_does(name: str) -> None:
    make, stage = MADE[name]
    for multiple_of in (1, 4):
        check_same(make(), split(make(), stage, multiple_of), *SIZES)
    report = check_exact(make(), combined(name))
    assert report.accepted, report


ROWS = np.array(
    [
        [NAN, 1, 2, 3, NAN, 5, 6, 7, 8],
        [-INF] * 9,
        [-INF, -INF, -INF, -INF, 0, 1, -INF, -INF, -INF],
        [INF, 1, 2, INF, 4, 5, 6, 7, INF],
        [2, 2, 2, 2, 2, 2, 2, 2, 2],
        [-3.4028234663852886e38] * 9,
        [3e38, -3e38] * 4 + [0],
        [0.0, -0.0] * 4 + [0.0],
    ]
)


UNDEFINED: Mapping[str, Mapping[str, float]] = {
    "about the best": {"l": 0.0},
    "max from -inf": {"lse": -INF},
    "max from data": {"lse": -INF},
}
"""What is said of a row of -inf where the expression says exp(-inf + inf): as from a finite start."""


@pytest.mark.parametrize("name", MADE)
def test_hostile_rows(name: str) -> None:
    """NaN in one part, parts of -inf alone, ties in several parts: as the whole, evaluated."""
    undefined = UNDEFINED.get(name, {})
    make, stage = MADE[name]
    inputs = {"x": ROWS, "b": np.array([0, -INF, -INF, 1, 2, 3, -4, 5.0])}
    program = make()
    inputs = {b.name: inputs[b.name] for b in program.inputs}
    sizes = {"r": len(ROWS), "n": ROWS.shape[1]}
    with np.errstate(all="ignore"):
        want = evaluate(decompose(program), inputs, sizes)
        for output, value in undefined.items():
            assert np.isnan(want[output][1])
            want[output][1] = value
        for number in (1, 2, 3, 9, 12):
            found = evaluate(decompose(split(make(), stage).program), inputs, {**sizes, "NUM_SPLITS": number})
            for b in program.outputs:
                rows = _ordered(name, want) if b.dtype == "int32" else slice(None)
                what = f"{b.name} {number}"
                np.testing.assert_allclose(found[b.name][rows], want[b.name][rows], rtol=1e-12, err_msg=what)


def _ordered(name: str, want: Mapping[str, np.ndarray]) -> np.ndarray:
    """The rows in which a list of quotients has an order: where NaN makes NaN of all of them, any is as good."""
    values = [v for v in want.values() if v.dtype.kind == "f"]
    return ~np.isnan(values).any(axis=0) if name.startswith("softmax") else np.ones(len(ROWS), bool)


# --- kernels ----------------------------------------------------------------------------------------

LONG = ("argmax", "top 3", "sum of exponentials", "max from -inf", "max from data", "sum from data")


@functools.cache
def compiled(name: str) -> neptune.Kernel:
    k = neptune.compile(MADE[name][0](), "flash_decoding", target="llvm", params={"BLOCK_M": 16, "BLOCK_N": 16})
    assert {r.verdict for r in k.build.checks.values()} <= {"accepted"}
    return k


@pytest.mark.parametrize("target", ["llvm", "interpret"])
@pytest.mark.parametrize("name", [*LONG, pytest.param("softmax top 4", marks=pytest.mark.slow)])
def test_numbers(name: str, target: str) -> None:
    program, k = MADE[name][0](), compiled(name).for_target(target)
    torch.manual_seed(3)
    for n in (1, 17, 300) if target == "llvm" else (33,):
        x, b = torch.randn(5, n), torch.randn(5)
        x[1, n // 2] = 90.0
        x[2, : n // 2] = -INF
        if name == "max from -inf":
            x[3] = -INF
        given = [{"x": x, "b": b}[t.name] for t in program.inputs]
        for number in (1, 3, 25):
            found = k(*given, params={"NUM_SPLITS": number})
            found = found if isinstance(found, tuple) else (found,)
            for got, want in zip(found, reference(name, x.double(), b.double()), strict=True):
                torch.testing.assert_close(got.double(), want.double(), rtol=2e-5, atol=2e-5)


def reference(name: str, x: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    if name == "argmax":
        return list(x.max(-1))
    if name in ("top 3", "softmax top 4"):
        k = int(name[-1])
        values, at = (torch.softmax(x, -1) if "softmax" in name else x).topk(min(k, x.shape[1]))
        lacks = k - values.shape[1]
        nothing = torch.full((len(x), lacks), -INF), torch.full((len(x), lacks), 2**31 - 1)
        return [*torch.cat([values, nothing[0]], 1).T, *torch.cat([at, nothing[1]], 1).T]
    if name == "max from data":
        m = torch.maximum(x.amax(-1), b)
        return [m + (x - m[:, None]).exp().sum(-1).log()]
    if name == "sum from data":
        m = x.amax(-1)
        return [m + ((x - m[:, None]).exp().sum(-1) + b * b).log()]
    return [torch.logsumexp(x, -1)]


@pytest.mark.parametrize(
    "name", sampled(["argmax", "softmax top 4", "top 3", "sum of exponentials", "about the best"], 2)
)
def test_two_kernels_that_compile(name: str) -> None:
    k = compiled(name)
    assert len(k.facts.kernels) == 2
    assert all(t.endswith("_split") for t in k.facts.temporaries)
    for target in ("cuda:80", "cuda:90"):
        # ptxas parks a pair of predicates though registers are left: 8 bytes, outside of the loop.
        assert all(r.spill_bytes <= 8 for r in k.resources(target))


# --- mutants ----------------------------------------------------------------------------------------


def _update(program: Program, stage: str, fn: Callable[[Update], Update]) -> Program:
    """The Update of a stage changed."""

    def fix(s: object) -> object:
        return replace(s, action=fn(s.action)) if isinstance(s, Stage) and s.name == stage else s  # type: ignore

    body = rewrite_stmt(program.body, fix)  # type: ignore[arg-type]
    assert body is not None and body != program.body
    return program.with_body(body)


def _swapped(a: Update) -> Update:
    return replace(a, values=(a.values[1], a.values[0], *a.values[2:]))


def _first_only(a: Update) -> Update:
    """Of each part's list only the first element."""
    k = len(a.values) // 2
    nothing = (*(Const(-INF, v.dtype) for v in a.values[:k]), *(Const(2**31 - 1, v.dtype) for v in a.values[k:]))
    return replace(a, values=(a.values[0], *nothing[1:k], a.values[k], *nothing[k + 1 :]))


def _other_index(a: Update) -> Update:
    """The number of the part in place of the index."""
    index = a.values[1]
    assert isinstance(index, Load)
    return replace(a, values=(a.values[0], index.index[0]))


def _plain(e: Expr) -> Expr | None:
    return e.args[0] if isinstance(e, Op) and e.name == "mul" else None


MUTANTS: Mapping[str, tuple[str, Callable[[Program], Program]]] = {
    "only the best of each part": ("top 3", lambda p: _update(p, "best", _first_only)),
    "lists out of order": ("softmax top 4", lambda p: _update(p, "best", _swapped)),
    "the part for the index": ("argmax", lambda p: _update(p, "best", _other_index)),
    "a part missing": ("argmax", lambda p: _loops(p, "best", lambda f: replace(f, lo=Const(1, "int32")))),
    "no factor": ("about the best", lambda p: change(p, "l", _plain)),
    "no factor, from data": ("max from data", lambda p: change(p, "l", _plain)),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_combination_is_rejected(name: str) -> None:
    of, mutate = MUTANTS[name]
    program = MADE[of][0]()
    assert check_exact(program, combined(of), draws=8).accepted
    assert check_exact(program, mutate(combined(of)), draws=8).verdict == "rejected"


def test_a_start_is_taken_in_once() -> None:
    """A mutant in which every part starts from what the whole does."""
    name = "sum from data"
    program = combined(name)
    text = str(program)
    lines = text.splitlines()
    (at,) = (k for k, line in enumerate(lines) if line.strip().startswith("l_split_init:"))
    lines[at] = lines[at].replace("= 0.0", "= b[i] * b[i]")
    wrong = parse_program("\n".join(lines) + "\n")
    assert str(wrong) != text
    assert check_exact(MADE[name][0](), wrong, draws=8).verdict == "rejected"
