"""⊕ = prod with powers and factors that read r (docs/design/repairs.md, "Products are sums of logarithms").

    Π over j of c[j] ** r   =  exp(r · Σ log c[j])            n: how many elements are folded
    Π over j of c[j] * r    =  exp(Σ log c[j] + n · log r)

g = φ(r) · ψ(c)^a(r), with φ and ψ positive *by form*: then log ψ is summed, nothing is rolled, and one exp behind the
loop makes the product.  Taken as they are, (Π c)^r and r^n · Π c would leave the range of their dtype long before
the product does; a sum of logarithms does not.  Where a sign is unknown the product is refused, and so is one under
a mask that chooses 1: how many elements it folds is not known before the loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

from neptune.fusion.monotone import hole
from neptune.fusion.prove import sign
from neptune.fusion.roles import Problem, Query, Roles
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Cast, Const, Expr, Op, Select, binary, cast, op, select

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
