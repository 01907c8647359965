"""What is taken out of a contribution, and what stays."""

import pytest

from neptune.fusion.repairs.factor import Splitter, split_sum
from neptune.fusion.repairs.roles import Predecessor, Roles
from neptune.fusion.repairs.starts import guard
from neptune.fusion.repairs.strategies import defer
from neptune.ir.expr import Const, Expr, Load, Var, cast, op, select
from neptune.ir.text.printer import print_expr

ROW, COL = Var("i"), Var("j")
S, V, C = Load("s", (ROW, COL), "float32"), Load("v", (COL,), "float32"), Load("c", (ROW, COL), "float32")
M, L = Load("m", (ROW,), "float32"), Load("l", (ROW,), "float32")
MAX, SUM = Predecessor(M, "max", S), Predecessor(L, "sum", op("exp", S))
ROLES = Roles((MAX, SUM), frozenset({"j"}))


def exp(e: Expr) -> Expr:
    return op("exp", e)


def texts(e: Expr, known: dict[str, Expr] | None = None) -> tuple[str | None, str]:
    phi, psi, _ = defer(e, ROLES, known or {})
    return None if phi is None else print_expr(phi), print_expr(psi)


@pytest.mark.parametrize(
    ("e", "phi", "psi"),
    [
        (S / L, "1.0 / l[i]", "s[i, j]"),
        (exp(S - M) / L * V, "1.0 / l[i]", "exp(s[i, j] - m[i]) * v[j]"),
        (exp(S - M), None, "exp(s[i, j] - m[i])"),
        (S * op("rsqrt", L / 8.0 + 1e-5), "rsqrt(l[i] / 8.0 + 1e-05)", "s[i, j]"),
        (-(S * L), "l[i]", "neg(s[i, j])"),
        (S / L + C / L, "1.0 / l[i]", "s[i, j] + c[i, j]"),
        (op("sqrt", S * L), "sqrt(l[i])", "sqrt(s[i, j])"),
        (op("abs", S * M), "abs(m[i])", "abs(s[i, j])"),
        (op("pow", S / M, Const(2.0, "float32")), "pow(1.0 / m[i], 2.0)", "pow(s[i, j], 2.0)"),
        (1.0 / L, "1.0 / l[i]", "1.0"),
        (exp(S - (M + op("log", L))), "exp(neg(log(l[i])))", "exp(s[i, j] - m[i])"),
        (S + 1.0 / L, None, "s[i, j] + 1.0 / l[i]"),
        (S, None, "s[i, j]"),
    ],
)
def test_defer(e: Expr, phi: str | None, psi: str) -> None:
    assert texts(e) == (phi, psi)


def test_casts_stay_in_psi() -> None:
    e = cast(cast(exp(S - M) / L, "float16"), "float32") * V
    assert texts(e) == ("1.0 / l[i]", "cast(f32, cast(f16, exp(s[i, j] - m[i]))) * v[j]")


def splits(e: Expr, roles: Roles = ROLES) -> bool:
    splitter = Splitter(roles)
    return bool(splitter.split(e).phis) and not splitter.problems


def test_float16_needs_a_bound_and_bfloat16_does_not() -> None:
    assert not splits(cast(S / L, "float16"))
    assert splits(cast(S / L, "bfloat16"))
    half = cast(Load("h", (COL,), "float16"), "float32")
    assert splits(cast(half / L, "float16"))
    # The product of two of them may leave the range, up and down.
    assert not splits(cast(half * half / L, "float16"))
    assert not splits(cast(half * 0.01 / L, "float16"))
    assert not splits(cast(op("tanh", S) / L, "float16"))
    assert splits(cast(op("tanh", S) / op("max", L, Const(1.0, "float32")), "float16"))


def test_float16_arithmetic_needs_a_bound_too() -> None:
    half, scale = Load("h", (COL,), "float16"), Load("m", (ROW,), "float16")
    roles = Roles((Predecessor(scale, "max", op("abs", half)),), frozenset({"j"}))
    assert splits(half / scale, roles)
    assert not splits(half / scale * half, roles)


def test_integer_casts_hold_everything() -> None:
    assert texts(cast(cast(S / L, "int8"), "float32"))[0] is None


def test_known_factors_of_maps_in_between() -> None:
    p = Load("p", (ROW, COL), "float32")
    known: dict[str, Expr] = {"p": 1.0 / L}
    assert texts(p * V, known) == ("1.0 / l[i]", "p[i, j] * v[j]")
    # In a sum the factor cannot be taken out, so it has to be put back.
    assert texts(p + V, known) == (None, "p[i, j] / l[i] + v[j]")


def test_a_factor_leaves_a_mask_guarded() -> None:
    assert texts(select(ROW >= COL, S / L, 0)) == (
        "select(l[i] != 0.0, 1.0 / l[i], 0.0)",
        "select(i >= j, s[i, j], 0.0)",
    )
    # ε keeps it defined, so no guard is needed: a sum of squares is not negative.
    squares = Roles((Predecessor(L, "sum", S * S),), frozenset({"j"}))
    phi = op("rsqrt", L + 1e-5)
    assert guard(phi, squares) is phi
    assert guard(phi, ROLES) is phi
    assert guard(exp(M), ROLES) is None


def test_select_against_something_else_keeps_its_factor() -> None:
    assert texts(select(ROW >= COL, S / L, 1))[0] is None
    assert texts(select(ROW >= COL, S / L, C / L))[0] == "1.0 / l[i]"


def test_bounds_come_from_the_predecessors_contribution() -> None:
    splitter = Splitter(ROLES)
    splitter.split(exp(S - M))
    assert [(e, c.most, c.left) for e, c in splitter.ceilings.items()] == [(exp(S - M), 1.0, None)]
    splitter = Splitter(ROLES)
    splitter.split(exp(C - M))
    assert splitter.ceilings == {}
    assert "may overflow" in splitter.problems[0].reason


def test_split_sum() -> None:
    splitter = Splitter(ROLES)
    assert split_sum(S - M, splitter) == (op("neg", M), S)
    assert split_sum((S - M) * 2.0, splitter) == (op("neg", M) * 2.0, S * 2.0)
    assert split_sum(S * M, splitter) is None
    assert split_sum(cast(S - M, "float16"), splitter) is None
