"""Every operator of the table means one thing: to numpy's float64, the evaluator, LLVM, Triton's interpreter, TVM."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import neptune
from neptune.codegen.compile import compile_offline
from neptune.errors import ExpressionError, FusionError, ShapeError
from neptune.frontend import builder as nb
from neptune.fusion.schedule import Schedule
from neptune.ir.expr import OPS, bitwise, invert, op
from neptune.ir.text.parser import parse_expr
from neptune.ir.text.printer import print_expr
from neptune.verify.field import OPAQUE, FieldPair
from neptune.verify.rationals import OrderedRationals
from tests.tiers import sampled

TARGETS = ("llvm", "interpret")
ODD = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, -0.49999997, 8388609.0, -3.75, math.inf, -math.inf, math.nan]
FLOAT_OPS = (nb.erf, nb.sin, nb.cos, nb.floor, nb.ceil, nb.round, nb.trunc, nb.log2)


def elementwise(function: Callable[..., Any], *dtypes: str, tiled: bool = True) -> Callable[[str], Any]:
    """A kernel of y[i] = function(x0[i], …) on a target, by tiles of 8 (the last one partial) or by points."""
    n = nb.var("n")
    xs = [nb.placeholder((n,), d, f"x{k}") for k, d in enumerate(dtypes)]
    y = nb.compute((n,), lambda i: function(*(x[i] for x in xs)), "y")

    def template(sch: Schedule) -> None:
        (i,) = sch.loops("y")
        sch.bind(sch.split(i, sch.param("BLOCK", [8]))[0] if tiled else i, "grid.x")

    return lambda target: neptune.compile(y, template, inputs=xs, target=target)


PREDICATES = {
    "isnan": (nb.isnan, torch.isnan),
    "isinf": (nb.isinf, torch.isinf),
    "isfinite": (nb.isfinite, torch.isfinite),
}


@pytest.mark.parametrize("name", PREDICATES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_classes_of_floats(name: str, dtype: str) -> None:
    ours, torchs = PREDICATES[name]
    x = torch.tensor(ODD).to(getattr(torch, dtype))
    for target in TARGETS:
        got = elementwise(ours, dtype)(target)(x)
        assert got.dtype == torch.bool and torch.equal(got, torchs(x))
        chosen = elementwise(lambda v: nb.select(ours(v), 1.0, -1.0), dtype, tiled=False)(target)(x)
        assert torch.equal(chosen > 0, torchs(x))


def test_a_zero_divisor_in_the_data_does_not_end_the_process() -> None:
    kernel = elementwise(lambda a, b: a // b, "int32", "int32")("llvm")
    got = kernel(torch.tensor([7, 7], dtype=torch.int32), torch.tensor([2, 0], dtype=torch.int32))
    assert got[0] == 3


# --- the exact models and the provers ------------------------------------------------------------------


@pytest.mark.parametrize("name", OPAQUE)
@pytest.mark.parametrize("make", [FieldPair, OrderedRationals])
def test_exact_models_keep_them_opaque(name: str, make: Callable[[int], Any]) -> None:
    """Same argument, same value; and no rounding is an identity, not even on integers."""
    domain = make(3)
    x = domain.lift(np.arange(-4, 5), "float32")
    first, again = (domain.apply(name, (x,), "float32") for _ in range(2))
    assert not domain.differs(first, again).any()
    if name != "abs":
        assert domain.differs(first, x).any()


@pytest.mark.parametrize("name", ["floor", "ceil", "round", "trunc", "erf", "sin", "cos"])
def test_fusion_refuses_to_pass_a_running_maximum_through(name: str) -> None:
    r, n = nb.var("r"), nb.var("n")
    x = nb.placeholder((r, n), "float32", "x")
    j, k = nb.reduce_axis((0, n), "j"), nb.reduce_axis((0, n), "k")
    m = nb.compute((r,), lambda i: nb.max(x[i, j], axis=j), "m")
    y = nb.compute((r,), lambda i: nb.sum(op(name, x[i, k] - m[i]), axis=k), "y")
    sch = Schedule(nb.build(y))
    i, j_ = sch.loops("m")
    _, j0, _, _ = sch.tile([i, j_], [sch.param("BLOCK_M", [2]), sch.param("BLOCK_N", [4])])
    with pytest.raises(FusionError, match=name):
        sch.rolling_update("y", j0)


# --- the table -----------------------------------------------------------------------------------------


def test_every_row_prints_and_parses() -> None:
    env = {"x": "float32", "y": "float32", "i": "int32", "j": "int32", "p": "bool", "q": "bool"}
    for row in OPS.values():
        if row.kind == "instruction":  # of a machine's tiles alone: no program has one
            with pytest.raises(ExpressionError, match=f"unknown operator '{row.name}'"):
                parse_expr(f"{row.name}(x)", env)
            continue
        names = "ij" if row.kind == "bits" or row.name in ("floordiv", "mod") else "pq" if row.kind == "logic" else "xy"
        e = op(row.name, *(parse_expr(v, env) for v in names[: row.arity]))
        assert parse_expr(print_expr(e), env) == e


def test_bitwise_operators_of_bools_are_logical_and_floats_are_refused() -> None:
    p, q, x = (parse_expr(v, {"p": "bool", "q": "bool", "x": "float32"}) for v in "pqx")
    assert (bitwise("and", p, q), p | q, p ^ q) == (op("and", p, q), op("or", p, q), op("ne", p, q))
    assert invert(p) == op("not", p)
    with pytest.raises(TypeError, match="bitand takes integers, not float32"):
        x & x
    with pytest.raises(ExpressionError, match=r"it is int32, not a float"):
        nb.isnan(nb.var("i"))


@pytest.mark.parametrize("target", sampled(["cuda:90", "cuda:80", "hip:gfx942"], 3))
def test_every_operator_compiles_for_a_gpu(target: str) -> None:
    n = nb.var("n")
    x, h, i = (nb.placeholder((n,), d, name) for d, name in (("float32", "x"), ("float16", "h"), ("int32", "i")))

    def value(k: Any) -> Any:
        total = x[k]
        for ours in FLOAT_OPS:
            total = total + ours(x[k]) + ours(h[k]).astype("float32") + ours(nb.const(0.75))
        bits = ((i[k] & 3) | 4) ^ (i[k] << 1) ^ (i[k] >> 1) ^ ~(i[k] // -3) ^ (i[k] % (i[k] - 9))
        return nb.select(nb.isnan(total), bits.astype("float32"), total)

    def template(sch: Schedule) -> None:
        (k,) = sch.loops("y")
        sch.bind(sch.split(k, sch.param("BLOCK", [64]))[0], "grid.x")

    kernel = neptune.compile(nb.compute((n,), value, "y"), template, inputs=[x, h, i], target="llvm")
    (compiled,) = compile_offline(kernel.source, kernel.build.tiles, target, {"BLOCK": 64})
    assert compiled.registers > 0


# --- sizes ---------------------------------------------------------------------------------------------


def test_bounds_and_shapes_by_variable() -> None:
    n = nb.var("n")
    x = nb.placeholder((n,), "float32", "x")
    y = nb.compute((n,), lambda i: x[i] + 1, "y")
    kernel = neptune.compile(y, lambda sch: None, target="llvm", bounds={n: 4}, shapes={n: 3})
    assert kernel(torch.zeros(4)).tolist() == [1.0] * 4
    with pytest.raises(ShapeError):
        kernel(torch.zeros(5))
    for bad in ({"k": 3}, {nb.var("k"): 3}, {3: 3}, {n: 1.5}, 7):
        with pytest.raises(ShapeError):
            neptune.compile(y, lambda sch: None, target="llvm", bounds=bad)
