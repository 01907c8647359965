"""Scalars of torch's as expressions: their dtypes, casts between them, and what torch promotes several to."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
from torch.fx import Node

from neptune.errors import Unsupported
from neptune.ir import expr as ir
from neptune.ir.dtypes import DTYPES, holds, is_float, is_int
from neptune.ir.expr import Cast, Const, Expr, Op, cast, op
from neptune.ir.indices.widths import ARITHMETIC, Known, interval, opaque, widened

Number = bool | int | float
NARROW = ("float16", "bfloat16")
LONGEST = 30000
SHORT = ("int8", "uint8", "int16", "uint16")
"""Integers that are computed in int32, and wrap around to their own width."""


def name_of(dtype: torch.dtype) -> str:
    """The name of a torch dtype here; Unsupported for one that expressions do not have."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise Unsupported(f"values of {dtype} are none of an expression", hint="one of " + ", ".join(DTYPES))
    return name


def computed(dtype: torch.dtype) -> str:
    """The dtype in which torch's kernels compute a value: floats of 16 bits in float32, and short integers in int32."""
    name = str(dtype).removeprefix("torch.")
    return "float32" if name in NARROW else "int32" if name in SHORT else name_of(dtype)


def _truncated(x: Expr, dtype: str) -> Expr:
    """A float as torch casts it to an integer: without its fraction, by way of int32 or int64, of which the lowest bits
    are left. Of NaN, and what has no room there, torch has the machine's own: here that of x86, on every target."""
    by = "int32" if dtype in ("int8", "int32") else "int64"
    top = 2 ** (DTYPES[by].bits - 1)
    inside = ir.binary("lt", op("abs", x), float(top))
    return cast(ir.select(inside, cast(x, by), Const(-top, by)), dtype)


def as_dtype(x: Any, dtype: str) -> Expr:
    """A value in a dtype: numbers are written in it, expressions cast."""
    if not isinstance(x, Number):
        e: Expr = x
        if e.dtype == "bool" and dtype != "bool":
            return ir.select(e, ir.as_expr(1, dtype), ir.as_expr(0, dtype))
        if is_int(dtype) and is_float(e.dtype):
            return _truncated(e, dtype)
        return ir.ne(e, 0) if dtype == "bool" and e.dtype != "bool" else ir.cast(e, dtype)
    if dtype == "bool":
        return Const(bool(x), "bool")
    if is_int(dtype) and not holds(dtype, (int(x), int(x))):
        raise Unsupported(f"{x} is no number of {dtype}", hint="tensor[…].long(), which has room for it")
    return Const(float(x), dtype) if is_float(dtype) else Const(int(x), dtype)


def wrapped(e: Expr, dtype: torch.dtype) -> Expr:
    """A value that was computed in a wider dtype as one of `dtype`: floats are rounded, integers wrap around."""
    name = str(dtype).removeprefix("torch.")
    if name not in ("int16", "uint16"):
        return as_dtype(e, name_of(dtype))
    if isinstance(e, Const):
        return Const(int(torch.tensor(int(e.value)).to(dtype)), "int32")
    low = 2**15 if name == "int16" else 0
    return as_dtype(e, "int32") if e.dtype in ("bool", "int8", "uint8") else (e + low) % 2**16 - low


def as_torch(e: Expr, dtype: str, known: Known) -> Expr:
    """The value of a node that torch computes in `dtype`, which wraps around where it leaves that."""
    if not is_int(dtype) or not is_int(e.dtype) or not isinstance(e, Op | Cast):
        return e
    source = interval(e, known)
    if isinstance(e, Op) and (e.name not in ARITHMETIC or holds(dtype, source)):
        return e
    if dtype == "int64":
        return opaque(cast(e, "int64")) if isinstance(e, Op) else e
    if isinstance(e, Op):
        return cast(opaque(op(e.name, *(cast(widened(a, known), "int64") for a in e.args))), dtype)
    return e if holds(dtype, interval(e.arg, known)) else cast(opaque(e.arg), dtype)


def promoted(operands: Sequence[Any]) -> torch.dtype:
    """What torch promotes operands to: nodes of a graph, and Python's numbers, which bend to tensors of their kind."""
    values = [o.meta["val"] if isinstance(o, Node) else o for o in operands if o is not None]
    plain = [1 if isinstance(v, torch.SymInt) else 1.0 if isinstance(v, torch.SymFloat) else v for v in values]
    dtype: torch.dtype = elementwise_dtypes(*plain, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.NO_OPMATH)[1]
    return dtype


def held(x: Any, dtype: torch.dtype) -> Any:
    """A Python number as a tensor of `dtype` holds it; anything else as it is."""
    if not isinstance(x, Number) or dtype == torch.bool:
        return x
    if not dtype.is_floating_point and not torch.iinfo(dtype).min <= x <= torch.iinfo(dtype).max:
        raise Unsupported(f"the number {x} is none of {dtype}", hint="a tensor of a wider dtype")
    return torch.tensor(x, dtype=dtype, device="cpu").item()


def bounded(e: Expr) -> Expr:
    """An expression that can be written out; Unsupported where functions of functions repeat their arguments so
    often that it has more than `LONGEST` operators."""
    sizes: dict[int, int] = {}

    def size(x: Expr) -> int:
        if id(x) not in sizes:
            sizes[id(x)] = 1 + sum(size(p) for p in x.parts)
        return sizes[id(x)]

    if size(e) > LONGEST:
        raise Unsupported("functions of functions, written out, are too long", hint="fewer of them within each other")
    return e


def nan_first(word: str) -> Callable[[Expr, Expr], Expr]:
    """torch's maximum ("max") and minimum ("min"), which keep NaN where ours pass over it.

    >>> from neptune.ir.text.printer import print_expr
    >>> print_expr(nan_first("max")(ir.Var("x", "float32"), Const(1.0, "float32")))
    'select(x < 1.0, 1.0, x)'
    """
    beyond, within = ("lt", "ge") if word == "max" else ("gt", "le")

    def choose(a: Expr, b: Expr) -> Expr:
        if is_int(a.dtype):
            return ir.binary(word, a, b)
        if a.dtype == "bool":
            return ir.logical_or(a, b) if word == "max" else ir.logical_and(a, b)
        if isinstance(b, Const) and not math.isnan(b.value):
            return ir.select(ir.binary(beyond, a, b), b, a)
        return ir.select(ir.logical_or(ir.is_nan(a), ir.binary(within, a, b)), a, b)

    return choose


def below_zero(x: Expr) -> Expr:
    """The condition that a sign is set, also that of a zero; of a NaN it is not seen."""
    if not is_float(x.dtype):
        return ir.binary("lt", x, 0) if is_int(x.dtype) else ir.FALSE
    zero = ir.logical_and(ir.eq(x, 0.0), ir.binary("lt", ir.binary("div", 1.0, x), 0.0))
    return ir.logical_or(ir.binary("lt", x, 0.0), zero)
