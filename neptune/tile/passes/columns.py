"""columns: what masks ask of columns is one comparison with a number of each row, or two.

where((base + j <= i + c) and (base + j < n), s, -inf)   →   where(base + j <= min(i + c, n - 1), s, -inf)

What that number is made of is a matter of rows, not of each element: of causal attention 138 of the 706 instructions of
a masked iteration go, of documents 364 of 1032, with comparison and choice in one piece (`GluonTile.hidden`). From
numbers that come from data 1 is taken where that does not overflow; where sizes and positions alone are compared, the
sums are those of positions. The exact check is of the kernel with these comparisons.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import reduce

from neptune.ir.expr import Const, Expr, Op, Select, Var, conjuncts, loads, rewrite, variables, walk
from neptune.ir.indices.affine import Poly, number, poly
from neptune.tile.ir import (
    Dot,
    Iota,
    Loop,
    Rearrange,
    Reduce,
    Scalar,
    StoreTile,
    TExpr,
    TStmt,
    bare,
    map_stmt,
    stmt_exprs,
    walk_stmts,
)
from neptune.tile.passes.util import Block

SWAPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
FAR, LAST = 1 << 30, (1 << 31) - 1
"""Larger constants than FAR are no positions; LAST is the largest int32, which no position is either."""


@dataclass(frozen=True)
class _Bound:
    """column <= value, or >= where it is a `lower` one; the value is one of rows, or of none."""

    column: TExpr
    value: TExpr
    lower: bool

    def both(self, other: _Bound, *, either: bool) -> _Bound:
        """The bound that says both, or either."""
        return replace(self, value=_op("max" if self.lower != either else "min", self.value, other.value))


@dataclass(frozen=True)
class Limits:
    """What a condition asks of columns: first <= column <= last, where each may be missing; and what else it asks."""

    column: TExpr
    first: TExpr | None
    last: TExpr | None
    others: tuple[TExpr, ...]


def limits(pred: TExpr) -> Limits | None:
    """The columns of a condition as `in_columns` leaves them; None where it asks nothing of columns, or of several."""
    axis = pred.dims[-1]
    sides: dict[str, tuple[TExpr, TExpr]] = {}
    others: list[TExpr] = []
    for part in conjuncts(pred):
        match bare(part):
            case Op("le" | "ge" as name, (a, b), _) if (column := _column(a, axis)) is not None and name not in sides:
                sides[name] = column, bare(b)
            case _:
                others.append(part)
    if len({column for column, _ in sides.values()}) != 1:
        return None
    (column, _), *_ = sides.values()
    first, last = (sides[name][1] if name in sides else None for name in ("ge", "le"))
    return Limits(column, first, last, tuple(others))


def in_columns(body: Block, known: Collection[str]) -> Block:
    """A body whose choices compare columns alone; `known` are the variables that are sizes, positions or tile sizes."""
    rows = _stored(body)
    return tuple(map_stmt(s, _Columns(frozenset(known) | _loops(s), rows).rewritten) for s in body)


def _stored(body: Block) -> frozenset[Poly]:
    """What is not negative for every row that leaves the kernel, as `size - 1 - row`; nothing where rows are folded,
    as the others may be seen there."""
    every = list(walk_stmts(body))
    rooms = [
        frozenset(p for c in conjuncts(s.mask) if (p := _room(c)) is not None)
        for s in every
        if isinstance(s, StoreTile)
    ]
    rows = {s.dims[0] for s in every if isinstance(s, StoreTile) and s.dims}
    parts = [x for s in every for e in stmt_exprs(s) for x in walk(e)]
    folded = {x.axis for x in parts if isinstance(x, Reduce)} | {x.a.dims[-1] for x in parts if isinstance(x, Dot)}
    return frozenset[Poly]() if not rooms or rows & folded else rooms[0].intersection(*rooms[1:])


def _room(pred: TExpr) -> Poly | None:
    """size - 1 - row of a condition row < size."""
    match bare(pred):
        case Op("lt", (a, b), _) if (p := _poly(bare(a))) is not None and (q := _poly(bare(b))) is not None:
            return q - number(1) - p
    return None


def _poly(e: TExpr) -> Poly | None:
    """A tile of positions as a polynomial, in which the numbers along an axis are a variable of its name."""
    match e:
        case Scalar(expr) if not loads(expr):
            return poly(expr)
        case Iota(axis):
            return poly(Var(f"{axis}[]", "int32"))
        case Op("add" | "sub" as name, (a, b), _):
            p, q = _poly(a), _poly(b)
            return None if p is None or q is None else p + q if name == "add" else p - q
    return None


def _loops(s: TStmt) -> frozenset[str]:
    """The loop variables of a statement and of its body."""
    return frozenset(x.var for x in walk_stmts((s,)) if isinstance(x, Loop))


@dataclass(frozen=True)
class _Columns:
    """`known`: the variables that are sizes or positions, `rows`: what is not negative for all rows that count."""

    known: frozenset[str]
    rows: frozenset[Poly]

    def rewritten(self, e: TExpr) -> TExpr:
        return rewrite(e, self._choice)

    def _choice(self, e: TExpr) -> TExpr | None:
        if not isinstance(e, Select) or len(e.parts[0].dims) != 2:
            return None
        pred, *values = e.parts
        compared = self._pred(pred)
        return None if compared is None else e.with_parts((compared, *map(self.rewritten, values)))

    def _pred(self, pred: TExpr) -> TExpr | None:
        """A condition of rows and columns with one comparison for each side; None where it has none of columns."""
        axis = pred.dims[-1]
        others: list[TExpr] = []
        sides: dict[tuple[TExpr, bool], list[_Bound]] = {}
        for part in conjuncts(pred):
            if (bound := self._bound(part, axis)) is None:
                others.append(part)
            else:
                sides.setdefault((bound.column, bound.lower), []).append(bound)
        if not sides:
            return None
        comparisons = [_compared(self._all_of(bounds), axis) for bounds in sides.values()]
        return reduce(lambda a, b: Op("and", (a, b), "bool"), [*comparisons, *others])

    def _all_of(self, bounds: list[_Bound]) -> _Bound:
        """The bound that says all of some, without those that others imply."""
        needed: list[_Bound] = []
        for k, b in enumerate(bounds):
            if not any(self._implies(x, b) for x in (*needed, *bounds[k + 1 :])):
                needed.append(b)
        return reduce(lambda a, b: a.both(b, either=False), needed)

    def _implies(self, one: _Bound, other: _Bound) -> bool:
        """Whether a bound lies within another one for all rows that count: of causal queries none is past the keys."""
        p, q = _poly(one.value), _poly(other.value)
        if p is None or q is None:
            return False
        room = p - q if one.lower else q - p
        rests = (rest.constant for rest in (room, *(room - r for r in self.rows)))
        return any(n is not None and n >= 0 for n in rests)

    def _bound(self, e: TExpr, axis: str) -> _Bound | None:
        match bare(e):
            case Op("and" | "or" as name, (a, b), _):
                one, other = self._bound(a, axis), self._bound(b, axis)
                if one is None or other is None or (one.column, one.lower) != (other.column, other.lower):
                    return None
                return one.both(other, either=name == "or")
            case Op(name, (a, b), _) if name in SWAPPED and a.dtype == b.dtype == "int32":
                return self._compared(a, name, b, axis) or self._compared(b, SWAPPED[name], a, axis)
        return None

    def _compared(self, left: TExpr, name: str, right: TExpr, axis: str) -> _Bound | None:
        """The bound of `column < value`, or of `row - column < value`."""
        value = bare(right)
        if axis in value.dims or "1" in value.dims:
            return None
        if (column := _column(left, axis)) is not None:
            return self._inclusive(column, name, value)
        match bare(left):
            case Op("sub", (a, b), _) if (column := _column(b, axis)) is not None:
                row = bare(a)
                if axis not in row.dims and "1" not in row.dims and self._is_position(row) and self._is_position(value):
                    return self._inclusive(column, SWAPPED[name], _op("sub", row, value))
        return None

    def _inclusive(self, column: TExpr, name: str, value: TExpr) -> _Bound:
        """column < value as column <= value - 1; data is kept from the end of int32 first, where no column is."""
        lower, strict = name in ("gt", "ge"), name in ("lt", "gt")
        if strict and not self._is_position(value):
            value = _op("min", value, _number(LAST - 1)) if lower else _op("max", value, _number(-LAST))
        if strict:
            value = _op("add" if lower else "sub", value, _number(1))
        return _Bound(column, value, lower)

    def _is_position(self, e: TExpr) -> bool:
        """True for what is made of sizes, positions and small numbers."""
        return all(
            (isinstance(x, Op) and x.name in ("add", "sub", "mul", "min", "max"))
            or isinstance(x, Iota)
            or (isinstance(x, Scalar) and self._is_known(x.expr))
            for x in walk(e)
        )

    def _is_known(self, e: Expr) -> bool:
        small = all(abs(x.value) < FAR for x in walk(e) if isinstance(x, Const))
        return small and not loads(e) and variables(e) <= self.known


def _column(e: TExpr, axis: str) -> TExpr | None:
    """The numbers of columns of a tile; None for what is something else."""
    match plain := bare(e):
        case Iota(name) if name == axis:
            return plain
        case Op("add", (Scalar(), Iota(name)), _) | Op("add", (Iota(name), Scalar()), _) if name == axis:
            return plain
    return None


def _compared(bound: _Bound, axis: str) -> TExpr:
    """The comparison, over rows and columns."""
    name, across = "ge" if bound.lower else "le", f"{axis} -> 1 {axis}"
    if not bound.value.dims:
        return Rearrange(Op(name, (bound.column, bound.value), "bool"), across)
    (rows,) = bound.value.dims
    return Op(name, (Rearrange(bound.column, across), Rearrange(bound.value, f"{rows} -> {rows} 1")), "bool")


def _op(name: str, a: TExpr, b: TExpr) -> TExpr:
    return Op(name, (a, b), "int32")


def _number(value: int) -> Scalar:
    return Scalar(Const(value, "int32"))
