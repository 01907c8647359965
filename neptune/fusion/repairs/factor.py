"""Split a contribution into what can wait, φ(r), and what is folded, ψ(r, c).

    exp(s[i, j] - m[i]) / l[i] * v[j]   →   φ = 1 / l[i],   ψ = exp(s[i, j] - m[i]) * v[j],
                                            ψ rolls with the exponent term -m[i]

The split follows the structure of the expression: products, quotients, constant powers, roots, absolute
values, float casts, choices against 0, and sums inside exp and exp2.  A subexpression that reads no r is
never opened.  ψ reads r inside such exponents only, which is what makes it defined at every r that can
occur.  Whatever does not fit is left in ψ and becomes a `Problem` with its reason (docs/design/repairs.md, "Solvers are
a list, the prover believes none").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from neptune.fusion.prove import magnitude, sign
from neptune.fusion.repairs.range import Ceiling, ceiling, ceiling_of_reciprocal, leaf_of, too_narrow
from neptune.fusion.repairs.roles import Problem, Roles, Split, Term
from neptune.fusion.repairs.starts import guard
from neptune.fusion.repairs.terms import additive, scaled, with_part, without
from neptune.ir.analysis.facts import linear_in
from neptune.ir.dtypes import DTYPES, is_float
from neptune.ir.expr import (
    Cast,
    Const,
    Expr,
    Load,
    Op,
    Select,
    binary,
    cast,
    conjuncts,
    op,
    rewrite,
    select,
    walk,
)
from neptune.ir.ops import EXPONENTIALS, LOGARITHMS, OPS, SUMS
from neptune.ir.text.printer import print_expr

_MOMENTS = "r is added to what is folded: no factor of it depends on r alone"


def product(parts: tuple[Expr, ...], dtype: str) -> Expr:
    """Π parts in `dtype`; 1 for none. `x * (1 / y)` is built as `x / y`."""
    result: Expr | None = None
    for part in (cast(p, dtype) for p in parts):
        if result is None:
            result = part
        elif isinstance(part, Op) and part.name == "div" and _is(part.args[0], 1):
            result = binary("div", result, part.args[1])
        else:
            result = binary("mul", result, part)
    return Const(1.0, dtype) if result is None else result


def cast_text(e: Cast[Expr]) -> str:
    """A cast as it is reported."""
    return f"{e.arg.dtype} → {e.dtype} of {print_expr(e.arg)}"


def _is(e: Expr, value: float) -> bool:
    return isinstance(e, Const) and e.value == value


@dataclass
class Splitter:
    """Splits expressions and keeps what it met: problems, transparent casts, bounds of exponentials.

    `known` gives the φ already taken out of a buffer, so that a load of it stands for φ · load. `ceilings` bound the
    exponentials that roll, `steps` say which φ was taken out of each part of ψ. `judges`: float16 is refused where it
    is not known to do.
    """

    roles: Roles
    known: Mapping[str, Expr] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    casts: list[str] = field(default_factory=list)
    ceilings: dict[Expr, Ceiling] = field(default_factory=dict)
    ranges: list[str] = field(default_factory=list)
    steps: dict[Expr, tuple[Expr, ...]] = field(default_factory=dict)
    judges: bool = True
    predicates: tuple[Expr, ...] = ()

    # --- small helpers -------------------------------------------------------------------------

    def involved(self, e: Expr) -> bool:
        """True where `e` depends on r, also through a buffer that a φ was taken out of."""
        return self.roles.reads(e) or self._known_inside(e)

    def fail(self, e: Expr, strategy: str, reason: str, hint: str | None = None) -> Split:
        """Leave `e` as it is, with r inside, and say why."""
        self.problems.append(Problem(strategy, e, reason, hint))
        return Split((), self.restore(e))

    def restore(self, e: Expr) -> Expr:
        """`e` with every φ that was taken out of a buffer put back."""
        if isinstance(e, Load) and e.buffer in self.known:
            return product((e, self.known[e.buffer]), e.dtype)

        def put_back(x: Expr) -> Expr | None:
            return self.restore(x) if isinstance(x, Load) and x.buffer in self.known else None

        return rewrite(e, put_back)

    # --- the split -----------------------------------------------------------------------------

    def split(self, e: Expr) -> Split:
        """e = Π phis · psi."""
        part = self._split(e)
        if part.phis or part.rolls:
            self.steps[part.psi] = part.phis
        return part

    def _split(self, e: Expr) -> Split:
        if not self.involved(e):
            return Split((), e)
        if isinstance(e, Load) and e.buffer in self.known:
            return Split((self.known[e.buffer],), e)
        if self.roles.reads(e) and not self.roles.varies(e) and not self._known_inside(e):
            return self._whole(e)
        match e:
            case Cast():
                return self._cast(e)
            case Select():
                return self._select(e)
            case Op("mul" | "div", args, _):
                return self._in_range(e, self._product(e, self.split(args[0]), self.split(args[1])))
            case Op("neg", args, _):
                part = self.split(args[0])
                return replace(part, psi=op("neg", part.psi))
            case Op("add" | "sub", args, _):
                return self._in_range(e, self._sum(e, self.split(args[0]), self.split(args[1])))
            case Op(name, _, _) if name == "pow" or OPS[name].degrees:
                return self._in_range(e, self._power(e))
            case Op(name, _, _) if name in EXPONENTIALS:
                return self._exponential(e)
            case Load():
                return self.fail(e, "separate", "r is used as an index or read at another position")
            case _:
                name = e.name if isinstance(e, Op) else "it"
                return self.fail(e, "separate", f"{name} mixes r and c: no factor of it depends on r alone")

    def _is_log(self, e: Expr) -> bool:
        log = isinstance(e, Op) and e.name in LOGARITHMS
        return log and not self.roles.varies(e) and not self._known_inside(e)

    def _known_inside(self, e: Expr) -> bool:
        return any(isinstance(x, Load) and x.buffer in self.known for x in walk(e))

    def _whole(self, e: Expr) -> Split:
        """All of `e` depends on r and p alone: it waits. Its value at the final r is the original's."""
        for x in walk(e):
            if isinstance(x, Load) and x.buffer in self.roles.buffers and self.roles.predecessor(x) is None:
                return self.fail(x, "separate", f"{x.buffer} is read at more than one position")
        return Split((e,), Const(1.0, e.dtype)) if is_float(e.dtype) else self.fail(e, "defer", "it is not a float")

    def _product(self, e: Op[Expr], a: Split, b: Split) -> Split:
        if e.name == "mul":
            return Split((*a.phis, *b.phis), scaled(a.psi, b.psi), (*a.rolls, *b.rolls))
        under = tuple(binary("div", Const(1.0, p.dtype), p) for p in b.phis)
        psi = a.psi if _is(b.psi, 1) else binary("div", a.psi, b.psi)
        return Split((*a.phis, *under), psi, (*a.rolls, *(t.negated() for t in b.rolls)))

    def _sum(self, e: Op[Expr], a: Split, b: Split) -> Split:
        """Both sides must carry the same factors: x/l + y/l waits for 1/l, x/l + y does not."""
        same_rolls = sorted(a.rolls, key=repr) == sorted(b.rolls, key=repr)
        if a.phis == b.phis and same_rolls and not (self.roles.reads(a.psi) and not a.rolls):
            return Split(a.phis, binary(e.name, a.psi, b.psi), a.rolls)
        if a.rolls or b.rolls:
            return self.fail(e, "separate", "its two sides would have to be repaired by different factors")
        return self.fail(e, "separate", _MOMENTS, "two passes: keep this reduction in a loop of its own")

    def _power(self, e: Op[Expr]) -> Split:
        """Roots, absolute values and constant powers go through a product where its signs allow it."""
        before = len(self.problems)
        inner = self.split(e.args[0])
        if len(self.problems) > before:
            if e.name == "pow":
                return Split((), self.restore(e))
            del self.problems[before:]
            return self.fail(e, "separate", f"{e.name} of a sum that mixes r and c has no factor in r alone")
        exponent = e.args[-1] if e.name == "pow" else None
        if exponent is not None and not isinstance(exponent, Const):
            return self.fail(e, "separate", "the exponent of pow is no constant")
        whole = e.name == "abs" or (isinstance(exponent, Const) and float(exponent.value).is_integer())
        if not whole and not all(sign(p, self.roles) == "+" for p in inner.phis):
            reason = f"{e.name} of a product splits only where the sign of r is known, and it is unknown"
            return self.fail(e, "defer", reason, "take the root of r itself, if r is never negative")

        def powered(x: Expr) -> Expr:
            return binary("pow", x, Const(exponent.value, x.dtype)) if isinstance(exponent, Const) else op(e.name, x)

        scale = exponent if isinstance(exponent, Const) else Const(OPS[e.name].degrees[0], e.dtype)
        rolls = inner.rolls if e.name == "abs" else tuple(t.scaled("mul", scale) for t in inner.rolls)
        psi = inner.psi if _is(inner.psi, 1) else powered(inner.psi)
        return Split(tuple(powered(p) for p in inner.phis), psi, rolls)

    def _cast(self, e: Cast[Expr]) -> Split:
        source, target = DTYPES[e.arg.dtype], DTYPES[e.dtype]
        if source.kind != "float":
            before = len(self.problems)
            self.split(e.arg)
            if len(self.problems) > before:
                return Split((), self.restore(e))
        if target.kind != "float" or target.bits < 16 or source.kind != "float":
            how = "keeps few digits" if target.kind == source.kind == "float" else "rounds in absolute steps"
            reason = f"the cast {source.name} → {target.name} {how}: no factor passes through it"
            return self.fail(e, "defer", reason, "cast after the reduction, or keep it in a loop of its own")
        inner = self.split(e.arg)
        if source.bits > target.bits:
            self.casts.append(cast_text(e))
        return self._in_range(e, replace(inner, psi=cast(inner.psi, e.dtype)))

    def _in_range(self, e: Expr, split: Split) -> Split:
        """float16 is narrow: a ψ of that dtype must be known to stay in its range without the final r."""
        if e.dtype != "float16" or not (split.phis or split.rolls):
            return split
        reason = too_narrow(split.psi, split.phis, leaf_of(self.roles, self.ceilings)) if self.judges else None
        if reason is None:
            return split
        return self.fail(e, "defer", reason, "compute it in bfloat16 or float32")

    def _select(self, e: Select[Expr]) -> Split:
        if self.involved(e.pred):
            return self.fail(e, "separate", "which branch is taken depends on r")
        outer = self.predicates
        self.predicates = (*outer, *conjuncts(e.pred))
        then = self.split(e.then)
        self.predicates = outer
        other = self.split(e.other)
        same = then.phis == other.phis and then.rolls == other.rolls
        if not same and not _is(e.other, 0):
            return self.fail(e, "separate", "the branches of select differ in their factors, and the other is not 0")
        phis = []
        for phi in then.phis:
            guarded = phi if same else guard(phi, self.roles)
            if guarded is None:
                return self.fail(e, "defer", "a factor taken out of select may overflow where nothing is selected")
            phis.append(guarded)
        return Split(tuple(phis), select(e.pred, then.psi, other.psi), then.rolls)

    # --- exponents -----------------------------------------------------------------------------

    def _exponential(self, e: Op[Expr]) -> Split:
        """exp of a sum: terms in r roll, a term log φ(r) waits if the others keep ψ in range."""
        terms: list[Term] = []
        logs: list[tuple[Expr, bool]] = []
        for leaf, negative, scale in additive(e.args[0], self.involved):
            if not self.involved(leaf):
                continue
            # A scale that varies (exp(s * m)) would make the repair depend on the element.
            fixed = not any(self.roles.varies(by) for _, by in scale)
            if fixed and self.roles.predecessor(leaf) is not None:
                assert isinstance(leaf, Load)
                terms.append(Term(e.name, leaf, negative, scale))
            elif self._is_log(leaf) and not scale:
                logs.append((leaf, negative))
            else:
                return self.fail(e, "separate", f"the exponent of {e.name} is no sum of terms in r and terms in c")
        for x in walk(e.args[0]):
            if isinstance(x, Cast) and self.involved(x) and DTYPES[x.dtype].bits < DTYPES[x.arg.dtype].bits:
                self.casts.append(cast_text(x))
        rest = without(e.args[0], {leaf for leaf, _ in logs})
        psi = replace(e, args=(Const(0.0, e.dtype) if rest is None else rest,))
        inverse_ceiling = ceiling_of_reciprocal(psi, terms, self.roles, self.predicates)
        if inverse_ceiling is None:
            inverse_ceiling = ceiling(psi, terms, self.roles, self.predicates)
        if isinstance(inverse_ceiling, str):
            return self.fail(e, "separate", inverse_ceiling, "subtract the maximum of the exponent itself")
        self.ceilings[psi] = inverse_ceiling
        self.ranges.append(inverse_ceiling.text)
        phis = tuple(op(e.name, op("neg", leaf) if negative else leaf) for leaf, negative in logs)
        part = Split(phis, psi, tuple(terms))
        # What is reached, the expression computes too.
        return part if inverse_ceiling.reached and not logs else self._in_range(e, part)


Parts = tuple[Expr | None, Expr]


def split_sum(e: Expr, splitter: Splitter) -> Parts | None:
    """e = φ(r) + ψ(c) for a max or min target; None where it is no such sum. φ is None where e reads no r."""
    roles = splitter.roles
    if not roles.reads(e):
        return None, e
    if not roles.varies(e) and not splitter.problems and is_float(e.dtype):
        return e, Const(0.0, e.dtype)
    if isinstance(e, Op) and e.name in SUMS:
        return _added(e.name, *(split_sum(x, splitter) for x in e.args))
    mixed = [k for k, x in enumerate(e.parts) if roles.reads(x) or roles.varies(x)]
    if len(mixed) != 1 or not linear_in(e, mixed[0]) or (part := split_sum(e.parts[mixed[0]], splitter)) is None:
        return None
    phi, psi = part
    if not isinstance(e, Cast):
        return None if phi is None else with_part(e, mixed[0], phi), with_part(e, mixed[0], psi)
    if e.dtype == "float16" and magnitude(psi, {}) > DTYPES[e.dtype].highest:
        return None
    if DTYPES[e.dtype].bits < DTYPES[e.arg.dtype].bits:
        splitter.casts.append(cast_text(e))
    return phi, cast(psi, e.dtype)


def _added(name: str, a: Parts | None, b: Parts | None) -> Parts | None:
    """φ + ψ of a sum or a difference."""
    if a is None or b is None:
        return None
    (p, x), (q, y) = a, b
    psi = x if _is(y, 0) else y if _is(x, 0) and name == "add" else binary(name, x, y)
    if p is None or q is None:
        return (p if q is None else q if name == "add" else op("neg", q)), psi
    return binary(name, p, q), psi
