"""TVM's expressions as ours: what the importers of tensor expressions and of PrimFuncs share.

TVM folds some expressions before anyone can see them (`x * 0` is 0, `not (x > 0)` is `x <= 0`). Sizes and
indices of int64 become int32; `round` and `nearbyint` are one function, to nearest and ties to even, as TVM
compiles them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import tvm
from tvm import tirx

from neptune.errors import ExpressionError
from neptune.frontend.assemble import Axis, Tensor, unique
from neptune.ir.analysis.facts import range_of
from neptune.ir.dtypes import DTYPES, is_float, is_int
from neptune.ir.expr import Const, Expr, Op, Var, binary, bitwise, cast, invert, is_nan, op, select
from neptune.ir.ops import LIBM, Range
from neptune.ir.reducers import BY_OP
from neptune.ir.text.printer import print_expr

T = TypeVar("T")
_BINARY = {
    tirx.Add: "add",
    tirx.Sub: "sub",
    tirx.Mul: "mul",
    tirx.Div: "div",
    tirx.FloorDiv: "floordiv",
    tirx.FloorMod: "mod",
    tirx.Min: "min",
    tirx.Max: "max",
    tirx.LT: "lt",
    tirx.LE: "le",
    tirx.GT: "gt",
    tirx.GE: "ge",
    tirx.EQ: "eq",
    tirx.NE: "ne",
    tirx.And: "and",
    tirx.Or: "or",
    tirx.BitwiseAnd: "bitand",
    tirx.BitwiseOr: "bitor",
    tirx.BitwiseXor: "bitxor",
    tirx.LShift: "shl",
    tirx.RShift: "shr",
}
COMBINERS = {node: BY_OP[name].name for node, name in _BINARY.items() if name in BY_OP}
"""The reducer of an operator that folds."""
_SAME_NAME = ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "sigmoid", "pow", "erf", "sin", "cos")
_CALLS = {name: name for name in (*_SAME_NAME, *LIBM, "floor", "ceil", "round", "trunc")}
_CALLS |= {"nearbyint": "round", "fabs": "abs"}
_COMPOSED: dict[str, Callable[[Expr], Expr]] = {}
"""Functions that TVM itself computes by others."""


@dataclass
class Names:
    """The names given so far; TVM objects are keys by identity. Tensors are named before any size."""

    names: dict[Any, str] = field(default_factory=dict)
    scalars: dict[Any, Var] = field(default_factory=dict)
    axes: dict[Any, str] = field(default_factory=dict)

    def name(self, key: Any, text: str) -> str:
        """The name of a tensor: `text` as an identifier, with a suffix where another tensor has it."""
        if key not in self.names:
            self.names[key] = unique(identifier(text), self.names.values())
        return self.names[key]

    def scalar(self, v: Any, stage: str) -> Var:
        """The size or scalar argument for a free variable."""
        if v not in self.scalars:
            names = {*self.names.values(), *(s.name for s in self.scalars.values())}
            dtype = known_dtype(f"importing stage `{stage}`", v.name, v.ty)
            # TE's int64 sizes and indices would only put casts everywhere; lengths fit 32 bits.
            dtype = "int32" if is_int(dtype) else dtype
            self.scalars[v] = Var(unique(identifier(v.name), names), dtype)
        return self.scalars[v]

    def check_scalars(self) -> None:
        """A stage that reads another stage's axis would silently get it as a scalar argument."""
        for v in self.scalars:
            if v in self.axes:
                raise ExpressionError(
                    f"importing stage `{self.axes[v]}`",
                    f"its axis `{v.name}` is also used outside of it",
                    hint="every axis belongs to one stage, and a reduce axis to one reduction over it",
                )


@dataclass
class Scope:
    """The translation of one stage's expressions; `env` holds its loop variables, `source` finds a tensor."""

    names: Names
    stage: str
    source: Callable[[Any], Tensor]
    env: dict[Any, Expr] = field(default_factory=dict)

    def bind(self, itervars: Sequence[Any], name: str | None = None) -> tuple[Axis, ...]:
        """Make the axes of `itervars` known here, under `name` where it is given."""
        axes = []
        for iv in itervars:
            lo = self.size(iv.dom.min)
            axis = Axis(identifier(name or iv.var.name), "int32", lo, _end(lo, self.size(iv.dom.extent)))
            self.env[iv.var] = axis
            self.names.axes[iv.var] = self.stage
            axes.append(axis)
        return tuple(axes)

    def size(self, e: Any) -> Expr:
        """An extent or a bound. Literals are int32, as all sizes are here."""
        size = self.expr(e)
        return Const(size.value, "int32") if isinstance(size, Const) else size

    def shape(self, dims: Sequence[Any]) -> tuple[Expr, ...]:
        """The sizes of a tensor."""
        return tuple(self.size(d) for d in dims)

    def expr(self, e: Any) -> Expr:
        """One TVM expression."""
        kind = type(e)
        if kind is tirx.IntImm:
            dtype = known_dtype(f"importing stage `{self.stage}`", str(e.value), e.ty)
            return Const(bool(e.value) if dtype == "bool" else int(e.value), dtype)
        if kind is tirx.FloatImm:
            return Const(float(e.value), known_dtype(f"importing stage `{self.stage}`", str(e.value), e.ty))
        if kind is tirx.Var:
            return self.env[e] if e in self.env else self.names.scalar(e, self.stage)
        if kind in _BINARY or kind is tirx.Mod:
            return self.binary(e)
        if kind is tirx.Not:
            return self.checked(e, lambda: op("not", self.expr(e.a)))
        if kind is tirx.BitwiseNot:
            return self.checked(e, lambda: invert(self.expr(e.a)))
        if kind is tirx.Select:
            return self.checked(
                e, lambda: select(self.expr(e.condition), self.expr(e.true_value), self.expr(e.false_value))
            )
        if kind is tirx.Cast:
            return self.cast(e)
        if kind is tirx.Let:
            self.env[e.var] = self.expr(e.value)
            return self.expr(e.body)
        if kind is tvm.ir.TensorLoad:
            return self.read(e, e.source, e.indices)
        if kind is tvm.ir.Call:
            return self.call(e)
        raise self.refuse(kind.__name__, "this node is not supported")

    def read(self, e: Any, source: Any, indices: Sequence[Any]) -> Expr:
        """One element of a tensor."""
        index = [self.expr(i) for i in indices]
        tensor = self.source(source)
        return self.checked(e, lambda: tensor(*index))

    def binary(self, e: Any) -> Expr:
        """An operator of two sides; TVM's `/` and `truncmod` on integers round towards zero."""
        a, b = _level(self.expr(e.a), self.expr(e.b))
        kind = type(e)
        if kind is tirx.Mod and is_float(a.dtype):
            return self.checked(e, lambda: op("fmod", a, b))
        if kind is tirx.Mod or (kind is tirx.Div and is_int(a.dtype)):
            return self.checked(e, lambda: _truncated(a, b, remainder=kind is tirx.Mod))
        name = _BINARY[kind]
        if name.startswith("bit"):
            return self.checked(e, lambda: bitwise(name[3:], a, b))
        return self.checked(e, lambda: binary(name, a, b))

    def cast(self, e: Any) -> Expr:
        arg = self.expr(e.value if hasattr(e, "value") else e.args[0])
        dtype = known_dtype(f"importing stage `{self.stage}`", f"cast of {print_expr(arg)}", e.ty)
        return cast(arg, dtype)

    def call(self, e: Any) -> Expr:
        """A read of a tensor, a choice, or a function of the table."""
        # The functions are spread over two namespaces: prim.log2, tirx.exp2.
        space, _, name = str(getattr(e.op, "name", e.op)).rpartition(".")
        if (space, name) == ("te", "tensor_load"):
            return self.read(e, e.args[0], e.args[1:])
        args = [self.expr(a) for a in e.args if isinstance(a, tvm.ir.Expr)]
        if name == "if_then_else":
            return self.checked(e, lambda: select(*args))
        if name == "likely":
            return args[0]
        if name == "isnan":
            return self.checked(e, lambda: is_nan(*args))
        if name in _CALLS:
            return self.checked(e, lambda: op(_CALLS[name], *args))
        if name in _COMPOSED:
            return self.checked(e, lambda: _COMPOSED[name](*args))
        text = f"{name}({', '.join(print_expr(a) for a in args)})"
        legal = sorted({*_CALLS.values(), *_COMPOSED, "if_then_else", "isnan"})
        raise self.refuse(text, "this function is not supported", legal=legal)

    def checked(self, e: Any, make: Callable[[], T]) -> T:
        """Run a constructor; what it refuses becomes an error of this stage."""
        try:
            return make()
        except TypeError as error:
            raise self.refuse(type(e).__name__, str(error)) from None
        except ExpressionError as error:
            if error.asked.startswith("importing"):
                raise
            raise self.refuse(error.asked, error.wrong, error.hint) from None

    def refuse(self, node: str, why: str, hint: str | None = None, legal: Sequence[str] = ()) -> ExpressionError:
        """The error for `node` of this stage."""
        return ExpressionError(f"importing stage `{self.stage}`", f"`{node}`: {why}", hint=hint, legal=legal)


def identifier(name: str) -> str:
    """TVM allows any text as a name; a stage's must be one identifier."""
    plain = re.sub(r"\W", "_", name)
    return plain if re.match(r"[^\W\d]", plain) else f"_{plain}"


def known_dtype(request: str, what: str, ty: Any) -> str:
    """The name of a TVM type; ExpressionError for one that the IR does not have."""
    dtype = str(ty)
    if dtype not in DTYPES:
        raise ExpressionError(request, f"`{what}` has the unsupported dtype {dtype}", legal=tuple(DTYPES))
    return dtype


def _end(lo: Expr, extent: Expr) -> Expr:
    """lo + extent, without the difference that TVM made of an axis [lo, hi)."""
    if isinstance(extent, Op) and extent.name == "sub" and extent.args[1] == lo:
        return extent.args[0]
    return binary("add", lo, extent)


def _level(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """An integer literal takes the other side's width (int64 sizes became int32, their literals did not)."""
    if isinstance(a, Const) and is_int(a.dtype) and is_int(b.dtype):
        return Const(a.value, b.dtype), b
    if isinstance(b, Const) and is_int(b.dtype) and is_int(a.dtype):
        return a, Const(b.value, a.dtype)
    return a, b


def _truncated(a: Expr, b: Expr, remainder: bool) -> Expr:
    """The integer quotient rounded towards zero, or its remainder, which has the sign of `a`.

    i / 2 → i // 2 where neither side can be negative; else select((i < 0) != (n < 0), -(-i // n), i // n).
    """
    if _never_negative(a) and _never_negative(b):
        return binary("mod" if remainder else "floordiv", a, b)
    differ = binary("ne", binary("lt", a, 0), binary("lt", b, 0))
    negated = op("neg", binary("floordiv", op("neg", a), b))
    quotient = select(differ, negated, binary("floordiv", a, b))
    return binary("sub", a, binary("mul", quotient, b)) if remainder else quotient


def _never_negative(e: Expr) -> bool:
    """True for an integer that is at least 0: an axis, and what is made of such."""
    return range_of(e, _known).lo >= 0


def _known(e: Expr) -> Range | None:
    """The range of what `range_of` does not know: an axis starts at its `lo`, and `mod` has the sign of its divisor."""
    if isinstance(e, Axis):
        return Range(range_of(e.lo, _known).lo, math.inf)
    if isinstance(e, Op) and e.name == "mod" and _never_negative(e.args[1]):
        return Range(0.0, math.inf)
    return None
