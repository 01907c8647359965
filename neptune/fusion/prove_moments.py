"""The obligations of a vector repair, and what is known of its accumulators at the end.

SymPy sees symbols for c, r, ρ and δ and is asked whether differences are 0, one component at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from neptune.fusion.moments import Over
from neptune.fusion.prove import Unproved, prove_identity
from neptune.fusion.roles import ALL, COUNT, FOLDED, Moments, ObligationRecord, Query, Rest, Shift, moment, step
from neptune.fusion.shifts import is_number
from neptune.fusion.taylor import taylor
from neptune.ir.expr import Const, Expr, Load, Select, Var, binary, cast, rewrite, substitute, walk
from neptune.ir.printer import print_expr

Signs = tuple[tuple[str, str | None], ...]

_RHO, _DELTA = "ρ", "δ"


def prove_moments(query: Query, found: Moments, over: Over, signs: Signs) -> tuple[ObligationRecord, ...]:
    """The obligations of a vector, or Unproved. `over` writes an expression over the symbols of g."""
    many = len(found.shifts) > 1
    rho = [Var(f"{_RHO}{k + 1}" if many else _RHO, "float32") for k in range(len(found.shifts))]
    delta = [Var(f"{_DELTA}{k + 1}" if many else _DELTA, "float32") for k in range(len(found.shifts))]
    prover = _Prover(query, found, over, signs, tuple(rho), tuple(delta))
    return (prover.split(), *prover.update(), *prover.linear(), *prover.compose(), *prover.ends())


@dataclass(frozen=True)
class _Prover:
    query: Query
    found: Moments
    over: Over
    signs: Signs
    rho: tuple[Var, ...]
    delta: tuple[Var, ...]

    def at(self, e: Expr, rho: tuple[Expr, ...]) -> Expr:
        """An expression with these in place of ρ, over symbols."""
        table: dict[Expr, Expr] = {s.load: x for s, x in zip(self.found.shifts, rho, strict=True)}
        return rewrite(self.over(e), table.get)

    def put(self, e: Expr, summed: Callable[[int], Expr], delta: tuple[Expr, ...], folded: Expr) -> Expr:
        """A repair, with these for the accumulators, δ and the number of elements."""
        dtype = self.query.dtype
        env = {moment(k, dtype).name: summed(k) for k in range(len(self.found.parts))}
        env |= {step(k, dtype).name: d for k, d in enumerate(delta)}
        env |= {FOLDED.name: folded, ALL.name: folded}
        return substitute(self.over(e), env)

    def repaired(self) -> list[tuple[int, Expr]]:
        return [(k, m.repaired) for k, m in enumerate(self.found.parts) if m.repaired is not None]

    def split(self) -> ObligationRecord:
        """g is what the total makes of a single element."""
        values = tuple(self.over(s.value) for s in self.found.shifts)
        whole = self.put(self.found.total, lambda k: self.at(self.found.parts[k].value, values), self.delta, _ONE)
        g = self.over(self.query.value)
        return prove_identity(
            "split", f"g = the sum of φ(r)·ψ({self.rho[0].name}, c), term by term", g, whole, self.signs
        )

    def update(self) -> list[ObligationRecord]:
        """ψ_k at ρ + δ is the k-th repair of all ψ at ρ."""
        moved = tuple(binary("add", r, d) for r, d in zip(self.rho, self.delta, strict=True))
        records = []
        for k, repair in self.repaired():
            left = self.put(repair, lambda i: self.at(self.found.parts[i].value, self.rho), self.delta, _ONE)
            left = self.at(left, self.rho)
            right = self.at(self.found.parts[k].value, moved)
            says = f"h{k}(ψ(c, {self.rho[0].name})) = ψ{k}(c, {self.rho[0].name} + {self.delta[0].name})"
            records.append(prove_identity("update", says, left, right, self.signs))
        return records

    def linear(self) -> list[ObligationRecord]:
        x, y = ([_sym(f"{n}{k}") for k in range(len(self.found.parts))] for n in "xy")
        a, b = _sym("nx"), _sym("ny")
        records = []
        for k, repair in self.repaired():
            both = self.put(repair, lambda i: binary("add", x[i], y[i]), self.delta, binary("add", a, b))
            apart = binary(
                "add",
                self.put(repair, x.__getitem__, self.delta, a),
                self.put(repair, y.__getitem__, self.delta, b),
            )
            records.append(prove_identity("commute", f"h{k}(x + y) = h{k}(x) + h{k}(y)", both, apart, self.signs))
        return records

    def compose(self) -> list[ObligationRecord]:
        t, n = [_sym(f"t{k}") for k in range(len(self.found.parts))], _sym("n")
        second = tuple(_sym(f"{d.name}'") for d in self.delta)
        moved = {k: self.put(repair, t.__getitem__, self.delta, n) for k, repair in self.repaired()}
        records = []
        for k, repair in self.repaired():
            twice = self.put(repair, lambda i: moved.get(i, t[i]), second, n)
            total = tuple(binary("add", d, e) for d, e in zip(self.delta, second, strict=True))
            at_once = self.put(repair, t.__getitem__, total, n)
            says = (
                f"h{k}(h(t, {self.delta[0].name}), {second[0].name}) = h{k}(t, {self.delta[0].name} + {second[0].name})"
            )
            records.append(prove_identity("compose", says, twice, at_once, self.signs))
            still = self.put(repair, t.__getitem__, tuple(_ZERO for _ in second), n)
            records.append(prove_identity("compose", f"h{k}(t, 0) = t{k}", still, t[k], self.signs))
        return records

    def ends(self) -> list[ObligationRecord]:
        """The first ρ is used by nothing, the last one is the expression's."""
        records = []
        for s, rho in zip(self.found.shifts, self.rho, strict=True):
            running = _last(s)
            at_end = substitute(
                self.over(running),
                {
                    COUNT.name: _extent(self.query, self.over, s.value),
                    ALL.name: _extent(self.query, self.over, s.value),
                },
            )
            says = f"{rho.name} = {print_expr(s.value)} where all is folded"
            records.append(prove_identity("final", says, at_end, self.over(s.value), self.signs))
            on_the_way = print_expr(substitute(running, {COUNT.name: Var("count"), ALL.name: Var("all")}))
            how = "divided by a number of elements, at least 1"
            if s.helpers:
                how = "weighted by absolute values until all is folded, and as it was while these are 0"
            elif isinstance(s.running, Select):
                how = f"and as it was where {print_expr(s.running.pred)} does not hold"
            records.append(ObligationRecord("defined", f"{rho.name} = {on_the_way} on the way", how))
        nothing = "the accumulators and the count start from 0, and a multiple of 0 is added to each"
        records.append(ObligationRecord("defined", "h before anything is folded", nothing))
        return records


def _last(shift: Shift) -> Expr:
    """What follows a mean where all is folded and it is defined."""
    if not isinstance(shift.running, Select):
        return shift.running
    last = shift.running.other if shift.helpers else shift.running.then
    return last.then if isinstance(last, Select) else last


def _extent(query: Query, over: Over, value: Expr) -> Expr:
    """The number of elements as `value` is divided by it, or a symbol."""
    assert query.count is not None
    return over(next((x for x in walk(value) if is_number(x, query.count)), _sym("n")))


_ONE, _ZERO = Const(1.0, "float32"), Const(0.0, "float32")


def _sym(name: str) -> Var:
    return Var(name, "float32")


# --- what is 0 at the end ------------------------------------------------------------------------


def find_rests(
    query: Query, found: Moments, over: Over, signs: Signs
) -> tuple[tuple[Rest, ...], list[ObligationRecord]]:
    """For each mean an accumulator that is 0 where the mean is exact: Σ (c - Σc / n) = 0, Σ w·(c - Σwc / Σw) = 0.

    What rounding leaves there is how far off the mean is, and the others can be moved by it.
    """
    rests: list[Rest] = []
    records: list[ObligationRecord] = []
    for k, shift in enumerate(found.shifts):
        for i, part in enumerate(found.parts):
            rest = _rest(query, found, over, signs, k, i) if shift.load in set(walk(part.value)) else None
            if rest is not None:
                rests.append(rest[0])
                records.append(rest[1])
                break
    return tuple(rests), records


def _rest(
    query: Query, found: Moments, over: Over, signs: Signs, k: int, i: int
) -> tuple[Rest, ObligationRecord] | None:
    """Σ (A - ρ·B) is 0 where ρ = ΣA / ΣB, both being predecessors or B a constant."""
    shift, part = found.shifts[k], found.parts[i]
    coefficients = taylor(part.value, [s.load for s in found.shifts])
    if len(coefficients) != 2 or coefficients[1].orders[k] != 1:
        return None
    bare = rewrite(over(part.value), lambda x: _ZERO if x == shift.load else None)
    slope = coefficients[1]
    number = Const(float(-slope.number), slope.value.dtype)
    factor = slope.value if slope.number == -1 else binary("mul", slope.value, number)
    top = _sum_of(bare, query, over, signs)
    bottom = _sum_of(over(factor), query, over, signs) if query.roles.varies(factor) else _times_all(factor, query)
    if top is None or bottom is None:
        return None
    n = _extent(query, over, shift.value)
    left = binary("mul", over(shift.value), substitute(over(bottom), {ALL.name: n}))
    says = (
        f"Σ {print_expr(rewrite(part.value, lambda x: Var(_RHO, x.dtype) if x == shift.load else None))} = 0 at the end"
    )
    try:
        record = prove_identity("rest", says, left, over(top), signs)
    except Unproved:
        return None
    return Rest(k, i, cast(bottom, query.dtype)), record


def _times_all(e: Expr, query: Query) -> Expr:
    once, every = cast(e, query.dtype), cast(ALL, query.dtype)
    return every if once == Const(1.0, query.dtype) else binary("mul", once, every)


def _sum_of(e: Expr, query: Query, over: Over, signs: Signs) -> Expr | None:
    """The predecessor that folds `e`, which is over symbols."""
    for pre in query.predecessors:
        plain = pre.reducer == "sum" and pre.start is None
        folded = over(pre.value) if plain and pre.value is not None else None
        if folded is None or any(isinstance(x, Load) for x in walk(folded)):
            continue  # it folds what g does not read
        try:
            prove_identity("rest", "", e, folded, signs)
        except Unproved:
            continue
        return pre.load
    return None
