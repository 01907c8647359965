"""One range obligation for every accumulator: what is folded leaves the range of no dtype that the expression stays in.

Deferring φ folds ψ = g / φ, and a rolled ψ is folded while r is not final: both make numbers that the expression
never does.  Each such number, at every node that is new and in the accumulator, must lie between the smallest
normal and the largest number of its dtype::

    x / Σ|x| * y      ψ = x * y       assumed:  1.2e-38 < |x * y| < 3.4e38 / n
    exp(c - r) * v    |ψ| <= |v|      proved for v of float16: at most 65504·2³¹; assumed for v of float32
    (x / Σ|x|)⁴       ψ = x⁴          refused: degree 4 in x, where the original computes nothing of more than 1

Proofs rest on ranges (`neptune.ir.analysis.facts`): of dtypes, of what is bounded by form, of exponentials that a
maximum bounds, and of φ, since a ψ that is no smaller than the expression cannot underflow where that does not.  What
they do not decide is a predicate on the inputs, if ψ grows with none of them by more than one power (its *degree*, x →
λx) beyond what the original computes anyway; else it would leave the range at ordinary inputs, and it is refused.  A
rounding to float16, whose smallest normal ordinary numbers pass, is proved or refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from neptune.fusion.prove import assume, cancels, not_negative, sign
from neptune.fusion.repairs.degrees import own_parts, steep, too_steep
from neptune.fusion.repairs.roles import ObligationRecord, Predecessor, Problem, Query, Roles, Term
from neptune.fusion.repairs.starts import finite_part, unclamped
from neptune.fusion.repairs.terms import additive
from neptune.ir.analysis.facts import Known, range_of, times
from neptune.ir.analysis.fold import fold
from neptune.ir.analysis.ranges import ONE, RangePredicate
from neptune.ir.dtypes import DTYPES, FLOAT8, is_float
from neptune.ir.expr import Cast, Const, Expr, Load, Op, Select, binary, cast, children, conjuncts, op, rewrite, walk
from neptune.ir.ops import EXPONENTIALS, Range
from neptune.ir.reducers import REDUCERS
from neptune.ir.text.printer import print_expr

MANY = 2.0**31
"""No reduction folds more elements."""
LARGEST_CONSTANT = 64.0
"""What a constant may add to an exponent: exp of it leaves float32 room for any sum."""
# The direction an accumulator moves makes exp of a term with this sign shrink.
SHRINKS = {row.name: "-" if row.moves > 0 else "+" for row in REDUCERS.values() if row.moves}


# --- exponentials --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ceiling:
    """An exponential is at most `most`·exp(`left`) at every r that can occur; `left` is the same for all elements.

    `text` says so. `reached`: at the final r one of the elements that are folded attains it. `under`: this is said of
    its reciprocal, for it rises with what r repairs, and is divided by.
    """

    most: float
    left: Expr | None
    reached: bool
    text: str = ""
    under: bool = False

    def expr(self, e: Expr) -> Expr:
        """The bound of `e` as an expression; of its reciprocal, the reciprocal."""
        if not self.under:
            return cast(self.bound, e.dtype)
        if self.left is None:
            return Const(1 / self.most, e.dtype)
        return cast(binary("div", Const(1.0, "float32"), self.bound), e.dtype)

    @property
    def bound(self) -> Expr:
        """The bound as an expression."""
        most = Const(self.most, "float32")
        if self.left is None:
            return most
        power = cast(op("exp", self.left), "float32")
        return power if self.most == 1 else binary("mul", most, power)


def coefficient(term: Term, roles: Roles) -> str | None:
    """The sign of the coefficient of r in an exponent's term."""
    result: str | None = "-" if term.negative else "+"
    for _, by in term.scale:
        result = times(result, sign(by, roles))
    return result


def ceiling(psi: Op[Expr], terms: Sequence[Term], roles: Roles, predicates: tuple[Expr, ...]) -> Ceiling | str:
    """A bound on an exponential at every r that can occur, under `predicates`; else the reason there is none."""
    names = ", ".join(dict.fromkeys(t.load.buffer for t in terms))
    values: dict[Load, Expr] = {}
    for t in terms:
        pred = roles.predecessor(t.load)
        assert pred is not None, t.load
        if pred.reducer not in SHRINKS:
            return f"{t.load.buffer} is a {pred.reducer}: {psi.name} of it may overflow at an intermediate value"
        if pred.repaired:
            return f"{t.load.buffer} is itself repaired in this loop, so that it may move both ways"
        if pred.value is None:
            return f"what {t.load.buffer} folds in at this position is unknown, so that nothing bounds {psi.name}"
        values[t.load] = finite_part(pred.reducer, pred.value)
    known = {r: assume(v, predicates) for r, v in values.items()}
    rest = cancels(assume(psi.args[0], predicates), known, roles) if known else None
    if rest is None:
        held = f"what {names} folds in does not bound it" if names else "no max or min bounds it"
        return f"the exponent of {psi.name} may overflow at an intermediate value: {held}"
    left = " + ".join((*rest.atoms, *([f"{rest.constant:g}"] if rest.constant else [])))
    if not rest.falls or rest.constant > LARGEST_CONSTANT:
        return f"{names} leaves {left} in the exponent of {psi.name}, which may overflow at an intermediate value"
    down = all(coefficient(t, roles) == SHRINKS[_reducer(t.load, roles)] for t in terms)
    unit = 1.0 if psi.name == "exp" else math.log(2)
    most = math.exp(min(rest.constant * unit, 700.0)) if down else math.inf
    more = rest.left if rest.left is None or unit == 1.0 else binary("mul", rest.left, Const(unit, "float32"))
    reached = down and len(known) == 1 and rest.alike and all(_met(r, v, predicates, roles) for r, v in values.items())
    note = f"{names} bounds what it folds in: {print_expr(psi)} <= {f'{psi.name}({left})' if left else '1'}"
    return Ceiling(most, more, reached, note)


def ceiling_of_reciprocal(
    psi: Op[Expr], terms: Sequence[Term], roles: Roles, predicates: tuple[Expr, ...]
) -> Ceiling | str | None:
    """The same of 1 / ψ, where it is that which falls as r is repaired: ψ may only be divided by; None elsewhere."""
    turned = [t.negated() for t in terms]
    if not turned or not all(coefficient(t, roles) == SHRINKS.get(_reducer(t.load, roles)) for t in turned):
        return None
    reciprocal = replace(psi, args=(op("neg", psi.args[0]),))
    most = ceiling(reciprocal, turned, roles, predicates)
    return replace(most, under=True) if isinstance(most, Ceiling) else most


def _reducer(load: Load, roles: Roles) -> str:
    pred = roles.predecessor(load)
    return "" if pred is None else pred.reducer


def _met(r: Load, value: Expr, predicates: tuple[Expr, ...], roles: Roles) -> bool:
    """True where the predicates hold for the element that attains the maximum (minimum) of `value`: it hides others."""
    if not predicates:
        return True
    if not (isinstance(value, Select) and isinstance(value.other, Const)):
        return False
    end, row = value.other, DTYPES[value.other.dtype]
    last = end.value <= row.lowest if _reducer(r, roles) == "max" else end.value >= row.highest
    return last and set(conjuncts(value.pred)) == set(predicates)


def _ceiling_of(e: Op[Expr], roles: Roles, predicates: tuple[Expr, ...] = ()) -> Ceiling | None:
    """The same for an exponential in what a predecessor folds."""
    terms = []
    for leaf, negative, scale in additive(e.args[0], roles.reads):
        if isinstance(leaf, Load) and roles.predecessor(leaf) is not None:
            terms.append(Term(e.name, leaf, negative, scale))
        elif roles.reads(leaf):
            return None
    most = ceiling(e, terms, roles, predicates) if terms else None
    return most if isinstance(most, Ceiling) else None


# --- ranges --------------------------------------------------------------------------------------


def leaf_of(roles: Roles, ceilings: Mapping[Expr, Ceiling]) -> Known:
    """The ranges of the final r and of exponentials; of anything else they are worked out."""

    def leaf(e: Expr) -> Range | None:
        if e in ceilings:
            return _below(ceilings[e], leaf)
        if isinstance(e, Load) and (pred := roles.predecessor(e)) is not None:
            return _folded(pred, roles, leaf)
        if isinstance(e, Op) and e.name in EXPONENTIALS and roles.reads(e):
            most = _ceiling_of(e, roles)
            return None if most is None or most.most == math.inf else _below(most, leaf)
        return None

    return leaf


def _below(c: Ceiling, leaf: Known) -> Range:
    most = c.most if c.left is None else range_of(op("exp", c.left), leaf).hi * c.most
    return Range(1 / most, math.inf) if c.under else Range(0.0, most)


def _folded(pred: Predecessor, roles: Roles, leaf: Known) -> Range | None:
    """The range of a reduction of at least one element."""
    if pred.value is None or pred.start is not None or pred.reducer not in ("sum", "max", "min"):
        return None
    # A maximum that starts from -inf is read as a finite number: at its end the two are the same.
    value = unclamped(pred.value, {p.load.buffer: p.reducer for p in roles.predecessors if p.reducer in SHRINKS})[0]
    one = range_of(value, leaf)
    if pred.reducer != "sum":
        return one
    if one.lo < 0 < one.hi:
        return Range(one.lo * MANY, one.hi * MANY)
    if one.lo >= 0:
        return Range(max(one.lo, _attained(value, roles, leaf)), one.hi * MANY, one.least)
    return Range(one.lo * MANY, one.hi, one.least)


def _attained(value: Expr, roles: Roles, leaf: Known) -> float:
    """Return what the element at an exponential's maximum adds to a sum: exp(x - max x) is 1 there."""
    inner, predicates = value, tuple[Expr, ...]()
    if isinstance(value, Select) and isinstance(value.other, Const) and value.other.value == 0:
        predicates = tuple(conjuncts(value.pred))
        inner = assume(value.then, predicates)
    attained = {x for x in walk(inner) if isinstance(x, Op) and x.name in EXPONENTIALS and roles.reads(x)}
    if len(attained) != 1:
        return 0.0
    (e,) = attained
    c = _ceiling_of(e, roles, predicates)
    if c is None or not c.reached or c.left is not None:
        return 0.0
    largest = Range(c.most, c.most)
    return max(0.0, range_of(inner, lambda x: largest if x == e else leaf(x)).lo)


# --- the obligation ------------------------------------------------------------------------------


@dataclass
class Ranges:
    """The findings on the ranges of a candidate: problems, proofs, and predicates on the inputs."""

    problems: list[Problem] = field(default_factory=list)
    records: list[ObligationRecord] = field(default_factory=list)
    predicates: list[RangePredicate] = field(default_factory=list)


_EXACT = ("add", "sub", "neg", "abs", "max", "min")
"""Operators whose results round to no less than the full precision below the smallest normal."""


def too_narrow(psi: Expr, phis: tuple[Expr, ...], leaf: Known) -> str | None:
    """The reason why ψ, rounded to float16, may leave its range where φ·ψ does not; None where it is proved not to."""
    row, size = DTYPES["float16"], range_of(psi, leaf)
    if size.most > row.highest:
        return "without the final r this may leave the range of float16, which it is rounded to"
    if size.least >= row.smallest_normal or _exact(psi) or _product(phis, leaf).most <= 1:
        return None
    return "without the final r this may fall below the smallest normal of float16, which it is rounded to"


def _exact(e: Expr) -> bool:
    """True for a number of float16 as it was loaded, or of fewer bits, through wider dtypes, signs and choices."""

    def leaf(x: Expr) -> bool:
        return isinstance(x, Load | Const) and x.dtype in ("float16", *FLOAT8)

    def choice(x: Select[Expr], *exact: bool) -> bool:
        return all(y or part == Const(0.0, part.dtype) for part, y in zip(x.parts[1:], exact, strict=True))

    def same(x: Op[Expr], exact: Sequence[bool]) -> bool:
        return x.name in ("neg", "abs") and exact[0]

    return fold(e, leaf, same, choice)


def _product(phis: Iterable[Expr], leaf: Known) -> Range:
    result: Expr = Const(1.0, "float32")
    for phi in phis:
        result = binary("mul", result, cast(phi, "float32"))
    return range_of(result, leaf)


def owed(
    query: Query, body: Expr, phis: tuple[Expr, ...], steps: Mapping[Expr, tuple[Expr, ...]],
    ceilings: Mapping[Expr, Ceiling], waits: tuple[Expr, ...] = (),
) -> Ranges:  # fmt: skip
    """The range obligation of a candidate that folds `body` and applies `phis` behind the loop.

    `steps` gives the φ that was taken out of each part of the body, `ceilings` the bounds of what is rolled;
    `waits` is what else is done behind the loop.
    """
    ranges, leaf, usual = Ranges(), leaf_of(query.roles, ceilings), own_parts(query, free=True)
    rolled = {e: c for e, c in ceilings.items() if e in set(walk(body))}
    own = own_parts(query)
    new = [x for x in _values(body) if is_float(x.dtype) and x not in own and (x in steps or x == body)]
    for x in new:
        taken = steps.get(x, phis)
        if (fast := steep(x, (*taken, *waits), usual, query.roles)) is not None:
            ranges.problems.append(too_steep(x, (*taken, *waits), *fast))
        else:
            _check(ranges, x, taken, leaf, rolled)
    for c in rolled.values():
        if c.left is not None and not c.reached:
            # The original has no such exponential: an element that attains the maximum is not folded, or is less.
            ranges.predicates.append(RangePredicate(c.bound, DTYPES["float32"].highest))
    _accumulated(ranges, query, body, phis, leaf, rolled)
    for x in _values(_joined(phis)) if len(phis) > 1 else []:
        if isinstance(x, Op) and x.name in ("mul", "div") and x not in own and query.roles.reads(x):
            _check(ranges, x, (), leaf, {})
    ranges.predicates = _merged(ranges.predicates)
    return ranges


def _joined(phis: tuple[Expr, ...]) -> Expr:
    result = phis[0]
    for phi in phis[1:]:
        result = binary("mul", result, cast(phi, result.dtype))
    return result


def _values(e: Expr) -> Iterable[Expr]:
    """The parts of `e` that are computed as numbers of its own: no indices and no conditions."""
    yield e
    for x in () if isinstance(e, Load) else children(e)[1:] if isinstance(e, Select) else children(e):
        yield from _values(x)


def _check(ranges: Ranges, x: Expr, phis: tuple[Expr, ...], leaf: Known, rolled: Mapping[Expr, Ceiling]) -> None:
    """A new part of what is folded: between the smallest normal and the largest number."""
    rounds = isinstance(x, Cast) and DTYPES[x.dtype].bits < DTYPES[x.arg.dtype].bits
    rounds = rounds or (isinstance(x, Op) and x.name not in _EXACT)
    if not rounds and not (isinstance(x, Op) and x.name in ("add", "sub")):
        return
    row, size, scale = DTYPES[x.dtype], range_of(x, leaf), _product(phis, leaf)
    moves = any(e in rolled for e in walk(x))
    high = size.most <= row.highest or (bool(phis) and not moves and _at_least_one(scale))
    # The largest of what is rolled is what it is multiplied with.
    whole = _bare(rewrite(x, lambda e: rolled[e].expr(e) if e in rolled else None))
    least = range_of(whole, leaf).least
    low = not rounds or least >= row.smallest_normal or (scale.most <= 1 and (bool(phis) or moves)) or _exact(x)
    if not (high and low):
        below, above = math.inf if high else row.highest, 0.0 if low else row.smallest_normal
        ranges.predicates.append(RangePredicate(whole, below, above))


def _at_least_one(scale: Range) -> bool:
    """True where ψ is no larger than φ·ψ: φ is not 0 either, as a count may be."""
    return scale.lo >= 1 or scale.hi <= -1


def _accumulated(
    ranges: Ranges, query: Query, body: Expr, phis: tuple[Expr, ...], leaf: Known, rolled: Mapping[Expr, Ceiling]
) -> None:
    """The sum, or the maximum, of what is folded."""
    row, size = DTYPES[query.dtype], range_of(body, leaf)
    count: Expr | None = query.count if query.reducer == "sum" else ONE
    most = float(count.value) if isinstance(count, Const) else MANY
    whole = _bare(rewrite(body, lambda e: rolled[e].expr(e) if e in rolled else None))
    if size.most * most <= row.highest:
        if not ranges.predicates:
            what = "no sum of these" if most > 1 else "none of these"
            one = "each" if isinstance(whole, Const) else f"|{print_expr(whole)}|"
            statement = f"{what} leaves {row.name}: {one} <= {size.most:.2g}"
            how = "the ranges of dtypes and functions, for up to 2^31 elements"
            ranges.records.append(ObligationRecord("range", statement, how))
        return
    if phis and not rolled and _at_least_one(_product(phis, leaf)):
        ranges.records.append(ObligationRecord("range", "what waits is at least 1", "its range: ψ is at most g"))
        return
    for pred in query.predecessors:
        if pred.reducer == "sum" == query.reducer and pred.value is not None and _within(body, pred, query.roles):
            statement = f"no sum of these exceeds {pred.load.buffer}"
            ranges.records.append(ObligationRecord("range", statement, "it is what that folds, up to the sign"))
            return
    ranges.predicates.append(RangePredicate(whole, row.highest, 0.0, count))


def _within(body: Expr, pred: Predecessor, roles: Roles) -> bool:
    """True where |ψ| is what a sum that is not negative folds."""
    assert pred.value is not None
    return _bare(body) == _bare(pred.value) and not_negative(pred.value, roles) and pred.start is None


def _bare(e: Expr) -> Expr:
    """An expression of the same magnitude, as predicates show it: no signs, masks and ones."""
    match e:
        case Cast(a, dtype) if is_float(dtype) and is_float(a.dtype):
            return _bare(a)
        case Op("neg" | "abs", (a,), _):
            return _bare(a)
        case Select(_, a, Const()) | Op("div", (a, Const(1.0)), _):
            return _bare(a)
        case Op("mul", (a, b), dtype):
            x, y = _bare(a), _bare(b)
            if isinstance(x, Const) and isinstance(y, Const):
                return Const(float(x.value) * float(y.value), dtype)
            one = [q for p, q in ((x, y), (y, x)) if isinstance(p, Const) and p.value == 1]
            return one[0] if one else binary("mul", cast(x, dtype), cast(y, dtype))
        case _:
            return e


def _merged(predicates: Iterable[RangePredicate]) -> list[RangePredicate]:
    """One predicate for each value: the narrower limits."""
    merged: dict[Expr, RangePredicate] = {}
    for p in predicates:
        q = merged.get(p.value)
        if q is None:
            merged[p.value] = p
        else:
            # What is added up many times has the lower limit: `below` of both is that of the dtype.
            count = p.count if q.count == ONE else q.count
            merged[p.value] = RangePredicate(p.value, min(p.below, q.below), max(p.above, q.above), count)
    return list(merged.values())
