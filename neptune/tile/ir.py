"""The tile IR: what one Triton program does, on whole tiles (paper §5 and Fig. 13).

    program := inputs outputs temporaries scalars tunables  kernel…
    kernel  := name, grid axes, tile axes (name → extent), body
    stmt    := Assign(name, texpr) | StoreTile(buffer, index…, texpr, mask)
             | Loop(var, lo, hi, facts, body) | Branch(pred, body)
    texpr   := Op(name, texpr…) | Cast(texpr, dtype) | Select(mask, texpr, texpr)      (the nodes of `neptune.ir.expr`)
             | Scalar(expr) | Full(scalar, dims) | Iota(axis) | Local(name) | LoadTile(buffer, index…, mask, other)
             | Reduce(reducer, axis, texpr) | Dot(a, b, acc) | Rearrange(texpr, einops pattern)

Semantics.
- Every tile expression has `dims`: an ordered tuple of axis names. The extent of an axis is a constant
  or a tunable, and a power of two; "1" names a dimension of length one, which broadcasts. Scalars have ().
- `Op` and `Select` join operands of one rank, dimension by dimension: equal names, or "1".
  Dimension orders are reconciled before, by `Rearrange` with an einops pattern ("n d -> d n", "m -> m 1").
- `LoadTile` reads buffer[index…], where every index is an integer tile expression over the load's dims;
  where `mask` is false nothing is read and the element is `other`.
- `Dot(a, b, acc)`: a has dims (x, k), b (k, y); the product is summed over k in float32 (int8: int32), from `acc`
  where it is given. `Reduce` folds one axis away.
- A `Local` is a mutable tile variable: `Assign` sets it, a loop carries it. Elements outside the guard
  of the stage that assigned them are unspecified, and masked out before they can reach another element.
- `Loop` and grid variables are int32 scalars; `Scalar` wraps any loop-IR expression over them.
- Bounds of a `Loop`, the condition of a `Branch` and a `Scalar` may read a scalar `Local`, as `Load(name)` without
  an index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, Union

from neptune.ir.expr import Cast, Expr, Op, Select, conjuncts, loads, rewrite, walk
from neptune.ir.nodes import Tile
from neptune.ir.program import Buffer, Tunable
from neptune.ir.program import Scalar as ScalarParam

if TYPE_CHECKING:
    from neptune.tile.address import Address


@dataclass(frozen=True, slots=True)
class Scalar(Tile["TExpr"]):
    """A loop-IR expression over loop variables, sizes and tunables; dims ()."""

    expr: Expr

    @property
    def dims(self) -> tuple[str, ...]:
        return ()

    @property
    def dtype(self) -> str:
        return self.expr.dtype


@dataclass(frozen=True, slots=True)
class Full(Tile["TExpr"]):
    """A tile whose every element is `value`."""

    value: Scalar
    dims: tuple[str, ...]
    dtype: str

    @property
    def parts(self) -> tuple[TExpr, ...]:
        return (self.value,)

    def with_parts(self, parts: tuple[TExpr, ...]) -> TExpr:
        (value,) = parts
        assert isinstance(value, Scalar)
        return replace(self, value=value)


@dataclass(frozen=True, slots=True)
class Iota(Tile["TExpr"]):
    """0, 1, … extent-1 along one axis (int32)."""

    axis: str

    @property
    def dims(self) -> tuple[str, ...]:
        return (self.axis,)

    @property
    def dtype(self) -> str:
        return "int32"


@dataclass(frozen=True, slots=True)
class Local(Tile["TExpr"]):
    """The present value of a tile variable."""

    name: str
    dims: tuple[str, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class LoadTile(Tile["TExpr"]):
    """`buffer[index…]` under `mask` (a bool tile that broadcasts to dims), else `other`; the last pass says `at`."""

    buffer: str
    index: tuple[TExpr, ...]
    mask: TExpr | None
    other: float
    dims: tuple[str, ...]
    dtype: str
    at: Address | None = None

    @property
    def parts(self) -> tuple[TExpr, ...]:
        return self.index if self.mask is None else (*self.index, self.mask)

    def with_parts(self, parts: tuple[TExpr, ...]) -> TExpr:
        n = len(self.index)
        return replace(self, index=parts[:n], mask=parts[n] if len(parts) > n else None, at=None)


@dataclass(frozen=True, slots=True)
class Reduce(Tile["TExpr"]):
    """Fold `axis` of `arg` away with a reducer of width one."""

    reducer: str
    axis: str
    arg: TExpr

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(d for d in self.arg.dims if d != self.axis)

    @property
    def dtype(self) -> str:
        return self.arg.dtype

    @property
    def parts(self) -> tuple[TExpr, ...]:
        return (self.arg,)

    def with_parts(self, parts: tuple[TExpr, ...]) -> TExpr:
        return replace(self, arg=parts[0])


@dataclass(frozen=True, slots=True)
class Dot(Tile["TExpr"]):
    """Σ_k a[x, k]·b[k, y] (+ acc[x, y]), in float32, of int8 in int32. `allow_tf32` only if the user asked for it."""

    a: TExpr
    b: TExpr
    acc: TExpr | None = None
    allow_tf32: bool = False

    @property
    def dims(self) -> tuple[str, ...]:
        return (self.a.dims[0], self.b.dims[1])

    @property
    def dtype(self) -> str:
        return "int32" if self.a.dtype == "int8" else "float32"

    @property
    def parts(self) -> tuple[TExpr, ...]:
        return (self.a, self.b) if self.acc is None else (self.a, self.b, self.acc)

    def with_parts(self, parts: tuple[TExpr, ...]) -> TExpr:
        return replace(self, a=parts[0], b=parts[1], acc=parts[2] if len(parts) > 2 else None)


@dataclass(frozen=True, slots=True)
class Rearrange(Tile["TExpr"]):
    """einops.rearrange(arg, pattern): a permutation, or insertion of unit dimensions."""

    arg: TExpr
    pattern: str

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(self.pattern.split("->")[1].split())

    @property
    def dtype(self) -> str:
        return self.arg.dtype

    @property
    def parts(self) -> tuple[TExpr, ...]:
        return (self.arg,)

    def with_parts(self, parts: tuple[TExpr, ...]) -> TExpr:
        return replace(self, arg=parts[0])


TExpr: TypeAlias = Union[
    "Op[TExpr]",
    "Cast[TExpr]",
    "Select[TExpr]",
    Scalar,
    Full,
    Iota,
    Local,
    LoadTile,
    Reduce,
    Dot,
    Rearrange,
]


@dataclass(frozen=True, slots=True)
class Assign:
    """`name = value`. `stage` is the loop-IR stage it came from, for comments and explain()."""

    name: str
    value: TExpr
    stage: str = ""


@dataclass(frozen=True, slots=True)
class StoreTile:
    """`buffer[index…] = value` where `mask` holds; the last pass says `at`."""

    buffer: str
    index: tuple[TExpr, ...]
    value: TExpr
    mask: TExpr | None
    dims: tuple[str, ...]
    stage: str = ""
    at: Address | None = None


@dataclass(frozen=True, slots=True)
class Loop:
    """`for var in [lo, hi)`, in order; `facts` hold in each iteration."""

    var: str
    lo: Expr
    hi: Expr
    body: tuple[TStmt, ...]
    facts: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Branch:
    """`body` where a scalar condition holds."""

    pred: Expr
    body: tuple[TStmt, ...]


TStmt: TypeAlias = Assign | StoreTile | Loop | Branch


@dataclass(frozen=True, slots=True)
class GridAxis:
    """A grid variable `var` in [0, extent) on launch dimension `axis` ("x", "y", "z").

    Several variables on one dimension share its program id, the first one running fastest.
    """

    var: str
    extent: Expr
    axis: str


@dataclass(frozen=True, slots=True)
class TileKernel:
    """One kernel. `axes` maps each tile axis to its extent (Const or a tunable Var)."""

    name: str
    grid: tuple[GridAxis, ...]
    axes: tuple[tuple[str, Expr], ...]
    body: tuple[TStmt, ...]


@dataclass(frozen=True, slots=True)
class TileProgram:
    """Kernels in launch order over the same parameters as the Program they came from."""

    name: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    temporaries: tuple[Buffer, ...]
    scalars: tuple[ScalarParam, ...]
    tunables: tuple[Tunable, ...]
    kernels: tuple[TileKernel, ...]

    @property
    def globals(self) -> dict[str, Buffer]:
        return {b.name: b for b in (*self.inputs, *self.outputs, *self.temporaries)}

    @property
    def chosen(self) -> tuple[str, ...]:
        """The numbers of parts, which launches choose."""
        return tuple(s.name for s in self.scalars if s.upto is not None)

    def __str__(self) -> str:
        from neptune.tile.printer import print_tile_program

        return print_tile_program(self)


# --- traversal ---------------------------------------------------------------------------------


def stmt_exprs(s: TStmt) -> tuple[TExpr, ...]:
    """The tile expressions of one statement (not of its body)."""
    match s:
        case Assign(_, value, _):
            return (value,)
        case StoreTile(_, index, value, mask, _, _):
            return (*index, value) if mask is None else (*index, value, mask)
        case _:
            return ()


def read_by(e: TExpr) -> frozenset[str]:
    """The names of the locals that an expression reads."""
    return frozenset(x.name for x in walk(e) if isinstance(x, Local))


def bound_exprs(s: TStmt) -> tuple[Expr, ...]:
    """The bounds of a loop, the condition of a branch."""
    return (s.lo, s.hi) if isinstance(s, Loop) else (s.pred,) if isinstance(s, Branch) else ()


def map_stmt(s: TStmt, fn: Callable[[TExpr], TExpr]) -> TStmt:
    """Apply `fn` to every tile expression of a statement, bodies included."""
    match s:
        case Assign():
            return replace(s, value=fn(s.value))
        case StoreTile():
            mask = None if s.mask is None else fn(s.mask)
            index = tuple(fn(i) for i in s.index)
            address = s.at if (index, mask) == (s.index, s.mask) else None
            return replace(s, index=index, value=fn(s.value), mask=mask, at=address)
        case Loop() | Branch():
            return replace(s, body=tuple(map_stmt(x, fn) for x in s.body))


def leaves(e: TExpr) -> Iterator[TExpr]:
    """What the operators, casts and choices at the top of an expression are applied to."""
    if isinstance(e, Op | Cast | Select):
        for part in e.parts:
            yield from leaves(part)
    else:
        yield e


def map_leaves(e: TExpr, fn: Callable[[TExpr], TExpr]) -> TExpr:
    """Apply `fn` to the leaves of an expression, whose form above them stays."""
    return rewrite(e, lambda x: None if isinstance(x, Op | Cast | Select) else fn(x))


def bare(e: TExpr) -> TExpr:
    """The tile that is only brought to other dims."""
    return bare(e.arg) if isinstance(e, Rearrange) else e


def walk_stmts(body: tuple[TStmt, ...]) -> Iterator[TStmt]:
    """Every statement in program order, a parent before its parts."""
    for s in body:
        yield s
        if isinstance(s, Loop | Branch):
            yield from walk_stmts(s.body)


def is_rest(before: TStmt | None, s: Branch) -> bool:
    """True where a branch does what the loop before it left over: `if end < …` behind `for j0 in range(end)`, and
    `if begin <= end and end < …` behind `for j0 in range(begin, min(end, …))`."""
    if not isinstance(before, Loop):
        return False
    rest = [c for c in conjuncts(s.pred) if c != Op("le", (before.lo, _left(c)), "bool")]
    ends = {before.hi, *(before.hi.args if isinstance(before.hi, Op) and before.hi.name == "min" else ())}
    return len(rest) == 1 and isinstance(rest[0], Op) and rest[0].name == "lt" and rest[0].args[0] in ends


def _left(c: Expr) -> Expr:
    """Return the last operand of a condition: `end` of `begin <= end`."""
    return c.args[-1] if isinstance(c, Op) else c


def reread(body: tuple[TStmt, ...]) -> list[str]:
    """The buffers that a kernel both writes and reads: other threads' stores are not visible without a barrier."""
    stored = {s.buffer for s in walk_stmts(body) if isinstance(s, StoreTile)}
    nodes = [n for s in walk_stmts(body) for e in stmt_exprs(s) for n in walk(e)]
    scalars = [e for s in walk_stmts(body) if isinstance(s, Loop) for e in (s.lo, s.hi)]
    scalars += [s.pred for s in walk_stmts(body) if isinstance(s, Branch)]
    scalars += [n.expr for n in nodes if isinstance(n, Scalar)]
    read = {n.buffer for n in nodes if isinstance(n, LoadTile)} | {x.buffer for e in scalars for x in loads(e)}
    return sorted(stored & read)
