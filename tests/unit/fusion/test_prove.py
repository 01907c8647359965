"""Signs, sizes, exponents, sums of products and SymPy identities."""

import itertools
import math
import operator
import random
import subprocess
import sys
from fractions import Fraction

import pytest

from neptune.fusion.prove import Unproved, _same_sum, assume, cancels, prove_identity, sign
from neptune.fusion.repairs.roles import ObligationRecord, Predecessor, Roles
from neptune.ir.expr import Const, Expr, Load, Op, Var, cast, children, op, select

ROW, COL = Var("i"), Var("j")
S, M, L = Load("s", (ROW, COL), "float32"), Load("m", (ROW,), "float32"), Load("l", (ROW,), "float32")
ROLES = Roles((Predecessor(M, "max", op("abs", S)), Predecessor(L, "sum", op("exp", S))), frozenset({"j"}))
BIAS = Load("bias", (COL,), "float32")
COMPUTED = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "neg": operator.neg}
COMPUTED["exp"] = math.exp
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
    assert isinstance(record, ObligationRecord) and record.how == "both sides are one sum of products"
    record = prove_identity("update", "…", op("log", g), C - R, ())
    assert isinstance(record, ObligationRecord) and record.how.startswith("SymPy")
    assert isinstance(prove_identity("update", "…", g * f, op("exp", C + R1), ()), Unproved)


@pytest.mark.parametrize("by", [float("inf"), float("nan"), 1.0 / Const(0.0, "float32")])
def test_what_is_no_number_cancels_nothing(by) -> None:
    assert isinstance(prove_identity("split", "…", C + (by - R * 0.0 * by), C + by, ()), Unproved)
    assert isinstance(prove_identity("split", "…", R * (C - C) * by, R * 0.0, ()), Unproved)


def test_one_sum_of_products_is_one_function() -> None:
    """Small expressions, of which those that are shown to be the same have the same values."""
    rng, leaves = random.Random(0), [C, R, Const(2.0, "float32")]

    def made(of: list[Expr]) -> list[Expr]:
        pairs = itertools.product(of, repeat=2)
        return [e for a, b in pairs for e in (a + b, a - b, a * b, a / b, op("exp", a), op("exp", a - b))]

    pool = rng.sample(made([*leaves, *made(leaves)]), 300)
    points = [{"c": Fraction(rng.randint(-40, 40), 37), "r": Fraction(rng.randint(1, 40), 41)} for _ in range(5)]
    values = {e: known for e in pool if None not in (known := [_at(e, p) for p in points])}
    shown = [pair for pair in itertools.combinations(values, 2) if _same_sum(*pair)]
    assert len([e for e, _ in shown if any(values[e])]) > 20
    for e, other in shown:
        assert values[e] == pytest.approx(values[other], rel=1e-6, abs=1e-6), (e, other)


def _at(e: Expr, env: dict[str, Fraction]) -> float | None:
    """The value of an expression, None where it has none, or too large a one to be compared."""
    parts = [_at(x, env) for x in children(e)]
    if None in parts:
        return None
    try:
        match e:
            case Const(value, _):
                found = float(value)
            case Var(name, _):
                found = float(env[name])
            case Op(name, _, _):
                found = COMPUTED[name](*parts)
    except (ZeroDivisionError, OverflowError):
        return None
    return found if abs(found) < 1e6 else None


def test_a_root_of_a_product_needs_signs() -> None:
    left, right = op("sqrt", C * R), op("sqrt", C) * op("sqrt", R)
    assert isinstance(prove_identity("split", "…", left, right, ()), Unproved)
    assert isinstance(prove_identity("split", "…", left, right, (("r", "+"),)), ObligationRecord)


ROWS = "from neptune.ops import norm, softmax; from neptune.tune.choose import candidates; "


@pytest.mark.parametrize(
    "done",
    [
        "import neptune.fusion.repairs.repair",
        f"{ROWS}next(candidates(softmax.softmax()))",
        f"{ROWS}next(candidates(norm.layer_norm()))",
    ],
)
def test_importing_the_solver_and_the_usual_repairs_do_not_import_sympy(done: str) -> None:
    code = f"{done}; import sys; sys.exit('sympy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
