"""Signs, sizes, exponents and SymPy identities."""

import subprocess
import sys

import pytest

from neptune.fusion.prove import Unproved, assume, cancels, prove_identity, sign
from neptune.fusion.roles import ObligationRecord, Predecessor, Roles
from neptune.ir.expr import Const, Expr, Load, Var, cast, op, select

ROW, COL = Var("i"), Var("j")
S, M, L = Load("s", (ROW, COL), "float32"), Load("m", (ROW,), "float32"), Load("l", (ROW,), "float32")
ROLES = Roles((Predecessor(M, "max", op("abs", S)), Predecessor(L, "sum", op("exp", S))), frozenset({"j"}))
BIAS = Load("bias", (COL,), "float32")
C, R, R1 = Var("c", "float32"), Var("r", "float32"), Var("r'", "float32")


@pytest.mark.parametrize(
    ("e", "expected"),
    [
        (S, None),
        (1.0 / L, "+"),
        (M, "0+"),
        (select(ROW >= COL, op("exp", S), 0), "0+"),
        (op("tanh", L), "+"),
    ],
)
def test_sign(e: Expr, expected: str | None) -> None:
    assert sign(e, ROLES) == expected


def test_an_empty_reduction_has_weaker_signs() -> None:
    assert (sign(L, ROLES), sign(L, ROLES, empty=True)) == ("+", "0+")
    assert sign(M, ROLES, empty=True) is None


def test_cancels() -> None:
    value = S * 0.1 + BIAS
    rest = cancels((value - M) * 0.3, {M: value}, ROLES)
    assert rest is not None and (rest.atoms, rest.constant) == ((), 0.0)
    rest = cancels(value - M - L * 2.0 + 1.5, {M: value}, ROLES)
    assert rest is not None and (rest.atoms, rest.constant) == (("-2*l[i]",), 1.5)
    assert cancels(value * 2.0 - M, {M: value}, ROLES) is None
    assert cancels(L - M, {M: value}, ROLES) is None
    assert cancels(S - M, {M: cast(cast(S, "float16"), "float32")}, ROLES) is not None


@pytest.mark.parametrize(
    ("left", "falls"),
    [
        (-(BIAS * BIAS), True),
        (op("abs", BIAS) * -0.5, True),
        (op("abs", BIAS) / (Const(-1.0, "float32") - op("exp", BIAS)), True),
        (-(BIAS * BIAS * BIAS), False),
        (BIAS, False),
        # The same for every element: the largest one has it too.
        (Load("row", (ROW,), "float32"), True),
    ],
)
def test_what_an_exponent_keeps_must_not_raise_it(left: Expr, falls: bool) -> None:
    rest = cancels(S - M + left, {M: S}, ROLES)
    assert rest is not None and rest.falls == falls


def test_assume_decides_choices() -> None:
    masked = select(ROW >= COL, S, float("-inf"))
    assert assume(masked, (ROW >= COL,)) == S
    assert assume(masked, ()) == masked


def test_identities() -> None:
    g, f = op("exp", C - R), op("exp", R - R1)
    record = prove_identity("update", "…", g * f, op("exp", C - R1), ())
    assert isinstance(record, ObligationRecord) and record.how.startswith("SymPy")
    assert isinstance(prove_identity("update", "…", g * f, op("exp", C + R1), ()), Unproved)


def test_a_root_of_a_product_needs_signs() -> None:
    left, right = op("sqrt", C * R), op("sqrt", C) * op("sqrt", R)
    assert isinstance(prove_identity("split", "…", left, right, ()), Unproved)
    assert isinstance(prove_identity("split", "…", left, right, (("r", "+"),)), ObligationRecord)


def test_importing_the_solver_does_not_import_sympy() -> None:
    code = "import sys, neptune.fusion.repair; sys.exit('sympy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
