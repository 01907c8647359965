"""The parts an expression plays in a fusion, the question put to the solver and its answer (paper §4.2).

A target folds g(r…, c…, p…): **r** is a reduction that still changes inside the fused loop, **c** varies
along that loop, **p** does neither.  With `l[i] += exp(s[i, j] - m[i])`, `m[i] max= s[i, j]` and j the
fused loop, g = exp(c - r) with r = m[i] and c = s[i, j].
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from neptune.ir.expr import Expr, Load, Var, variables, walk


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
    """Who is r and which loop variables make an expression a c; everything else is a p."""

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
    """What is asked of `solve`: may `stage` be fused into the loop of its predecessors, and how?

    `reducer` is the target's ⊕, `dtype` its accumulator's dtype, `value` its contribution g with the map
    stages between inlined, `varying` the names of the target's reduction loop variables, `count` how many
    elements it folds (None where that is known inside the loop only), `vector` whether the asker can take a repair
    of several accumulators at once.
    """

    stage: str
    reducer: str
    dtype: str
    value: Expr
    predecessors: tuple[Predecessor, ...]
    varying: frozenset[str]
    count: Expr | None = None
    vector: bool = False

    @property
    def roles(self) -> Roles:
        return Roles(self.predecessors, self.varying)


@dataclass(frozen=True)
class Problem:
    """Why part of an expression is neither deferred nor rolled: `strategy` failed on `part`."""

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
    """One proved statement, e.g. ("update", "h(g(r, c), r, r') = g(r', c)", "SymPy: the difference is 0")."""

    name: str
    statement: str
    how: str


@dataclass(frozen=True)
class Shift:
    """What is subtracted from what varies, a mean: ρ.

    `load` stands for it in `Moments`; `value` is what it is at the end, `running` on the way, over the values
    that the predecessors then have, `COUNT` and `load`, which is ρ before this step.  `helpers` are sums that it
    reads besides, with what they fold.
    """

    load: Load
    value: Expr
    running: Expr
    helpers: tuple[tuple[Load, Expr], ...] = ()


@dataclass(frozen=True)
class Moment:
    """One accumulator, T = Σ `value`; `repaired` is T with another ρ, or None where it reads none.

    `repaired` is over `moment(k)`, the accumulators, `step(k)`, ρ' - ρ, and `FOLDED`. `counted`: the value is
    the same for every element, so that T is a multiple of their number and needs no accumulator.
    """

    value: Expr
    repaired: Expr | None
    counted: bool = False


@dataclass(frozen=True)
class Rest:
    """Accumulator `part` is 0 at the end if the mean `shift` is exact: it is off by part / `divisor`."""

    shift: int
    part: int
    divisor: Expr


@dataclass(frozen=True)
class Moments:
    """A vector of accumulators about running means, which are repaired together.

    `total` is what comes of them; before that `rests` move them once more, by what rounding left the means off,
    and the first of them is at `least` 0 where its value never is negative.
    """

    shifts: tuple[Shift, ...]
    parts: tuple[Moment, ...]
    total: Expr
    rests: tuple[Rest, ...] = ()
    least: bool = False

    def multiplied(self) -> list[Expr]:
        """What is folded into the accumulators that others are repaired with."""
        read = frozenset[str]().union(*(variables(m.repaired) for m in self.parts if m.repaired is not None))
        return [m.value for k, m in enumerate(self.parts) if moment(k, m.value.dtype).name in read and k > 0]


COUNT = Var("%count")
"""How many elements have been folded at the end of this step."""
FOLDED = Var("%folded")
"""How many elements have been folded before this step."""
ALL = Var("%all")
"""How many elements there are."""


def moment(k: int, dtype: str) -> Var:
    """The accumulator of `Moments.parts[k]`."""
    return Var(f"%t{k}", dtype)


def step(k: int, dtype: str) -> Var:
    """ρ' - ρ of `Moments.shifts[k]`."""
    return Var(f"%d{k}", dtype)


@dataclass(frozen=True)
class Repair:
    """A solved and proved repair of one accumulator (Definition 4.1), or of a vector of them.

    `kind` is "none" (nothing is rolled), "moments", of which `moments` says all, or "rescale", where
    h(t, r, r') = t * `factor` is applied to the accumulator before each fold; `factor` reads `previous(load)` as r
    and `load` as r'.  `body` is what is folded instead of g.  `deferred` (or None) is applied once after the loop:
    X = acc * deferred or acc + deferred by `deferred_op`, "mul" or "add", and by "apply" X = f(acc), f = `deferred`
    being an expression over `monotone.HOLE`; `fold` is then the reducer of what is folded, if not the target's own ⊕.
    `g` and `h` are text over `symbols`; `casts` names
    the float casts that the proof passed through and the code keeps; `assumptions` say what is not proved.
    """

    stage: str
    kind: str
    deferred: Expr | None
    deferred_op: str
    body: Expr
    factor: Expr | None
    g: str
    h: str
    symbols: tuple[tuple[str, str], ...]
    obligations: tuple[ObligationRecord, ...] = field(default=())
    casts: tuple[str, ...] = field(default=())
    assumptions: tuple[str, ...] = field(default=())
    fold: str | None = None
    moments: Moments | None = None

    @property
    def rolled(self) -> bool:
        """Whether what is folded is corrected as r changes; what is deferred alone is not."""
        return self.factor is not None or self.moments is not None


def previous(load: Load) -> Load:
    """The value the accumulator had before this step: r, where `load` itself is r' (paper, Algorithm 1).

    >>> previous(Load("m", (), "float32")).buffer
    'm_prev'
    """
    return Load(load.buffer + "_prev", load.index, load.dtype)
