"""sums: which locals sum exponentials about a running maximum, as `exp2` and `reciprocal` need to know.

m = max(m, max(x));  l = l * exp(m_prev - m) + sum(exp(x - m))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import inf, sqrt

from neptune.ir.dtypes import is_float
from neptune.ir.expr import Cast, Const, Op, Select, args_of
from neptune.ir.facts import applied, of_dtype, range_of
from neptune.ir.ops import ANY, Range
from neptune.ir.reducers import REDUCERS
from neptune.tile.ir import Assign, Branch, Full, Local, Loop, Rearrange, Reduce, Scalar, TExpr, TileKernel, TStmt, bare
from neptune.tile.passes.bounds import Bounds
from neptune.tile.ranges import Ranges

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
