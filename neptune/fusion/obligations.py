"""What a candidate for a repair owes, and the proofs (paper §4.2, Theorem 4.2).

The obligations are listed in `neptune.fusion.repair`.  What cannot be proved raises Unproved.
"""

from __future__ import annotations

from dataclasses import dataclass

from neptune.fusion.monotone import HOLE, fill, shown
from neptune.fusion.powers import Exponential
from neptune.fusion.prove import prove_identity, sign
from neptune.fusion.roles import ObligationRecord, Query, Roles, Term, previous
from neptune.fusion.symbols import Symbols, pretty
from neptune.ir.expr import Const, Expr, Op, Select, Var, binary, rewrite, variables, walk


@dataclass(frozen=True)
class Candidate:
    """A candidate: what waits, what is folded, what rolls; not proved yet."""

    deferred: Expr | None
    deferred_op: str
    body: Expr
    rolls: tuple[Term, ...]
    casts: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()
    power: Exponential | None = None


def over_steps(symbols: Symbols, rolls: tuple[Term, ...], e: Expr, steps: tuple[str, str] = ("", "'")) -> Expr:
    """A factor over symbols: previous reads get the first suffix, current ones the second."""
    names = dict(symbols.names)
    rename: dict[Expr, str] = {}
    for load in dict.fromkeys(t.load for t in rolls):
        rename[previous(load)], rename[load] = names[load] + steps[0], names[load] + steps[1]
    return symbols.apply(e, rename)


def _prime(e: Expr, names: frozenset[str]) -> Expr:
    return rewrite(e, lambda x: Var(x.name + "'", x.dtype) if isinstance(x, Var) and x.name in names else None)


def prove(query: Query, symbols: Symbols, found: Candidate, factor: Expr | None) -> tuple[ObligationRecord, ...]:
    roles, plus = query.roles, query.reducer
    g, body = symbols.apply(query.value), symbols.apply(found.body)
    at_end = tuple((name, sign(e, roles)) for e, name in symbols.names)
    # On the way r is not yet what its contributions make it: its sign facts hold at the end only.
    on_the_way = tuple((n, s) for n, s in at_end if not n.startswith("r"))
    records = []
    if found.power is not None:
        return _multiplied(query, symbols, found.power, at_end)
    if found.deferred is not None and found.deferred_op == "apply":
        return _ordered(query, symbols, found, found.deferred, at_end)
    if found.deferred is not None:
        # A guard only chooses 0 where φ is undefined: the identity is about where it is defined.
        phi = symbols.apply(rewrite(found.deferred, _unguarded))
        text, mark = pretty(phi), "*" if found.deferred_op == "mul" else " + "
        whole = Op(found.deferred_op, (body, phi), "float32")
        records.append(prove_identity("split", f"g = ({pretty(body)}){mark}({text})", g, whole, at_end))
        records.append(_defer_commutes(plus, found.deferred_op, text))
        records.append(ObligationRecord("defined", f"{text} at the final r only", "applied once, as in the original"))
    if factor is None:
        return tuple(records)
    f = over_steps(symbols, found.rolls, factor)
    rs = frozenset(dict(symbols.names)[t.load] for t in found.rolls)
    updated = Op("mul", (body, f), "float32")
    what = "g" if found.deferred is None else "ψ"
    records.append(
        prove_identity("update", f"h({what}(r, c), r, r') = {what}(r', c)", updated, _prime(body, rs), on_the_way)
    )
    records.append(_rolled_commutes(plus, f, on_the_way))
    later = over_steps(symbols, found.rolls, factor, ("'", "''"))
    across = over_steps(symbols, found.rolls, factor, ("", "''"))
    same = over_steps(symbols, found.rolls, factor, ("", ""))
    twice = Op("mul", (f, later), "float32")
    records.append(prove_identity("compose", "h(h(t, r, r'), r', r'') = h(t, r, r'')", twice, across, on_the_way))
    records.append(prove_identity("compose", "h(t, r, r) = t", same, Const(1.0, "float32"), on_the_way))
    records.append(_defined(roles, found.rolls))
    records.append(
        ObligationRecord("range", f"{pretty(f)} <= 1", "r only moves one way, and the exponent falls with it")
    )
    how = "the exponent with r replaced by its contribution, as sums of monomials"
    records += [ObligationRecord("range", note, how) for note in found.ranges]
    return tuple(records)


def _ordered(
    query: Query, symbols: Symbols, found: Candidate, f: Expr, signs: tuple[tuple[str, str | None], ...]
) -> tuple[ObligationRecord, ...]:
    """A rising f, applied once to the element that was chosen."""
    body, whole = found.body, query.value
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
    if inner in walk(whole):
        symbols = symbols.opened(inner)
    plus, g, psi = query.reducer, symbols.apply(whole), symbols.apply(body)
    text = pretty(symbols.apply(shown(f)))
    statement = f"g = f({pretty(psi)}), f(t) = {text}"
    records = [prove_identity("split", statement, g, symbols.apply(fill(f, body)), signs)]
    how = "f rises with t: the direction of each operator, and the sign facts of r"
    return (
        *records,
        ObligationRecord("commute", f"{plus}(f(x), f(y)) = f({plus}(x, y))", how),
        ObligationRecord("defined", f"f at the final r and the {plus} of ψ only", "one of the values of the original"),
        ObligationRecord("range", "f(ψ) is computed as in the original, once", "one of the values of the original"),
    )


def _multiplied(
    query: Query, symbols: Symbols, power: Exponential, signs: tuple[tuple[str, str | None], ...]
) -> tuple[ObligationRecord, ...]:
    """A product taken as exp of a sum of logarithms."""
    if power.body in walk(query.value):
        symbols = symbols.opened(power.body)
    g, x, y = symbols.apply(query.value), Var("x", "float32"), Var("y", "float32")

    def f(total: Expr, n: float) -> Expr:
        return symbols.apply(power.at(total, Const(n, "float32")))

    alone = f(power.body, 1.0)
    pair = Op("mul", (f(x, 1.0), f(y, 1.0)), "float32")
    positive = "ψ > 0 and φ(r) > 0 by their form, so that every logarithm is defined"
    return (
        prove_identity("split", f"g = {pretty(alone)}", g, alone, signs),
        prove_identity(
            "commute",
            f"f(x, 1)*f(y, 1) = f(x + y, 2), f(t, n) = {pretty(f(Var('t', 'float32'), 1.0))}",
            pair,
            f(binary("add", x, y), 2.0),
            signs,
        ),
        ObligationRecord("defined", positive, "sign facts, at the final r"),
        ObligationRecord("range", "a sum of logarithms stays in range", "each is below 750, whatever the product is"),
    )


def _unguarded(e: Expr) -> Expr | None:
    return rewrite(e.then, _unguarded) if isinstance(e, Select) and e.other == Const(0.0, e.dtype) else None


def _defer_commutes(reducer: str, how: str, phi: str) -> ObligationRecord:
    if how == "add":
        return ObligationRecord("commute", f"{reducer}(x + φ, y + φ) = {reducer}(x, y) + φ", "adding keeps the order")
    if reducer == "sum":
        return ObligationRecord("commute", "φ*x + φ*y = φ*(x + y)", "distributivity")
    how_signed = f"sign facts: {phi} >= 0, where at least one element is folded"
    return ObligationRecord("commute", f"{reducer}(φ*x, φ*y) = φ*{reducer}(x, y)", how_signed)


def _rolled_commutes(reducer: str, f: Expr, signs: tuple[tuple[str, str | None], ...]) -> ObligationRecord:
    if reducer != "sum":
        statement = f"h({reducer}(x, y)) = {reducer}(h(x), h(y))"
        return ObligationRecord("commute", statement, f"{pretty(f)} > 0, so h is increasing in t")
    x, y = Var("x", "float32"), Var("y", "float32")
    left = Op("mul", (Op("add", (x, y), "float32"), f), "float32")
    right = Op("add", (Op("mul", (x, f), "float32"), Op("mul", (y, f), "float32")), "float32")
    return prove_identity("commute", "h(x + y, r, r') = h(x, r, r') + h(y, r, r')", left, right, signs)


def _defined(roles: Roles, rolls: tuple[Term, ...]) -> ObligationRecord:
    starts = dict.fromkeys(p.load.buffer for t in rolls if (p := roles.predecessor(t.load)) is not None)
    statement = f"h and ψ at every r, also before {', '.join(starts)} has folded anything"
    return ObligationRecord("defined", statement, "r is read inside exp only, and as a finite number")
