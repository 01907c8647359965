"""Reducers as data: identity, combine, and the algebra the prover may use.

A reducer of width w folds w-tuples: `identity` gives the start for the dtypes of the w parts, `combine` the
straight-line code of `state ⊕ value`.  Float max and min start from the finite extreme, as TE's do, so that
exp(-inf - identity) is 0 and never NaN (docs/design/programs.md, "A maximum starts from a finite number").  They pass
over NaN, as Triton's do: a maximum is that of the numbers there are.

`argmax`, `argmin` and `top1` … `top8` fold pairs (value, index) under a *total* order: the larger value (argmin:
the smaller) comes first, of equal values the smaller index, and NaN before every number, as in torch and numpy.
Being a choice by a total order they are associative and commutative, whatever the order of the tiles.  Their
identity is the last of all pairs, (-inf, the highest index): any element wins against it, also one of -inf, and
what a row of fewer than k elements lacks reads so.  An element's own index must be below the highest integer.
The parts of `top<k>` are its k values, best first, then their k indices.

`lse` folds pairs (m, l) that stand for l·e^m, a sum of exponentials that keeps its range: of an element x, (x, 1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from neptune.ir.dtypes import DTYPES, is_float, is_int
from neptune.ir.expr import OPS, Const, Expr, Var, binary, cast, eq, logical_and, logical_or, ne, op, select

MAX_K = 8
Pair: TypeAlias = tuple[Expr, Expr]


@dataclass(frozen=True)
class Combined:
    """`lets` in order, each a variable no program has and its value, then the parts of `state ⊕ value`.

    Part k of `result` reads, of the state, part k only: the parts can be written one after the other.
    """

    lets: tuple[tuple[Var, Expr], ...]
    result: tuple[Expr, ...]


@dataclass(frozen=True)
class Reducer:
    """One row. `moves`: the only way that the state goes as values are folded in, +1 up, -1 down, 0 for both.

    `neutral` is the number that changes no state when it is folded in; of pairs, the value that comes behind all.
    `op` is the operator that folds one value into another, `word` what the result is called; a reducer of pairs has
    none, but `best`, the comparison by which it chooses ("gt" or "lt"). `leads`: the reducer that its first part by
    itself folds with, where there are several.
    """

    name: str
    symbol: str
    width: int
    identity: Callable[..., tuple[Const, ...]]
    combine: Callable[[Sequence[Expr], Sequence[Expr]], Combined]
    neutral: float
    associative: bool = True
    commutative: bool = True
    idempotent: bool = False
    moves: int = 0
    op: str = ""
    word: str = ""
    best: str = ""
    leads: str = ""

    @property
    def folds(self) -> str:
        """The kind of values that it takes, and no others: "bools", "integers" or "numbers"."""
        return {"logic": "bools", "bits": "integers"}.get(OPS[self.op].kind if self.op else "", "numbers")

    def takes(self, dtype: str) -> bool:
        """True where values of a dtype are of its kind."""
        return is_int(dtype) if self.folds == "integers" else (dtype == "bool") == (self.folds == "bools")

    @property
    def elements(self) -> int:
        """The number of its parts that are values, the others being their indices."""
        return self.width // 2 if self.best else self.width

    def nothing(self, dtype: str) -> Const:
        """`neutral` in a dtype: the extreme of an integer one. `identity` is finite, and so above a maximum of -inf.

        >>> REDUCERS["max"].nothing("float32").value, REDUCERS["max"].identity("float32")[0].value
        (-inf, -3.4028234663852886e+38)
        """
        return _number(self.neutral if is_float(dtype) else _finite(self.neutral, dtype), dtype)[0]


def _number(value: float, dtype: str) -> tuple[Const]:
    number: float = float(value) if is_float(dtype) else bool(value) if dtype == "bool" else int(value)
    return (Const(number, dtype),)


def _finite(value: float, dtype: str) -> float:
    """The number of a dtype that is next to an infinite one."""
    row = DTYPES[dtype]
    return row.lowest if value == -inf else row.highest if value == inf else value


def _fold(
    name: str,
    symbol: str,
    op: str,
    word: str,
    neutral: float,
    *,
    idempotent: bool = False,
    moves: int = 0,
) -> Reducer:
    """A row that folds single values by one operator."""

    def combine(state: Sequence[Expr], value: Sequence[Expr]) -> Combined:
        return Combined((), (binary(op, state[0], value[0]),))

    return Reducer(
        name,
        symbol,
        1,
        lambda d: _number(_finite(neutral, d), d),
        combine,
        neutral,
        idempotent=idempotent,
        moves=moves,
        op=op,
        word=word,
    )


# --- choices of pairs --------------------------------------------------------------------------


WORST = {"gt": -inf, "lt": inf}
"""The value that comes behind every other, by the comparison that chooses."""


def last_pair(best: str, value: str, index: str) -> tuple[Const, Const]:
    """The pair of these dtypes that comes behind every element: (-inf, highest) for "gt"."""
    worst = WORST[best] if is_float(value) else _finite(WORST[best], value)
    return _number(worst, value)[0], _number(DTYPES[index].highest, index)[0]


def _identity(best: str, k: int) -> Callable[..., tuple[Const, ...]]:
    def identity(*dtypes: str) -> tuple[Const, ...]:
        pairs = [last_pair(best, dtypes[t], dtypes[k + t]) for t in range(k)]
        return (*(v for v, _ in pairs), *(i for _, i in pairs))

    return identity


class _Network:
    """Straight-line code that sorts pairs; a None is a pair that comes last."""

    def __init__(self, best: str) -> None:
        self.best = best
        self.lets: list[tuple[Var, Expr]] = []

    def let(self, e: Expr) -> Var:
        # Not an identifier: no variable of a program has this name.
        name = Var(f"%{len(self.lets)}", e.dtype)
        self.lets.append((name, e))
        return name

    def comes_first(self, a: Pair, b: Pair) -> Var:
        """Return the condition that pair `a` comes before pair `b`."""
        (av, ai), (bv, bi) = a, b
        first, tie = binary(self.best, av, bv), eq(av, bv)
        if is_float(av.dtype):
            first = self.let(logical_or(first, logical_and(ne(av, av), eq(bv, bv))))
            tie = self.let(logical_or(tie, logical_and(ne(av, av), ne(bv, bv))))
        return self.let(logical_or(first, logical_and(tie, binary("lt", ai, bi))))

    def sort(self, a: Pair | None, b: Pair | None, *, both: bool, name: bool) -> tuple[Pair | None, Pair | None]:
        """The two in order; the second only where `both`, as variables where `name`."""
        if a is None or b is None:
            return (b, a) if a is None else (a, b)
        keep = self.comes_first(a, b)
        orders = [(a, b), (b, a)] if both else [(a, b)]
        pairs = [(select(keep, x[0], y[0]), select(keep, x[1], y[1])) for x, y in orders]
        if name:
            pairs = [(self.let(v), self.let(i)) for v, i in pairs]
        return pairs[0], pairs[-1]


def _merge(best: str, k: int) -> Callable[[Sequence[Expr], Sequence[Expr]], Combined]:
    """The first k of two sorted lists of k: the best of opposite ends, then a bitonic merge."""
    size = 1 << (k - 1).bit_length()

    def combine(state: Sequence[Expr], value: Sequence[Expr]) -> Combined:
        net = _Network(best)
        lists: list[list[Pair | None]] = [
            [*((part[t], part[k + t]) for t in range(k)), *([None] * (size - k))] for part in (state, value)
        ]
        one = k == 1
        pairs = [net.sort(a, b, both=False, name=not one)[0] for a, b in zip(lists[0], reversed(lists[1]), strict=True)]
        step = size // 2
        while step:
            for t in (t for t in range(size) if not t & step):
                pairs[t], pairs[t + step] = net.sort(pairs[t], pairs[t + step], both=True, name=True)
            step //= 2
        first = [p for p in pairs[:k] if p is not None]
        return Combined(tuple(net.lets), (*(v for v, _ in first), *(i for _, i in first)))

    return combine


def _choice(name: str, best: str, k: int) -> Reducer:
    leads = {"gt": "max", "lt": "min"}[best]
    merge = _merge(best, k)
    return Reducer(
        name, f"{name}=", 2 * k, _identity(best, k), merge, WORST[best], idempotent=k == 1, best=best, leads=leads
    )


# --- sums of exponentials -----------------------------------------------------------------------


def _no_exponentials(top: str, total: str) -> tuple[Const, ...]:
    return (*_number(DTYPES[top].lowest, top), *_number(0, total))


def _add_exponentials(state: Sequence[Expr], value: Sequence[Expr]) -> Combined:
    """(m, l) ⊕ (m', l') = (M, l·exp(m - M) + l'·exp(m' - M)) with M = max(m, m', lowest): two of -inf make 0."""
    (m, s), (x, y) = state, value
    top, left, right = (Var(f"%{k}", m.dtype) for k in range(3))
    highest = binary("max", binary("max", m, x), _number(DTYPES[m.dtype].lowest, m.dtype)[0])
    lets = ((top, highest), *((v, op("exp", binary("sub", a, top))) for v, a in ((left, m), (right, x))))
    total = binary("add", binary("mul", s, cast(left, s.dtype)), binary("mul", y, cast(right, s.dtype)))
    return Combined(lets, (top, total))


def top_k(k: int) -> Reducer:
    """The row of the k largest, k from 1 to 8 (`top4` for k = 4)."""
    return REDUCERS[f"top{k}"]


_ROWS = (
    _fold("sum", "+=", "add", "sum", 0),
    _fold("prod", "*=", "mul", "product", 1),
    _fold("max", "max=", "max", "maximum", -inf, idempotent=True, moves=1),
    _fold("min", "min=", "min", "minimum", inf, idempotent=True, moves=-1),
    _fold("all", "and=", "and", "conjunction", 1, idempotent=True, moves=-1),
    _fold("any", "or=", "or", "disjunction", 0, idempotent=True, moves=1),
    _fold("bitor", "bitor=", "bitor", "union", 0, idempotent=True),
    _fold("bitxor", "bitxor=", "bitxor", "parity", 0),
    _choice("argmax", "gt", 1),
    _choice("argmin", "lt", 1),
    *(_choice(f"top{k}", "gt", k) for k in range(1, MAX_K + 1)),
    Reducer("lse", "lse=", 2, _no_exponentials, _add_exponentials, -inf, leads="max"),
)
REDUCERS = {row.name: row for row in _ROWS}
BY_SYMBOL = {row.symbol: row for row in _ROWS}
BY_OP = {row.op: row for row in _ROWS if row.op}
