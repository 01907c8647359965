"""The table: an operator of ATen's, all of its overloads, as a rule on expressions.

A rule takes the dtype that torch computes in (`computed`), and the arguments as expressions or Python numbers. Where
the result is no condition that is the result's own; a comparison's is what torch promotes its operands to. Rules give a
value of this dtype, or a condition; the caller rounds it to the dtype of the node, or keeps its digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from neptune.errors import Unsupported
from neptune.frontend import functions as fn
from neptune.ir import expr as ir
from neptune.ir.dtypes import DTYPES, is_float, is_int
from neptune.ir.expr import Const, Expr, Op
from neptune.ir.ops import LIBM, OPS
from neptune.torch_ops import functions, special
from neptune.torch_ops.scalars import Number, as_dtype, below_zero, held, name_of, nan_first, promoted

Rule = Callable[..., Expr]
"""(dtype, args…, named…) → the value of the node, in this dtype or a condition."""


@dataclass(frozen=True)
class Row:
    """`operands`: how many of the arguments are promoted to one dtype. `jumps`: the value jumps with its operands, or
    torch reads numbers in the operands' dtype: of 16 bits, operands and numbers are rounded before."""

    rule: Rule
    operands: int = 1
    jumps: bool = False

    def dtype(self, node: torch.fx.Node) -> torch.dtype:
        """The dtype that the operands of a node meet in."""
        dtype: torch.dtype = node.meta["val"].dtype
        return promoted(node.args[: self.operands]) if dtype == torch.bool else dtype

    def operand(self, x: Any, dtype: torch.dtype) -> Any:
        """An operand that meets the others in `dtype`, as torch's kernel reads it."""
        if not self.jumps or x is None or not dtype.is_floating_point:
            return x
        if isinstance(x, Number):
            return held(x, dtype)
        return x if x.dtype == "bool" else as_dtype(x, name_of(dtype))


# --- kinds of rules ----------------------------------------------------------------------------


def _of(name: str) -> Rule:
    """An operator of expressions, on arguments in the node's dtype."""
    return lambda dtype, *args: ir.op(name, *(as_dtype(a, dtype) for a in args))


def _made(function: Callable[..., Expr]) -> Rule:
    """A function of expressions, likewise."""
    return lambda dtype, *args: function(*(as_dtype(a, dtype) for a in args))


def _if_float(name: str) -> Rule:
    """An operator that leaves integers as they are."""
    return lambda dtype, x: ir.op(name, as_dtype(x, dtype)) if is_float(dtype) else as_dtype(x, dtype)


def _added(sign: str) -> Rule:
    def rule(dtype: str, a: Any, b: Any, alpha: Number = 1) -> Expr:
        x, y = as_dtype(a, dtype), as_dtype(b, dtype)
        if dtype == "bool":
            return ir.logical_or(x, ir.logical_and(y, as_dtype(alpha, "bool")))
        return ir.binary(sign, x, y if alpha == 1 else ir.binary("mul", y, alpha))

    return rule


def _product(dtype: str, a: Any, b: Any) -> Expr:
    x, y = as_dtype(a, dtype), as_dtype(b, dtype)
    return ir.logical_and(x, y) if dtype == "bool" else ir.binary("mul", x, y)


def _compared(name: str) -> Rule:
    def rule(dtype: str, a: Any, b: Any) -> Expr:
        if dtype == "bool" and name not in ("eq", "ne"):
            dtype = "int32"
        x, y = as_dtype(a, dtype), as_dtype(b, dtype)
        # |x| <= y as two comparisons is a set of tiles; so is y >= |x|.
        for below, above, order in ((x, y, ("le", "lt")), (y, x, ("ge", "gt"))):
            if name in order and isinstance(below, Op) and below.name == "abs" and is_int(dtype):
                upper = ir.binary("le" if name in ("le", "ge") else "lt", below.args[0], above)
                lower = ir.binary("ge" if name in ("le", "ge") else "gt", below.args[0], ir.op("neg", above))
                return ir.logical_and(upper, lower)
        return ir.binary(name, x, y)

    return rule


def _apart(x: Expr, y: Expr) -> Expr:
    """The condition that two values other than 0 have other signs."""
    return ir.ne(ir.binary("lt", x, 0), ir.binary("lt", y, 0))


def _divided(dtype: str, a: Any, b: Any, rounding_mode: str | None = None) -> Expr:
    x, y = as_dtype(a, dtype), as_dtype(b, dtype)
    if rounding_mode is None or is_float(dtype):
        quotient = ir.binary("div", x, y)
        return _floored(x, y) if rounding_mode == "floor" else fn.trunc(quotient) if rounding_mode else quotient
    down = ir.binary("floordiv", x, y)
    if rounding_mode == "floor":
        return down
    off = ir.logical_and(ir.ne(ir.binary("mod", x, y), 0), _apart(x, y))
    return ir.binary("add", down, ir.select(off, as_dtype(1, dtype), as_dtype(0, dtype)))


def _floored(x: Expr, y: Expr) -> Expr:
    """torch's x // y of floats: through fmod, so that what is left is exact."""
    left = ir.binary("fmod", x, y)
    exact = ir.binary("div", ir.binary("sub", x, left), y)
    whole = ir.select(ir.logical_and(ir.ne(left, 0.0), _apart(y, left)), exact - 1.0, exact)
    down = fn.floor(whole)
    near = ir.select(ir.binary("gt", whole - down, 0.5), down + 1.0, down)
    quotient = ir.binary("div", x, y)
    zero = ir.select(below_zero(quotient), Const(-0.0, x.dtype), Const(0.0, x.dtype))
    return ir.select(ir.eq(y, 0.0), quotient, ir.select(ir.eq(whole, 0.0), zero, near))


def _remainder(dtype: str, a: Any, b: Any) -> Expr:
    x, y = as_dtype(a, dtype), as_dtype(b, dtype)
    if is_int(dtype):
        return ir.binary("mod", x, y)
    left = ir.binary("fmod", x, y)
    return ir.select(ir.logical_and(ir.ne(left, 0.0), _apart(y, left)), left + y, left)


def _fmod(dtype: str, a: Any, b: Any) -> Expr:
    x, y = as_dtype(a, dtype), as_dtype(b, dtype)
    if is_float(dtype):
        return ir.binary("fmod", x, y)
    left = ir.binary("mod", x, y)
    return ir.select(ir.logical_and(ir.ne(left, 0), _apart(x, y)), ir.binary("sub", left, y), left)


def _power(dtype: str, a: Any, b: Any) -> Expr:
    x = as_dtype(a, dtype)
    if is_int(dtype) or dtype == "bool":
        return _whole_power(x, b)
    if isinstance(b, Number):
        known = {0: lambda: as_dtype(1, dtype), 0.5: lambda: fn.sqrt(x), -0.5: lambda: fn.rsqrt(x),
                 -1: lambda: ir.binary("div", 1.0, x), -2: lambda: ir.binary("div", 1.0, x * x)}  # fmt: skip
        if b in known:
            return known[b]()
        if b % 1 == 0 and 1 <= b <= 4:
            return _times(x, int(b))
        b = float(b)
    return functions.power(x, as_dtype(b, dtype))


def _times(x: Expr, n: int) -> Expr:
    whole = x
    for _ in range(n - 1):
        whole = ir.binary("mul", whole, x)
    return whole


def _whole_power(x: Expr, b: Any) -> Expr:
    """An integer to an integral power: by squaring, of as many bits as a power that fits can have."""
    if isinstance(b, Number):
        if b < 0:
            raise Unsupported("an integer to a negative power", hint="a power of a float")
        return _times(x, int(b)) if b else as_dtype(1, x.dtype)
    y = as_dtype(b, x.dtype)
    one, zero = as_dtype(1, x.dtype), as_dtype(0, x.dtype)
    odd = [ir.ne(ir.bitwise("and", y, 1 << bit), 0) for bit in range(6)]
    result, square = one, x
    for chosen in odd:
        result = ir.select(chosen, ir.binary("mul", result, square), result)
        square = ir.binary("mul", square, square)
    # Beyond 63 the power of none but 0, 1 and -1 fits; below 0 torch has that of 1 and -1, else 0.
    sign = ir.select(odd[0], x, one)
    unit = ir.select(ir.eq(x, 1), x, ir.select(ir.eq(x, -1), sign, zero))
    return ir.select(ir.logical_or(ir.binary("lt", y, 0), ir.binary("gt", y, 63)), unit, result)


def _shifted(name: str) -> Rule:
    """A shift; by less than 0, or by the width and more, all bits are gone, as in torch."""

    def rule(dtype: str, a: Any, b: Any) -> Expr:
        x, y = as_dtype(a, dtype), as_dtype(b, dtype)
        bits = DTYPES[dtype].bits
        inside = ir.logical_and(ir.binary("ge", y, 0), ir.binary("lt", y, bits))
        if isinstance(y, Const) and 0 <= y.value < bits:
            return ir.binary(name, x, y)
        last = ir.binary("shr", x, bits - 1) if name == "shr" else as_dtype(0, dtype)
        return ir.select(inside, ir.binary(name, x, ir.select(inside, y, as_dtype(0, dtype))), last)

    return rule


def _extreme(word: str) -> Rule:
    return lambda dtype, a, b: nan_first(word)(as_dtype(a, dtype), as_dtype(b, dtype))


def _clamped(dtype: str, a: Any, low: Any = None, high: Any = None, **named: Any) -> Expr:
    x = as_dtype(a, dtype)
    for word, bound in (("max", named.get("min", low)), ("min", named.get("max", high))):
        x = x if bound is None else _extreme(word)(dtype, x, bound)
    return x


def _sign(dtype: str, a: Any) -> Expr:
    x = as_dtype(a, dtype)
    if dtype == "bool":
        return x
    # torch's sign of NaN is 0, ours NaN.
    minus, zero, one = (as_dtype(n, dtype) for n in (-1, 0, 1))
    return ir.select(ir.binary("gt", x, 0), one, ir.select(ir.binary("lt", x, 0), minus, zero))


def _angle(dtype: str, a: Any) -> Expr:
    x, zero, half_turn = as_dtype(a, dtype), as_dtype(0.0, dtype), as_dtype(math.pi, dtype)
    return ir.select(ir.binary("lt", x, 0), half_turn, ir.select(ir.is_nan(x), x, zero))


def _chosen(dtype: str, pred: Any, a: Any, b: Any) -> Expr:
    return ir.select(as_dtype(pred, "bool"), as_dtype(a, dtype), as_dtype(b, dtype))


def _logical(name: str) -> Rule:
    return lambda dtype, a, b: ir.bitwise(name, as_dtype(a, "bool"), as_dtype(b, "bool"))


def _bitwise(name: str) -> Rule:
    return lambda dtype, a, b: ir.bitwise(name, as_dtype(a, dtype), as_dtype(b, dtype))


def _asked(question: Callable[[Expr], Expr]) -> Rule:
    """A question to which the answer of integers is no."""
    return lambda dtype, x: question(as_dtype(x, dtype)) if is_float(dtype) else ir.FALSE


def _same(dtype: str, a: Any, *_: Any, **__: Any) -> Expr:
    return as_dtype(a, dtype)


def _rounded(dtype: str, a: Any, decimals: int = 0) -> Expr:
    x = as_dtype(a, dtype)
    if not decimals or not is_float(dtype):
        return fn.round(x) if is_float(dtype) else x
    by = 10.0 ** abs(decimals)
    return fn.round(x * by) / by if decimals > 0 else fn.round(x / by) * by


def _copied_sign(dtype: str, a: Any, b: Any) -> Expr:
    x = fn.abs(as_dtype(a, dtype))
    return ir.select(below_zero(as_dtype(b, dtype)), ir.op("neg", x), x)


def _with_product(name: str) -> Rule:
    def rule(dtype: str, a: Any, b: Any, c: Any, value: Number = 1) -> Expr:
        x, y, z = (as_dtype(v, dtype) for v in (a, b, c))
        return x + ir.binary(name, y if value == 1 else y * as_dtype(value, dtype), z)

    return rule


# --- the rows ----------------------------------------------------------------------------------


def _rows(operands: int, jumps: bool, rules: Mapping[str, Rule]) -> dict[str, Row]:
    return {name: Row(rule, operands, jumps) for name, rule in rules.items()}


_SMOOTH = ("neg", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "sin", "cos")
_LIBM = {name: Row(_of(name), OPS[name].arity) for name in LIBM}
TABLE: Mapping[str, Row] = {
    **_rows(1, False, {name: _of(name) for name in _SMOOTH}),
    **_LIBM,
    **_rows(1, False, {name: _made(function) for name, function in {**functions.UNARY, **special.UNARY}.items()}),
    **_rows(1, True, {name: _if_float(name) for name in ("floor", "ceil", "trunc")}),
    **_rows(1, False, {
        "abs": lambda dtype, x: as_dtype(x, dtype) if dtype == "bool" else fn.abs(as_dtype(x, dtype)),
        "positive": _same,
        "reciprocal": lambda dtype, x: ir.binary("div", 1.0, as_dtype(x, dtype)),
        "relu": lambda dtype, x: _extreme("max")(dtype, x, 0),
    }),
    **_rows(1, True, {
        "round": _rounded,
        "sign": _sign,
        "signbit": lambda dtype, x: below_zero(as_dtype(x, dtype)),
        "angle": _angle,
        "logical_not": lambda dtype, x: ir.op("not", as_dtype(x, "bool")),
        "bitwise_not": lambda dtype, x: ir.invert(as_dtype(x, dtype)),
        "isnan": _asked(ir.is_nan),
        "isinf": _asked(ir.is_inf),
    }),
    **_rows(2, False, special.BINARY),
    **_rows(2, False, {
        "add": _added("add"),
        "sub": _added("sub"),
        "mul": _product,
        "div": _divided,
        "pow": _power,
        "ldexp": lambda dtype, a, b: ir.binary("mul", as_dtype(a, dtype), ir.binary("pow", 2.0, as_dtype(b, dtype))),
    }),
    **_rows(2, True, {name: _compared(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}),
    **_rows(2, True, {f"logical_{name}": _logical(name) for name in ("and", "or", "xor")}),
    **_rows(2, True, {f"bitwise_{name}": _bitwise(name) for name in ("and", "or", "xor")}),
    **_rows(2, True, {name: _shifted("shl") for name in ("bitwise_left_shift", "__lshift__")}),
    **_rows(2, True, {name: _shifted("shr") for name in ("bitwise_right_shift", "__rshift__")}),
    **_rows(2, True, {
        "remainder": _remainder,
        "fmod": _fmod,
        "maximum": _extreme("max"),
        "minimum": _extreme("min"),
        "fmax": _made(ir.maximum),
        "fmin": _made(ir.minimum),
        "max": _extreme("max"),
        "min": _extreme("min"),
        "copysign": _copied_sign,
        "copy": lambda dtype, a, b, *_: as_dtype(b, dtype),
        "clamp_min": _clamped,
        "clamp_max": lambda dtype, a, high: _clamped(dtype, a, None, high),
    }),
    **_rows(3, True, {"clamp": _clamped, "where": _chosen}),
    **_rows(3, False, {"addcmul": _with_product("mul"), "addcdiv": _with_product("div")}),
}  # fmt: skip
OVERLOADS = {"max": ("other",), "min": ("other",), "where": ("self", "ScalarSelf", "ScalarOther", "Scalar")}
"""The overloads that are functions of single values, of operators that have others beside."""

PRIMS = ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "eq", "ne", "lt", "le", "gt", "ge", "where")
"""The primitives that torch's decompositions leave."""


@cache
def overloads() -> dict[Any, Row]:
    """Every overload, by torch's schemas, that makes one new tensor of tensors and numbers, with its row."""
    prims = torch.ops.prims
    known = {getattr(prims, name).default: TABLE[name] for name in PRIMS}
    for name, row in TABLE.items():
        packet = getattr(torch.ops.aten, name)
        for overload in OVERLOADS.get(name, packet.overloads()):
            target = getattr(packet, overload)
            arguments = target._schema.arguments
            returned = [str(r.type) for r in target._schema.returns]
            tensors = any(isinstance(a.type, torch.TensorType) for a in arguments)
            if tensors and not target._schema.is_mutable and returned == ["Tensor"]:
                known[target] = row
    return known
