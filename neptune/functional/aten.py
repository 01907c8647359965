"""ATen's functions of scalars as expressions: what a traced mod is made of.

A row of `RULES` takes the node's dtype as torch has it, and the arguments as expressions or Python numbers. torch has
promoted nothing yet: arguments meet in the node's dtype, those of a comparison in what torch would promote them to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from neptune.frontend import functions as fn
from neptune.ir import expr as ir
from neptune.ir.dtypes import DTYPES, is_float, is_int
from neptune.ir.expr import Const, Expr, Op

Number = bool | int | float
Rule = Callable[..., Expr]
"""(dtype, args…, named…) → the value of the node, of this dtype."""


@dataclass(frozen=True)
class NotAnExpression(Exception):
    """A node that no rule takes. `wrong` says why, `hint` what to write."""

    wrong: str
    hint: str | None = None


def name_of(dtype: torch.dtype) -> str:
    """The name of a torch dtype here; NotAnExpression for one that expressions do not have."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise NotAnExpression(f"values of {dtype} are none of an expression", "one of " + ", ".join(DTYPES))
    return name


def as_dtype(x: Any, dtype: str) -> Expr:
    """A value in a dtype: numbers are written in it, expressions cast."""
    if not isinstance(x, Number):
        e: Expr = x
        if e.dtype == "bool" and dtype != "bool":
            return ir.select(e, ir.as_expr(1, dtype), ir.as_expr(0, dtype))
        return ir.ne(e, 0) if dtype == "bool" and e.dtype != "bool" else ir.cast(e, dtype)
    if dtype == "bool":
        return Const(bool(x), "bool")
    return Const(float(x), dtype) if is_float(dtype) else Const(int(x), dtype)


# --- kinds of rules ----------------------------------------------------------------------------


def _of(name: str) -> Rule:
    """An operator of expressions, on arguments in the node's dtype."""
    return lambda dtype, *args: ir.op(name, *(as_dtype(a, dtype) for a in args))


def _added(sign: str) -> Rule:
    def rule(dtype: str, a: Any, b: Any, alpha: Number = 1) -> Expr:
        x, y = as_dtype(a, dtype), as_dtype(b, dtype)
        return ir.binary(sign, x, y if alpha == 1 else ir.binary("mul", y, alpha))

    return rule


def _reversed(dtype: str, a: Any, b: Any, alpha: Number = 1) -> Expr:
    return _added("sub")(dtype, b, a, alpha)


def _compared(name: str) -> Rule:
    def rule(dtype: str, a: Any, b: Any) -> Expr:
        common = _promoted(a, b)
        x, y = as_dtype(a, common), as_dtype(b, common)
        # |x| <= y as two comparisons is a set of tiles; so is y >= |x|.
        for below, above, order in ((x, y, ("le", "lt")), (y, x, ("ge", "gt"))):
            if name in order and isinstance(below, Op) and below.name == "abs" and is_int(common):
                upper = ir.binary("le" if name in ("le", "ge") else "lt", below.args[0], above)
                lower = ir.binary("ge" if name in ("le", "ge") else "gt", below.args[0], ir.op("neg", above))
                return ir.logical_and(upper, lower)
        return ir.binary(name, x, y)

    return rule


def _promoted(a: Any, b: Any) -> str:
    """The dtype in which torch compares two scalars; a Python number bends to a tensor of its kind."""
    if isinstance(b, Number):
        if isinstance(a, Number):
            return "float32"
        if a.dtype == "bool" and not isinstance(b, bool):
            return "float32" if isinstance(b, float) else "int64"
        return a.dtype if not isinstance(b, float) or is_float(a.dtype) else "float32"
    if isinstance(a, Number):
        return _promoted(b, a)
    x, y = getattr(torch, a.dtype), getattr(torch, b.dtype)
    return name_of(torch.promote_types(x, y))


def _divided(dtype: str, a: Any, b: Any, rounding_mode: str | None = None) -> Expr:
    x, y = as_dtype(a, dtype), as_dtype(b, dtype)
    if rounding_mode == "floor":
        return ir.binary("floordiv", x, y) if is_int(dtype) else fn.floor(ir.binary("div", x, y))
    if rounding_mode == "trunc" and is_int(dtype):
        raise NotAnExpression("a division of integers that rounds towards zero", "a // b, which rounds down")
    quotient = ir.binary("div", x, y)
    return fn.trunc(quotient) if rounding_mode == "trunc" else quotient


def _remainder(dtype: str, a: Any, b: Any) -> Expr:
    x, y = as_dtype(a, dtype), as_dtype(b, dtype)
    return ir.binary("mod", x, y) if is_int(dtype) else x - y * fn.floor(x / y)


def _power(dtype: str, a: Any, b: Any) -> Expr:
    x = as_dtype(a, dtype)
    if isinstance(b, Number) and b == int(b) and 1 <= b <= 4:
        whole = x
        for _ in range(int(b) - 1):
            whole = whole * x
        return whole
    if not is_float(dtype):
        raise NotAnExpression("an integer to the power of a value", "a power of a float")
    return ir.binary("pow", x, as_dtype(b, dtype))


def nan_first(word: str) -> Callable[[Expr, Expr], Expr]:
    """torch's maximum ("max") and minimum ("min"), which keep NaN where ours pass over it.

    >>> from neptune.ir.printer import print_expr
    >>> print_expr(nan_first("max")(ir.Var("x", "float32"), Const(1.0, "float32")))
    'select(x < 1.0, 1.0, x)'
    """
    beyond, within = ("lt", "ge") if word == "max" else ("gt", "le")

    def choose(a: Expr, b: Expr) -> Expr:
        if is_int(a.dtype):
            return ir.binary(word, a, b)
        if isinstance(b, Const) and not math.isnan(b.value):
            return ir.select(ir.binary(beyond, a, b), b, a)
        return ir.select(ir.logical_or(ir.is_nan(a), ir.binary(within, a, b)), a, b)

    return choose


def _extreme(word: str) -> Rule:
    return lambda dtype, a, b: nan_first(word)(as_dtype(a, dtype), as_dtype(b, dtype))


def _clamped(dtype: str, a: Any, low: Any = None, high: Any = None, **named: Any) -> Expr:
    x = as_dtype(a, dtype)
    for word, bound in (("max", named.get("min", low)), ("min", named.get("max", high))):
        x = x if bound is None else _extreme(word)(dtype, x, bound)
    return x


def _sign(dtype: str, a: Any) -> Expr:
    x = as_dtype(a, dtype)
    # torch's sign of NaN is 0, ours NaN.
    minus, zero, one = (as_dtype(n, dtype) for n in (-1, 0, 1))
    return ir.select(ir.binary("gt", x, 0), one, ir.select(ir.binary("lt", x, 0), minus, zero))


def _chosen(dtype: str, pred: Any, a: Any, b: Any) -> Expr:
    return ir.select(as_dtype(pred, "bool"), as_dtype(a, dtype), as_dtype(b, dtype))


def _logical(name: str) -> Rule:
    return lambda dtype, a, b: ir.bitwise(name, as_dtype(a, "bool"), as_dtype(b, "bool"))


def _bitwise(name: str) -> Rule:
    return lambda dtype, a, b: ir.bitwise(name, as_dtype(a, dtype), as_dtype(b, dtype))


def _same(dtype: str, a: Any, *_: Any, **__: Any) -> Expr:
    return as_dtype(a, dtype)


def _constant(position: int, value: Number | None = None) -> Rule:
    """A new scalar: the argument at this position, or `value`."""
    return lambda dtype, *args, **_: as_dtype(args[position] if value is None else value, dtype)


def _gelu(dtype: str, a: Any, approximate: str = "none") -> Expr:
    x = as_dtype(a, dtype)
    if approximate == "tanh":
        return x * 0.5 * (fn.tanh((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)) + 1.0)
    return x * 0.5 * (fn.erf(x * math.sqrt(0.5)) + 1.0)


_UNARY = (
    *("neg", "abs", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "sin", "cos"),
    *("floor", "ceil", "round", "trunc"),
)
SAME = ("_to_copy", "lift_fresh", "lift_fresh_copy", "clone", "detach", "alias", "to", "view", "squeeze")
_NEW = {"ones": 1, "zeros": 0, "new_ones": 1, "new_zeros": 0, "ones_like": 1, "zeros_like": 0}
RULES: Mapping[str, Rule] = {
    **{name: _of(name) for name in (*_UNARY, "mul")},
    **{name: _compared(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{f"logical_{name}": _logical(name) for name in ("and", "or", "xor")},
    **{f"bitwise_{name}": _bitwise(name) for name in ("and", "or", "xor")},
    **dict.fromkeys(SAME, _same),
    **{name: _constant(0, value) for name, value in _NEW.items()},
    "add": _added("add"),
    "sub": _added("sub"),
    "rsub": _reversed,
    "div": _divided,
    "true_divide": _divided,
    "floor_divide": lambda dtype, a, b: _divided(dtype, a, b, "floor"),
    "remainder": _remainder,
    "fmod": _of("fmod"),
    "pow": _power,
    "maximum": _extreme("max"),
    "minimum": _extreme("min"),
    "clamp": _clamped,
    "clamp_min": _clamped,
    "clamp_max": lambda dtype, a, high: _clamped(dtype, a, None, high),
    "where": _chosen,
    "logical_not": lambda dtype, a: ir.op("not", as_dtype(a, "bool")),
    "bitwise_not": lambda dtype, a: ir.invert(as_dtype(a, dtype)),
    "isnan": lambda dtype, a: ir.is_nan(a),
    "isinf": lambda dtype, a: ir.is_inf(a),
    "sign": _sign,
    "reciprocal": lambda dtype, a: ir.binary("div", 1.0, as_dtype(a, dtype)),
    "tan": lambda dtype, a: fn.sin(as_dtype(a, dtype)) / fn.cos(as_dtype(a, dtype)),
    "relu": lambda dtype, a: _extreme("max")(dtype, a, 0),
    "silu": lambda dtype, a: as_dtype(a, dtype) * fn.sigmoid(as_dtype(a, dtype)),
    "gelu": _gelu,
    "scalar_tensor": _constant(0),
    "full": _constant(1),
    "full_like": _constant(1),
    "new_full": _constant(2),
}
