"""Corrections of running means for rounding, made at the end: accumulators that are 0 if a mean is exact.

    Σ (c - Σc / n) = 0        Σ w·(c - Σwc / Σw) = 0

What such an accumulator holds is how far off its mean is, so that `finish` moves the vector once more, by that.
"""

from __future__ import annotations

from dataclasses import dataclass

from neptune.fusion.linear import scaled
from neptune.fusion.moments import never_negative
from neptune.fusion.obligations import Prover, Signs, extent
from neptune.fusion.prove import same
from neptune.fusion.roles import ALL, FOLDED, ObligationRecord, Query, Repair, change, slot
from neptune.fusion.shifts import has_select
from neptune.fusion.symbols import Symbols
from neptune.fusion.taylor import polynomial
from neptune.ir.expr import (
    Const,
    Expr,
    Load,
    Op,
    Var,
    binary,
    cast,
    loads,
    ne,
    op,
    rewrite,
    select,
    substitute,
    variables,
    walk,
)
from neptune.ir.printer import print_expr

_ZERO = Const(0.0, "float32")


@dataclass(frozen=True)
class Rest:
    """Accumulator `slot` is 0 at the end if mean `mean` is exact: that is off by slot / `divisor`."""

    mean: int
    slot: int
    divisor: Expr


def find_rests(query: Query, symbols: Symbols, repair: Repair) -> tuple[tuple[Rest, ...], tuple[ObligationRecord, ...]]:
    """For each mean an accumulator that is 0 where the mean is exact, with the proof of that."""
    pairs: list[tuple[Rest, ObligationRecord]] = []
    signs = Prover(query, symbols, repair).on_the_way
    for k, mean in enumerate(repair.means):
        about = (i for i, s in enumerate(repair.slots) if mean.load in set(walk(s.value)))
        rests = (_rest(query, repair, symbols, signs, k, i) for i in about)
        pairs += [r for r in rests if r is not None][:1]
    return tuple(r for r, _ in pairs), tuple(x for _, x in pairs)


def moved(query: Query, repair: Repair, rests: tuple[Rest, ...]) -> Expr:
    """`finish` over accumulators that are moved to what the means would be without rounding."""
    if not repair.means:
        return repair.finish
    masked = any(has_select(s.value) for s in repair.slots)
    env = {change(r.mean, query.dtype).name: _off(r, query.dtype, masked) for r in rests}
    fresh: dict[str, Expr] = {}
    for k, s in enumerate(repair.slots):
        if s.step is not None and {v for v in variables(s.step) if v.startswith("%d")} <= env.keys():
            fresh[slot(k, s.dtype).name] = substitute(s.step, {**env, FOLDED.name: ALL})
    if not repair.deferred and never_negative(repair.slots[0].value, query):
        # A sum of squares is not negative, also where rounding makes it so: sqrt of it must not be NaN. Its size, not
        # max with 0: that would make 0 of the NaN which a row with a NaN or an inf has.
        first = slot(0, query.dtype)
        fresh[first.name] = op("abs", fresh.get(first.name, first))
    return rewrite(substitute(repair.finish, fresh), _shorter)


def _off(r: Rest, dtype: str, masked: bool) -> Expr:
    """Return the error of a mean. If all elements are masked there is no mean, and nothing that reads it."""
    off = binary("div", slot(r.slot, dtype), r.divisor)
    if not loads(r.divisor) or not masked:
        return off
    return select(ne(r.divisor, Const(0.0, r.divisor.dtype)), off, Const(0.0, dtype))


def _shorter(e: Expr) -> Expr | None:
    """x / n * n is x."""
    match e:
        case Op("mul", (Op("div", (a, b), _), c), _) if b == c:
            return a
        case _:
            return None


def _rest(
    query: Query, repair: Repair, symbols: Symbols, signs: Signs, k: int, i: int
) -> tuple[Rest, ObligationRecord] | None:
    """Σ (A - ρ·B) is 0 where ρ = ΣA / ΣB, both being predecessors or B a constant."""
    mean, value = repair.means[k], repair.slots[i].value
    coefficients = polynomial(value, [m.load for m in repair.means])
    if len(coefficients) != 2 or coefficients[1].orders[k] != 1:
        return None
    bare = rewrite(symbols.apply(value), lambda x: _ZERO if x == mean.load else None)
    slope = coefficients[1]
    number = Const(float(-slope.number), slope.value.dtype)
    factor = slope.value if slope.number == -1 else binary("mul", slope.value, number)
    top = _sum_of(bare, query, symbols, signs)
    varies = query.roles.varies(factor)
    bottom = _sum_of(symbols.apply(factor), query, symbols, signs) if varies else _times_all(factor, query)
    if top is None or bottom is None:
        return None
    n = extent(query, symbols, mean.value)
    left = binary("mul", symbols.apply(mean.value), substitute(symbols.apply(bottom), {ALL.name: n}))
    text = print_expr(rewrite(value, lambda x: Var("ρ", x.dtype) if x == mean.load else None))
    how = same(left, symbols.apply(top), signs)
    if how is None:
        return None
    return Rest(k, i, cast(bottom, query.dtype)), ObligationRecord("rest", f"Σ {text} = 0 at the end", how)


def _times_all(e: Expr, query: Query) -> Expr:
    return scaled(cast(e, query.dtype), cast(ALL, query.dtype))


def _sum_of(e: Expr, query: Query, symbols: Symbols, signs: Signs) -> Expr | None:
    """The predecessor that folds `e`, which is over symbols."""
    for pre in query.predecessors:
        plain = pre.reducer == "sum" and pre.start is None
        folded = symbols.apply(pre.value) if plain and pre.value is not None else None
        if folded is None or any(isinstance(x, Load) for x in walk(folded)):
            continue  # it folds what g does not read
        if same(e, folded, signs) is not None:
            return pre.load
    return None
