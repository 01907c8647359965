"""The programs of `qa.variety_programs` in four tongues: TE, PrimFuncs, the builder, and numpy (the reference)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from tvm import te, tirx

from neptune.frontend import builder as nb
from qa.variety_programs import CHOICES, MANTISSA, Axis, Extent, Spec, Tensor

SHARED = (
    *("exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "sin", "cos"),
    *("abs", "floor", "ceil", "round", "trunc"),
)
INFIX: Mapping[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "bitand": lambda a, b: a & b,
    "bitor": lambda a, b: a | b,
    "bitxor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
    "neg": lambda a: -a,
}
TE_WORDS: Mapping[str, Callable[..., Any]] = {
    **INFIX,
    **{name: getattr(te, name) for name in (*SHARED, "isnan", "isinf", "isfinite", "log2")},
    "exp2": tirx.exp2,
    "div": lambda a, b: a / b,
    "floordiv": te.floordiv,
    "mod": te.floormod,
    "min": tirx.min,
    "max": tirx.max,
    "pow": te.power,
    "eq": tirx.EQ,
    "ne": tirx.NE,
    "and": tirx.And,
    "or": tirx.Or,
    "not": tirx.Not,
    "select": te.if_then_else,
}
NB_WORDS: Mapping[str, Callable[..., Any]] = {
    **INFIX,
    **{name: getattr(nb, name) for name in (*SHARED, "isnan", "isinf", "isfinite", "log2", "exp2", "eq", "ne", "pow")},
    "div": lambda a, b: a / b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "min": nb.minimum,
    "max": nb.maximum,
    "and": nb.all_of,
    "or": nb.any_of,
    "not": nb.logical_not,
    "select": nb.if_then_else,
}


class Symbolic:
    """A Spec in TE's or the builder's words; `tensors` are its objects by name."""

    def __init__(self, spec: Spec, in_te: bool) -> None:
        self.in_te, self.te = in_te, te if in_te else nb
        self.words = TE_WORDS if in_te else NB_WORDS
        self.sizes: dict[str, Any] = {}
        self.scalars = {n: self.te.var(n, d) for n, d in spec.scalars.items()}
        self.tensors: dict[str, Any] = {}
        for t in spec.inputs:
            shape = tuple(self.extent(d) for d in t.shape)
            self.tensors[t.name] = self.te.placeholder(shape, t.dtype, t.name)
        for t in spec.stages:
            if t.name not in self.tensors:
                made = self.stage(t)
                several = made if isinstance(made, (list, tuple)) else (made,)
                names = [x.name for x in spec.stages if x.stage == t.stage]
                self.tensors |= dict(zip(names, several, strict=True))
        self.outputs = [self.tensors[t.name] for t in spec.outputs]
        self.inputs = [self.tensors[t.name] for t in spec.inputs]

    def extent(self, d: Extent) -> Any:
        total: Any = None
        for factor, size in d.terms:
            if size.symbolic and size.name not in self.sizes:
                self.sizes[size.name] = self.te.var(size.name, "int32")
            one = self.sizes[size.name] if size.symbolic else size.value
            term = one if factor == 1 else one * factor
            total = term if total is None else total + term
        return total + d.offset if d.offset else total

    def const(self, value: float, dtype: str) -> Any:
        number = float(value) if dtype in MANTISSA else int(value)
        return tirx.const(number, dtype) if self.in_te else nb.const(number, dtype)

    def stage(self, t: Tensor) -> Any:
        folded: dict[str, Any] = {}
        if t.fold is not None:
            for a in t.fold.axes:
                folded[a.name] = self.te.reduce_axis((a.lo, self.extent(a.extent)), a.name)

        def body(*index: Any) -> Any:
            env = dict(zip((a.name for a in t.axes), index, strict=True)) | folded
            value = self.expr(t.value, env)
            if t.fold is None:
                return value
            if t.fold.reducer in CHOICES and self.in_te:
                at = self.position(t.fold.axes, folded)
                return CHOOSE[t.fold.reducer]((value, at), axis=list(folded.values()))
            options: dict[str, Any] = {"axis": list(folded.values())}
            if t.fold.where is not None:
                options["where"] = self.expr(t.fold.where, env)
            if t.fold.init is not None:
                options["init"] = self.const(t.fold.init, t.dtype)
            if t.fold.reducer == "top2":
                return nb.top_k(value, 2, **options)
            if t.fold.reducer == "prod" and self.in_te:
                return PRODUCT(value, **options)
            return getattr(self.te, t.fold.reducer)(value, **options)

        return self.te.compute(tuple(self.extent(d) for d in t.shape), body, t.stage)

    def position(self, axes: tuple[Axis, ...], variables: Mapping[str, Any]) -> Any:
        """The row-major position among reduced axes."""
        at: Any = None
        for a in axes:
            at = variables[a.name] if at is None else at * self.extent(a.extent) + variables[a.name]
        return at

    def expr(self, n: Any, env: Mapping[str, Any]) -> Any:
        match n.op:
            case "const":
                return self.const(n.args[0], n.dtype)
            case "axis":
                return env[n.args[0]]
            case "scalar":
                return self.scalars[n.args[0]]
            case "extent":
                e = self.extent(n.args[0])
                return self.const(e, "int32") if isinstance(e, int) else e
            case "read":
                name, *index = n.args
                return self.tensors[name](*(self.expr(i, env) for i in index))
            case "cast":
                return self.expr(n.args[0], env).astype(n.dtype)
            case _:
                return self.words[n.op](*(self.expr(a, env) for a in n.args))


PRODUCT = te.comm_reducer(lambda a, b: a * b, lambda t: tirx.const(1, t), name="prod")


def _chooser(greater: bool) -> Any:
    """A TE reducer of (value, index); the smaller index wins among equals."""

    def combine(a: Any, b: Any) -> Any:
        better = a[0] > b[0] if greater else a[0] < b[0]
        keep = tirx.Or(better, tirx.And(a[0] == b[0], a[1] < b[1]))
        return tirx.Select(keep, a[0], b[0]), tirx.Select(keep, a[1], b[1])

    def identity(value: str, at: str) -> Any:
        return (te.min_value if greater else te.max_value)(value), te.max_value(at)

    return te.comm_reducer(combine, identity, name="best")


CHOOSE = {"argmax": _chooser(True), "argmin": _chooser(False)}


def said(spec: Spec, source: str) -> tuple[Any, Any]:
    """(what `neptune.compile` gets, its `inputs=`)."""
    words = Symbolic(spec, source != "builder")
    args = [*words.inputs, *words.scalars.values()]
    if source == "primfunc":
        return te.create_prim_func([*args, *words.outputs]), None
    return words.outputs, args


# --- the reference ---------------------------------------------------------------------------------


def rounded(x: Any, dtype: str) -> Any:
    """float64 values rounded to a dtype."""
    if dtype == "float64":
        return x
    return torch.from_numpy(np.array(x, np.float64)).to(getattr(torch, dtype)).to(torch.float64).numpy()


def _trunc_cast(x: Any, dtype: str) -> Any:
    whole = np.trunc(np.nan_to_num(np.asarray(x, np.float64))).astype(np.int64)
    return whole.astype(dtype).astype(np.int64)


NUMPY: Mapping[str, Callable[..., Any]] = {
    **INFIX,
    **{n: getattr(np, n) for n in ("exp", "exp2", "log", "log2", "sqrt", "tanh", "sin", "cos", "abs", "floor", "ceil")},
    **{n: getattr(np, n) for n in ("trunc", "isnan", "isinf", "isfinite")},
    "round": np.rint,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": lambda x: torch.erf(torch.from_numpy(np.array(x, np.float64))).numpy(),
    "div": lambda a, b: a / b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "min": np.minimum,
    "max": np.maximum,
    "pow": np.power,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "not": np.logical_not,
    "select": np.where,
}
FOLDS: Mapping[str, tuple[Any, Any]] = {
    "sum": (np.add, 0),
    "prod": (np.multiply, 1),
    "max": (np.maximum, None),
    "min": (np.minimum, None),
}


class Reference:
    """Evaluates a Spec on arrays; with `rounding` every float node is rounded to its dtype."""

    def __init__(self, spec: Spec, arrays: Mapping[str, Any], scalars: Mapping[str, Any], rounding: bool) -> None:
        self.arrays, self.scalars, self.rounding = dict(arrays), scalars, rounding
        with np.errstate(all="ignore"):
            for t in spec.stages:
                self.arrays[t.name] = self.result(t)

    def result(self, t: Tensor) -> Any:
        """What other stages read of a stage."""
        return self.stage(t)

    def stage(self, t: Tensor) -> Any:
        folded = t.fold.axes if t.fold else ()
        axes: tuple[Axis, ...] = (*t.axes, *folded)
        shape = tuple(a.extent.value - a.lo for a in axes)
        grids = np.indices(shape, sparse=True) if axes else ()
        env = {a.name: g + a.lo for a, g in zip(axes, grids, strict=True)}
        value = np.broadcast_to(self.expr(t.value, env), shape)
        if t.fold is None:
            return np.array(value)
        if t.fold.reducer in CHOICES:
            return self.choice(t, value, np.broadcast_to(self.expr(t.fold.where, env), shape) if t.fold.where else None)
        fn, start = FOLDS[t.fold.reducer]
        if start is None:
            limits = (torch.finfo if t.dtype in MANTISSA else torch.iinfo)(getattr(torch, t.dtype))
            start = limits.min if t.fold.reducer == "max" else limits.max
        if t.fold.where is not None:
            value = np.where(self.expr(t.fold.where, env), value, start)
        result = self.folded(t, fn, value, start)
        if t.fold.init is not None:
            result = fn(result, t.fold.init if t.dtype in MANTISSA else int(t.fold.init))
        return self.round(np.asarray(result), t.dtype)

    def folded(self, t: Tensor, fn: Any, value: Any, start: Any) -> Any:
        """The terms of a stage put together."""
        return fn.reduce(value, axis=tuple(range(len(t.axes), value.ndim)), initial=start)

    def choice(self, t: Tensor, value: Any, where: Any) -> Any:
        """One result of the best pairs: values, or row-major positions."""
        assert t.fold is not None
        shape = value.shape[: len(t.axes)]
        flat = np.asarray(value, np.float64).reshape(*shape, int(np.prod(value.shape[len(t.axes) :])))
        sign = 1 if t.fold.reducer == "argmin" else -1
        there = np.ones(flat.shape, bool) if where is None else where.reshape(flat.shape)
        order = np.argsort(np.where(there, sign * flat, np.inf), axis=-1, kind="stable")
        count, k = there.sum(-1), 2 if t.fold.reducer == "top2" else 1
        q = t.part % k
        at = np.take_along_axis(order, np.full((*shape, 1), min(q, max(flat.shape[-1] - 1, 0))), -1)
        enough = count > q
        if t.part >= k:
            return np.where(enough, at[..., 0], 2**31 - 1)
        found = np.take_along_axis(flat, at, -1)[..., 0]
        if t.dtype in MANTISSA:
            return np.where(enough, found, sign * np.inf)
        limits = torch.iinfo(getattr(torch, t.dtype))
        return np.where(enough, found.astype(np.int64), limits.max if sign > 0 else limits.min)

    def round(self, x: Any, dtype: str) -> Any:
        return rounded(x, dtype) if self.rounding and dtype in MANTISSA else x

    def expr(self, n: Any, env: Mapping[str, Any]) -> Any:
        match n.op:
            case "const":
                return np.asarray(n.args[0], np.float64 if n.dtype in MANTISSA else np.int64)
            case "axis":
                return env[n.args[0]]
            case "scalar":
                return np.asarray(self.scalars[n.args[0]])
            case "extent":
                return np.asarray(n.args[0].value)
            case "read":
                name, *index = n.args
                return self.arrays[name][tuple(self.expr(i, env) for i in index)]
            case "cast":
                return self.cast(self.expr(n.args[0], env), n.args[0].dtype, n.dtype)
            case _:
                return self.round(NUMPY[n.op](*(self.expr(a, env) for a in n.args)), n.dtype)

    def cast(self, x: Any, source: str, dtype: str) -> Any:
        if dtype in MANTISSA:
            return self.round(np.asarray(x, np.float64), dtype)
        if dtype == "bool":
            return np.asarray(x != 0)
        return _trunc_cast(x, dtype) if source in MANTISSA else np.asarray(x, np.int64).astype(dtype).astype(np.int64)
