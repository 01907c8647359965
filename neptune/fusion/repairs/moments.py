"""Sums about a mean that is not known yet (docs/design/repairs.md, "A repair may be a vector").

A target Σ φ(r)·ψ(c, ρ), with ψ a polynomial in means ρ of what is folded, keeps one accumulator for each of
its Taylor coefficients in ρ.  Moving ρ by δ then moves all of them exactly, whatever ρ was::

    Σ (x - ρ)²     T0 = Σ (x - ρ)²   T1 = Σ (x - ρ)   n        T0' = T0 + δ·(-2·T1 + δ·n),  T1' = T1 - δ·n
    Σ (x - ρ)·w    T0 = Σ (x - ρ)·w  T1 = Σ w                  T0' = T0 - δ·T1

ρ is the mean of what has been folded so far, made anew for every tile, so that nothing large is ever taken from
something large (Chan): an outlier in the first tile is forgotten as ρ moves away from it.  Obligations: the
vector's update law and composition, component by component, linearity, and that the last ρ is the expression's.

Running means are corrected for rounding at the end, by accumulators that are 0 if a mean is exact.

    Σ (c - Σc / n) = 0        Σ w·(c - Σwc / Σw) = 0

What such an accumulator holds is how far off its mean is, so that `finish` moves the vector once more, by that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from neptune.fusion.prove import same, sign
from neptune.fusion.repairs.degrees import own_parts, steep, too_steep
from neptune.fusion.repairs.factor import Splitter, product
from neptune.fusion.repairs.obligations import Prover, Signs, extent
from neptune.fusion.repairs.roles import (
    ALL,
    FOLDED,
    Evidence,
    Mean,
    ObligationRecord,
    Problem,
    Query,
    Repair,
    Slot,
    change,
    slot,
)
from neptune.fusion.repairs.shifts import find_shifts, has_select
from neptune.fusion.repairs.symbols import Symbols
from neptune.fusion.repairs.terms import (
    Coefficient,
    NotPolynomial,
    below,
    binomial,
    polynomial,
    scaled,
    summands,
    taylor,
)
from neptune.ir.dtypes import DTYPES
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
from neptune.ir.text.printer import print_expr
from neptune.schedule.state import Assumption

MOST = 16
"""The largest number of accumulators."""


def find_moments(query: Query, problems: list[Problem]) -> Repair | None:
    """The vector of a sum about means; None where it has none, with the reasons added to `problems`."""
    if query.reducer != "sum" or query.count is None:
        return None
    shifts, odd = find_shifts(query.value, query.roles, query.count)
    problems += odd
    if odd or not shifts:
        return None
    refusals: list[Problem] = []
    terms, casts = _terms(_shifted(query.value, shifts), query, refusals)
    means: dict[Expr, Expr] = {s.load: s.value for s in shifts}
    for phis, psi in ({} if terms is None else terms).items():
        whole = rewrite(psi, means.get)
        fast = steep(whole, phis, own_parts(query, free=True), query.roles)
        refusals += [] if fast is None else [too_steep(whole, phis, *fast)]
    vector = None if terms is None or refusals else _vector(query, shifts, terms, casts, refusals)
    problems += [replace(p, part=rewrite(p.part, means.get)) for p in refusals]
    return vector


def _shifted(e: Expr, shifts: tuple[Mean, ...]) -> Expr:
    loads: dict[Expr, Expr] = {s.value: s.load for s in shifts}
    return rewrite(e, loads.get)


# --- terms ---------------------------------------------------------------------------------------

Terms = dict[tuple[Expr, ...], Expr]


def _terms(e: Expr, query: Query, problems: list[Problem]) -> tuple[Terms | None, tuple[str, ...]]:
    """Σ Π φ · ψ: the ψ by their φ; each φ depends on r alone and waits, ψ reads no r but through ρ."""
    whole = _split(e, query)
    if isinstance(whole, Splitter):
        parts = [_split(x, query) for x in summands(e, query.roles.reads, 32)]
        bad = [x for x in parts if isinstance(x, Splitter)]
        if bad:
            problems += bad[0].problems
            return None, ()
        plain = [x for x in parts if not isinstance(x, Splitter)]
    else:
        plain = [whole]
    terms: Terms = {}
    for phis, psi, _ in plain:
        terms[phis] = psi if phis not in terms else binary("add", terms[phis], psi)
    casts = tuple(dict.fromkeys(c for _, _, casts in plain for c in casts))
    for psi in terms.values():
        narrow = _narrow(psi, query)
        if narrow is not None:
            reason = f"it is rounded to {narrow.dtype} while the mean in it is not the final one"
            problems.append(Problem("moments", narrow, reason, "subtract and multiply in float32"))
    return (None if problems else terms), casts


def _split(e: Expr, query: Query) -> Splitter | tuple[tuple[Expr, ...], Expr, list[str]]:
    """Φs and ψ of one product, or the splitter with the reasons why it is none."""
    splitter = Splitter(query.roles)
    split = splitter.split(e)
    if split.rolls:
        reason = "it would have to be repaired by a factor and by a shift at once"
        splitter.problems.append(Problem("moments", e, reason))
    if DTYPES[query.dtype].bits < 32:
        reason = f"{query.dtype} is too narrow for sums that are moved in every step"
        splitter.problems.append(Problem("moments", e, reason, "accumulate in float32"))
    return splitter if splitter.problems else (split.phis, split.psi, splitter.casts)


def _narrow(e: Expr, query: Query) -> Expr | None:
    """A part that varies, reads ρ, and is rounded to less than float32: the repair does not see these roundings."""
    for x in walk(e):
        floats = DTYPES[x.dtype].kind == "float" and DTYPES[x.dtype].bits < 32
        if floats and query.roles.varies(x) and _about(x):
            return x
    return None


# --- the vector ----------------------------------------------------------------------------------


def _vector(
    query: Query, means: tuple[Mean, ...], terms: Terms, casts: tuple[str, ...], problems: list[Problem]
) -> Repair | None:
    loads = tuple(m.load for m in means)
    by_term: list[tuple[tuple[Expr, ...], tuple[Coefficient, ...]]] = []
    for phis, psi in terms.items():
        series = taylor(psi, loads)
        if isinstance(series, NotPolynomial):
            name = series.part.name if isinstance(series.part, Op) else "it"
            problems.append(Problem("moments", series.part, f"{name} is no polynomial in r of a low degree"))
            return None
        by_term.append((phis, series))
    # What another is repaired with comes behind it, and so is of a lower degree. A multiple of the number of elements
    # needs no accumulator.
    every = {c.value: len(polynomial(c.value, loads)) for _, coefficients in by_term for c in coefficients}
    order = sorted((e for e in every if not _counted(e, query)), key=lambda e: -every[e])
    if len(order) > MOST:
        problems.append(Problem("moments", query.value, f"it takes {len(order)} accumulators, more than {MOST}"))
        return None
    numbers = {e: k for k, e in enumerate(order)}
    steps: dict[Expr, Expr | None] = {}
    for _, coefficients in by_term:
        for c in coefficients:
            steps[c.value] = _step(c, coefficients, numbers, query)
    dtype = query.dtype
    zero = Const(0.0, dtype)
    slots = tuple(Slot("sum", e, dtype, zero if k else None, steps[e]) for e, k in numbers.items())
    total: Expr | None = None
    for phis, coefficients in by_term:
        value = coefficients[0].value
        every_one = binary("mul", cast(value, dtype), cast(ALL, dtype))
        term = product((slot(numbers[value], dtype) if value in numbers else every_one, *phis), dtype)
        total = term if total is None else binary("add", total, term)
    assert total is not None
    names = ", ".join(print_expr(m.value) for m in means)
    text = f"what is folded about {names} of a part of the elements stays in the range of {dtype}"
    return Repair(slots, total, means, Evidence(casts=casts, assumptions=(Assumption("parts", text),)))


def _step(
    c: Coefficient, coefficients: tuple[Coefficient, ...], numbers: Mapping[Expr, int], query: Query
) -> Expr | None:
    """T' = Σ (α over β) · c_α / c_β · δ^(α - β) · T_α, by Horner's rule; None where ρ is not in it."""
    terms: list[tuple[Fraction, tuple[int, ...], Expr]] = []
    for other in coefficients:
        if c.orders in below(other.orders):
            factor = binomial(other.orders, c.orders) * other.number / c.number
            powers = tuple(a - b for a, b in zip(other.orders, c.orders, strict=True))
            if other.value in numbers:
                summed: Expr = slot(numbers[other.value], query.dtype)
            else:
                summed = scaled(cast(other.value, query.dtype), cast(FOLDED, query.dtype))
            terms.append((factor, powers, summed))
    return None if len(terms) == 1 else _horner(terms, 0, query.dtype)


def never_negative(e: Expr, query: Query) -> bool:
    """True for w·d·d with w >= 0."""
    rest: list[Expr] = []
    for x in _factors(e):
        if x in rest:
            rest.remove(x)
        else:
            rest.append(x)
    return all(sign(x, query.roles) in ("+", "0+") for x in rest)


def _factors(e: Expr) -> list[Expr]:
    return [x for a in e.args for x in _factors(a)] if isinstance(e, Op) and e.name == "mul" else [e]


def _counted(e: Expr, query: Query) -> bool:
    return not query.roles.varies(e) and not _about(e)


def _about(e: Expr) -> bool:
    """True where a ρ is in it."""
    return any(isinstance(x, Load) and x.buffer.startswith("%") for x in walk(e))


def _horner(terms: list[tuple[Fraction, tuple[int, ...], Expr]], k: int, dtype: str) -> Expr:
    """With δ outside of each bracket no power of it is ever formed: it may be as large as the data."""
    if len(terms) == 1 and not any(terms[0][1][k:]):
        number, _, summed = terms[0]
        return summed if number == 1 else binary("mul", summed, Const(float(number), dtype))
    low = [t for t in terms if not t[1][k]]
    high = [(c, (*p[:k], p[k] - 1, *p[k + 1 :]), t) for c, p, t in terms if p[k]]
    if not high:
        return _horner(low, k + 1, dtype)
    down = bool(low) and len(high) == 1 and high[0][0] < 0
    moved = binary("mul", change(k, dtype), _horner([(-high[0][0], *high[0][1:])] if down else high, k, dtype))
    return binary("sub" if down else "add", _horner(low, k + 1, dtype), moved) if low else moved


# --- corrections for rounding -----------------------------------------------------------------------

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
