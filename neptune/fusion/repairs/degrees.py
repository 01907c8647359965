"""Degrees of growth with an input, x → λx: what is folded may grow faster than what the expression computes.

x / Σ|x| * y    degree 0 in x, 1 in y        (x / Σ|x|)⁴ without the scale    x⁴: too steep
"""

from __future__ import annotations

from collections.abc import Iterable

from neptune.fusion.repairs.roles import Problem, Query, Roles
from neptune.ir.analysis.facts import Degree, degree_of
from neptune.ir.dtypes import is_float
from neptune.ir.expr import Expr, Load, walk
from neptune.ir.text.printer import print_expr


def degree(e: Expr, buffer: str, roles: Roles) -> Degree:
    """The degree of `e` in an input: of x * y / Σ|x| it is 0 in x and 1 in y."""

    def known(x: Expr) -> Degree | None:
        if not isinstance(x, Load):
            return None
        pred = roles.predecessor(x)
        if pred is not None and pred.value is not None and pred.reducer != "prod":
            return degree_of(pred.value, known)
        return (1.0, 1.0) if x.buffer == buffer else (0.0, 0.0)

    return degree_of(e, known)


def steep(psi: Expr, phis: Iterable[Expr], own: Iterable[Expr], roles: Roles) -> tuple[str, float] | None:
    """An input with which ψ grows too fast without φ, and its degree; None where there is none.

    Too fast is by more than one power, and by more than anything that the original computes, its `own`.
    """
    parts = list(phis)
    for buffer in dict.fromkeys(x.buffer for x in walk(psi) if isinstance(x, Load) and is_float(x.dtype)):
        low, high = degree(psi, buffer, roles)
        size = max(high, -low)
        if size <= 1 or not any(any(degree(p, buffer, roles)) for p in parts):
            continue
        if all(size > abs(d) for e in own if is_float(e.dtype) for d in degree(e, buffer, roles)):
            return buffer, size
    return None


def own_parts(query: Query, free: bool = False) -> frozenset[Expr]:
    """Everything that the original computes, the predecessors included; with `free`, of g what reads no r."""
    values = (p.value for p in query.predecessors)
    mine = frozenset(x for x in walk(query.value) if not (free and query.roles.reads(x)))
    return mine | frozenset(x for v in values if v is not None for x in walk(v))


def too_steep(psi: Expr, phis: tuple[Expr, ...], buffer: str, by: float) -> Problem:
    """The refusal that `steep` gives rise to."""
    scale = " * ".join(print_expr(p) for p in phis)
    reason = (
        f"without the scale `{scale}` it grows with the power {by:g} of {buffer}: it underflows and overflows where "
        "the expression does not"
    )
    return Problem("range", psi, reason, "leave it in a kernel of its own")
