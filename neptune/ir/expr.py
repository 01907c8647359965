"""Scalar expressions of the loop-scalar IR.

    expr := Const(value, dtype) | Var(name, dtype) | Load(buffer, index…, dtype)
          | Op(name, expr…) | Cast(expr, dtype) | Select(pred, expr, expr)

Semantics.  Float arithmetic is that of the real numbers rounded to `dtype` at every node; a Cast is one
explicit rounding.  `floordiv` and `mod` round towards minus infinity, `round` to the nearest integer and ties
to even, `trunc` towards zero.  `shl` drops the bits that leave the dtype, `shr` keeps the sign; a shift by less
than 0 or by the width and more is undefined, as is a division by 0.  Integer arithmetic is that of the integers:
where `add`, `sub`, `mul`, `neg` or a sum leaves its dtype the value is undefined (proofs about indices rest on
that, and back ends differ: Triton wraps, LLVM may not).  `Select` evaluates as a choice:
the branch that is not taken contributes nothing, not even a NaN.  `max` and `min` follow the reducers of
the same name.  Nodes are frozen and compared by structure (`==` is structural; an equality *expression*
is `eq(a, b)`).  Constructors fold integer constants only: a float expression is never rewritten here.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from numbers import Integral, Real
from typing import Any, ClassVar, Generic, TypeAlias, Union

from neptune.ir.dtypes import DTYPES, by_float32, holds, is_float, is_int, wrapped
from neptune.ir.nodes import Dims, E, E_co, Node, Tile, joined
from neptune.ir.nodes import children as children
from neptune.ir.nodes import rebuild as rebuild
from neptune.ir.nodes import rewrite as rewrite
from neptune.ir.nodes import rewrite_parts as rewrite_parts
from neptune.ir.nodes import walk as walk
from neptune.ir.operators import Operators
from neptune.ir.ops import INTEGER
from neptune.ir.ops import OPS as OPS


class _Plain(Operators):
    """A node that only scalar expressions have."""

    __slots__ = ()

    @property
    def dims(self) -> Dims:
        """The tile axes that a value runs over: a scalar has none."""
        return ()

    @property
    def parts(self) -> tuple[Expr, ...]:
        """The direct subexpressions, in printing order."""
        return ()

    def with_parts(self, _parts: tuple[Any, ...]) -> Any:
        """The node with other parts, through the folding constructors."""
        return self


@dataclass(frozen=True, slots=True, eq=False)
class Const(_Plain):
    """A literal. Float values are Python floats (inf allowed); integers and bools are exact. -0.0 is another one than
    0.0, by which 1/x differs."""

    value: int | float | bool
    dtype: str

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Const):
            return NotImplemented
        a, b = self.value, other.value
        same = a == b and (a != 0 or math.copysign(1, a) == math.copysign(1, b))
        return self.dtype == other.dtype and (same or (a != a and b != b))

    def __hash__(self) -> int:
        return hash((self.dtype, self.value if self.value == self.value else "nan"))


@dataclass(frozen=True, slots=True)
class Var(_Plain):
    """A loop variable, a scalar argument, a symbolic size or a tunable, by name."""

    name: str
    dtype: str = "int32"
    of_data: ClassVar[bool] = False
    """True where it stands for what is computed of tensors."""

    def __hash__(self) -> int:
        # Asked for more often than that of anything else; names tell variables apart.
        return hash(self.name)


@dataclass(frozen=True, slots=True)
class Load(_Plain):
    """`buffer[index…]`; the buffer is named, its declaration lives in the Program."""

    buffer: str
    index: tuple[Expr, ...]
    dtype: str

    @property
    def parts(self) -> tuple[Expr, ...]:
        """The indices."""
        return self.index

    def with_parts(self, parts: tuple[Expr, ...]) -> Expr:
        """A load at other indices."""
        return Load(self.buffer, parts, self.dtype)


class _Elementwise(Operators, Generic[E_co]):
    """A node whose parts may be tiles."""

    __slots__ = ()

    @property
    def dims(self) -> Dims:
        """The dims that those of the parts are joined to."""
        return joined(self.parts)

    @property
    def parts(self) -> tuple[E_co, ...]:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Op(_Elementwise[E_co]):
    """An operator of `OPS` on its arguments. Build one with `op` or `binary`, which derive the dtype."""

    name: str
    args: tuple[E_co, ...]
    dtype: str

    @property
    def parts(self) -> tuple[E_co, ...]:
        """The arguments."""
        return self.args

    def with_parts(self, parts: tuple[Any, ...]) -> Any:
        """The operator on other arguments, folded where they are integer constants."""
        return op(self.name, *parts, dtype=self.dtype)


@dataclass(frozen=True, slots=True)
class Cast(_Elementwise[E_co]):
    """One rounding (or conversion) of `arg` to `dtype`."""

    arg: E_co
    dtype: str

    @property
    def parts(self) -> tuple[E_co, ...]:
        """The argument."""
        return (self.arg,)

    def with_parts(self, parts: tuple[Any, ...]) -> Any:
        """The cast of another argument."""
        return cast(parts[0], self.dtype)


@dataclass(frozen=True, slots=True)
class Select(_Elementwise[E_co]):
    """`then` where `pred` holds, else `other`; both have one dtype."""

    pred: E_co
    then: E_co
    other: E_co

    @property
    def dtype(self) -> str:
        return self.then.dtype

    @property
    def parts(self) -> tuple[E_co, ...]:
        """The condition and the branches."""
        return (self.pred, self.then, self.other)

    def with_parts(self, parts: tuple[Any, ...]) -> Any:
        """The choice between other branches."""
        return select(*parts)


Expr: TypeAlias = Union[Const, Var, Load, "Op[Expr]", "Cast[Expr]", "Select[Expr]"]
ExprLike: TypeAlias = "Expr | int | float | bool | Operators"

TRUE = Const(True, "bool")
FALSE = Const(False, "bool")


def as_expr(value: ExprLike, dtype: str | None = None) -> Expr:
    """Lift a Python number: bool → bool, int → int32 (or `dtype`), float → float32 (or `dtype`); what int32 does not
    hold is int64."""
    if isinstance(value, Const | Var | Load | Op | Cast | Select):
        return value
    if isinstance(value, bool):
        return Const(value, "bool")
    # Also numpy's numbers, which say that they are such.
    if isinstance(value, Integral):
        if dtype is not None and is_float(dtype):
            return Const(float(value), dtype)
        wide = dtype in (None, "int32") and not holds("int32", (int(value), int(value)))
        return Const(int(value), "int64" if wide else dtype or "int32")
    if isinstance(value, Real):
        return Const(float(value), dtype if dtype is not None and is_float(dtype) else "float32")
    if isinstance(value, Tile):
        return typing.cast("Expr", value)  # an argument of an operator of a tile expression
    raise TypeError(f"cannot use {value!r} ({type(value).__name__}) as an expression")


_NEUTRAL = {"add": (0, 0), "sub": (None, 0), "mul": (1, 1), "floordiv": (None, 1)}
"""What changes nothing on the left, and on the right."""


def _fold(name: str, a: Expr, b: Expr) -> Expr | None:
    """Integer identities and constants. Float expressions are returned untouched (x·0 is not 0)."""
    if not is_int(a.dtype):
        return None
    ca = a.value if isinstance(a, Const) else None
    cb = b.value if isinstance(b, Const) else None
    if ca is not None and cb is not None and OPS[name].kind == "arith" and (cb or name not in ("floordiv", "mod")):
        value = INTEGER[name](int(ca), int(cb))
        # What int32 does not hold is left to `neptune.ir.indices.widths`, which has room for it.
        return (
            None if a.dtype == "int32" and wrapped(value, "int32") != value else Const(wrapped(value, a.dtype), a.dtype)
        )
    left, right = _NEUTRAL.get(name, (None, None))
    if ca is not None and ca == left:
        return b
    if cb is not None and cb == right:
        return a
    if name == "mul" and 0 in (ca, cb):
        return Const(0, a.dtype)
    return a if name in ("min", "max") and a == b else None


def _reads(e: Expr) -> bool:
    return isinstance(e, Load) or (isinstance(e, Var) and e.of_data)


def binary(name: str, a: ExprLike, b: ExprLike) -> Expr:
    """A two-argument operator; a Python number takes the other side's dtype, int32 meets int64 as int64, and what is
    computed of indices and sizes alone meets float32 and float64 as these."""
    if not isinstance(a, Const | Var | Load | Op | Cast | Select):
        a = as_expr(a, b.dtype if isinstance(b, Const | Var | Load | Op | Cast | Select) else None)
    b = as_expr(b, a.dtype)
    if {a.dtype, b.dtype} == {"int32", "int64"}:
        a, b = cast(a, "int64"), cast(b, "int64")
    for place, other in ((a, b), (b, a)):
        if is_int(place.dtype) and other.dtype in ("float32", "float64") and not any(map(_reads, walk(place))):
            a, b = cast(a, other.dtype), cast(b, other.dtype)
    return op(name, a, b)


def op(name: str, *args: ExprLike, dtype: str = "float32") -> Expr:
    """Build an operator node and derive its dtype (`dtype` matters for nullary constants only).

    Raises TypeError for an unknown operator, a wrong count, or arguments of different dtypes.
    """
    info = OPS.get(name)
    if info is None:
        raise TypeError(f"unknown operator {name!r}; known: {', '.join(OPS)}")
    exprs = tuple(as_expr(a) for a in args)
    if len(exprs) != info.arity:
        raise TypeError(f"{name} takes {info.arity} arguments, not {len(exprs)}")
    if len(exprs) == 2 and exprs[0].dtype != exprs[1].dtype:
        raise TypeError(f"{name} needs one dtype on both sides, not {exprs[0].dtype} and {exprs[1].dtype}")
    if any(not DTYPES[e.dtype].computes for e in exprs):
        narrow = next(e.dtype for e in exprs if not DTYPES[e.dtype].computes)
        raise TypeError(f"{name} of {narrow}, which only tensors hold: cast it first, .astype('float32')")
    if info.kind == "logic" and any(e.dtype != "bool" for e in exprs):
        raise TypeError(f"{name} takes bools, not {', '.join(e.dtype for e in exprs)}")
    if info.kind == "math" and not is_float(exprs[0].dtype) and name != "abs":
        raise TypeError(f"{name} takes a float, not {exprs[0].dtype}: cast first")
    if name == "div" and not is_float(exprs[0].dtype):
        raise TypeError("div is the float division; use floordiv for integers")
    if (name in ("floordiv", "mod") or info.kind == "bits") and not is_int(exprs[0].dtype):
        raise TypeError(f"{name} takes integers, not {exprs[0].dtype}")
    if len(exprs) == 2 and (folded := _fold(name, *exprs)) is not None:
        return folded
    if name in ("abs", "neg") and isinstance(exprs[0], Const) and is_int(exprs[0].dtype):
        return Const(wrapped(INTEGER[name](int(exprs[0].value)), exprs[0].dtype), exprs[0].dtype)
    if name == "and" and (TRUE in exprs or FALSE in exprs):
        return FALSE if FALSE in exprs else exprs[0] if exprs[1] == TRUE else exprs[1]
    if name == "or" and (TRUE in exprs or FALSE in exprs):
        return TRUE if TRUE in exprs else exprs[0] if exprs[1] == FALSE else exprs[1]
    if info.kind in ("compare", "logic"):
        return Op(name, exprs, "bool")
    return Op(name, exprs, exprs[0].dtype if exprs else dtype)


def cast(value: ExprLike, dtype: str) -> Expr:
    """A Cast, or the value itself where it already has `dtype`; integer literals are converted.

    Between an 8-bit float and what is no 16-bit float there is a float32, as in torch: its rounding is written out.
    """
    e = as_expr(value)
    if e.dtype == dtype:
        return e
    if by_float32(e.dtype, dtype):
        return Cast(cast(e, "float32"), dtype)
    if isinstance(e, Const) and is_int(e.dtype) and is_int(dtype):
        return Const(wrapped(e.value, dtype), dtype)
    return Cast(e, dtype)


def select(pred: ExprLike, then: ExprLike, other: ExprLike) -> Expr:
    """A choice; a Python number on either branch takes the other branch's dtype. Equal branches are none."""
    p = as_expr(pred)
    if p.dtype != "bool":
        raise TypeError(f"select needs a bool predicate, not {p.dtype}")
    if not isinstance(then, Const | Var | Load | Op | Cast | Select):
        then = as_expr(then, as_expr(other).dtype)
    b = as_expr(other, then.dtype)
    if then.dtype != b.dtype:
        raise TypeError(f"select branches differ in dtype: {then.dtype} and {b.dtype}")
    if p in (TRUE, FALSE):
        return then if p == TRUE else b
    return then if then == b else Select(p, then, b)


def eq(a: ExprLike, b: ExprLike) -> Expr:
    """The expression a == b (`==` between expressions compares their structure)."""
    return binary("eq", a, b)


def ne(a: ExprLike, b: ExprLike) -> Expr:
    """The expression a != b."""
    return binary("ne", a, b)


def bitwise(name: str, a: ExprLike, b: ExprLike) -> Expr:
    """`a & b` ("and"), `a | b` ("or") or `a ^ b` ("xor") of integers; of bools the logical operator."""
    if "bool" in (as_expr(a).dtype, as_expr(b).dtype):
        return binary("ne" if name == "xor" else name, a, b)
    return binary(f"bit{name}", a, b)


def invert(a: ExprLike) -> Expr:
    """`~a`: every bit of an integer flipped; of a bool the negation."""
    e = as_expr(a)
    if not is_int(e.dtype):
        return op("not", e)
    return op("bitxor", e, Const(int(DTYPES[e.dtype].highest) if DTYPES[e.dtype].lowest == 0 else -1, e.dtype))


def is_nan(x: ExprLike) -> Expr:
    """Return the condition that `x` is NaN, which alone differs from itself."""
    return ne(x, x)


def is_inf(x: ExprLike) -> Expr:
    """Return the condition that `x` is inf or -inf."""
    return binary("eq", op("abs", x), math.inf)


def is_finite(x: ExprLike) -> Expr:
    """Return the condition that `x` is neither infinite nor NaN."""
    return binary("lt", op("abs", x), math.inf)


def sign(x: ExprLike) -> Expr:
    """1, 0 or -1 in the dtype of `x`; NaN stays NaN, and 0 keeps its sign."""
    e = as_expr(x)
    return select(binary("gt", e, 0), as_expr(1, e.dtype), select(binary("lt", e, 0), as_expr(-1, e.dtype), e))


def logical_and(*args: ExprLike) -> Expr:
    """The conjunction of any number of predicates (TRUE for none)."""
    return reduce(lambda a, b: op("and", a, b), args, as_expr(TRUE))


def logical_or(*args: ExprLike) -> Expr:
    """The disjunction of any number of predicates (FALSE for none)."""
    return reduce(lambda a, b: op("or", a, b), args, as_expr(FALSE))


def ceildiv(a: ExprLike, b: ExprLike) -> Expr:
    """⌈a / b⌉ for integers, b > 0: `(a + (b - 1)) // b`."""
    b = as_expr(b)
    return binary("floordiv", binary("add", a, binary("sub", b, 1)), b)


def minimum(a: ExprLike, b: ExprLike) -> Expr:
    """min(a, b) as an expression."""
    return binary("min", a, b)


def maximum(a: ExprLike, b: ExprLike) -> Expr:
    """max(a, b) as an expression."""
    return binary("max", a, b)


# --- questions ---------------------------------------------------------------------------------


def substitute(e: Expr, env: Mapping[str, Expr]) -> Expr:
    """Replace variables by name."""
    if not env:
        return e
    return rewrite(e, lambda x: env.get(x.name) if isinstance(x, Var) else None)


def redirected(e: Expr, names: Mapping[str, str]) -> Expr:
    """Read other buffers: each of `names` under its new name."""

    def fn(x: Expr) -> Expr | None:
        if not isinstance(x, Load) or x.buffer not in names:
            return None
        return Load(names[x.buffer], tuple(redirected(i, names) for i in x.index), x.dtype)

    return rewrite(e, fn)


def variables(e: Expr) -> frozenset[str]:
    """The names of all variables in `e`, also those inside load indices."""
    if isinstance(e, Var):
        return frozenset((e.name,))
    return frozenset([x.name for x in walk(e) if isinstance(x, Var)])


def loads(e: Expr) -> list[Load]:
    """Every load in `e`, outer ones first."""
    return [x for x in walk(e) if isinstance(x, Load)]


def args_of(e: Node[E], *names: str) -> tuple[E, ...]:
    """The arguments of an operator of one of these names; () for any other expression."""
    return typing.cast("tuple[E, ...]", e.args) if isinstance(e, Op) and e.name in names else ()


def conjuncts(pred: Node[E] | None) -> list[E]:
    """The parts of a conjunction; [] for None and for TRUE."""
    whole = typing.cast("E | None", pred)
    if whole is None or whole == TRUE:
        return []
    if isinstance(whole, Op) and whole.name == "and":
        return [c for a in whole.args for c in conjuncts(a)]
    return [whole]
