"""Exact logarithms: homomorphism, order, exponentials; rising opaque functions."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neptune.verify.logarithms import LARGEST, Logarithm, logarithm, made, rising

positive = st.fractions(Fraction(1, 50), 50)


@given(positive, positive)
def test_a_homomorphism_that_keeps_the_order(a: Fraction, b: Fraction) -> None:
    x, y = logarithm(a), logarithm(b)
    assert x + y == logarithm(a * b)
    assert x + -y == logarithm(a / b)
    assert (x < y) == (a < b) and (x > y) == (a > b) and (x == y) == (a == b)
    assert float(x) == pytest.approx(math.log(a, 4), abs=1e-9)


@given(positive, st.integers(-3, 3))
def test_exponentials_come_back(a: Fraction, n: int) -> None:
    x = logarithm(a * a) + n  # 2^(log₄ a² + n) = a * 2^n
    power = x.power() if isinstance(x, Logarithm) else Fraction(2) ** int(x)
    assert power == a * Fraction(2) ** n


def test_powers_of_two_have_rational_logarithms() -> None:
    assert logarithm(8) == Fraction(3, 2) and logarithm(Fraction(1, 4)) == -1
    assert isinstance(logarithm(3), Logarithm) and logarithm(3).power() is None
    assert logarithm(3).times(2) == logarithm(9) and logarithm(3).times(LARGEST) is None
    assert logarithm(3) + -logarithm(3) == 0
    assert logarithm(1 << 20000) == 10000 and logarithm(3**20000) is None


def test_comparisons_with_numbers_are_exact() -> None:
    close = Fraction(10**12 + 1, 10**12)
    assert logarithm(4 * close) > 1 and logarithm(4 / close) < 1
    assert logarithm(3) < math.inf and logarithm(3) > -math.inf and not logarithm(3) < math.nan
    assert abs(logarithm(Fraction(1, 3))) == logarithm(3)


def test_rising_functions() -> None:
    f, g = rising(0, 1), rising(1, 1)
    points = [Fraction(k, 3) for k in range(-400, 400)]
    values = [f(x) for x in points]
    assert values == sorted(values) and f(0) == 0
    assert all(f(n) < f(n + 1) for n in range(-100, 100))
    assert values != [g(x) for x in points]
    assert f(-math.inf) == f(-(10**9)) < f(-1000) < f(logarithm(3)) < f(1000) < f(math.inf)


def test_a_gap_whose_denominator_has_hundreds_of_digits_is_decided():
    """3 = 4^0.79…: as powers of integers the comparison would take for ever."""
    with localcontext() as context:
        context.prec = 450
        near = Decimal(3).ln() / Decimal(4).ln()
        q = Fraction(int(near.scaleb(400)), 10**400)
    for off, wanted in ((0, True), (1, False)):
        assert (made(-q - Fraction(off, 10**400), Fraction(3)) > 0) is wanted


def test_signs_agree_with_powers_of_integers():
    rng = np.random.default_rng(0)
    for _ in range(200):
        x = Fraction(*(int(k) * 2 + 1 for k in rng.integers(1, 100, 2)))
        q = Fraction(int(rng.integers(-30, 30)), int(rng.integers(1, 12)))
        if x != 1:
            assert (made(q, x) > 0) is (x**q.denominator > Fraction(4) ** -q.numerator)
