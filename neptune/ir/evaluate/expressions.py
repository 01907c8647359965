"""Evaluate scalar expressions of the loop-scalar IR on arrays of lanes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from neptune.ir.dtypes import is_float, wrapped
from neptune.ir.evaluate.domains import Array, Domain, EvaluationError, Value
from neptune.ir.evaluate.memory import Index, Mask, Memory
from neptune.ir.expr import OPS, Cast, Const, Expr, Load, Op, Select, Var
from neptune.ir.ops import INTEGER

_LEAVES = frozenset({"add", "sub", "mul", "neg", "abs", "floordiv", "shl"})
"""Operators whose results may leave the dtype of their arguments, and wrap around."""


def _floor(operator: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Division of integers whose inactive lanes may divide by zero."""

    def divide(a: Any, b: Any) -> Any:
        if np.any(np.equal(b, 0)):
            b = np.where(np.equal(b, 0), 1, b)
        return operator(a, b)

    return divide


def _extremum(numbers: Callable[[int, int], int], arrays: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: (numbers if isinstance(a, int) and isinstance(b, int) else arrays)(a, b)


INTEGER_OPS: Mapping[str, Callable[..., Any]] = {
    **INTEGER,
    **{name: _floor(INTEGER[name]) for name in ("floordiv", "mod")},
    **{"min": _extremum(min, np.minimum), "max": _extremum(max, np.maximum), "not": np.logical_not},
}


def both(a: Mask, b: Any) -> Mask:
    """The lanes active in both."""
    if b is True:
        return a
    return np.asarray(b) if a is None else a & b


def choose(domain: Domain, pred: Any, a: Value, b: Value, dtype: str) -> Value:
    """`a` where `pred`, else `b`, element by element."""
    if is_float(dtype):
        pairs = zip(domain.parts(a), domain.parts(b), strict=True)
        return domain.make([np.where(pred, x, y) for x, y in pairs])
    return np.where(pred, a, b)


def apply_op(domain: Domain, name: str, args: Sequence[Value], arg_dtype: str, dtype: str) -> Value:
    """An operator of OPS on values whose arguments have `arg_dtype`."""
    if not is_float(arg_dtype):
        result = INTEGER_OPS[name](*args)
        return wrapped(result, dtype) if name in _LEAVES else result
    if OPS[name].kind == "compare":
        return domain.compare(name, args[0], args[1])
    return domain.apply(name, args, dtype)


def apply_cast(domain: Domain, v: Value, source: str, dtype: str) -> Value:
    """A Cast between any two dtypes."""
    if is_float(source):
        return domain.cast(v, dtype) if is_float(dtype) else domain.truncate(v, dtype)
    if is_float(dtype):
        return domain.embed(np.asarray(v), dtype)
    if dtype == "bool":
        return np.not_equal(v, 0)
    return wrapped(int(v) if isinstance(v, int) else np.asarray(v, np.int64), dtype)


def apply(domain: Domain, e: Op[Any] | Cast[Any] | Select[Any], parts: Sequence[Value]) -> Value:
    """An operator, a cast or a choice, of scalars or of tiles, on the values of its parts."""
    if isinstance(e, Select):
        return choose(domain, parts[0], parts[1], parts[2], e.dtype)
    source = e.parts[0].dtype if e.parts else e.dtype
    if isinstance(e, Cast):
        return apply_cast(domain, parts[0], source, e.dtype)
    return apply_op(domain, e.name, parts, source, e.dtype)


class Evaluator:
    """Expressions over a memory. `env` gives variables; float variables are values of the domain."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.domain = memory.domain
        self._constants: dict[tuple[str, str], Value] = {}

    def const(self, value: float, dtype: str) -> Value:
        """A literal; float literals are lifted once."""
        if not is_float(dtype):
            return value
        key = (repr(float(value)), dtype)
        if key not in self._constants:
            self._constants[key] = self.domain.const(value, dtype)
        return self._constants[key]

    def index(self, index: Sequence[Expr], env: Mapping[str, Any], mask: Mask) -> tuple[Index, ...]:
        """Index expressions."""
        return tuple(self.run(i, env, mask) for i in index)

    def lanes(self, buffer: str, env: Mapping[str, Any]) -> tuple[Index, ...]:
        """The leading indices of a buffer that is private to enclosing iterations."""
        cell = self.memory.cells.get(buffer)
        return tuple(env["@" + v] for v in cell.lanes) if cell is not None and cell.lanes else ()

    def run(self, e: Expr, env: Mapping[str, Any], mask: Mask = None) -> Value:
        """The value of `e` in the lanes of `mask`; other lanes hold anything."""
        # The most frequent first: this runs more often than anything else of a check.
        if isinstance(e, Op):
            if e.name in ("and", "or"):
                return self._junction(e.name, e.args[0], e.args[1], env, mask)
            if e.name in ("floordiv", "mod"):
                return self._divide(e.name, e.args, env, mask)
            return apply(self.domain, e, [self.run(x, env, mask) for x in e.args])
        if isinstance(e, Var):
            if e.name not in env:
                raise EvaluationError(f"variable {e.name} has no value here")
            return env[e.name]
        if isinstance(e, Const):
            return self.const(e.value, e.dtype)
        if isinstance(e, Load):
            return self.memory.load(e.buffer, self.lanes(e.buffer, env) + self.index(e.index, env, mask), mask)
        if isinstance(e, Select):
            return self._select(e.pred, e.then, e.other, env, mask)
        return apply(self.domain, e, [self.run(e.arg, env, mask)])

    def _junction(self, name: str, a: Expr, b: Expr, env: Mapping[str, Any], mask: Mask) -> Any:
        """`and` and `or` look at the right side only where the left one does not decide."""
        left = self.run(a, env, mask)
        open_lanes = left if name == "and" else np.logical_not(left)
        if not np.any(open_lanes):
            return left
        right = self.run(b, env, both(mask, open_lanes))
        return INTEGER_OPS[name](left, right)

    def _divide(self, name: str, args: tuple[Expr, ...], env: Mapping[str, Any], mask: Mask) -> Any:
        a, b = (self.run(x, env, mask) for x in args)
        if isinstance(a, int) and isinstance(b, int) and b:
            return wrapped(a // b, args[0].dtype) if name == "floordiv" else a % b
        zero: Array | bool = np.equal(b, 0)
        if np.any(zero) and (mask is None or np.any(zero & mask)):
            raise EvaluationError("integer division by zero")
        return wrapped(INTEGER_OPS[name](a, b), args[0].dtype)

    def _select(self, p: Expr, a: Expr, b: Expr, env: Mapping[str, Any], mask: Mask) -> Value:
        pred = self.run(p, env, mask)
        if np.all(pred):
            return self.run(a, env, mask)
        if not np.any(pred):
            return self.run(b, env, mask)
        then = self.run(a, env, both(mask, pred))
        other = self.run(b, env, both(mask, np.logical_not(pred)))
        return choose(self.domain, pred, then, other, a.dtype)
