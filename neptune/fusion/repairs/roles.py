"""The parts an expression plays in a fusion, the question put to the solver and its answer (paper §4.2).

A target folds g(r…, c…, p…): **r** is a reduction that still changes inside the fused loop, **c** varies
along that loop, **p** does neither.  With `l[i] += exp(s[i, j] - m[i])`, `m[i] max= s[i, j]` and j the
fused loop, g = exp(c - r) with r = m[i] and c = s[i, j].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from neptune.ir.analysis.ranges import RangePredicate
from neptune.ir.expr import Const, Expr, Load, Op, Var, binary, cast, loads, variables, walk
from neptune.schedule.state import Assumption

ORDERED = ("max", "min")
"""The reducers of single values that only order what they fold."""


@dataclass(frozen=True)
class Predecessor:
    """A reduction the target reads: role r.

    `load` is how the target reads the accumulator (`m[b, h, i]`); `value` is what that reduction folds in
    at the same position of the fused axis, in the target's loop variables, or None where unknown.
    `repaired`: its accumulator is itself repaired in the loop, and so may move both ways.
    `start`: what it starts from, where that is not the reducer's identity: its sign is then unknown.
    """

    load: Load
    reducer: str
    value: Expr | None
    repaired: bool = False
    start: Expr | None = None


@dataclass(frozen=True)
class Roles:
    """The predecessors, which are r, and the loop variables that make an expression a c; everything else is a p."""

    predecessors: tuple[Predecessor, ...]
    varying: frozenset[str]

    @cached_property
    def buffers(self) -> frozenset[str]:
        return frozenset(p.load.buffer for p in self.predecessors)

    def predecessor(self, e: Expr) -> Predecessor | None:
        """The predecessor that `e` is a read of, if it is exactly one."""
        return next((p for p in self.predecessors if p.load == e), None)

    def reads(self, e: Expr) -> bool:
        """True where `e` depends on some r."""
        return any(isinstance(x, Load) and x.buffer in self.buffers for x in walk(e))

    def varies(self, e: Expr) -> bool:
        """True where `e` depends on a loop variable of the fused reduction: it holds a c."""
        return not self.varying.isdisjoint(variables(e))


@dataclass(frozen=True)
class Query:
    """A question to `solve`: may `stage` be fused into the loop of its predecessors, and how?

    `reducer` is the target's ⊕, `dtype` its accumulator's dtype, `value` its contribution g with the map
    stages between inlined, `varying` the names of the target's reduction loop variables, `count` how many
    elements it folds (None where that is known inside the loop only), `fixed` whether its accumulators must stay
    about the means that they are about, since something else moves them.
    """

    stage: str
    reducer: str
    dtype: str
    value: Expr
    predecessors: tuple[Predecessor, ...]
    varying: frozenset[str]
    count: Expr | None = None
    fixed: bool = False

    @property
    def roles(self) -> Roles:
        return Roles(self.predecessors, self.varying)


@dataclass(frozen=True)
class Problem:
    """The reason why part of an expression is neither deferred nor rolled: `strategy` failed on `part`."""

    strategy: str
    part: Expr
    reason: str
    hint: str | None = None


@dataclass(frozen=True)
class Term:
    """An exponent's term that reads r: ±load, then each of `scale`, ("mul" or "div", factor free of r)."""

    base: str
    load: Load
    negative: bool
    scale: tuple[tuple[str, Expr], ...] = ()

    def scaled(self, step: str, by: Expr) -> Term:
        return replace(self, scale=(*self.scale, (step, by)))

    def negated(self) -> Term:
        return replace(self, negative=not self.negative)


@dataclass(frozen=True)
class Split:
    """e = Π phis · psi; `rolls` are the exponent terms through which psi reads r."""

    phis: tuple[Expr, ...]
    psi: Expr
    rolls: tuple[Term, ...] = ()


@dataclass(frozen=True)
class ObligationRecord:
    """One proved statement, e.g. ("update", "h(g(r, c), r, r') = g(r', c)", "both sides are one sum of products")."""

    name: str
    statement: str
    how: str


@dataclass(frozen=True)
class Mean:
    """A mean that is subtracted from what varies, and that changes in the loop: ρ.

    `load` stands for it in a `Repair`; `value` is what it is at the end, `running` on the way, over the values
    that the predecessors then have, `COUNT` and `load`, which is ρ before this step.  `helpers` are sums that it
    reads besides, with what they fold.
    """

    load: Load
    value: Expr
    running: Expr
    helpers: tuple[tuple[Load, Expr], ...] = ()


@dataclass(frozen=True)
class Slot:
    """One accumulator T of a repair.

    `fold` is its reducer and `value` what an element adds (the first part of it, of a choice of pairs), which reads
    means by their `load`; `start`, in the accumulator's dtype, is what it holds before anything is folded, None where
    that is what the target itself starts from.  `step` is what T becomes when r and the means change, over the
    accumulators (`slot`), `previous(load)` as r and `load` as r', `change` of the means and `FOLDED`; None: it stays.

        l[i] += exp(s[i, j] - m[i])   →   Slot("sum", exp(s[i, j] - m[i]), "float32", step=T·exp(m_prev[i] - m[i]))
    """

    fold: str
    value: Expr
    dtype: str
    start: Const | None = None
    step: Expr | None = None


COUNT = Var("%count")
"""How many elements have been folded at the end of this step."""
FOLDED = Var("%folded")
"""How many elements have been folded before this step."""
ALL = Var("%all")
"""How many elements there are."""


def slot(k: int, dtype: str) -> Var:
    """The accumulator of `Repair.slots[k]` (not an identifier: no program has it)."""
    return Var(f"%t{k}", dtype)


def change(k: int, dtype: str) -> Var:
    """ρ' - ρ of `Repair.means[k]`."""
    return Var(f"%d{k}", dtype)


@dataclass(frozen=True)
class Evidence:
    """The proofs and assumptions of a repair, for the reader.

    `g` and `h` are text over `symbols`; `casts` name the float casts that the proof passed through and the code keeps;
    `assumptions` say what is not proved, and `ranges` within which values of the inputs the rest is.
    """

    g: str = ""
    h: str = ""
    symbols: tuple[tuple[str, str], ...] = ()
    obligations: tuple[ObligationRecord, ...] = ()
    casts: tuple[str, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    ranges: tuple[RangePredicate, ...] = ()

    def proved(self, *more: ObligationRecord) -> Evidence:
        """The same with further obligations that are met."""
        return replace(self, obligations=(*self.obligations, *more))


@dataclass(frozen=True)
class Repair:
    """A map on a vector of accumulators that follows r (Definition 4.1, for several accumulators at once).

    In every iteration, before anything is folded, `slots` make their steps; behind the loop `finish`, over the
    accumulators, the final r and the means, is the result.  Accumulator 0 takes the place of the target's own.

        a rescaling    T·exp(r - r')                              finish T
        a deferral     no step                                    finish T / l, T - m, f(T)
        a product      one slot of sum, of logarithms             finish exp(T)
        a variance     Σ(x - ρ)², Σ(x - ρ), and a running mean    finish T0, moved by what rounding left ρ off
        top k          one slot of pairs                          finish f(T), once for each value
    """

    slots: tuple[Slot, ...]
    finish: Expr
    means: tuple[Mean, ...] = ()
    evidence: Evidence = Evidence()

    @property
    def rolled(self) -> bool:
        """True where an accumulator is corrected as r changes; what is deferred alone is not."""
        return any(s.step is not None for s in self.slots)

    @property
    def deferred(self) -> bool:
        """True where something is applied behind the loop."""
        return self.finish != slot(0, self.slots[0].dtype)

    @property
    def followed(self) -> frozenset[Load]:
        """The reads of r whose previous value the steps read as well."""
        read = {x for s in self.slots if s.step is not None for x in loads(s.step)}
        return frozenset(replace(x, buffer=x.buffer[:-1]) for x in read if x.buffer.endswith("'"))


def scale_of(e: Expr) -> Expr | None:
    """φ where `e`, a step or a finish, is T·φ; T / x is T·(1 / x)."""
    match e:
        case Op("mul", (Var("%t0"), phi), _):
            return phi
        case Op("div", (Var("%t0"), x), _):
            return binary("div", Const(1.0, x.dtype), x)
        case _:
            return None


def times(phi: Expr, dtype: str) -> Expr:
    """The `finish` T·φ; 1 / x is applied as a division."""
    t = slot(0, dtype)
    inverse = isinstance(phi, Op) and phi.name == "div" and phi.args[0] == Const(1.0, phi.dtype)
    if inverse and isinstance(phi, Op):
        return binary("div", t, cast(phi.args[1], dtype))
    return binary("mul", t, cast(phi, dtype))


def previous(load: Load) -> Load:
    """The value the accumulator had before this step: r, where `load` itself is r' (paper, Algorithm 1).

    >>> previous(Load("m", (), "float32")).buffer
    "m'"
    """
    return Load(load.buffer + "'", load.index, load.dtype)
