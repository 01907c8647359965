"""same: do two bodies compute the same, but for masks that one of them needs?

s = dot(q, k); p = exp2(s - m)      and      s = dot(q, k); t = where(j < n, s, -inf); p = exp2(t - m)

are the same on a tile where `j < n` holds everywhere. Values are numbered: locals are what they were assigned, so names
and temporaries do not count; nor does it where positive constants are multiplied, by which roundings may differ.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field

from neptune.ir.dtypes import is_float
from neptune.ir.expr import Cast, Const, Expr, Op, Select, walk
from neptune.tile.ir import (
    Assign,
    Dot,
    Full,
    Iota,
    LoadTile,
    Local,
    Rearrange,
    Reduce,
    Scalar,
    TExpr,
)
from neptune.tile.passes.util import Block


@dataclass(frozen=True)
class _Scaled:
    """A value times positive constants, in whichever order they were multiplied."""

    of: int
    factors: tuple[Expr, ...]


@dataclass
class Numbering:
    """Numbers of values: equal ones have one. Of masks by positions only the conjuncts in `kept` count, all where it is
    None."""

    numbers: dict[Hashable, int] = field(default_factory=dict)
    keys: list[Hashable] = field(default_factory=list)
    kept: frozenset[int] | None = None
    masks: set[int] = field(default_factory=set)

    def body(self, body: Block) -> dict[str, int] | None:
        """The numbers of the locals that a body of assignments leaves behind; None for any other body."""
        known: dict[str, int] = {}
        for s in body:
            if not isinstance(s, Assign):
                return None
            known[s.name] = self.value(s.value, known)
        return known

    def value(self, e: TExpr, known: dict[str, int]) -> int:
        """The number of an expression."""
        match e:
            case Local(name, _, _) if name in known:
                return known[name]
            case Select(pred, then, other):
                left = self._conjuncts(pred, known)
                if not left:
                    return self.value(then, known)
                return self._number(("select", left, self.value(then, known), self.value(other, known)))
            case LoadTile(buffer, index, mask, other, dims, _):
                left = self._conjuncts(mask, known)
                parts = tuple(self.value(i, known) for i in index)
                return self._number(("load", buffer, parts, left, other if left else None, dims))
            case Rearrange(arg, _):
                # Axes have names: the same values, in another order of dims.
                return self.value(arg, known)
            case Reduce("max" | "min" as reducer, axis, arg):
                factors, scaled = self._scaled(self.value(arg, known))
                return self._times(self._number(("Reduce", (reducer, axis), scaled)), factors)
            case Op("mul", (a, Scalar(c)), _) if (own := _factors(c)) is not None:
                factors, scaled = self._scaled(self.value(a, known))
                return self._times(scaled, (*factors, *own))
        return self._number((type(e).__name__, _own(e), *(self.value(x, known) for x in e.parts)))

    def _scaled(self, number: int) -> tuple[tuple[Expr, ...], int]:
        """The constant factors of a value, and what they scale: max(x · c) is max(x) · c, as c is positive."""
        match self.keys[number]:
            case _Scaled(of, factors):
                return factors, of
        return (), number

    def _times(self, scaled: int, factors: tuple[Expr, ...]) -> int:
        return self._number(_Scaled(scaled, tuple(sorted(factors, key=repr)))) if factors else scaled

    def _conjuncts(self, mask: TExpr | None, known: dict[str, int]) -> frozenset[int]:
        """The numbers of the conditions of a mask that count."""
        numbers = {self.value(c, known): c for c in _parts(mask)}
        self.masks |= numbers.keys()
        return frozenset(n for n, c in numbers.items() if self.kept is None or n in self.kept or not _of_places(c))

    def _number(self, key: Hashable) -> int:
        if key not in self.numbers:
            self.keys.append(key)
        return self.numbers.setdefault(key, len(self.numbers))


def _of_places(c: TExpr) -> bool:
    """True for a condition on positions and other integers: one on what is computed is no mask of tiles."""
    return not any(is_float(x.dtype) or (isinstance(x, Local) and x.dtype == "bool") for x in walk(c))


def _factors(e: Expr) -> tuple[Expr, ...] | None:
    """The positive constants that an expression is the product of; None for any other expression."""
    match e:
        case Const(value, _) if value > 0:
            return (e,)
        case Op("log2e" | "ln2", (), _):
            return (e,)
        case Op("mul", (a, b), _):
            left, right = _factors(a), _factors(b)
            return None if left is None or right is None else (*left, *right)
    return None


def _parts(mask: TExpr | None) -> list[TExpr]:
    """The conjuncts of a mask, whichever way parts of it are turned."""
    if isinstance(mask, Rearrange):
        return _parts(mask.arg)
    if isinstance(mask, Op) and mask.name == "and":
        return [c for part in mask.args for c in _parts(part)]
    return [] if mask is None else [mask]


def _own(e: TExpr) -> Hashable:
    """What a node is beside its parts."""
    match e:
        case Op(name, _, dtype):
            return (name, dtype)
        case Cast(_, dtype):
            return dtype
        case Scalar(expr):
            return expr
        case Full(value, dims, dtype):
            return (value, dims, dtype)
        case Iota(axis):
            return axis
        case Local(name, dims, _):
            return (name, dims)
        case Reduce(reducer, axis, _):
            return (reducer, axis)
        case Dot(_, _, acc, tf32):
            return (acc is None, tf32)
    return ()


def same_but_for_masks(masked: Block, clean: Block, names: Collection[str]) -> bool:
    """True if two bodies of assignments leave the same in `names` on a tile where all masks hold that only the first
    one has."""
    numbering = Numbering()
    plain = numbering.body(clean)
    again = Numbering(numbering.numbers, numbering.keys, frozenset(numbering.masks))
    other = again.body(masked)
    return plain is not None and other is not None and all(plain.get(n) == other.get(n) for n in names)
