"""Find a repair and prove it, before anything is moved (design §6; paper §4.2, Theorem 4.2, Appendix C).

In order: 0. *defer* every factor of g that depends on r and p alone, to be applied once after the loop;
1. *separate* what is left, exp of a difference, into h(t, r, r') = t * exp(r - r'); 2. *moments*: sums about
means that still change (`fusion.moments`).  Anything else is refused with the reason.

For `l[i] += exp(s[i, j] - m[i])`::

    g = exp(c - r)          h = t*exp(r - r')          factor  exp(m_prev[i] - m[i])

Obligations, each of which is proved or the fusion is refused:
  split        g = φ(r) · ψ(r, c)
  update       h(g(r, c), r, r') = g(r', c)                              (eq. 4)
  commute      h(x ⊕ y, r, r') = h(x, r, r') ⊕ h(y, r, r')               (eq. 5)
  compose      h(h(t, r, r'), r', r'') = h(t, r, r'') and h(t, r, r) = t
  defined      ψ and h at every intermediate r, an empty or fully masked start included
  range        no overflow at an intermediate r that the final r does not have
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from neptune.errors import FusionError, InternalError
from neptune.fusion.factor import SHRINKS, Splitter, coefficient, product, split_sum
from neptune.fusion.inverse import inverse
from neptune.fusion.moments import Found as FoundMoments
from neptune.fusion.moments import describe_moments, find_moments
from neptune.fusion.monotone import choice, masked
from neptune.fusion.obligations import Candidate, over_steps, prove
from neptune.fusion.powers import exponential
from neptune.fusion.prove import Unproved, magnitude, not_negative, sign
from neptune.fusion.prove_moments import find_rests, prove_moments
from neptune.fusion.roles import Predecessor, Problem, Query, Repair, Roles, Term, previous
from neptune.fusion.scales import scale_degree
from neptune.fusion.symbols import Symbols, pretty, symbols_of
from neptune.ir.dtypes import DTYPES, is_float
from neptune.ir.expr import Expr, Load, Op, Select, Var, binary, cast, op, walk
from neptune.ir.printer import print_expr
from neptune.ir.reducers import REDUCERS

_T = Var("t", "float32")


def defer(
    e: Expr, roles: Roles | Query, known: Mapping[str, Expr], sizes: Mapping[Expr, float] | None = None
) -> tuple[Expr | None, Expr, float]:
    """e = φ · ψ with every factor φ(r) that can wait taken out, and a bound on |ψ|; φ is None where there is none.

    `known` gives the φ already taken out of a buffer: a load of it stands for φ · load. `sizes` bounds loads.

        exp(s[i, j] - m[i]) / l[i]   →   1 / l[i],  exp(s[i, j] - m[i]),  1
    """
    splitter = Splitter(roles if isinstance(roles, Roles) else roles.roles, dict(known), bounds=dict(sizes or {}))
    part = splitter.split(e)
    phi = product(part.phis, _widest(part.phis)) if part.phis else None
    return phi, part.psi, magnitude(part.psi, splitter.bounds)


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


# --- solving -----------------------------------------------------------------------------------


@lru_cache(maxsize=512)
def solve(query: Query) -> Repair:
    """The repair for `query`, with its proofs; raises FusionError where there is none.

    >>> from neptune.ir.expr import op
    >>> s, m = Load("s", (Var("j"),), "float32"), Load("m", (), "float32")
    >>> solve(Query("l", "sum", "float32", op("exp", s - m), (Predecessor(m, "max", s),), frozenset({"j"}))).h
    "h = t*exp(r - r')"
    """
    roles = query.roles
    symbols = symbols_of(query.value, roles)
    problems = _unfit(query)
    if problems:
        raise _refusal(query, symbols, problems)
    found = _find(query, problems)
    if found is None:
        tried: list[Problem] = []
        vector = find_moments(query, tried) if query.vector else None
        if vector is None:
            raise _refusal(query, symbols, [*tried, *problems])
        return _about_means(query, symbols, vector)
    factor = _factor(found.rolls, query.dtype)
    for e in (found.deferred, factor):
        if e is not None and query.roles.varies(e):
            raise InternalError(f"the repair of {query.stage} depends on the element: {print_expr(e)}")
    try:
        obligations = prove(query, symbols, found, factor)
    except Unproved as e:
        wrong = f"{e.record.statement} was not proved ({e.record.how})"
        raise _refusal(query, symbols, [Problem(e.record.name, query.value, wrong)]) from None
    h: Expr = _T if factor is None else Op("mul", (_T, over_steps(symbols, found.rolls, factor)), "float32")
    return Repair(
        stage=query.stage,
        kind="none" if factor is None else "rescale",
        deferred=found.deferred,
        deferred_op=found.deferred_op,
        body=found.body,
        factor=factor,
        g=f"g = {pretty(symbols.apply(query.value))}",
        h=f"h = {pretty(h)}",
        symbols=symbols.text(),
        obligations=obligations,
        casts=found.casts,
        assumptions=_assumptions(query, found),
        fold=None if found.power is None else "sum",
    )


def _about_means(query: Query, symbols: Symbols, found: FoundMoments) -> Repair:
    """The repair of a vector of accumulators."""
    on_the_way = tuple((name, sign(e, query.roles)) for e, name in symbols.names if not name.startswith("r"))
    try:
        obligations = prove_moments(query, found.moments, symbols.apply, on_the_way)
        rests, records = find_rests(query, found.moments, symbols.apply, on_the_way)
    except Unproved as e:
        wrong = f"{e.record.statement} was not proved ({e.record.how})"
        raise _refusal(query, symbols, [Problem(e.record.name, query.value, wrong)]) from None
    return Repair(
        stage=query.stage,
        kind="moments",
        deferred=None,
        deferred_op="mul",
        body=found.moments.parts[0].value,
        factor=None,
        g=f"g = {pretty(symbols.apply(query.value))}",
        h=describe_moments(found.moments, symbols.apply),
        symbols=symbols.text(),
        obligations=(*obligations, *records),
        casts=found.casts,
        assumptions=found.assumptions,
        moments=replace(found.moments, rests=rests),
    )


def _unfit(query: Query) -> list[Problem]:
    """What rules out every strategy at once."""
    roles, problems = query.roles, []
    for x in walk(query.value):
        if isinstance(x, Load) and x.buffer in roles.buffers and roles.predecessor(x) is None:
            problems.append(Problem("roles", x, f"{x.buffer} is read at more than one position"))
        elif isinstance(x, Load) and any(roles.reads(i) for i in x.index):
            problems.append(Problem("roles", x, "r is used as an index"))
        elif isinstance(x, Load) and x.buffer in roles.buffers and roles.varies(x):
            problems.append(Problem("roles", x, f"{x.buffer} is read at a position that moves along the fused axis"))
    if not roles.reads(query.value):
        return problems
    if not is_float(query.dtype):
        problems.append(Problem("roles", query.value, f"the accumulator is {query.dtype}: no factor passes through it"))
    if query.reducer not in ("sum", "prod", "max", "min") and not REDUCERS[query.reducer].best:
        problems.append(Problem("roles", query.value, f"no repair rules for the reducer {query.reducer}"))
    return problems


def _find(query: Query, problems: list[Problem]) -> Candidate | None:
    if not query.roles.reads(query.value):
        return Candidate(None, "mul", query.value, ())
    if REDUCERS[query.reducer].best:
        chosen = choice(query, problems)
        return None if chosen is None else Candidate(chosen.f, "apply", chosen.psi, (), chosen.casts)
    if query.reducer == "prod":
        power = exponential(query, problems)
        if power is None or query.count is None:
            return None
        return Candidate(power.f(query.count), "apply", power.body, (), power=power)
    if query.reducer in ("max", "min"):
        splitter = Splitter(query.roles)
        shifted = split_sum(query.value, splitter)
        if shifted is not None and shifted[0] is not None:
            return Candidate(cast(shifted[0], query.dtype), "add", shifted[1], (), tuple(splitter.casts))
    order: list[Problem] = []
    splitter = Splitter(query.roles)
    split = splitter.split(query.value)
    if query.reducer in ("max", "min") and (split.rolls or splitter.problems):
        # What only orders its elements can wait as a whole: better than a repair in every iteration.
        rising = masked(query, order)
        if rising is not None:
            return Candidate(rising.f, "apply", rising.psi, (), rising.casts)
    problems += splitter.problems
    problems += _directions(query.roles, split.rolls)
    if query.reducer in ("max", "min"):
        problems += _ordered(query, split.phis, split.psi, split.rolls)
    if split.phis and query.dtype == "float16":
        reason = "a float16 accumulator may overflow without the factor that is applied at the end"
        problems.append(Problem("defer", query.value, reason, "accumulate in float32"))
    deferred = product(split.phis, query.dtype) if split.phis else None
    if deferred is not None and query.reducer == "sum" and scale_degree(deferred, query.roles) > 1:
        reason = f"without the scale `{print_expr(deferred)}` the sum overflows where the expression does not"
        problems.append(Problem("defer", query.value, reason, "leave it in a kernel of its own"))
    if problems:
        problems += order
        return None
    once = tuple(dict.fromkeys(splitter.casts))
    return Candidate(deferred, "mul", split.psi, split.rolls, once, tuple(dict.fromkeys(splitter.ranges)))


def _assumptions(query: Query, found: Candidate) -> tuple[str, ...]:
    """What the kernel takes for granted and nothing proves."""
    if found.power is not None:
        return ("the product is exp of a sum of logarithms: its relative error is the absolute error of that sum",)
    if REDUCERS[query.reducer].best and found.deferred is not None:
        text = (
            "elements that rounding makes equal are told apart: of these the expression, as it is rounded, keeps the "
        )
        return (text + "first, and the kernel the one that comes first before rounding",)
    if found.deferred_op in ("add", "apply") and _regrouped(query, found.body):
        return (f"{print_expr(found.body)}, which the expression does not compute, is not rounded more than that is",)
    if found.deferred is None or found.deferred_op != "mul" or not scale_degree(found.deferred, query.roles):
        return ()
    text = f"what is folded without the scale {print_expr(found.deferred)} stays in the range of {query.dtype}"
    return (text,)


def _regrouped(query: Query, body: Expr) -> bool:
    """Whether what is folded gathers values that the expression never adds or multiplies as they are."""
    inner = body.then if isinstance(body, Select) else body
    inner = inner.args[0] if isinstance(inner, Op) and inner.name == "neg" else inner
    gathered = [name for _, name in symbols_of(query.value, query.roles).names if name.startswith("c")]
    return len(gathered) > 1 and inner not in walk(query.value)


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


# --- refusing ----------------------------------------------------------------------------------


def _refusal(query: Query, symbols: Symbols, problems: list[Problem]) -> FusionError:
    reads = [p for p in query.predecessors if p.load in {x for x in walk(query.value) if isinstance(x, Load)}]
    lines = [_reads_line(query, reads), f"    g = {pretty(symbols.apply(query.value))}"]
    listed = symbols.text()
    lines += [f"    {name} = {_short(text)}" for name, text in listed[:8]]
    lines += [f"    … and {len(listed) - 8} more"] if len(listed) > 8 else []
    for p in list(dict.fromkeys(problems))[:3]:
        lines.append(f"{p.strategy}: `{_short(pretty(symbols.apply(p.part)))}`: {p.reason}")
    if not any(p.strategy == "roles" for p in problems) and (line := _no_inverse(query)) is not None:
        lines.append(line)
    hints = [p.hint for p in problems if p.hint is not None]
    changing = " and ".join(f"`{p.load.buffer}`" for p in reads) or "its predecessors"
    return FusionError(
        f"cannot fuse reduction `{query.stage}` ({query.reducer}) into the loop of {changing}",
        "\n".join(lines),
        legal=("fuse_at an outer loop", f"leave `{query.stage}` in a kernel of its own"),
        hint=hints[0] if hints else None,
        where=f"{query.stage}: {query.reducer} of {_short(print_expr(query.value), 100)}",
    )


def _no_inverse(query: Query) -> str | None:
    """What Theorem 4.3 would give, where that is no repair."""
    found = inverse(query)
    if found is None or found.commute is not None:
        return None
    return f"inverse: `{found.h}`: not shown to commute with {query.reducer}"


def _reads_line(query: Query, reads: list[Predecessor]) -> str:
    names = " and ".join(f"`{p.load.buffer}` ({p.reducer})" for p in reads) or "no predecessor"
    verb = "is" if len(reads) < 2 else "are"
    return f"`{query.stage}` reads {names}, which {verb} still changing inside this loop, and no repair was found:"


def _short(text: str, width: int = 70) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
