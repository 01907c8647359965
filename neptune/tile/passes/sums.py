"""sums: which locals sum exponentials about a running maximum, as `exp2` and `reciprocal` need to know.

    m = max(m, max(x));  l = l * exp(m_prev - m) + sum(exp(x - m))

`Bounds` says how large the elements of a tile can be, which both need to know, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import inf, sqrt

from neptune.ir.analysis.facts import applied, constant_range, of_dtype, range_of
from neptune.ir.dtypes import DTYPES, is_float
from neptune.ir.expr import Cast, Const, Expr, Op, Select, args_of
from neptune.ir.ops import ANY, LOGARITHMS, OPS, Range
from neptune.ir.reducers import REDUCERS
from neptune.tile.ir import (
    Assign,
    Branch,
    Dot,
    Full,
    LoadTile,
    Local,
    Loop,
    Rearrange,
    Reduce,
    Scalar,
    TExpr,
    TileKernel,
    TStmt,
    bare,
)
from neptune.tile.ranges import Elements, Ranges, infinite_inputs

Exponent = tuple[TExpr, str]
"""(x, m) of exp(x - m), where m is a local."""


class Lows(Ranges):
    """Ranges in which a sum of exponentials that holds its own maximum is at least 1, and a root is 0 or no less than
    that of the smallest number of its dtype: 3.7e-23 of float32."""

    def __init__(self, kernel: TileKernel) -> None:
        super().__init__(kernel)
        self._held: dict[str, bool] = {}

    def known(self, e: TExpr) -> Range | None:
        match e:
            case Op("sqrt", (x,), dtype) if is_float(dtype):
                root = applied("sqrt", [range_of(x, self.known)])
                return replace(root, least=max(root.least, sqrt(of_dtype(dtype).least)))
        return super().known(e)

    def settled(self, name: str, value: Range) -> Range:
        if name not in self._held:
            self._held[name] = holds_its_maximum(self.kernel, self.given, name)
        return replace(value, least=max(value.least, 1.0)) if self._held[name] else value


def holds_its_maximum(kernel: TileKernel, given: Mapping[str, list[TExpr]], name: str) -> bool:
    """True for a sum of exponentials of x - m in which m is the largest of exactly these x: one of them is 1.

    Both start from nothing, and each loop folds into both the same x.
    """

    def terms(values: list[TExpr], m: str = "") -> list[frozenset[Exponent]]:
        return [exponents(t, given) for e in values for t in folded_into(name, "sum", e, lambda by: rescales(by, m))]

    def rescales(by: TExpr, m: str) -> bool:
        """True for exp(m_prev - m), where m_prev is a copy of m (any m, if it has no name)."""
        pairs = exponents(by, given)
        return len(pairs) == 1 and all(isinstance(x, Local) and _copies(x, now) and m in ("", now) for x, now in pairs)

    def _copies(x: Local, now: str) -> bool:
        return all(isinstance(e, Local) and e.name == now for e in given[x.name])

    every = terms(given[name])
    maxima = {m for found in every for _, m in found}
    if len(maxima) != 1 or not all(len(found) == 1 for found in every):
        return False
    (m,) = maxima
    for block in _blocks(kernel.body):
        assigned = [(s.name, s.value) for s in block if isinstance(s, Assign)]
        folded = [y for n, e in assigned if n == m for y in folded_into(m, "max", e)]
        summed = [x for found in terms([e for n, e in assigned if n == name], m) for x, _ in found]
        if sorted(map(repr, folded)) != sorted(map(repr, summed)):
            return False
    return True


def folded_into(name: str, reducer: str, e: TExpr, kept: Callable[[TExpr], bool] = lambda _: False) -> list[TExpr]:
    """The values that an assignment folds into a local, apart from its start and its own value.

    `kept` says by which factors its own value may be scaled.
    """
    row = REDUCERS[reducer]
    scalar = e.value if isinstance(e, Full) else e
    start = scalar.expr if isinstance(scalar, Scalar) else None
    if isinstance(start, Const) and start.value in (row.neutral, row.identity(start.dtype)[0].value):
        return []
    own = args_of(e, "mul") or (e,)
    if isinstance(own[0], Local) and own[0].name == name and all(map(kept, own[1:])):
        return []
    if isinstance(e, Reduce) and e.reducer == reducer:
        return [e.arg]
    parts = args_of(e, row.op)
    return [x for a in parts for x in folded_into(name, reducer, a, kept)] if parts else [e]


def exponents(e: TExpr, given: Mapping[str, list[TExpr]], seen: frozenset[str] = frozenset()) -> frozenset[Exponent]:
    """All exponents of the exponential that `e` is, casts apart; none where it may be something else."""
    e = bare(e)
    if isinstance(e, Cast):
        return exponents(e.arg, given, seen)
    if isinstance(e, Local) and e.name not in seen:
        each = [exponents(x, given, seen | {e.name}) for x in given[e.name]]
        return frozenset[Exponent]().union(*each) if all(each) else frozenset()
    difference = args_of(args_of(e, "exp")[0], "sub") if args_of(e, "exp") else ()
    if difference and isinstance(m := bare(difference[1]), Local):
        return frozenset({(difference[0], m.name)})
    return frozenset()


def past_start(choice: Select[TExpr], maximum: str, bounds: Bounds) -> tuple[bool, bool]:
    """In which branch of where(l > 0, a, b), or where(l <= 0, b, a), the maximum is past its start: a.

    Here l is a sum of exponentials exp(x - maximum): while the maximum is at its start these are 0 for
    x = -inf, infinite for any other number, and NaN for NaN.  In the last two cases a must be so too,
    whatever the maximum: it must compute with l.
    """
    pred = bare(choice.pred)
    sign, zero = map(bare, args_of(pred, "gt", "le") or (pred, pred))
    if not (isinstance(sign, Local) and isinstance(zero, Scalar) and isinstance(zero.expr, Const)) or zero.expr.value:
        return False, False
    above = bool(args_of(pred, "gt"))
    terms = [t for e in bounds.given[sign.name] for t in folded_into(sign.name, "sum", e, lambda _: True)]
    by_term = [exponents(t, bounds.given) for t in terms]
    sums = all(pairs and all(m == maximum and bounds.below(x) for x, m in pairs) for pairs in by_term)
    sums = sums and _computes_with(choice.then if above else choice.other, sign.name)
    return sums and above, sums and not above


def _computes_with(e: TExpr, name: str) -> bool:
    """True if `e` is infinite or NaN where the local is."""

    def known(x: TExpr) -> Range | None:
        if isinstance(x, Local) and x.name == name:
            return Range(inf, inf)
        # Maxima pass over NaN.
        elementwise = isinstance(x, Op) and x.name not in ("max", "min")
        return None if elementwise else range_of(x.arg, known) if isinstance(x, Rearrange) else ANY

    limits = range_of(e, known)
    return limits.lo == limits.hi and limits.most == inf


def _blocks(stmts: tuple[TStmt, ...]) -> Iterator[tuple[TStmt, ...]]:
    yield stmts
    for s in stmts:
        if isinstance(s, Loop | Branch):
            yield from _blocks(s.body)


# --- how large elements are -------------------------------------------------------------------------

LARGE = 1e30
"""Magnitudes below it are far from overflowing, whatever the factor."""
ORDINARY = 1e9
"""What products of matrices, and their factors, are taken to stay below."""


class Bounds(Ranges):
    """Ranges of the finite elements: -inf, which masks, counts as 0.

    Products of matrices count as ordinary: only what is added or chosen can serve as a mask.
    """

    def __init__(self, kernel: TileKernel) -> None:
        super().__init__(kernel, _unmasked)
        self.signed = Elements(dict(kernel.axes))

    def below(self, e: TExpr, limit: float = LARGE) -> bool:
        """True if no finite element of `e` reaches the limit in size."""
        return self.of(e).most < limit

    def known(self, e: TExpr) -> Range | None:
        match e:
            case Dot():
                return _within(ORDINARY)
            case LoadTile() if DTYPES[e.dtype].highest < LARGE:
                return of_dtype(e.dtype)
            case Reduce("sum", _, arg):
                return _within(range_of(arg, self.known).most * 2.0**31)
            case _:
                return self._operator(e) if isinstance(e, Op) else super().known(e)

    def _operator(self, e: Op[TExpr]) -> Range:
        if e.name in LOGARITHMS:
            return _within(2.0**11)  # of the largest float64, and of the smallest
        ends = [constant_range(x.expr).most for x in e.args if isinstance(x, Scalar)]
        if e.name in ("min", "max") and any(LARGE <= end < inf for end in ends):
            return ANY  # who cuts off there expects more than ordinary numbers
        size = applied(e.name, [self._argument(e, x) for x in e.args]).most
        # Signs, which sizes leave out, bound some: 1 / √(2^x + 1) is at most 1.
        return _within(size if size < inf else self.signed.of(e).most)

    def _argument(self, e: Op[TExpr], x: TExpr) -> Range:
        constant = constant_range(x.expr) if isinstance(x, Scalar) else ANY
        if constant.most < inf:
            return constant
        size = range_of(x, self.known).most
        at_run_time = isinstance(x, Scalar) and not isinstance(x.expr, Const)
        if e.name == "mul" and size == inf and at_run_time and any(map(self._is_dot, e.args)):
            size = ORDINARY
        # What keeps its scale keeps -inf, which is left out; anything else makes a number of it.
        row = OPS[e.name]
        return Range(-size if row.degrees or row.together else -inf, size)

    def _is_dot(self, e: TExpr) -> bool:
        given = self.given[e.name] if isinstance(e, Local) else [e]
        return any(isinstance(x, Dot) for x in given) and all(isinstance(x, Dot | Full) for x in given)


def _unmasked(e: Expr) -> Range | None:
    return Range(0.0, 0.0) if isinstance(e, Const) and e.value == -inf else infinite_inputs(e)


def _within(size: float) -> Range:
    return Range(-size, size)
