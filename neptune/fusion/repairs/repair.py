"""Find a repair and prove it, before anything is moved (paper §4.2, Theorem 4.2, Appendix C).

The solvers, `SOLVERS`, are asked in order; the first answer is proved (`repairs.obligations`), whoever gave it, and
what cannot be proved is refused with the reason (docs/design/repairs.md, "Solvers are a list, the prover believes
none").

For `l[i] += exp(s[i, j] - m[i])`::

    g = exp(c - r)          h = t*exp(r - r')          step  T·exp(m_prev[i] - m[i])

Obligations, each of which is proved or the fusion is refused:
  split        g = f(ψ(r, c), r), where f finishes what is folded, ψ
  update       h(g(r, c), r, r') = g(r', c)                              (eq. 4)
  commute      h(x ⊕ y, r, r') = h(x, r, r') ⊕ h(y, r, r')               (eq. 5)
  compose      h(h(t, r, r'), r', r'') = h(t, r, r'') and h(t, r, r) = t
  defined      ψ and h at every intermediate r, an empty or fully masked start included
  range        no overflow at an intermediate r that the final r does not have
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

from neptune.errors import FusionError, InternalError
from neptune.fusion.prove import Unproved, sign
from neptune.fusion.repairs.moments import find_moments, find_rests, moved
from neptune.fusion.repairs.obligations import Prover, prove
from neptune.fusion.repairs.roles import ALL, Predecessor, Problem, Query, Repair, scale_of
from neptune.fusion.repairs.strategies import chosen, multiplied, separated, shifted, unread
from neptune.fusion.repairs.symbols import Symbols, pretty, symbols_of
from neptune.fusion.repairs.theorem import by_inverse, inverse
from neptune.ir.analysis.ranges import RangePredicate
from neptune.ir.dtypes import is_float
from neptune.ir.expr import Expr, Load, Op, Select, Var, substitute, walk
from neptune.ir.reducers import REDUCERS
from neptune.ir.text.printer import print_expr
from neptune.schedule.state import Assumption

Solver = Callable[[Query, list[Problem]], Repair | None]
SOLVERS: tuple[Solver, ...] = (unread, chosen, multiplied, shifted, separated, find_moments, by_inverse)
"""In order: by structure first. Each returns a repair that is not proved yet, or None and adds its reasons."""
_T = Var("t", "float32")


# --- solving -----------------------------------------------------------------------------------


@lru_cache(maxsize=512)
def solve(query: Query) -> Repair:
    """The repair for `query`, with its proofs; raises FusionError where there is none.

    >>> from neptune.ir.expr import op
    >>> s, m = Load("s", (Var("j"),), "float32"), Load("m", (), "float32")
    >>> solve(Query("l", "sum", "float32", op("exp", s - m), (Predecessor(m, "max", s),), frozenset({"j"}))).evidence.h
    "h = t*exp(r - r')"
    """
    symbols = symbols_of(query.value, query.roles)
    problems = _unfit(query)
    if problems:
        raise _refusal(query, symbols, problems)
    for solver in SOLVERS:
        tried: list[Problem] = []
        candidate = solver(query, tried)
        # What the last one says comes first.
        problems = [*tried, *problems]
        if candidate is None:
            continue
        settled = _settled(query, symbols, candidate)
        if isinstance(settled, Repair):
            return settled
        if solver is not by_inverse:
            wrong = f"{settled.record.statement} was not proved ({settled.record.how})"
            problems = [Problem(settled.record.name, query.value, wrong)]
        break
    raise _refusal(query, symbols, problems)


def _settled(query: Query, symbols: Symbols, repair: Repair) -> Repair | Unproved:
    """A repair with its proofs, moved by what rounding leaves of its means; or what of it is Unproved."""
    _check_fixed(query, repair)
    obligations = prove(query, symbols, repair)
    if isinstance(obligations, Unproved):
        return obligations
    rests, records = find_rests(query, symbols, repair)
    evidence = replace(
        repair.evidence,
        g=f"g = {pretty(symbols.apply(query.value))}",
        h=describe(query, symbols, repair),
        symbols=symbols.text(),
        obligations=(*obligations, *records),
        assumptions=(*repair.evidence.assumptions, *_assumptions(query, repair)),
        ranges=(*_rounded(query, repair), *repair.evidence.ranges),
    )
    # Accumulators that something else moves must stay about the mean that they are about.
    finish = repair.finish if query.fixed else moved(query, repair, rests)
    count = {} if query.count is None else {ALL.name: query.count}
    return replace(repair, finish=substitute(finish, count), evidence=evidence)


def _check_fixed(query: Query, repair: Repair) -> None:
    """Check that the finish and all steps are the same for every element."""
    steps = [s.step for s in repair.slots if s.step is not None]
    for e in (e for e in (repair.finish, *steps) if query.roles.varies(e)):
        raise InternalError(f"the repair of {query.stage} depends on the element: {print_expr(e)}")


def _unfit(query: Query) -> list[Problem]:
    """Return the problems that rule out every strategy at once."""
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


def describe(query: Query, symbols: Symbols, repair: Repair) -> str:
    """The steps as explain() shows them: h = t*exp(r - r'), or h0 = t0 + δ*(t1*-2.0 + δ*folded)."""
    prover = Prover(query, symbols, repair)
    if not repair.means:
        (alone,) = repair.slots
        return f"h = {pretty(_T if alone.step is None else prover.step(alone.step, [_T], 0, 1, _T))}"
    t = [Var(f"t{k}", "float32") for k in range(len(repair.slots))]
    steps = ((k, prover.step(e, t, 0, 1, Var("folded", "float32"))) for k, _, e in prover.steps)
    return ", ".join(f"h{k} = {print_expr(e).replace(' * ', '*')}" for k, e in steps)


def _assumptions(query: Query, repair: Repair) -> tuple[Assumption, ...]:
    """Return the assumptions of the kernel that nothing proves."""
    if not repair.deferred or repair.means:
        return ()
    if query.reducer == "prod":
        text = "the product is exp of a sum of logarithms: its relative error is the absolute error of that sum"
        return (Assumption("logarithms", text),)
    if REDUCERS[query.reducer].best:
        text = (
            "elements that rounding makes equal are told apart: of these the expression, as it is rounded, keeps the "
        )
        return (Assumption("ties", text + "first, and the kernel the one that comes first before rounding"),)
    text = "is not 0: where it is, the kernel's result may be infinite, and that of the expression NaN (0/0)"
    zero = [x for x in _divisors(repair.finish) if query.roles.reads(x) and sign(x, query.roles) not in ("+", "-")]
    return tuple(Assumption("divisor", f"{print_expr(x)} {text}") for x in dict.fromkeys(zero))


def _divisors(e: Expr) -> Iterator[Expr]:
    """What `e` divides by, or takes the inverse root of."""
    for x in walk(e):
        if isinstance(x, Op) and x.name in ("div", "rsqrt"):
            yield x.args[-1]


def _rounded(query: Query, repair: Repair) -> tuple[RangePredicate, ...]:
    """Return what is folded, where it is larger than what the expression makes of it and loses digits of that."""
    if not repair.deferred or repair.means or query.reducer == "prod" or REDUCERS[query.reducer].best:
        return ()
    alone = repair.slots[0]
    if (alone.start is None and scale_of(repair.finish) is not None) or not _regrouped(query, alone.value):
        return ()
    return (RangePredicate(alone.value, math.inf, rounded=True),)


def _regrouped(query: Query, body: Expr) -> bool:
    """Return True if the folded value combines values that the expression never adds or multiplies as they are."""
    inner = body.then if isinstance(body, Select) else body
    inner = inner.args[0] if isinstance(inner, Op) and inner.name == "neg" else inner
    gathered = [name for _, name in symbols_of(query.value, query.roles).names if name.startswith("c")]
    return len(gathered) > 1 and inner not in walk(query.value)


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
        kind="range" if problems[0].strategy == "range" else None,
    )


def _no_inverse(query: Query) -> str | None:
    """Describe the h of Theorem 4.3 that is no repair; None if there is none, or if it commutes."""
    by_theorem = inverse(query)
    if by_theorem is None or by_theorem.commute is not None:
        return None
    return f"inverse: `{by_theorem.h}`: not shown to commute with {query.reducer}"


def _reads_line(query: Query, reads: list[Predecessor]) -> str:
    names = " and ".join(f"`{p.load.buffer}` ({p.reducer})" for p in reads) or "no predecessor"
    verb = "is" if len(reads) < 2 else "are"
    return f"`{query.stage}` reads {names}, which {verb} still changing inside this loop, and no repair was found:"


def _short(text: str, width: int = 70) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
