"""Run a TileProgram over a domain: tiles are arrays whose axes follow their dims, programs run one by one."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

import einops
import numpy as np

from neptune.ir.dtypes import is_float
from neptune.ir.evaluate.domains import Array, EvaluationError, Value
from neptune.ir.evaluate.expressions import Evaluator, apply, apply_cast, apply_op, choose
from neptune.ir.evaluate.loops import fold_axis
from neptune.ir.evaluate.memory import Memory, spread
from neptune.ir.expr import Cast, Const, Expr, Load, Op, Select, loads, rewrite, variables, walk
from neptune.tile.ir import (
    Assign,
    Branch,
    Dot,
    Full,
    Iota,
    LoadTile,
    Local,
    Loop,
    Rearrange,
    Reduce,
    Scalar,
    StoreTile,
    TExpr,
    TileKernel,
    TileProgram,
    TStmt,
    stmt_exprs,
)

Dims = tuple[str, ...]
Place: TypeAlias = "tuple[int, tuple[str, ...]] | None"
"""A number for an expression, equal for equal ones, and the variables in it; None where its value depends on more."""


@dataclass(frozen=True)
class Traits:
    """What the expressions of a tile program are at all sizes, by identity: the program keeps them alive."""

    loading: dict[int, bool] = field(default_factory=dict)
    dims: dict[int, Dims] = field(default_factory=dict)
    places: dict[int, Place] = field(default_factory=dict)
    numbers: dict[Any, int] = field(default_factory=dict)

    def place(self, e: TExpr | LoadTile | StoreTile) -> Place:
        """Of integers that are computed from sizes and loop variables alone, the number and the variables; of an
        access these of its index and mask."""
        if id(e) not in self.places:
            access = (e.dims, e.index, e.mask) if isinstance(e, LoadTile | StoreTile) else None
            parts: tuple[TExpr, ...] = _parts(e) if isinstance(e, LoadTile | StoreTile) else (e,)
            nodes = [x for part in parts for x in walk(part)]
            if all(map(_is_place, nodes)):
                names = {n for x in nodes if isinstance(x, Scalar) for n in variables(x.expr)}
                number = self.numbers.setdefault(access or e, len(self.numbers))
                self.places[id(e)] = number, tuple(sorted(names))
            else:
                self.places[id(e)] = None
        return self.places[id(e)]


def _parts(access: LoadTile | StoreTile) -> tuple[TExpr, ...]:
    return access.index if access.mask is None else (*access.index, access.mask)


def _is_place(e: TExpr) -> bool:
    """True for a node of integers that reads nothing, and for a literal."""
    literal = e.value if isinstance(e, Full) else e
    if isinstance(literal, Scalar) and isinstance(literal.expr, Const):
        return True
    if isinstance(e, Local | LoadTile | Reduce | Dot) or is_float(e.dtype):
        return False
    return not isinstance(e, Scalar) or not any(isinstance(x, Load) or is_float(x.dtype) for x in walk(e.expr))


class Tiles:
    """Tile kernels over a memory."""

    def __init__(self, memory: Memory, evaluator: Evaluator, traits: Traits | None = None) -> None:
        self.memory = memory
        self.domain = memory.domain
        self.evaluator = evaluator
        self.extents: dict[str, int] = {}
        self.locals: dict[str, tuple[Dims, Value]] = {}
        self._traits = Traits() if traits is None else traits
        self._largest: dict[int, int] = {}
        # Programs of a grid and iterations of a loop mostly have the places that those before them had.
        self._at: dict[Any, Any] = {}

    def run(self, program: TileProgram, env: dict[str, Any]) -> None:
        """All kernels, in launch order."""
        for kernel in program.kernels:
            self._kernel(kernel, env)

    def _kernel(self, kernel: TileKernel, env: dict[str, Any]) -> None:
        self._largest, self._at = {}, {}
        self.extents = {"1": 1} | {name: int(self.evaluator.run(e, env)) for name, e in kernel.axes}
        grid = [range(int(self.evaluator.run(g.extent, env))) for g in kernel.grid]
        for point in itertools.product(*grid):
            self.locals = {}
            inner = env | {g.var: v for g, v in zip(kernel.grid, point, strict=True)}
            self._body(kernel.body, inner)

    def _body(self, body: tuple[TStmt, ...], env: dict[str, Any]) -> None:
        for s in body:
            self.memory.spend(self._elements(s))
            match s:
                case Assign(name, value, _):
                    self.locals[name] = (self._dims(value), self._whole(value, env))
                case StoreTile():
                    self._store(s, env)
                case Loop(var, lo, hi, inner, _):
                    for v in range(int(self._bound(lo, env)), int(self._bound(hi, env))):
                        self._body(inner, env | {var: v})
                case Branch(pred, inner):
                    if self._bound(pred, env):
                        self._body(inner, env)

    def _elements(self, s: TStmt) -> int:
        """The elements of the largest tile that a statement computes, and of what a product runs over."""
        elements = self._largest.get(id(s))
        if elements is None:
            nodes = [x for e in stmt_exprs(s) for x in walk(e)]
            axes = [{*self._dims(x), *(self._dims(x.a) if isinstance(x, Dot) else ())} for x in nodes]
            elements = self._largest[id(s)] = max((prod(self.extents.get(d, 1) for d in a) for a in axes), default=0)
        return elements

    def _bound(self, e: Expr, env: dict[str, Any]) -> Any:
        """The value of a scalar, a bound or a condition, in which scalar tile variables stand like buffers of one
        element."""

        loading = self._traits.loading
        if id(e) not in loading:
            loading[id(e)] = bool(loads(e))
        if not loading[id(e)]:
            return self.evaluator.run(e, env)

        def known(x: Expr) -> Expr | None:
            if not isinstance(x, Load) or x.index or x.buffer not in self.locals or x.buffer in self.memory.cells:
                return None
            return Const(np.asarray(self.locals[x.buffer][1]).item(), x.dtype)

        return self.evaluator.run(rewrite(e, known), env)

    def _dims(self, e: TExpr) -> Dims:
        """The dims of an expression, which those of its parts are joined to only once."""
        dims = self._traits.dims.get(id(e))
        if dims is None:
            dims = self._traits.dims[id(e)] = e.dims
        return dims

    def _shape(self, dims: Dims) -> tuple[int, ...]:
        missing = [d for d in dims if d not in self.extents]
        if missing:
            raise EvaluationError(f"tile axis {missing[0]} has no extent in this kernel")
        return tuple(self.extents[d] for d in dims)

    def _structural(self, fn: Any, v: Value, dtype: str) -> Value:
        if is_float(dtype):
            return self.domain.make([fn(np.asarray(x)) for x in self.domain.parts(v)])
        return fn(np.asarray(v))

    def _product(self, a: Value, b: Value, dtype: str) -> Value:
        """The matrix product of floats in the domain, of integers as it is."""
        return self.domain.dot(a, b, dtype) if is_float(dtype) else np.asarray(a, np.int64) @ np.asarray(b, np.int64)

    def _aligned(self, e: TExpr, dims: Dims, env: dict[str, Any]) -> Value:
        """The value of an operand, with axes where `dims` has them, of length one where it lacks one."""
        v = self.value(e, env)
        own = self._dims(e)
        if not own or own == dims or isinstance(e, Full):
            return v
        if len(own) == len(dims):
            if any(a != b and a != "1" and b != "1" for a, b in zip(own, dims, strict=True)):
                raise EvaluationError(f"a tile of dims {own} meets one of dims {dims}")
            return v
        named = [d for d in own if d != "1"]
        if [d for d in dims if d in named] != named:
            raise EvaluationError(f"a tile of dims {own} does not broadcast to {dims}")
        shape = tuple(self.extents[d] if d in named else 1 for d in dims)
        return self._structural(lambda x: x.reshape(shape), v, e.dtype)

    def _whole(self, e: TExpr, env: dict[str, Any]) -> Value:
        """The value of `e`, broadcast to all of its dims."""
        shape = self._shape(self._dims(e))
        return self._structural(lambda x: spread(x, shape), self.value(e, env), e.dtype)

    def _access(self, e: LoadTile | StoreTile, env: dict[str, Any]) -> tuple[tuple[Any, ...], Array | None]:
        """The index of an access and its mask, from before where the integers in them are what they were."""
        key = self._key(e, env)
        if key is None:
            return self._access_now(e, env)
        if key not in self._at:
            self._at[key] = self._access_now(e, env)
        known: tuple[tuple[Any, ...], Array | None] = self._at[key]
        return known

    def _key(self, e: TExpr | StoreTile, env: dict[str, Any]) -> tuple[Any, ...] | None:
        """What the value of a place depends on; None for what is none."""
        place = self._traits.places[id(e)] if id(e) in self._traits.places else self._traits.place(e)
        return None if place is None else (place[0], *[env.get(n) for n in place[1]])

    def _access_now(self, e: LoadTile | StoreTile, env: dict[str, Any]) -> tuple[tuple[Any, ...], Array | None]:
        shape = self._shape(e.dims)
        index = [self._aligned(i, e.dims, env) for i in e.index]
        mask = None if e.mask is None else spread(np.asarray(self._aligned(e.mask, e.dims, env)), shape)
        if index:  # one index carries the full shape, so that the access has it
            index[0] = spread(np.asarray(index[0]), shape)
        return tuple(index), mask

    def _store(self, s: StoreTile, env: dict[str, Any]) -> None:
        index, mask = self._access(s, env)
        value = self._aligned(s.value, s.dims, env)
        dtype = self.memory.cells[s.buffer].dtype
        if s.value.dtype != dtype:
            value = apply_cast(self.domain, value, s.value.dtype, dtype)
        self.memory.store(s.buffer, index, value, mask)

    def _load(self, e: LoadTile, env: dict[str, Any]) -> Value:
        index, mask = self._access(e, env)
        loaded = self.memory.load(e.buffer, index, mask)
        if mask is None:
            return loaded
        other = self.evaluator.const(e.other, e.dtype) if is_float(e.dtype) else int(e.other)
        return choose(self.domain, mask, loaded, other, e.dtype)

    def value(self, e: TExpr, env: dict[str, Any]) -> Value:
        """The value of a tile expression; an axis along which it is constant may have length one."""
        if isinstance(e, LoadTile):
            return self._load(e, env)
        key = self._key(e, env)
        if key is None:
            return self._value_now(e, env)
        if key not in self._at:
            self._at[key] = self._value_now(e, env)
        return self._at[key]

    def _value_now(self, e: TExpr, env: dict[str, Any]) -> Value:
        # The most frequent first.
        if isinstance(e, Op | Cast | Select):
            dims = self._dims(e)
            return apply(self.domain, e, [self._aligned(x, dims, env) for x in e.parts])
        match e:
            case Local(name, dims, _):
                if name not in self.locals:
                    raise EvaluationError(f"read of the tile variable {name} before it is assigned")
                had, value = self.locals[name]
                if had != dims:
                    raise EvaluationError(f"tile variable {name} has dims {had}, not {dims}")
                return value
            case Scalar(expr) | Full(Scalar(expr), _, _):
                return self._bound(expr, env)
            case Iota(axis):
                return np.arange(self.extents[axis])
            case Reduce(reducer, axis, arg):
                whole = self._whole(arg, env)
                return fold_axis(self.evaluator, reducer, (whole,), [arg.dtype], arg.dims.index(axis))[0]
            case Dot(a, b, acc, _):
                product = self._product(self._whole(a, env), self._whole(b, env), e.dtype)
                if acc is None:
                    return product
                return apply_op(self.domain, "add", (self._whole(acc, env), product), e.dtype, e.dtype)
        assert isinstance(e, Rearrange)
        return self._structural(lambda x: einops.rearrange(x, e.pattern), self._whole(e.arg, env), e.arg.dtype)
