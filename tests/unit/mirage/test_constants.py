"""Constants and powers in graphs, as floats and in fields."""

from fractions import Fraction

import numpy as np
import pytest

from neptune.ir.evaluate.domains import EvaluationError
from neptune.ir.expr import Const, Expr, Load, Var, binary, cast, op, substitute
from neptune.mirage.verifier.constants import SMALL, Constants, rational
from neptune.mirage.verifier.evaluate import Reals
from neptune.mirage.verifier.fields import RootField
from neptune.verify.residues import P, Q

K = cast(Var("k"), "float32")
FIELD, REALS = RootField(3), Reals(3)
SCALARS = {"k": FIELD.number(Fraction(5)), "a": FIELD.draw(np.random.default_rng(0), ())}


@pytest.mark.parametrize(
    ("e", "value"),
    [
        (Const(0.1, "float64"), Fraction(0.1)),
        (binary("div", Const(1.0, "float32"), Const(3.0, "float32")), Fraction(1, 3)),
        (binary("mul", K, binary("sub", K, Const(2.0, "float32"))), Fraction(15)),
        (op("neg", K), Fraction(-5)),
        (binary("div", K, Const(0.0, "float32")), None),
        (op("sqrt", K), None),
        (Const(float("inf"), "float32"), None),
        (Var("other"), None),
    ],
)
def test_exact_values(e: Expr, value: Fraction | None) -> None:
    assert rational(substitute(e, {"k": Const(5, "int32")})) == value


def test_constants_in_fields_and_floats() -> None:
    constants = Constants(FIELD, SCALARS)
    inverse = constants.at(binary("div", Const(1.0, "float32"), K), 2)
    assert inverse.p.shape == (1, 1, 1) and inverse.p.item() * 5 % P == inverse.q.item() * 5 % Q == 1
    assert constants.at(None, 0).p.tolist() == [1]
    root = constants.at(op("rsqrt", K), 0)
    assert root.p.item() ** 2 * 5 % P == 1
    assert constants.at(binary("mul", Var("a", "float32"), K), 1).p.shape == (3, 1)
    reals = Constants(REALS, {"k": np.array(5.0)})
    assert reals.at(op("rsqrt", K), 1) == pytest.approx(5**-0.5)
    with pytest.raises(EvaluationError, match="is no number that an operator takes"):
        reals.value(Load("x", (), "float32"))


def test_what_has_many_digits_may_be_drawn() -> None:
    keys: list[int] = []

    def draw(key: int) -> object:
        keys.append(key)
        return FIELD.draw(np.random.default_rng(key), ())

    constants = Constants(FIELD, SCALARS, draw)
    tenth = constants.at(Const(0.1, "float32"), 0)
    assert (constants.at(Const(0.1, "float32"), 0).p == tenth.p).all() and len(keys) == 1
    constants.at(Const(0.5, "float32"), 0)
    constants.at(Const(float(SMALL), "float32"), 0)
    assert len(keys) == 1
    constants.at(Const(float(SMALL + 1), "float32"), 0)
    assert len(keys) == 2


@pytest.mark.parametrize("exponent", [0.0, 2.0, 3.0, -1.0, -2.0, 0.5, -0.5, 1.5, 0.25])
def test_powers(exponent: float) -> None:
    e = Const(exponent, "float32")
    x = np.array([[0.5], [2.0], [7.0]])
    np.testing.assert_allclose(Constants(REALS, {}).power(x, e, 1), x**exponent)
    base = FIELD.draw(np.random.default_rng(1), (40,))
    got = Constants(FIELD, {}).power(base, e, 1)
    # To the fourth it is the whole power 4·exponent of the base, wherever there is a value.
    fourth = Constants(FIELD, {}).power(got, Const(4.0, "float32"), 1)
    whole = Constants(FIELD, {}).power(base, Const(4 * exponent, "float32"), 1)
    assert not FIELD.differs(fourth, whole).any()
    assert FIELD.known(got).mean() > 0.1


def test_other_powers_are_functions_of_both() -> None:
    base = FIELD.draw(np.random.default_rng(1), (4,))
    third, fifth = (Constants(FIELD, {}).power(base, Const(x, "float32"), 1) for x in (1 / 3, 0.2))
    assert not FIELD.differs(third, Constants(FIELD, {}).power(base, Const(1 / 3, "float32"), 1)).any()
    assert FIELD.differs(third, fifth).all()
