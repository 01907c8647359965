"""The errors of a chain's kernels against float64, over families of hostile inputs, beside the unfused expression's.

The criterion is that of docs/design/numerics.md: *of limit* is the largest error as a share of what is allowed. The
unfused expression runs on this CPU through TVM, or, where that is not installed, in the evaluator, each step rounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import neptune
from bench.cases import errors, poisoned, worse
from bench.chain_programs import Chain
from neptune.codegen.llvm import compile_llvm
from neptune.errors import TargetError
from neptune.ir.evaluate.floats import Rounded
from neptune.ir.integers import evaluate_size
from neptune.runtime.launching.launch import parse_target
from neptune.verify.evaluate import evaluate
from neptune.verify.numerics import Errors, Tensors, allowance, input_families

ROWS, COLS = 19, 53
FAMILIES = ("random", "x30", "x1000", "zeros", "needle", "zero tile", "far from zero")
"""Kinds of inputs: numbers of one size, large and very large ones, zeros, one large row or column, a row or column of
tiles that is zero, and small differences of large numbers."""
EXACT = Errors(0.0, 0.0)
Unfused = Callable[[list[torch.Tensor], list[torch.Tensor]], None]


@dataclass(frozen=True)
class Sample:
    """The errors of one kernel on one family of inputs, beside those of the unfused expression; worst of outputs."""

    target: str
    family: str
    error: Errors
    unfused: Errors
    of_limit: float


def kind(family: str) -> str:
    """The entry of FAMILIES that a family belongs to.

    >>> kind("needle 15 of columns"), kind("zeros of rows")
    ('needle', 'zeros')
    """
    return re.sub(r"( \d+)?( of (rows|columns))?$", "", family)


def families(chain: Chain, program: neptune.Program, rows: int, cols: int) -> Iterator[tuple[str, Tensors]]:
    """Inputs by name, in float64: hostile rows and hostile columns."""
    sizes = _sizes(rows, cols)
    shapes = {b.name: tuple(evaluate_size(d, sizes) for d in b.shape) for b in program.inputs}
    rng = np.random.default_rng(0)
    whole = {b.name: b.dtype for b in program.inputs if b.dtype.startswith("int")}
    drawn: Tensors = {}
    for name, dtype in whole.items():
        drawn[name] = rng.integers(-127, 128, shapes[name]) if dtype == "int8" else rng.integers(0, cols, shapes[name])
    floats = {n: s for n, s in shapes.items() if n not in whole}
    if chain.group in ("norm", "sums"):
        # Where squares cancel: a spread of one about a mean of thousands.
        far = {n: rng.standard_normal(s) + (3000.0 if s[0] == rows else 0.0) for n, s in floats.items()}
        yield "far from zero", {**far, **drawn, **{n: far[n] - 2990.0 for n in chain.positive}}
    for axis in (-1, -2):
        for name, arrays in input_families(floats, axis=axis):
            if axis == -2 and not name.startswith(("needle", "zero")):
                continue
            positive = {n: np.abs(arrays[n]) + 0.5 for n in chain.positive}
            yield f"{name} of {'columns' if axis == -1 else 'rows'}", {**arrays, **drawn, **positive}


def _sizes(rows: int, cols: int) -> dict[str, int]:
    return {"rows": rows, "cols": cols, "s_q": rows, "s_kv": cols, "batch": 1, "heads": 2}


def unfused(program: neptune.Program, rows: int, cols: int) -> tuple[str, Unfused]:
    """The expression as it is written, and what runs it: "llvm", or "evaluator" where TVM is not installed."""
    return unfused_of(program, _sizes(rows, cols))


def unfused_of(program: neptune.Program, sizes: Mapping[str, int]) -> tuple[str, Unfused]:
    """`unfused` at any sizes."""
    try:
        return "llvm", compile_llvm(program)
    except TargetError:
        return "evaluator", _evaluated(program, sizes)


def _evaluated(program: neptune.Program, sizes: Mapping[str, int]) -> Unfused:
    def run(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        given = {b.name: _array(x) for b, x in zip(program.inputs, inputs, strict=True)}
        found = evaluate(program, given, sizes, Rounded())
        for out, b in zip(outputs, program.outputs, strict=True):
            out.copy_(torch.from_numpy(np.asarray(found[b.name])))

    return run


def _array(x: torch.Tensor) -> Any:
    return x.double().numpy() if x.is_floating_point() else x.numpy()


def samples(
    chain: Chain,
    program: neptune.Program,
    kernels: Mapping[str, Callable[..., Any]],
    rows: int = ROWS,
    cols: int = COLS,
    wanted: Callable[[str], bool] = lambda family: True,
    plainly: Unfused | None = None,
) -> Iterator[Sample]:
    """The errors of kernels by target over the families of inputs; `plainly` runs the expression itself."""
    plainly = unfused(program, rows, cols)[1] if plainly is None else plainly
    for family, arrays in families(chain, program, rows, cols):
        if not wanted(family):
            continue
        inputs = [torch.from_numpy(np.array(arrays[b.name])).to(getattr(torch, b.dtype)) for b in program.inputs]
        given = [_array(x) for x in inputs]
        with np.errstate(all="ignore"):
            exact = [torch.from_numpy(np.array(x, np.float64)) for x in chain.reference(*given)]
        plain = poisoned_like(program, exact)
        plainly(inputs, plain)
        base = _errors(chain, given, plain, exact)
        for target, kernel in kernels.items():
            device = parse_target(target).device
            outs = poisoned_like(program, exact, device)
            kernel(*(x.to(device) for x in inputs), out=outs[0] if len(outs) == 1 else tuple(outs))
            found = _errors(chain, given, [x.cpu() for x in outs], exact)
            yield Sample(target, family, _worst(found), _worst(base), _of_limit(program, found, base))


def _of_limit(program: neptune.Program, found: list[Errors], base: list[Errors]) -> float:
    dtypes = [b.dtype if b.dtype.startswith(("float", "bfloat")) else "float32" for b in program.outputs]
    shares = [
        e / allowance(dtype, u)
        for dtype, mine, other in zip(dtypes, found, base, strict=True)
        for e, u in zip(mine, other, strict=True)
        if np.isfinite(u)  # else the expression itself overflows
    ]
    return float(max(shares, default=0.0))


def poisoned_like(program: neptune.Program, exact: list[torch.Tensor], device: str = "cpu") -> list[torch.Tensor]:
    """Outputs that no result looks like."""
    if all(b.dtype.startswith(("float", "bfloat")) for b in program.outputs):
        return poisoned(program, tuple(exact), device)
    poison = {True: float("nan"), False: 0}
    return [
        torch.full(t.shape, poison[b.dtype.startswith("float")], dtype=getattr(torch, b.dtype), device=device)
        for t, b in zip(exact, program.outputs, strict=True)
    ]


def _errors(chain: Chain, given: list[Any], outs: list[torch.Tensor], exact: list[torch.Tensor]) -> list[Errors]:
    if chain.settle is not None:
        outs = [torch.from_numpy(np.asarray(x)) for x in chain.settle(*given, *(o.numpy() for o in outs))]
    return [errors(o, x) for o, x in zip(outs, exact, strict=True)]


def _worst(found: list[Errors]) -> Errors:
    result = EXACT
    for e in found:
        result = worse(result, e)
    return result
