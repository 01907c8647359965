"""The solvers of repairs that follow the structure of a contribution, but for sums about means (`repairs.moments`).

    unread       g reads no r                          fold g
    chosen       a choice of pairs by f(ψ), f rises    fold ψ, finish f(T)
    multiplied   a product of powers                   sum logarithms, finish exp(T)
    shifted      max or min of ψ + φ(r)                fold ψ, finish T + φ
    separated    φ(r)·exp(c - r)                       fold exp(c - r), step T·exp(r - r'), finish T·φ
                 max or min of f(ψ), f rises           fold ψ, finish f(T)

Each returns a repair that is not proved yet, or None, with the reasons added to `problems`.

Of ⊕ = prod, powers and factors that read r are sums (docs/design/repairs.md, "Products are sums of logarithms").

    Π over j of c[j] ** r   =  exp(r · Σ log c[j])            n: how many elements are folded
    Π over j of c[j] * r    =  exp(Σ log c[j] + n · log r)

g = φ(r) · ψ(c)^a(r), with φ and ψ positive *by form*: then log ψ is summed, nothing is rolled, and one exp behind the
loop makes the product.  Taken as they are, (Π c)^r and r^n · Π c would leave the range of their dtype long before
the product does; a sum of logarithms does not.  Where a sign is unknown the product is refused, and so is one under
a mask that chooses 1: how many elements it folds is not known before the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce

from neptune.fusion.prove import magnitude, not_negative, sign
from neptune.fusion.repairs.factor import Splitter, product, split_sum
from neptune.fusion.repairs.monotone import Ordered, choice, fill, hole, masked
from neptune.fusion.repairs.range import SHRINKS, Ranges, coefficient, owed
from neptune.fusion.repairs.roles import (
    ALL,
    ORDERED,
    Evidence,
    ObligationRecord,
    Problem,
    Query,
    Repair,
    Roles,
    Slot,
    Term,
    previous,
    slot,
    times,
)
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Cast, Const, Expr, Op, Select, binary, cast, op, select
from neptune.ir.reducers import REDUCERS
from neptune.ir.text.printer import print_expr


def defer(
    e: Expr, roles: Roles | Query, known: Mapping[str, Expr], sizes: Mapping[Expr, float] | None = None
) -> tuple[Expr | None, Expr, float]:
    """e = φ · ψ with every factor φ(r) that can wait taken out, and a bound on |ψ|; φ is None where there is none.

    `known` gives the φ already taken out of a buffer: a load of it stands for φ · load. `sizes` bounds loads.

        exp(s[i, j] - m[i]) / l[i]   →   1 / l[i],  exp(s[i, j] - m[i]),  1
    """
    # The ranges of the whole have been proved: here the parts of it are told apart.
    splitter = Splitter(roles if isinstance(roles, Roles) else roles.roles, dict(known), judges=False)
    part = splitter.split(e)
    phi = product(part.phis, _widest(part.phis)) if part.phis else None
    return (
        phi,
        part.psi,
        magnitude(
            part.psi,
            {**(sizes or {}), **{x: c.most for x, c in splitter.ceilings.items() if c.left is None and not c.under}},
        ),
    )


def _widest(parts: tuple[Expr, ...]) -> str:
    return max((p.dtype for p in parts), key=lambda d: DTYPES[d].bits)


# --- the factor --------------------------------------------------------------------------------


def _factor(rolls: tuple[Term, ...], dtype: str) -> Expr | None:
    """exp of Σ ±(r' - r) · scale: one function of the differences, so that it cannot lose its range.

    It is computed in the accumulator's dtype, if that is wider: its rounding is met again in every iteration.
    """
    exponents: dict[str, Expr] = {}
    for term in rolls:
        before, now = (_widened(x, dtype) for x in (previous(term.load), term.load))
        # exp(-r' + r): a negative term is written previous - current, as in the paper's Figure 1.
        e = binary("sub", before, now) if term.negative else binary("sub", now, before)
        for step, by in term.scale:
            e = _widened(e, by.dtype)
            e = binary(step, e, cast(by, e.dtype))
        known = exponents.get(term.base)
        exponents[term.base] = e if known is None else binary("add", known, cast(e, known.dtype))
    result: Expr | None = None
    for base, e in exponents.items():
        part = op(base, e)
        result = part if result is None else binary("mul", result, cast(part, result.dtype))
    return None if result is None else cast(result, dtype)


def _widened(e: Expr, dtype: str) -> Expr:
    return cast(e, dtype) if DTYPES[dtype].bits > DTYPES[e.dtype].bits else e


# --- solvers -----------------------------------------------------------------------------------


def unread(query: Query, problems: list[Problem]) -> Repair | None:
    """g reads no r: it is folded as it is."""
    return None if query.roles.reads(query.value) else _one(query, query.value)


def chosen(query: Query, problems: list[Problem]) -> Repair | None:
    """A choice of pairs by a strictly rising function."""
    if not REDUCERS[query.reducer].best:
        return None
    rising = choice(query, problems)
    return None if rising is None else waiting(query, rising, problems)


def multiplied(query: Query, problems: list[Problem]) -> Repair | None:
    """A product as exp of a sum of logarithms."""
    power = exponential(query, problems) if query.reducer == "prod" else None
    return None if power is None else _function(query, power.f(ALL), power.body, "sum")


def shifted(query: Query, problems: list[Problem]) -> Repair | None:
    """A maximum or minimum of ψ + φ."""
    splitter = Splitter(query.roles)
    parts = split_sum(query.value, splitter) if query.reducer in ORDERED else None
    if parts is None or parts[0] is None:
        return None
    finish = binary("add", slot(0, query.dtype), cast(parts[0], query.dtype))
    ranges = replace(owed(query, parts[1], (), {}, {}), records=[])
    return _one(query, parts[1], finish, casts=tuple(splitter.casts), ranges=ranges)


def separated(query: Query, problems: list[Problem]) -> Repair | None:
    """A sum, maximum or minimum of φ·ψ, where ψ reads r in exponents only; or of f(ψ), which waits as a whole."""
    if query.reducer not in ("sum", *ORDERED):
        return None
    order: list[Problem] = []
    splitter = Splitter(query.roles)
    split = splitter.split(query.value)
    if query.reducer in ORDERED and (split.rolls or splitter.problems):
        # What only orders its elements can wait as a whole: better than a repair in every iteration.
        rising = masked(query, order)
        if rising is not None:
            return waiting(query, rising, problems)
    problems += splitter.problems
    problems += _directions(query.roles, split.rolls)
    if query.reducer in ORDERED:
        problems += _ordered(query, split.phis, split.psi, split.rolls)
    if split.phis and query.dtype == "float16":
        reason = "a float16 accumulator may overflow without the factor that is applied at the end"
        problems.append(Problem("defer", query.value, reason, "accumulate in float32"))
    deferred = product(split.phis, query.dtype) if split.phis else None
    ranges = Ranges() if problems else owed(query, split.psi, split.phis, splitter.steps, splitter.ceilings)
    if ranges.problems and query.reducer in ORDERED:
        rising = masked(query, order)
        if rising is not None and (whole := waiting(query, rising, order)) is not None:
            return whole
    problems += ranges.problems
    if problems:
        problems += order
        return None
    factor = _factor(split.rolls, query.dtype)
    step = None if factor is None else op("mul", slot(0, query.dtype), factor)
    finish = None if deferred is None else times(deferred, query.dtype)
    once = tuple(dict.fromkeys(splitter.casts))
    how = "the exponent with r replaced by its contribution, as sums of monomials"
    notes = tuple(ObligationRecord("range", note, how) for note in dict.fromkeys(splitter.ranges))
    return _one(query, split.psi, finish, step=step, casts=once, notes=notes, ranges=ranges)


def _one(
    query: Query,
    psi: Expr,
    finish: Expr | None = None,
    *,
    step: Expr | None = None,
    casts: tuple[str, ...] = (),
    notes: tuple[ObligationRecord, ...] = (),
    ranges: Ranges | None = None,
) -> Repair:
    """A repair of the target's own accumulator; not proved yet."""
    alone = Slot(query.reducer, psi, query.dtype, step=step)
    whole = slot(0, query.dtype) if finish is None else finish
    ranges = Ranges() if ranges is None else ranges
    records = (*notes, *ranges.records)
    return Repair((alone,), whole, evidence=Evidence(obligations=records, casts=casts, ranges=tuple(ranges.predicates)))


def waiting(query: Query, rising: Ordered, problems: list[Problem], new: Iterable[Expr] = ()) -> Repair | None:
    """A function that waits as a whole; None, with the reason in `problems`, where what it is of leaves its range.

    `new`: parts of ψ that the expression does not compute.
    """
    f = fill(rising.f, Const(1.0, rising.psi.dtype))
    ranges = owed(query, rising.psi, (), dict.fromkeys(new, ()), {}, (f,))
    problems += ranges.problems
    evidence = Evidence(casts=rising.casts, ranges=tuple(ranges.predicates))
    return None if ranges.problems else _function(query, rising.f, rising.psi, evidence=evidence)


def _function(query: Query, f: Expr, psi: Expr, fold: str | None = None, evidence: Evidence | None = None) -> Repair:
    """A repair that folds ψ as it is, from nothing, and applies f once; not proved yet."""
    dtype = max((query.dtype, psi.dtype), key=lambda d: DTYPES[d].bits)
    alone = Slot(fold or query.reducer, psi, dtype, REDUCERS[fold or query.reducer].nothing(dtype))
    return Repair((alone,), f, evidence=Evidence() if evidence is None else evidence)


def _directions(roles: Roles, rolls: tuple[Term, ...]) -> list[Problem]:
    """A rolled exp must never exceed 1: its exponent moves down as r moves the one way that r can."""
    problems = []
    for term in rolls:
        pred = roles.predecessor(term.load)
        assert pred is not None
        have, want = coefficient(term, roles), SHRINKS[pred.reducer]
        if have == want:
            continue
        name = f"{pred.load.buffer} ({pred.reducer})"
        if have is None:
            scale = " and ".join(print_expr(by) for _, by in term.scale)
            reason = f"the sign of {scale} is unknown, so that exp of it times {name} may overflow on the way"
            problems.append(Problem("separate", pred.load, reason, "a constant scale, or one that is positive by form"))
        else:
            reason = f"exp of it grows as {name} is repaired: it may overflow at an intermediate value"
            problems.append(Problem("separate", pred.load, reason))
    return problems


def _ordered(query: Query, phis: tuple[Expr, ...], psi: Expr, rolls: tuple[Term, ...]) -> list[Problem]:
    """max and min pass a factor ≥ 0 only; a rolled one is 0 at the start, where ψ must absorb it."""
    problems = []
    for phi in phis:
        if not not_negative(phi, query.roles):
            reason = f"{query.reducer} passes a factor that is >= 0 only, and the sign of r is unknown"
            problems.append(Problem("defer", phi, reason, "abs or exp of it, if that is what is meant"))
    safe = ("+", "0+", "0") if query.reducer == "max" else ("-", "0-", "0")
    if rolls and sign(psi, query.roles) not in safe:
        reason = f"the first repair turns the identity of {query.reducer} into 0, which the sign of g does not absorb"
        problems.append(Problem("separate", psi, reason))
    return problems


# --- products as sums of logarithms -----------------------------------------------------------------

Factor = tuple[Expr, bool, tuple[Expr, ...]]


@dataclass(frozen=True)
class Exponential:
    """Π g = exp(exponent · Σ body + count · shift); `body` is log ψ, and the other parts may be missing."""

    body: Expr
    exponent: Expr | None
    shift: Expr | None

    def at(self, total: Expr, count: Expr, *, guarded: bool = False) -> Expr:
        """The product of `count` elements whose logarithms add up to `total`; `guarded`: c ** 0 is 1 for every c."""
        e = total
        if self.exponent is not None:
            by = cast(self.exponent, total.dtype)
            e = binary("mul", by, total)
            e = select(binary("ne", by, 0), e, 0) if guarded and not isinstance(by, Const) else e
        if self.shift is not None:
            e = binary("add", e, binary("mul", cast(count, e.dtype), cast(self.shift, e.dtype)))
        return op("exp", e)

    def f(self, count: Expr) -> Expr:
        """Return the deferred function of the hole."""
        return self.at(hole(self.body.dtype), count, guarded=True)


def exponential(query: Query, problems: list[Problem]) -> Exponential | None:
    """The product of `query` as an exponential; None, with the reason in `problems`, where it is none."""
    split = _split(query.value, query.roles, problems)
    if split is None or query.count is None:
        if not problems:
            problems.append(
                Problem("powers", query.value, "how many elements are folded is known inside the loop only")
            )
        return None
    phis, psi, exponent = split
    for e in (*phis, psi):
        if sign(e, query.roles) != "+":
            reason = "a product follows r through logarithms, and this is not known to be positive"
            problems.append(Problem("powers", e, reason, "exp or abs(…) + ε of it, if that is what is meant"))
    if problems:
        return None
    shift: Expr | None = None
    for phi in phis:
        log = logarithm(phi)
        shift = log if shift is None else binary("add", shift, cast(log, shift.dtype))
    return Exponential(logarithm(psi), exponent, shift)


def logarithm(e: Expr) -> Expr:
    """log e, in float32 at least; of an exponential its exponent."""
    if isinstance(e, Op) and e.name == "exp" and DTYPES[e.dtype].bits >= 32:
        return e.args[0]
    return op("log", e if DTYPES[e.dtype].bits >= 32 else cast(e, "float32"))


def _split(e: Expr, roles: Roles, problems: list[Problem]) -> tuple[list[Expr], Expr, Expr | None] | None:
    """(φs, ψ, a) with e = Π φ · ψ ** a: φ and a do not vary, ψ reads no r; None with the reason, or for no ψ."""
    phis: list[Expr] = []
    varying: list[Factor] = []
    for leaf, under, powers in _factors(e, roles):
        if not roles.varies(leaf):
            phi = reduce(lambda x, by: binary("pow", x, cast(by, x.dtype)), powers, leaf)
            phis.append(binary("div", Const(1.0, phi.dtype), phi) if under else phi)
        elif roles.reads(leaf):
            mask = "a mask changes how many elements are folded, and so the power of r"
            reason = mask if isinstance(leaf, Select) else "it is no product of powers, each of r or of c alone"
            problems.append(Problem("powers", leaf, reason))
        else:
            varying.append((leaf, under, powers))
    if problems or not varying:
        return None
    psi, turned, powers = varying[0]
    for leaf, under, others in varying[1:]:
        if others != powers:
            problems.append(Problem("powers", e, "its powers differ: they would need a sum of logarithms each"))
            return None
        psi = binary("mul" if under == turned else "div", psi, cast(leaf, psi.dtype))
    exponent = reduce(lambda a, b: binary("mul", a, cast(b, a.dtype)), powers) if powers else None
    if turned:
        exponent = Const(-1.0, psi.dtype) if exponent is None else op("neg", exponent)
    return phis, psi, exponent


def _factors(e: Expr, roles: Roles, under: bool = False, powers: tuple[Expr, ...] = ()) -> Iterator[Factor]:
    """The factors of a product as (leaf, below the line, powers), opened as far as r and c are mixed."""
    match e:
        case _ if not (roles.reads(e) and roles.varies(e)):
            yield e, under, powers
        case Op("mul" | "div", (a, b), _):
            yield from _factors(a, roles, under, powers)
            yield from _factors(b, roles, under != (e.name == "div"), powers)
        case Op("pow", (a, by), _) if not roles.varies(by):
            yield from _factors(a, roles, under, (by, *powers))
        case Cast(a, dtype) if DTYPES[dtype].kind == "float" and DTYPES[dtype].bits >= 32:
            yield from _factors(a, roles, under, powers)
        case _:
            yield e, under, powers
