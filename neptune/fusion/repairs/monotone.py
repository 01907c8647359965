"""Targets that only order what they fold: max, min and choices of pairs.

Where g(r, c) = f(ψ(c), r) and f rises with its first argument, the largest g belongs to the largest ψ::

    max over j of log(exp(s[i, j]) + r[i])   →   fold ψ = s[i, j];   once, f(t) = log(exp(t) + r[i])

Nothing is rolled, and f is applied to the winner alone, at the final r: it is defined, and stays in range,
wherever the expression itself does.  An f that falls becomes one that rises by folding -ψ.  `peel` finds ψ and f
by the structure of g; whether f rises is then read off f by rules of its own, with the sign facts of r.  What they
do not decide is refused.  A choice of pairs needs an f that rises *strictly*, or ties would choose other indices
(docs/design/repairs.md, "A target that only orders its elements waits as a whole").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from neptune.errors import Unsupported, answered
from neptune.fusion.prove import facts_of, sign
from neptune.fusion.repairs.factor import Splitter, product, split_sum
from neptune.fusion.repairs.roles import Problem, Query, Roles, slot
from neptune.fusion.repairs.symbols import symbols_of
from neptune.ir.analysis.facts import range_of, slope
from neptune.ir.analysis.limits import ORDINARY, Values, of_sign, values_of
from neptune.ir.dtypes import is_float
from neptune.ir.expr import (
    Const,
    Expr,
    Op,
    Select,
    Var,
    binary,
    children,
    op,
    rebuild,
    rewrite,
    select,
    variables,
)
from neptune.ir.ops import OPS
from neptune.ir.reducers import REDUCERS

HOLE = slot(0, "").name
"""The variable that stands for the folded value in f: the first accumulator of a repair."""


@dataclass(frozen=True)
class Ordered:
    """g = f(ψ), f being an expression over `HOLE` that rises; `strict`: it never maps two values to one."""

    psi: Expr
    f: Expr
    strict: bool
    casts: tuple[str, ...] = ()


def hole(dtype: str) -> Var:
    """The argument of f."""
    return slot(0, dtype)


def fill(f: Expr, value: Expr) -> Expr:
    """f(value)."""
    return rewrite(f, lambda x: value if isinstance(x, Var) and x.name == HOLE else None)


def ordered(e: Expr, roles: Roles, problems: list[Problem]) -> Ordered | None:
    """`e` as a rising function of something that reads no r; None where it is none, with the reason in `problems`."""
    splitter = Splitter(roles)
    core = peel(e, splitter)
    if core is None:
        return None
    psi: Expr = core[0]
    f = core[1]
    while isinstance(psi, Op) and OPS[psi.name].slopes == ("+",) and not OPS[psi.name].domain:
        # What rises everywhere is computed for the winner only.
        outer: Expr = op(psi.name, hole(psi.dtype))
        psi, f = psi.args[0], fill(f, outer)
    way = direction(f, psi, roles, problems)
    if way is None or way == "0" or not is_float(psi.dtype):
        return None
    if way[-1] == "-":
        f, psi = fill(f, op("neg", hole(psi.dtype))), op("neg", psi)
    return Ordered(psi, f, len(way) == 1, tuple(dict.fromkeys(splitter.casts)))


def direction(f: Expr, psi: Expr, roles: Roles, problems: list[Problem] | None = None) -> str | None:
    """Return f's direction as its argument ψ rises: "+", "0+" if not strictly; None, with the reason, if unknown."""
    loads = facts_of(roles)
    argument = range_of(psi, loads)
    way = answered(slope, f, HOLE, lambda x: argument if x == hole(psi.dtype) else loads(x))
    if not isinstance(way, Unsupported):
        return way
    if problems is not None:
        problems.append(Problem("order", fill(way.node, psi), way.why))
    return None


def masked(query: Query, problems: list[Problem]) -> Ordered | None:
    """The same for max or min, where an element that a mask leaves out is -inf (for min, inf) and stays so."""
    return masked_by(lambda e: ordered(e, query.roles, problems), query, problems)


def masked_by(solve: Callable[[Expr], Ordered | None], query: Query, problems: list[Problem]) -> Ordered | None:
    """Apply `solve` to the contribution, or to its value under a mask."""
    e, last = query.value, REDUCERS[query.reducer].nothing(query.value.dtype)
    if not (isinstance(e, Select) and e.other == last and not query.roles.reads(e.pred)):
        return solve(e)
    inner = solve(e.then)
    if inner is None or not _keeps_infinity(inner.f, query.roles):
        reason = f"without its mask it would not be {last.value} where the mask is false"
        problems += [] if inner is None else [Problem("order", e, reason)]
        return None
    out = Const(last.value, inner.psi.dtype)
    # Where the mask was false throughout, f may be undefined at what is left, -inf: no element is none.
    f = select(binary("ne", hole(inner.psi.dtype), out), inner.f, Const(last.value, inner.f.dtype))
    return replace(inner, psi=select(e.pred, inner.psi, out), f=f)


def choice(query: Query, problems: list[Problem]) -> Ordered | None:
    """The value of a choice of pairs as a strictly rising function; an element left out has the last pair."""
    e, last = query.value, REDUCERS[query.reducer].nothing(query.value.dtype)
    out = isinstance(e, Select) and e.other == last and not query.roles.reads(e.pred)
    inner = ordered(e.then if out and isinstance(e, Select) else e, query.roles, problems)
    if inner is None:
        problems += [] if problems else [Problem("order", e, "it is no function of one value that varies, r apart")]
        return None
    if not inner.strict:
        reason = f"it is not known to rise strictly: of elements it makes equal, {query.reducer} keeps the first"
        problems.append(Problem("order", e, reason))
        return None
    if not (out and isinstance(e, Select)):
        return inner
    return replace(inner, psi=select(e.pred, inner.psi, Const(last.value, inner.psi.dtype)))


def _keeps_infinity(f: Expr, roles: Roles) -> bool:
    """True where f(-inf) = -inf and f(inf) = inf: a shift, or a factor that is positive."""

    def at(end: float) -> Values:
        hole = frozenset({end})
        return values_of(f, lambda x: hole if isinstance(x, Var) and x.name == HOLE else _others(x, roles))

    return all(at(end) == {end} for end in (-math.inf, math.inf))


def _others(e: Expr, roles: Roles) -> Values | None:
    """Return ordinary values of what does not depend on the argument of f."""
    return None if HOLE in variables(e) or isinstance(e, Const) else of_sign(ORDINARY, sign(e, roles))


# --- ψ and f -----------------------------------------------------------------------------------


def peel(e: Expr, splitter: Splitter) -> tuple[Expr, Expr] | None:
    """(ψ, f) with e = f(ψ), ψ free of r; None where e holds several values that vary and cannot be gathered.

    Sums and products are regrouped: `(c1 - r) + c2` is `t - r` of `c1 + c2`.
    """
    roles = splitter.roles
    if not roles.varies(e):
        return None
    if not roles.reads(e):
        return e, hole(e.dtype)
    atoms = [x for x, name in symbols_of(e, roles).names if name.startswith("c")]
    if len(atoms) == 1:
        (psi,) = atoms
        return psi, rewrite(e, lambda x: hole(psi.dtype) if x == psi else None)
    inside = [k for k, x in enumerate(children(e)) if roles.varies(x)]
    if isinstance(e, Op) and e.name in ("add", "sub", "mul", "div") and len(inside) == 2:
        return _gathered(e, splitter)
    if len(inside) != 1 or isinstance(e, Select):
        return None
    inner = peel(children(e)[inside[0]], splitter)
    if inner is None:
        return None
    parts = tuple(inner[1] if k == inside[0] else x for k, x in enumerate(children(e)))
    return inner[0], rebuild(e, parts)


def _gathered(e: Op[Expr], splitter: Splitter) -> tuple[Expr, Expr] | None:
    """A sum φ(r) + ψ(c), or a product φ(r)·ψ(c)."""
    trial = Splitter(splitter.roles)
    if e.name in ("add", "sub"):
        pair = split_sum(e, trial)
        if pair is None or pair[0] is None:
            return None
        psi, shift, t = pair[1], pair[0], hole(pair[1].dtype)
        less = isinstance(shift, Op) and shift.name == "neg"
        f = binary("sub", t, shift.args[0]) if less and isinstance(shift, Op) else binary("add", t, shift)
    else:
        split = trial.split(e)
        if trial.problems or split.rolls or splitter.roles.reads(split.psi):
            return None
        psi, f = split.psi, binary("mul", hole(split.psi.dtype), product(split.phis, split.psi.dtype))
    splitter.casts += trial.casts
    return psi, f


def shown(f: Expr) -> Expr:
    """f with a readable name for its argument."""
    return rewrite(f, lambda x: Var("t", x.dtype) if isinstance(x, Var) and x.name == HOLE else None)
