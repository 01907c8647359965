"""Import TVM tensor expressions. Apart from the LLVM backend this is the one module that imports tvm.

The bodies of the `te.compute`s are read directly and become the builder's tensors, so both front ends share
names, input order and everything else of `neptune.frontend.assemble`. (`te.create_prim_func` would drop
`where=` and `init=` of a reduction.) Names that TE leaves ambiguous get a suffix: two stages `compute` become
`compute` and `compute_1`; a size that shares a stage's name is renamed, the stage keeps it.

TVM folds some expressions before anyone can see them (`x * 0` is 0, `not (x > 0)` is `x <= 0`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import tvm
from tvm import te, tirx

from neptune.errors import ExpressionError
from neptune.frontend import builder
from neptune.frontend.assemble import Axis, Reduction, Tensor, TupleReduction, build, unique
from neptune.frontend.choices import position
from neptune.frontend.te_choices import Choice, recognise
from neptune.ir.affine import poly
from neptune.ir.dtypes import DTYPES, is_float, is_int
from neptune.ir.expr import TRUE, Cast, Const, Expr, Op, Var, binary, cast, op, select
from neptune.ir.printer import print_expr
from neptune.ir.program import Program
from neptune.ir.reducers import REDUCERS

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
}
_CALLS = {
    **{name: name for name in ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "sigmoid", "pow")},
    "fabs": "abs",
}
_COMBINERS = {tirx.Add: "sum", tirx.Mul: "prod", tirx.Max: "max", tirx.Min: "min"}


def from_te(
    tensors: te.Tensor | Sequence[te.Tensor],
    inputs: Sequence[te.Tensor | tirx.Var] | None = None,
    name: str | None = None,
) -> Program:
    """The Program of one or several `te.Tensor`s.

    Takes static and symbolic shapes (sizes become int32), chains of `te.compute`, the reductions sum, max, min
    and prod over any axes with `where=` and `init=`, argmax and argmin (a `te.comm_reducer` that keeps the first
    of equal values, at its position), integer tensors in indices, and `te.var`s as trailing scalar arguments.
    `inputs` and `name` are those of `neptune.frontend.builder.build`.

    Before: `y = te.compute((m,), lambda i: te.sum(x[i, j], axis=j), name="y")`; after:
    `for i in [0, m): for j in [0, n): y: y[i] += x[i, j] init 0.0`.

    Raises ExpressionError, naming the stage and the node, for anything else.
    """
    outputs = tensors if isinstance(tensors, Sequence | tvm.ir.Array) else [tensors]
    for k, t in enumerate(outputs):
        if not isinstance(t, te.Tensor):
            raise ExpressionError("importing tensor expressions", f"output {k} is {type(t).__name__}, not a te.Tensor")
    importer = _Importer()
    importer.reserve(outputs)
    results = [importer.tensor(t) for t in outputs]
    args = None if inputs is None else [importer.argument(k, x) for k, x in enumerate(inputs)]
    importer.check_scalars()
    return build(results, args, name)


@dataclass
class _Importer:
    """What has been imported so far; TVM objects are keys by identity."""

    names: dict[Any, str] = field(default_factory=dict)
    tensors: dict[tuple[Any, int], Tensor] = field(default_factory=dict)
    scalars: dict[Any, Var] = field(default_factory=dict)
    axes: dict[Any, str] = field(default_factory=dict)

    def reserve(self, outputs: Sequence[te.Tensor]) -> None:
        """Name every stage before any size, producers first."""
        for t in outputs:
            if t.op not in self.names:
                self.reserve(t.op.input_tensors)
                self.name(t.op)

    def name(self, operation: Any) -> str:
        if operation not in self.names:
            self.names[operation] = unique(_identifier(operation.name), self.names.values())
        return self.names[operation]

    def argument(self, k: int, x: Any) -> Tensor | Var:
        """One entry of the user's `inputs`."""
        if isinstance(x, te.Tensor):
            return self.tensor(x)
        if isinstance(x, tirx.Var):
            return self.scalar(x, "inputs")
        raise ExpressionError(
            "importing tensor expressions", f"input {k} is {type(x).__name__}, not a tensor or te.var"
        )

    def scalar(self, v: Any, stage: str) -> Var:
        """The size or scalar argument for a free variable."""
        if v not in self.scalars:
            taken = {*self.names.values(), *(s.name for s in self.scalars.values())}
            dtype = _dtype(f"importing stage `{stage}`", v.name, v.ty)
            # TE's int64 sizes and indices would only put casts everywhere; lengths fit 32 bits.
            dtype = "int32" if is_int(dtype) else dtype
            self.scalars[v] = Var(unique(_identifier(v.name), taken), dtype)
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

    def tensor(self, t: Any) -> Tensor:
        """A placeholder or a stage, with everything that it reads."""
        if (t.op, t.value_index) not in self.tensors:
            results = self._tensors(t)
            self.tensors |= {(t.op, k): result for k, result in enumerate(results)}
        return self.tensors[t.op, t.value_index]

    def _tensors(self, t: Any) -> tuple[Tensor, ...]:
        """All results of the operation behind `t`."""
        name = self.name(t.op)
        asked = f"importing stage `{name}`"
        scope = _Scope(self, name)
        if isinstance(t.op, te.PlaceholderOp):
            return (Tensor(name, tuple(scope.expr(d) for d in t.shape), _dtype(asked, name, t.dtype)),)
        if not isinstance(t.op, te.ComputeOp):
            kind = type(t.op).__name__
            raise ExpressionError(asked, f"`{kind}` is not supported", legal=("te.placeholder", "te.compute"))
        pairs = all(isinstance(e, te.Reduce) for e in t.op.body)
        if len(t.op.body) != 1 and not pairs:
            raise ExpressionError(asked, f"a stage has one value, not {len(t.op.body)}", hint="one te.compute for each")
        axes = scope.bind(t.op.axis)
        if len(t.op.body) != 1:
            choice, folded = scope.choice(t.op.body[0])
            family = builder.define_family(name, tuple(scope.expr(d) for d in t.shape), axes, folded)
            return family if choice.value == 0 else family[::-1]
        value = scope.body(t.op.body[0])
        shape = tuple(scope.expr(d) for d in t.shape)
        if len(axes) != len(shape):
            raise ExpressionError(asked, f"{len(shape)} dimensions, but the lambda takes {len(axes)} indices")
        return (builder.define(name, shape, axes, value),)


@dataclass
class _Scope:
    """The translation of one stage's expressions; `env` holds its loop variables."""

    importer: _Importer
    stage: str
    env: dict[Any, Expr] = field(default_factory=dict)

    def bind(self, itervars: Sequence[Any]) -> tuple[Axis, ...]:
        """Make the axes of `itervars` known here."""
        axes = []
        for iv in itervars:
            lo = self.expr(iv.dom.min)
            axis = Axis(_identifier(iv.var.name), "int32", lo, _end(lo, self.expr(iv.dom.extent)))
            self.env[iv.var] = axis
            self.importer.axes[iv.var] = self.stage
            axes.append(axis)
        return tuple(axes)

    def body(self, e: Any) -> Expr | Reduction:
        """A stage's value: an expression, or one reduction."""
        return self.reduction(e) if isinstance(e, te.Reduce) else self.expr(e)

    def reduction(self, e: Any) -> Reduction:
        """A `te.Reduce`, with the `where=` and `init=` that TVM's own lowering drops."""
        if len(e.source) != 1:
            raise self.refuse("a reduction of tuples", "only sum, max, min and prod of one value are supported")
        result, pair = e.combiner.result[0], (e.combiner.lhs[0], e.combiner.rhs[0])
        reducer = _COMBINERS.get(type(result))
        if reducer is None or not _combines(result, pair):
            raise self.refuse("a reduction with its own combiner", "only sum, max, min and prod are supported")
        axes = self.bind(e.axis)
        condition = self.expr(e.condition)
        start = self.expr(e.init[0]) if len(e.init) else _finite(self.expr(e.combiner.identity_element[0]))
        return self.checked(
            e,
            lambda: builder.reduction(
                reducer, self.expr(e.source[0]), axes, None if condition == TRUE else condition, start
            ),
        )

    def choice(self, e: Any) -> tuple[Choice, TupleReduction]:
        """A `te.Reduce` of pairs that is an argmax or argmin, and which component the value is."""
        taken = "argmax and argmin of a value and its position, of equal values the first"
        found = recognise(e.combiner)
        if isinstance(found, str):
            raise self.refuse("a reduction of tuples", found, legal=(taken,))
        axes = self.bind(e.axis)
        value, index = (self.expr(e.source[c]) for c in (found.value, 1 - found.value))
        along = self.checked(e, lambda: position("a reduction of tuples", axes))
        plain = index
        while isinstance(plain, Cast):
            plain = plain.arg
        if poly(plain) != poly(along) or any(not isinstance(a.lo, Const) or a.lo.value < 0 for a in axes):
            wrong = f"the index is not the position `{print_expr(along)}` along the reduction"
            raise self.refuse(print_expr(index), wrong, legal=(taken,))
        starts = e.init if len(e.init) else e.combiner.identity_element
        inits = tuple(_finite(self.expr(starts[c])) for c in (found.value, 1 - found.value))
        if not found.minds and not (isinstance(inits[1], Const) and inits[1].value <= 0):
            wrong = f"a start of index {print_expr(inits[1])} would win against the elements"
            raise self.refuse("a reduction of tuples", wrong, "start from index -1")
        condition = self.expr(e.condition)
        if condition != TRUE:
            nothing = REDUCERS[found.reducer].identity(value.dtype, index.dtype)
            value, index = select(condition, value, nothing[0]), select(condition, index, nothing[1])
        return found, TupleReduction(found.reducer, (value, index), axes, inits, ("value", "index"))

    def expr(self, e: Any) -> Expr:
        """One TVM expression."""
        kind = type(e)
        if kind is tirx.IntImm:
            dtype = _dtype(f"importing stage `{self.stage}`", str(e.value), e.ty)
            return Const(bool(e.value) if dtype == "bool" else int(e.value), dtype)
        if kind is tirx.FloatImm:
            return Const(float(e.value), _dtype(f"importing stage `{self.stage}`", str(e.value), e.ty))
        if kind is tirx.Var:
            return self.env[e] if e in self.env else self.importer.scalar(e, self.stage)
        if kind in _BINARY:
            return self.binary(e)
        if kind is tirx.Not:
            return self.checked(e, lambda: op("not", self.expr(e.a)))
        if kind is tirx.Select:
            return self.checked(
                e, lambda: select(self.expr(e.condition), self.expr(e.true_value), self.expr(e.false_value))
            )
        if kind is tirx.Cast:
            return self.cast(e)
        if kind is tvm.ir.Call:
            return self.call(e)
        raise self.refuse(kind.__name__, "this node is not supported")

    def binary(self, e: Any) -> Expr:
        """An operator of two sides. TVM's `/` on integers truncates, ours does not exist."""
        name = _BINARY[type(e)]
        a, b = _level(self.expr(e.a), self.expr(e.b))
        if name == "div" and not is_float(a.dtype):
            raise self.refuse(f"{print_expr(a, 6)} / {print_expr(b, 7)}", "integer `/` truncates", "te.floordiv, or //")
        return self.checked(e, lambda: binary(name, a, b))

    def cast(self, e: Any) -> Expr:
        arg = self.expr(e.value if hasattr(e, "value") else e.args[0])
        dtype = _dtype(f"importing stage `{self.stage}`", f"cast of {print_expr(arg)}", e.ty)
        return cast(arg, dtype)

    def call(self, e: Any) -> Expr:
        """A read of a tensor, a choice, or a function of the table."""
        # The functions are spread over two namespaces: prim.log2, tirx.exp2.
        space, _, name = str(getattr(e.op, "name", e.op)).rpartition(".")
        if (space, name) == ("te", "tensor_load"):
            index = [self.expr(i) for i in e.args[1:]]
            source = self.importer.tensor(e.args[0])
            return self.checked(e, lambda: source(*index))
        args = [self.expr(a) for a in e.args if isinstance(a, tvm.ir.Expr)]
        if name == "if_then_else":
            return self.checked(e, lambda: select(*args))
        if name == "likely":
            return args[0]
        if name in _CALLS:
            return self.checked(e, lambda: op(_CALLS[name], *args))
        text = f"{name}({', '.join(print_expr(a) for a in args)})"
        raise self.refuse(text, "this function is not supported", legal=sorted({*_CALLS.values(), "if_then_else"}))

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


def _identifier(name: str) -> str:
    """TE allows any text as a name; a stage's must be one identifier."""
    plain = re.sub(r"\W", "_", name)
    return plain if re.match(r"[^\W\d]", plain) else f"_{plain}"


def _dtype(asked: str, what: str, ty: Any) -> str:
    dtype = str(ty)
    if dtype not in DTYPES:
        raise ExpressionError(asked, f"`{what}` has the unsupported dtype {dtype}", legal=tuple(DTYPES))
    return dtype


def _finite(identity: Expr) -> Expr:
    """TVM starts bfloat16 max and min from float32's extremes, which are infinite in bfloat16."""
    if isinstance(identity, Const) and is_float(identity.dtype) and math.isfinite(identity.value):
        row = DTYPES[identity.dtype]
        return Const(min(max(identity.value, row.lowest), row.highest), identity.dtype)
    return identity


def _end(lo: Expr, extent: Expr) -> Expr:
    """lo + extent, without the difference that TVM made of an axis [lo, hi)."""
    if isinstance(extent, Op) and extent.name == "sub" and extent.args[1] == lo:
        return extent.args[0]
    return binary("add", lo, extent)


def _combines(result: Any, pair: tuple[Any, Any]) -> bool:
    """True when the combiner applies its operator to just its two arguments."""
    direct = result.a.same_as(pair[0]) and result.b.same_as(pair[1])
    return bool(direct or (result.a.same_as(pair[1]) and result.b.same_as(pair[0])))


def _level(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """An integer literal takes the other side's width (int64 sizes became int32, their literals did not)."""
    if isinstance(a, Const) and is_int(a.dtype) and is_int(b.dtype):
        return Const(a.value, b.dtype), b
    if isinstance(b, Const) and is_int(b.dtype) and is_int(a.dtype):
        return a, Const(b.value, a.dtype)
    return a, b
