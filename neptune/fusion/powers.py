"""⊕ = prod with powers and factors that read r (docs/design.md, "Products are sums of logarithms").

    Π over j of c[j] ** r   =  exp(r · Σ log c[j])            n: how many elements are folded
    Π over j of c[j] * r    =  exp(Σ log c[j] + n · log r)

g = φ(r) · ψ(c)^a(r), with φ and ψ positive *by form*: then log ψ is summed, nothing is rolled, and one exp behind the
loop makes the product.  Taken as they are, (Π c)^r and r^n · Π c would leave the range of their dtype long before
the product does; a sum of logarithms does not.  Where a sign is unknown the product is refused, and so is one under
a mask that chooses 1: how many elements it folds is not known before the loop.
"""

from __future__ import annotations

from dataclasses import dataclass

from neptune.fusion.monotone import hole
from neptune.fusion.prove import sign
from neptune.fusion.roles import Problem, Query, Roles
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Cast, Const, Expr, Op, Select, binary, cast, op, select


@dataclass(frozen=True)
class Power:
    """e = Π phis · psi ** exponent: `phis` and `exponent` do not vary, `psi` reads no r (None: it is 1)."""

    phis: tuple[Expr, ...]
    psi: Expr | None
    exponent: Expr | None = None


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
    found = _Powers(query.roles, problems).split(query.value)
    if found is None or found.psi is None or query.count is None:
        if not problems:
            problems.append(
                Problem("powers", query.value, "how many elements are folded is known inside the loop only")
            )
        return None
    for e in (*found.phis, found.psi):
        if sign(e, query.roles) != "+":
            reason = "a product follows r through logarithms, and this is not known to be positive"
            problems.append(Problem("powers", e, reason, "exp or abs(…) + ε of it, if that is what is meant"))
    if problems:
        return None
    shift: Expr | None = None
    for phi in found.phis:
        log = logarithm(phi)
        shift = log if shift is None else binary("add", shift, cast(log, shift.dtype))
    return Exponential(logarithm(found.psi), found.exponent, shift)


def logarithm(e: Expr) -> Expr:
    """log e, in float32 at least; of an exponential its exponent."""
    if isinstance(e, Op) and e.name == "exp" and DTYPES[e.dtype].bits >= 32:
        return e.args[0]
    return op("log", e if DTYPES[e.dtype].bits >= 32 else cast(e, "float32"))


@dataclass
class _Powers:
    roles: Roles
    problems: list[Problem]

    def note(self, e: Expr, reason: str) -> None:
        self.problems.append(Problem("powers", e, reason))

    def split(self, e: Expr) -> Power | None:
        if not self.roles.reads(e):
            return Power((), e) if self.roles.varies(e) else Power((e,), None)
        if not self.roles.varies(e):
            return Power((e,), None)
        match e:
            case Op("mul" | "div", (a, b), _):
                return self.product(e, self.split(a), self.split(b))
            case Op("pow", (a, b), _) if not self.roles.varies(b):
                return self.raised(self.split(a), b)
            case Cast(a, dtype) if DTYPES[dtype].kind == "float" and DTYPES[dtype].bits >= 32:
                return self.split(a)
            case Select():
                self.note(e, "a mask changes how many elements are folded, and so the power of r")
            case _:
                self.note(e, "it is no product of powers, each of r or of c alone")
        return None

    def product(self, e: Op[Expr], a: Power | None, b: Power | None) -> Power | None:
        if a is None or b is None:
            return None
        if e.name == "div":
            b = Power(tuple(binary("div", Const(1.0, p.dtype), p) for p in b.phis), b.psi, b.exponent)
        phis = (*a.phis, *b.phis)
        if a.psi is None or b.psi is None:
            other = b if a.psi is None else a
            if e.name == "div" and a.psi is None and b.psi is not None:
                one = Const(-1.0, b.psi.dtype)
                return Power(phis, b.psi, one if b.exponent is None else op("neg", b.exponent))
            return Power(phis, other.psi, other.exponent)
        if a.exponent != b.exponent:
            self.note(e, "its powers differ: they would need a sum of logarithms each")
            return None
        return Power(phis, binary(e.name, a.psi, cast(b.psi, a.psi.dtype)), a.exponent)

    def raised(self, a: Power | None, by: Expr) -> Power | None:
        if a is None:
            return None
        phis = tuple(binary("pow", p, cast(by, p.dtype)) for p in a.phis)
        exponent = by if a.exponent is None else binary("mul", a.exponent, cast(by, a.exponent.dtype))
        return Power(phis, a.psi, exponent if a.psi is not None else None)
