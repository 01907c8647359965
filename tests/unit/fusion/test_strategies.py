"""Products as sums of logarithms: what waits, what is refused, and that the program says the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from neptune.errors import FusionError
from neptune.frontend import builder as te
from neptune.frontend.builder import build, exp, pow, select
from neptune.fusion.repairs.repair import solve
from neptune.fusion.repairs.roles import Predecessor, Query, Repair
from neptune.ir.expr import Const, Expr, Load, Var, op
from neptune.ir.program import Program
from neptune.ir.text.printer import print_expr
from neptune.verify.exact import check_exact
from tests.examples.chains import check_same, matrix, per_row, tiled
from tests.examples.mutants import change, rename

ROW, COL, SIZE = Var("i"), Var("j"), Var("n")
S, V = (Load(n, (ROW, COL), "float32") for n in "sv")
M, L = (Load(n, (ROW,), "float32") for n in "ml")
SUM = Predecessor(L, "sum", op("exp", S))
MAX = Predecessor(M, "max", S)
ODD = ({"r": 5, "n": 11}, {"r": 1, "n": 1}, {"r": 4, "n": 8})


def ask(g: Expr, count: Expr | None = SIZE) -> Repair:
    return solve(Query("o", "prod", "float32", g, (MAX, SUM), frozenset({"j"}), count))


POSITIVE = op("abs", S) + 0.5


RAISED = "exp(select(m[i] != 0.0, m[i] * %t0, 0.0))"


@pytest.mark.parametrize(("g", "body", "f"), [
    (op("pow", op("exp", S), M), "s[i, j]", "exp(select(m[i] != 0.0, m[i] * %t0, 0.0))"),
    (op("pow", POSITIVE, M), "log(abs(s[i, j]) + 0.5)", "exp(select(m[i] != 0.0, m[i] * %t0, 0.0))"),
    (POSITIVE * L, "log(abs(s[i, j]) + 0.5)", "exp(%t0 + cast(f32, n) * log(l[i]))"),
    (POSITIVE / L, "log(abs(s[i, j]) + 0.5)", "exp(%t0 + cast(f32, n) * log(1.0 / l[i]))"),
    (L / POSITIVE, "log(abs(s[i, j]) + 0.5)", "exp((-1.0) * %t0 + cast(f32, n) * log(l[i]))"),
    (op("pow", POSITIVE * op("exp", V), M), "log((abs(s[i, j]) + 0.5) * exp(v[i, j]))", RAISED),
])  # fmt: skip
def test_what_is_folded_and_what_waits(g: Expr, body: str, f: str) -> None:
    r = ask(g)
    (alone,) = r.slots
    assert (alone.fold, alone.start, alone.step) == ("sum", Const(0.0, "float32"), None)
    assert (print_expr(alone.value), print_expr(r.finish)) == (body, f)
    assert [o.name for o in r.evidence.obligations] == ["split", "commute", "defined", "range"]


@pytest.mark.parametrize(("g", "reason"), [
    (S * M, "is not known to be positive"),
    (op("pow", S, M), "is not known to be positive"),
    (POSITIVE * M, "is not known to be positive"),
    (POSITIVE + L, "it is no product of powers"),
    (op("pow", POSITIVE, M) * op("exp", S), "its powers differ"),
    (op("pow", L, S), "it is no product of powers"),
    (select(COL < 3, POSITIVE * L, 1.0), "a mask changes how many elements are folded"),
])  # fmt: skip
def test_refusals(g: Expr, reason: str) -> None:
    with pytest.raises(FusionError) as info:
        ask(g)
    assert reason in str(info.value)


def test_the_count_must_be_known_before_the_loop() -> None:
    with pytest.raises(FusionError, match="how many elements are folded is known inside the loop only"):
        ask(POSITIVE * L, None)


def chain(g: Callable[[Expr, Expr], Expr], of: Callable[[Expr], Expr], fold: Callable[..., te.Reduction]) -> Program:
    x = matrix("x")
    m = per_row(lambda i, j: of(x[i, j]), name="m", fold=fold)
    return build([per_row(lambda i, j: g(x[i, j], m[i]), fold=te.prod), m], name="p")


CHAINS: list[tuple[Callable[[Expr, Expr], Expr], Callable[[Expr], Expr], Callable[..., te.Reduction]]] = [
    (lambda c, r: pow(exp(c), r), lambda x: x, te.max),
    (lambda c, r: pow(te.abs(c) + 0.5, r), lambda x: x, te.sum),
    (lambda c, r: exp(c) / r, lambda x: te.abs(x) + 1.0, te.sum),
    (lambda c, r: (te.abs(c) + 0.25) * r, lambda x: exp(x), te.max),
]


@pytest.mark.parametrize("case", range(len(CHAINS)))
def test_fused_programs(case: int) -> None:
    program = chain(*CHAINS[case])
    sch, _, j0 = tiled(program, "m")
    sch.rolling_update("t", j0)
    check_same(program, sch, *ODD, scales=(0.3,))
    report = check_exact(program, sch.program)
    assert report.accepted, report
    for old, new in (("exp", "log"), ("mul" if case != 2 else "add", "sub")):
        wrong = change(sch.program, "t_final", rename(old, new))
        assert check_exact(program, wrong).verdict == "rejected"
