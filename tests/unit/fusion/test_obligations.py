"""The prover by itself: every kind of repair is proved, and each mistake in one fails an obligation of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from neptune.fusion.prove import Unproved
from neptune.fusion.repairs.obligations import prove
from neptune.fusion.repairs.repair import SOLVERS
from neptune.fusion.repairs.roles import Predecessor, Query, Repair, change, previous, slot
from neptune.fusion.repairs.symbols import symbols_of
from neptune.ir.expr import Const, Expr, Load, Op, Var, binary, cast, op, rewrite

ROW, COL, SIZE = Var("i"), Var("j"), Var("n")
S, V = (Load(n, (ROW, COL), "float32") for n in "sv")
M, L = (Load(n, (ROW,), "float32") for n in "ml")
MAX, SUM, PLAIN = Predecessor(M, "max", S), Predecessor(L, "sum", op("exp", S)), Predecessor(L, "sum", S)
T = slot(0, "float32")
ATTENTION = Query("o", "sum", "float32", op("exp", S - M) / L * V, (MAX, SUM), frozenset({"j"}), SIZE)
ROLLED_MAX = replace(ATTENTION, reducer="max", value=op("exp", S - M) * op("abs", V))
SCALED_MAX = replace(ATTENTION, reducer="max", value=S * L)
SHIFTED = replace(ATTENTION, reducer="max", value=S - M)
RISING = replace(ATTENTION, reducer="max", value=op("log", op("exp", S) + L))
CHOICE = replace(RISING, reducer="argmax")
PRODUCT = replace(ATTENTION, reducer="prod", value=(op("abs", S) + 0.5) / L)
MEAN = L / cast(SIZE, "float32")
VARIANCE = replace(ATTENTION, value=(S - MEAN) * (S - MEAN), predecessors=(PLAIN,))


def candidate(query: Query) -> Repair:
    return next(found for solver in SOLVERS if (found := solver(query, [])) is not None)


def proved(query: Query, found: Repair) -> list[str] | Unproved:
    obligations = prove(query, symbols_of(query.value, query.roles), found)
    return obligations if isinstance(obligations, Unproved) else [o.name for o in obligations]


@pytest.mark.parametrize("query", [
    ATTENTION, ROLLED_MAX, SCALED_MAX, SHIFTED, RISING, CHOICE, PRODUCT, VARIANCE,
])  # fmt: skip
def test_what_solvers_find_is_proved(query: Query) -> None:
    names = proved(query, candidate(query))
    assert "commute" in names and ("split" in names or "update" in names)


def stepped(k: int, fn: Callable[[Expr], Expr]) -> Callable[[Repair], Repair]:
    def broken(found: Repair) -> Repair:
        s = found.slots[k]
        assert s.step is not None
        fresh = replace(s, step=fn(s.step))
        return replace(found, slots=(*found.slots[:k], fresh, *found.slots[k + 1 :]))

    return broken


def folded(fn: Callable[[Expr], Expr]) -> Callable[[Repair], Repair]:
    return lambda found: replace(
        found, slots=(replace(found.slots[0], value=fn(found.slots[0].value)), *found.slots[1:])
    )


def finished(fn: Callable[[Expr], Expr]) -> Callable[[Repair], Repair]:
    return lambda found: replace(found, finish=fn(found.finish))


def turned(e: Expr) -> Expr:
    """a - b → b - a."""
    return rewrite(e, lambda x: Op("sub", x.args[::-1], x.dtype) if isinstance(x, Op) and x.name == "sub" else None)


def unstepped(found: Repair) -> Repair:
    return replace(found, slots=tuple(replace(s, step=None) for s in found.slots))


def put(e: Expr, old: Expr, new: Expr) -> Expr:
    return rewrite(e, lambda x: new if x == old else None)


def slower(found: Repair) -> Repair:
    (mean,) = found.means
    return replace(found, means=(replace(mean, running=mean.running * 0.5),))


WRONG: list[tuple[Query, Callable[[Repair], Repair], str]] = [
    (ATTENTION, stepped(0, turned), "update"),
    (ATTENTION, unstepped, "update"),
    (ATTENTION, finished(lambda e: T), "split"),
    (RISING, finished(lambda e: T), "split"),
    (VARIANCE, unstepped, "update"),
    (ATTENTION, stepped(0, lambda e: e * op("exp", previous(M) - M)), "update"),
    (ATTENTION, stepped(0, lambda e: e + 1.0), "update"),
    (ATTENTION, stepped(0, lambda e: binary("mul", T, op("exp", previous(M)))), "update"),
    (ATTENTION, finished(lambda e: binary("mul", e, L)), "commute"),
    (ATTENTION, finished(lambda e: T * L), "split"),
    (ATTENTION, finished(lambda e: T + L), "commute"),
    (ATTENTION, folded(lambda e: e * V), "split"),
    (ROLLED_MAX, stepped(0, lambda e: binary("mul", T, op("neg", e.args[1]))), "update"),
    (SCALED_MAX, lambda found: replace(found, finish=T * M), "commute"),
    (SHIFTED, finished(lambda e: T + M), "split"),
    (SHIFTED, finished(lambda e: T * M), "commute"),
    (RISING, finished(lambda e: op("neg", e)), "commute"),
    (RISING, finished(lambda e: e * 2.0), "split"),
    (CHOICE, finished(lambda e: op("floor", e)), "commute"),
    (PRODUCT, finished(lambda e: e * 2.0), "split"),
    (PRODUCT, folded(lambda e: op("log", S)), "defined"),
    (
        VARIANCE,
        stepped(0, lambda e: rewrite(e, lambda x: Const(-1.0, "float32") if x == Const(-2.0, "float32") else None)),
        "update",
    ),
    (VARIANCE, stepped(1, lambda e: T * 0.0 + slot(1, "float32")), "update"),
    (VARIANCE, stepped(1, lambda e: e + change(0, "float32")), "update"),
    (VARIANCE, finished(lambda e: e + slot(1, "float32") * 2.0), "split"),
    (VARIANCE, slower, "final"),
]


@pytest.mark.parametrize("case", range(len(WRONG)))
def test_mistakes_fail(case: int) -> None:
    query, broken, name = WRONG[case]
    found = proved(query, broken(candidate(query)))
    assert isinstance(found, Unproved) and found.record.name == name


def test_a_step_that_does_not_compose_fails() -> None:
    """T·(1 + (r' - r)) is an update law of nothing, and of a constant ψ it is one only at r' = r."""
    query = replace(ATTENTION, value=op("exp", S - M))
    found = candidate(query)
    wrong = stepped(0, lambda e: binary("mul", T, 1.0 + (M - previous(M))))(found)
    assert isinstance(proved(query, wrong), Unproved)
