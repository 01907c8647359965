"""The domains: their algebra, their order, their special values."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from neptune.errors import Unsupported
from neptune.ir.evaluate.domains import EvaluationError
from neptune.ir.evaluate.floats import Float64, Rounded, round_bfloat16
from neptune.verify.degrees import Degrees, agreement
from neptune.verify.field import FieldPair
from neptune.verify.rationals import OrderedRationals
from neptune.verify.residues import P, Q

F = "float32"
LOWEST = -3.4028234663852886e38
EXACT = [FieldPair, OrderedRationals]


def draw(domain: Any, n: int = 50, seed: int = 0) -> Any:
    return domain.draw(np.random.default_rng(seed), (n,))


def agree(domain: Any, a: Any, b: Any) -> bool:
    return not domain.differs(a, b).any() and bool(domain.known(a).all())


def ops(domain: Any) -> Any:
    return lambda name, *args: domain.apply(name, args, F)


def test_the_field_is_what_exp_needs() -> None:
    assert (P - 1) % Q == 0
    assert P < 2**31 and pow(2, Q - 1, Q) == 1 and pow(2, P - 1, P) == 1


@pytest.mark.parametrize("make", EXACT)
@pytest.mark.parametrize("seed", [0, 1])
def test_exp_is_a_homomorphism(make: Any, seed: int) -> None:
    d = make(seed)
    op, x, y = ops(d), draw(d, seed=1), draw(d, seed=2)
    assert agree(d, op("exp", op("add", x, y)), op("mul", op("exp", x), op("exp", y)))
    assert agree(d, op("exp", x), op("exp2", op("mul", x, op("log2e"))))
    assert agree(d, op("exp2", x), op("exp", op("mul", x, op("ln2"))))
    assert agree(d, op("mul", op("ln2"), op("log2e")), d.const(1.0, F))
    assert d.differs(op("exp", x), op("exp2", x)).any()


@pytest.mark.parametrize("make", EXACT)
def test_field_axioms_and_division(make: Any) -> None:
    d = make(0)
    op, x, y, z = ops(d), draw(d, seed=1), draw(d, seed=2), draw(d, seed=3)
    assert agree(d, op("mul", x, op("add", y, z)), op("add", op("mul", x, y), op("mul", x, z)))
    e = op("exp", y)
    assert agree(d, op("mul", op("div", x, e), e), x)
    assert agree(d, op("sub", x, y), op("add", x, op("neg", y)))
    assert agree(d, op("rsqrt", e), op("div", d.const(1.0, F), op("sqrt", e)))
    assert not d.known(op("div", x, d.const(0.0, F))).any()


@pytest.mark.parametrize("make", EXACT)
def test_max_is_a_total_order_with_the_extremes_at_its_ends(make: Any) -> None:
    d = make(0)
    op, x, y, z = ops(d), draw(d, seed=1), draw(d, seed=2), draw(d, seed=3)
    assert agree(d, op("max", x, op("max", y, z)), op("max", op("max", x, y), z))
    assert agree(d, op("max", x, y), op("max", y, x))
    assert agree(d, op("add", op("max", x, y), op("min", x, y)), op("add", x, y))
    for low in (LOWEST, -65504.0, -1e30, -np.inf):
        assert agree(d, op("max", x, d.const(low, F)), x)
        assert agree(d, op("min", x, d.const(-low, F)), x)
    assert agree(d, op("max", d.const(LOWEST, F), d.const(-np.inf, F)), d.const(LOWEST, F))
    less = d.compare("lt", x, y)
    assert np.array_equal(less, d.compare("gt", y, x))
    assert np.array_equal(less, ~d.compare("ge", x, y))
    assert less.any() and not less.all()


@pytest.mark.parametrize("make", EXACT)
def test_minus_infinity_is_absorbed(make: Any) -> None:
    d = make(0)
    op, x, bottom, zero = ops(d), draw(d), d.const(-np.inf, F), d.const(0.0, F)
    for y in (op("add", bottom, x), op("sub", bottom, x), op("mul", bottom, d.const(0.125, F))):
        assert agree(d, op("exp", y), op("mul", x, zero))
        assert agree(d, op("exp2", y), op("mul", x, zero))
    assert not d.known(op("sub", bottom, bottom)).any()
    assert not d.known(op("mul", bottom, zero)).any()
    assert agree(d, op("exp", op("sub", d.const(LOWEST, F), d.const(LOWEST, F))), d.const(1.0, F))


def test_the_field_needs_a_sign_to_scale_infinity() -> None:
    d = FieldPair(0)
    with pytest.raises(Unsupported, match=r"y\[0\]"):
        d.check("y", d.apply("mul", (d.const(-np.inf, F), draw(d)), F))
    exp = d.apply("exp", (draw(d),), F)
    assert d.compare("gt", d.apply("add", (exp, exp), F), d.const(0.0, F)).all()


def test_an_exponential_of_an_exponential_is_outside_only_where_it_is_used() -> None:
    d = FieldPair(0)
    twice = d.apply("exp", (d.apply("exp", (draw(d),), F),), F)
    with pytest.raises(Unsupported):
        d.check("y", twice)
    with pytest.raises(Unsupported):
        d.compare("lt", twice, d.const(1.0, F))
    half = OrderedRationals().lift([Fraction(1, 3)], F)
    with pytest.raises(Unsupported):
        OrderedRationals().check("y", OrderedRationals().apply("exp", (half,), F))


@pytest.mark.parametrize("make", EXACT)
def test_poison_spreads_and_is_found(make: Any) -> None:
    d = make(0)
    bad = d.apply("add", (d.undefined((2,)), d.const(1.0, F)), F)
    for v in (bad, d.apply("max", (bad, d.const(2.0, F)), F), d.fold("min", bad, 0, F), d.apply("exp", (bad,), F)):
        with pytest.raises(EvaluationError, match="uninitialised"):
            d.check("y", v)


@pytest.mark.parametrize("make", EXACT)
@pytest.mark.parametrize("reducer", ["sum", "prod", "max", "min"])
def test_folds_are_the_operator_repeated(make: Any, reducer: str) -> None:
    d = make(0)
    op = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}[reducer]
    parts = [draw(d, 4, seed) for seed in range(5)]
    stacked = d.make([np.stack(group) for group in zip(*map(d.parts, parts), strict=True)])
    by_hand = parts[0]
    for p in parts[1:]:
        by_hand = d.apply(op, (by_hand, p), F)
    assert agree(d, d.fold(reducer, stacked, 0, F), by_hand)


@pytest.mark.parametrize("make", EXACT)
def test_opaque_functions_are_functions_and_keyed(make: Any) -> None:
    x = draw(make(0))
    for name in ("tanh", "sigmoid", "log", "sqrt"):
        first, again, other = (make(s).apply(name, (x,), F) for s in (0, 0, 1))
        assert not make(0).differs(first, again).any()
        # The rationals know what a logarithm is.
        assert make(0).differs(first, other).any() or (name, make) == ("log", OrderedRationals)
    d = make(0)
    assert agree(d, d.apply("pow", (x, d.const(2.0, F)), F), d.apply("mul", (x, x), F))


def test_constants_are_exact_in_the_field_and_tame_in_the_rationals() -> None:
    d = FieldPair(0)
    assert agree(d, d.apply("mul", (d.const(0.125, F), d.const(8.0, F)), F), d.const(1.0, F))
    r = OrderedRationals(0)
    value = r.const(1 / np.sqrt(128), F)[()]
    assert isinstance(value, int) and 1 <= value <= 4
    assert r.const(-1 / np.sqrt(128), F)[()] == -value
    assert OrderedRationals(0, exact_constants=True).const(0.125, F)[()] == Fraction(1, 8)


def test_the_rationals_overflow_as_floats_do() -> None:
    r = OrderedRationals(0)
    x, low = r.const(3.0, F), r.const(LOWEST, F)
    assert r.apply("exp", (r.apply("sub", (low, x), F),), F)[()] == 0
    assert r.apply("exp", (r.apply("sub", (x, low), F),), F)[()] == np.inf


@pytest.mark.parametrize(
    ("x", "rounded"),
    [
        (1 + 2.0**-8, 1.0),
        (1 + 3 * 2.0**-8, 1 + 2.0**-6),
        # rounding to float32 on the way would make this a tie
        (1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-7),
        (3.4e38, np.inf),
        (-1e-41, -9.183549615799121e-41 * 0),
        (9.2e-41, 2.0**-133),
        (-np.inf, -np.inf),
    ],
)
def test_bfloat16_rounds_to_nearest_even_at_once(x: float, rounded: float) -> None:
    assert round_bfloat16(np.asarray(x)) == rounded


def test_float64_ignores_casts_and_rounded_does_them() -> None:
    x = np.array([1 / 3])
    assert Float64().cast(x, "float16") == x
    assert Rounded().cast(x, "float16") == np.float64(np.float16(1 / 3)) != x
    assert Rounded().cast(x, "float32") == np.float64(np.float32(1 / 3)) != x
    assert Rounded().const(1e6, "float16") == np.inf


def test_degrees_bound_quotients_and_refuse_the_rest() -> None:
    d = Degrees()
    x = d.lift(np.ones(3), F)
    square = d.apply("mul", (x, x), F)
    quotient = d.apply("div", (d.fold("sum", square, 0, F), d.fold("sum", x, 0, F)), F)
    assert (int(quotient.top), int(quotient.bottom), int(quotient.divisors)) == (2, 1, 1)
    assert agreement(quotient, quotient) == 2 + 1 + 1
    with pytest.raises(Unsupported):
        d.apply("exp", (x,), F)
