"""The obligations of a repair, and their proofs (paper §4.2, Theorem 4.2).

One prover for every repair, component by component, over symbols for c, r, ρ (means) and their changes δ.  For a
step h:

    update     h(ψ(r, c), r, r') = ψ(r', c)
    commute    h(x ⊕ y, r, r') = h(x, r, r') ⊕ h(y, r, r')
    compose    h(h(t, r, r'), r', r'') = h(t, r, r'') and h(t, r, r) = t

and for `finish`, f, over what is folded, ψ, by ⊕':

    split      f(ψ) = g
    commute    f(x ⊕' y) = f(x) ⊕ f(y)

SymPy is asked whether differences are 0; order (max, min, choices) is decided by the sign and direction rules.  The
solver's word is taken for nothing here but for bounds of exponents, which `fusion.repairs.factor` proves as it splits.
What cannot be proved is Unproved, and ends the proof.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from neptune.fusion.prove import Unproved, not_negative, prove_identity, sign
from neptune.fusion.repairs.monotone import HOLE, direction, fill, shown
from neptune.fusion.repairs.roles import (
    ALL,
    COUNT,
    FOLDED,
    ORDERED,
    Mean,
    ObligationRecord,
    Query,
    Repair,
    Slot,
    change,
    previous,
    scale_of,
    slot,
)
from neptune.fusion.repairs.shifts import is_number
from neptune.fusion.repairs.symbols import Symbols, pretty
from neptune.ir.expr import (
    Const,
    Expr,
    Load,
    Op,
    Select,
    Var,
    binary,
    children,
    loads,
    rewrite,
    substitute,
    variables,
    walk,
)
from neptune.ir.text.printer import print_expr

Claims = Iterator["ObligationRecord | Unproved"]
Signs = tuple[tuple[str, str | None], ...]
_ONE, _ZERO = Const(1.0, "float32"), Const(0.0, "float32")


def prove(query: Query, symbols: Symbols, repair: Repair) -> tuple[ObligationRecord, ...] | Unproved:
    """The obligations of `repair`, or the first that is Unproved; those that its evidence holds already come last."""
    prover = Prover(query, symbols, repair)
    records: list[ObligationRecord] = []
    for part in (prover.finish, prover.update, prover.commute, prover.compose, prover.ends):
        for claim in part():
            if isinstance(claim, Unproved):
                return claim
            records.append(claim)
    return tuple(records)


@dataclass(frozen=True)
class Prover:
    """The claims about one repair. Times 0, 1 and 2 are those of r, r' and r'', or of ρ, ρ + δ and ρ + δ + δ'."""

    query: Query
    symbols: Symbols
    repair: Repair

    # --- symbols -------------------------------------------------------------------------------

    @property
    def at_end(self) -> Signs:
        """The sign facts where everything is folded."""
        return tuple((name, sign(e, self.query.roles)) for e, name in self.symbols.names)

    @property
    def on_the_way(self) -> Signs:
        """Without those of r, which is not yet what its contributions make it."""
        return tuple((n, s) for n, s in self.at_end if not n.startswith("r"))

    @property
    def steps(self) -> list[tuple[int, Slot, Expr]]:
        return [(k, s, s.step) for k, s in enumerate(self.repair.slots) if s.step is not None]

    def named(self, letter: str) -> list[Var]:
        """A symbol for each mean: ρ, or ρ1, ρ2, … of several."""
        count = len(self.repair.means)
        return [_sym(letter if count == 1 else f"{letter}{k + 1}") for k in range(count)]

    def change(self, before: int, now: int) -> list[Expr]:
        """Return the changes of the means from one time to another."""
        first, second = self.named("δ"), [_sym(f"{d.name}'") for d in self.named("δ")]
        if (before, now) == (0, 2):
            return [binary("add", d, e) for d, e in zip(first, second, strict=True)]
        return [_ZERO for _ in first] if before == now else list(second if before else first)

    def at(self, e: Expr, time: int, before: int = 0) -> Expr:
        """An expression over symbols at a time; `before`: the time that previous values are of."""
        names, rename = dict(self.symbols.names), dict[Expr, str]()
        for load in self.repair.followed:
            rename[load] = names[load] + "'" * time
            rename[previous(load)] = names[load] + "'" * before
        means: dict[Expr, Expr] = {}
        for m, rho, moved in zip(self.repair.means, self.named("ρ"), self.change(0, time), strict=True):
            means[m.load] = rho if time == 0 else binary("add", rho, moved)
        return rewrite(self.symbols.apply(e, rename), means.get)

    def step(self, e: Expr, values: Sequence[Expr], before: int, now: int, folded: Expr) -> Expr:
        """A step with these for the accumulators, and for the number of elements."""
        env = {slot(k, s.dtype).name: v for k, (s, v) in enumerate(zip(self.repair.slots, values, strict=True))}
        env |= {change(k, "").name: d for k, d in enumerate(self.change(before, now))}
        return substitute(self.at(e, now, before), {**env, FOLDED.name: folded, ALL.name: folded})

    # --- the steps -----------------------------------------------------------------------------

    def says(self, k: int, one: str, several: str) -> str:
        """A statement about the step of one accumulator; in that of a vector k, ρ and δ are put in."""
        if not self.repair.means:
            return one
        return several.format(k=k, rho=self.named("ρ")[0].name, d=self.named("δ")[0].name)

    def update(self) -> Claims:
        yield from filter(None, map(self.unfollowed, self.repair.slots))
        psi = "ψ" if self.repair.deferred else "g"
        one, several = f"h({psi}(r, c), r, r') = {psi}(r', c)", "h{k}(ψ(c, {rho})) = ψ{k}(c, {rho} + {d})"
        single = [self.at(s.value, 0) for s in self.repair.slots]
        for k, s, e in self.steps:
            after, now = self.step(e, single, 0, 1, _ONE), self.at(s.value, 1)
            yield prove_identity("update", self.says(k, one, several), after, now, self.on_the_way)

    def unfollowed(self, s: Slot) -> Unproved | None:
        """What is folded reads an r or a mean that no step follows."""
        read = set(loads(s.value))
        left = {x for x in read if x.buffer in self.query.roles.buffers} - self.repair.followed
        if left or (s.step is None and any(m.load in read for m in self.repair.means)):
            statement = f"a step for {print_expr(s.value)}"
            return Unproved(ObligationRecord("update", statement, "it reads what changes in the loop"))
        return None

    def commute(self) -> Claims:
        x, y = ([_sym(n if not self.repair.means else f"{n}{k}") for k in range(len(self.repair.slots))] for n in "xy")
        both = [binary("add", a, b) for a, b in zip(x, y, strict=True)]
        a, b = _sym("nx"), _sym("ny")
        one, several = "h(x + y, r, r') = h(x, r, r') + h(y, r, r')", "h{k}(x + y) = h{k}(x) + h{k}(y)"
        for k, s, e in self.steps:
            if s.fold != "sum":
                yield self.ordered_step(s.fold, e)
                continue
            whole = self.step(e, both, 0, 1, binary("add", a, b))
            separately = binary("add", self.step(e, x, 0, 1, a), self.step(e, y, 0, 1, b))
            yield prove_identity("commute", self.says(k, one, several), whole, separately, self.on_the_way)

    def ordered_step(self, fold: str, e: Expr) -> ObligationRecord | Unproved:
        """A step by a positive factor keeps the order."""
        record = ObligationRecord(
            "commute",
            f"h({fold}(x, y)) = {fold}(h(x), h(y))",
            f"{pretty(self.factor(e))} > 0, so h is increasing in t",
        )
        by = scale_of(e)
        if fold not in ("max", "min") or by is None or sign(by, self.query.roles) != "+":
            return Unproved(record)
        return record

    def factor(self, e: Expr) -> Expr:
        """The factor of a step T·factor, over symbols."""
        by = scale_of(e)
        return self.at(e if by is None else by, 1, 0)

    def compose(self) -> Claims:
        t = [_sym("t" if not self.repair.means else f"t{k}") for k in range(len(self.repair.slots))]
        n = _sym("n")
        moved: list[Expr] = list(t)
        for k, _, e in self.steps:
            moved[k] = self.step(e, t, 0, 1, n)
        for k, _, e in self.steps:
            twice, at_once = self.step(e, moved, 1, 2, n), self.step(e, t, 0, 2, n)
            text = self.says(k, "h(h(t, r, r'), r', r'') = h(t, r, r'')", "h{k}(h(t, {d}), {d}') = h{k}(t, {d} + {d}')")
            yield prove_identity("compose", text, twice, at_once, self.on_the_way)
            text = self.says(k, "h(t, r, r) = t", "h{k}(t, 0) = t{k}")
            yield prove_identity("compose", text, self.step(e, t, 0, 0, n), t[k], self.on_the_way)

    def ends(self) -> Claims:
        """Definedness before anything is folded and on the way; the last ρ is the expression's."""
        for k, m in enumerate(self.repair.means):
            yield from self.mean(m, self.named("ρ")[k].name)
        if self.repair.means:
            nothing = "the accumulators and the count start from 0, and a multiple of 0 is added to each"
            yield ObligationRecord("defined", "h before anything is folded", nothing)
            return
        for _, _, e in self.steps:
            starts = dict.fromkeys(x.buffer for x in loads(e) if x in self.repair.followed)
            statement = f"h and ψ at every r, also before {', '.join(starts)} has folded anything"
            how = "r is read inside exp only, and as a finite number"
            yield ObligationRecord("defined", statement, how)
            how = "r only moves one way, and the exponent falls with it"
            yield ObligationRecord("range", f"{pretty(self.factor(e))} <= 1", how)
        yield from self.repair.evidence.obligations

    def mean(self, m: Mean, name: str) -> Claims:
        """A mean is the expression's where all is folded, and something on the way."""
        last = _last(m)
        n = extent(self.query, self.symbols, m.value)
        at_end = substitute(self.symbols.apply(last), {COUNT.name: n, ALL.name: n})
        value = self.symbols.apply(m.value)
        says = f"{name} = {print_expr(m.value)} where all is folded"
        yield prove_identity("final", says, at_end, value, self.on_the_way)
        on_the_way = print_expr(substitute(last, {COUNT.name: Var("count"), ALL.name: Var("all")}))
        how = "divided by a number of elements, at least 1"
        if m.helpers:
            how = "weighted by absolute values until all is folded, and as it was while these are 0"
        elif isinstance(m.running, Select):
            how = f"and as it was where {print_expr(m.running.pred)} does not hold"
        yield ObligationRecord("defined", f"{name} = {on_the_way} on the way", how)

    # --- what is applied behind the loop -------------------------------------------------------

    def finish(self) -> Claims:
        """f(ψ) = g, and f commutes with ⊕."""
        if self.repair.means:
            return iter([self.term_by_term()])
        if not self.repair.deferred:
            return self.as_it_is()
        if self.query.reducer == "prod":
            return self.exponential()
        return self.function() if self.repair.slots[0].start is not None else self.shift_or_scale()

    def as_it_is(self) -> Claims:
        """The folded value is g, which goes without saying where it is proved."""
        value = self.repair.slots[0].value
        if value != self.query.value:
            g, psi = self.symbols.apply(self.query.value), self.symbols.apply(value)
            says = f"{print_expr(value)} is what the reduction folds"
            if any(isinstance(x, Load) for x in walk(psi)):
                yield Unproved(ObligationRecord("split", says, "it reads something else"))
                return
            claim = prove_identity("split", says, g, psi, self.at_end)
            if isinstance(claim, Unproved):
                yield claim

    def term_by_term(self) -> ObligationRecord | Unproved:
        """g is what the total makes of a single element."""
        means: dict[Expr, Expr] = {m.load: self.symbols.apply(m.value) for m in self.repair.means}
        single = [rewrite(self.symbols.apply(s.value), means.get) for s in self.repair.slots]
        whole = self.step(self.repair.finish, single, 0, 0, _ONE)
        says = f"g = the sum of φ(r)·ψ({self.named('ρ')[0].name}, c), term by term"
        return prove_identity("split", says, self.symbols.apply(self.query.value), whole, self.on_the_way)

    def shift_or_scale(self) -> Claims:
        """T·φ or T + φ. A guard only chooses 0 where φ is undefined: the identity is about where it is defined."""
        fold, f, psi = self.query.reducer, self.repair.finish, self.symbols.apply(self.repair.slots[0].value)
        phi = scale_of(f)
        how = "add" if phi is None else "mul"
        bare = rewrite(phi if phi is not None else children(f)[1], unguarded)
        by = self.symbols.apply(bare)
        text, mark = pretty(by), "*" if how == "mul" else " + "
        if how == "add":
            moves = f"{fold}(x + φ, y + φ) = {fold}(x, y) + φ", "adding keeps the order"
        elif fold == "sum":
            moves = "φ*x + φ*y = φ*(x + y)", "distributivity"
        else:
            moves = (
                f"{fold}(φ*x, φ*y) = φ*{fold}(x, y)",
                f"sign facts: {text} >= 0, where at least one element is folded",
            )
        commute = ObligationRecord("commute", *moves)
        ordered = fold in ORDERED and (how == "add" or not_negative(bare, self.query.roles))
        if not ordered and (how, fold) != ("mul", "sum"):
            yield Unproved(commute)
            return
        g, whole = self.symbols.apply(self.query.value), Op(how, (psi, by), "float32")
        yield prove_identity("split", f"g = ({pretty(psi)}){mark}({text})", g, whole, self.at_end)
        yield commute
        yield ObligationRecord("defined", f"{text} at the final r only", "applied once, as in the original")

    def function(self) -> Claims:
        """A rising f, applied once to the element that was chosen."""
        f, body, whole = self.repair.finish, self.repair.slots[0].value, self.query.value
        if (
            isinstance(body, Select)
            and isinstance(whole, Select)
            and body.pred == whole.pred
            and isinstance(body.other, Const)
        ):
            # Where the mask is false both sides are -inf (inf): the last of all.
            body, whole = body.then, whole.then
            f = f.then if isinstance(f, Select) and HOLE in variables(f.pred) else f
        inner = body.args[0] if isinstance(body, Op) and body.name == "neg" else body
        symbols = self.symbols.opened(inner) if inner in walk(whole) else self.symbols
        plus, psi = self.query.reducer, pretty(symbols.apply(body))
        how = "f rises with t: the direction of each operator, and the sign facts of r"
        commute = ObligationRecord("commute", f"{plus}(f(x), f(y)) = f({plus}(x, y))", how)
        slope = direction(f, body, self.query.roles)
        if slope != "+" and not (slope == "0+" and plus in ORDERED):
            yield Unproved(commute)
            return
        statement = f"g = f({psi}), f(t) = {pretty(symbols.apply(shown(f)))}"
        original = "one of the values of the original"
        yield prove_identity("split", statement, symbols.apply(whole), symbols.apply(fill(f, body)), self.at_end)
        yield commute
        yield ObligationRecord("defined", f"f at the final r and the {plus} of ψ only", original)
        yield ObligationRecord("range", "f(ψ) is computed as in the original, once", original)

    def exponential(self) -> Claims:
        """A product taken as exp of a sum of logarithms."""
        body, finish = self.repair.slots[0].value, rewrite(self.repair.finish, unguarded)
        symbols = self.symbols.opened(body) if body in walk(self.query.value) else self.symbols
        x, y = _sym("x"), _sym("y")

        def f(total: Expr, n: float) -> Expr:
            return substitute(symbols.apply(finish), {HOLE: total, ALL.name: Const(n, "float32")})

        positive = ObligationRecord(
            "defined",
            "ψ > 0 and φ(r) > 0 by their form, so that every logarithm is defined",
            "sign facts, at the final r",
        )
        logs = {e for e in (*walk(body), *walk(finish)) if isinstance(e, Op) and e.name == "log"}
        if any(sign(e.args[0], self.query.roles) != "+" for e in logs - set(walk(self.query.value))):
            yield Unproved(positive)
            return
        alone, pair = f(symbols.apply(body), 1.0), Op("mul", (f(x, 1.0), f(y, 1.0)), "float32")
        says = f"f(x, 1)*f(y, 1) = f(x + y, 2), f(t, n) = {pretty(f(_sym('t'), 1.0))}"
        yield prove_identity("split", f"g = {pretty(alone)}", symbols.apply(self.query.value), alone, self.at_end)
        yield prove_identity("commute", says, pair, f(binary("add", x, y), 2.0), self.at_end)
        yield positive
        how = "each is below 750, whatever the product is"
        yield ObligationRecord("range", "a sum of logarithms stays in range", how)


def unguarded(e: Expr) -> Expr | None:
    """The value behind a guard, where `e` is one: select(l != 0, 1 / l, 0) → 1 / l."""
    return rewrite(e.then, unguarded) if isinstance(e, Select) and e.other == Const(0.0, e.dtype) else None


def extent(query: Query, symbols: Symbols, value: Expr) -> Expr:
    """The number of elements as `value` is divided by it, or a symbol."""
    assert query.count is not None
    return symbols.apply(next((x for x in walk(value) if is_number(x, query.count)), _sym("n")))


def _last(m: Mean) -> Expr:
    """Return the running form of a mean when all is folded and it is defined."""
    if not isinstance(m.running, Select):
        return m.running
    last = m.running.other if m.helpers else m.running.then
    return last.then if isinstance(last, Select) else last


def _sym(name: str) -> Var:
    return Var(name, "float32")
