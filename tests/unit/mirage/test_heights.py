"""Polynomials with roots, and the degrees and heights of fractions of them, against SymPy."""

from collections.abc import Callable
from fractions import Fraction
from math import log2

import numpy as np
import pytest
import sympy

from neptune.errors import Unsupported
from neptune.mirage.verifier import heights, polynomials
from neptune.mirage.verifier.heights import Form, Heights
from neptune.mirage.verifier.polynomials import Poly, Ring, collected, number, rank, variable

X = sympy.symbols("x0:3")
P = 2147471759


def symbolic(p: Poly) -> sympy.Expr:
    return sum(c * sympy.Mul(*(X[v] ** e for v, e in m)) for m, c in p.terms)


def test_products_and_sums_are_those_of_sympy() -> None:
    ring = Ring()
    a = collected([(((0, 1),), 2), (((1, 2),), -3), ((), 1)])
    b = collected([(((0, 1), (1, 1)), 1), (((2, 1),), 5), (((0, 1),), -2)])
    assert sympy.expand(symbolic(a) * symbolic(b) - symbolic(ring.mul(a, b))) == 0
    assert sympy.expand(symbolic(a) + symbolic(b) - symbolic(ring.add(a, b))) == 0
    assert ring.add(a, ring.scaled(a, -1)) == Poly(())
    assert (b.degree, b.content, a.variables) == (2, -1 if b.terms[0][1] < 0 else 1, {0, 1})
    point = {k: np.array([3 + k, 10 + k]) for k in range(3)}
    values = [symbolic(b).subs({x: 3 + n * 7 + k for k, x in enumerate(X)}) for n in range(2)]
    assert b.at(point, P).tolist() == [int(x) % P for x in values]
    by = b.coefficients(frozenset({0}))
    assert {m: len(p.terms) for m, p in by.items()} == {((0, 1),): 2, (): 1}


def test_powers_of_roots_are_reduced_also_inside_roots() -> None:
    ring = Ring()
    ring.squares[5] = collected([(((0, 1),), 1), (((1, 1),), 1)])
    ring.squares[6] = collected([(((5, 1),), 1), ((), 2)])
    four = ring.product([variable(6)] * 4)
    # T₆⁴ = (T₅ + 2)² = x + y + 4·T₅ + 4
    want = collected([(((0, 1),), 1), (((1, 1),), 1), (((5, 1),), 4), ((), 4)])
    assert four == want
    assert ring.product([collected([(((k, 1),), 1) for k in range(40)])] * 5) is None


def test_ranks_modulo_a_prime() -> None:
    assert rank([[1, 2], [2, 4]], P) == 1 and rank([[1, 2], [2, 5]], P) == 2
    assert rank([[3, 0], [0, 1]], 3) == 1 and rank([], P) == 0
    assert rank([[0, 1, 1], [1, 0, 1], [1, 1, 0]], 2) == 2 and rank([[0, 1, 1], [1, 0, 1], [1, 1, 0]], 3) == 3


def element(h: Heights, build: Callable[[Callable[..., Form]], Form]) -> Form:
    def do(name: str, *args: Form) -> Form:
        made = h.apply(name, [np.array(a, object) for a in args])
        assert isinstance(made, Form)
        return made

    return build(do)


def sums(h: Heights) -> Form:
    """Σ x_k·y/(x_k + 3) over three k, divided by √(Σ x²/5)."""
    x = [h.free("x") for _ in range(3)]
    y, three, fifth = h.free("y"), h.number(Fraction(3))[()], h.number(Fraction(1, 5))[()]

    def build(do: Callable[..., Form]) -> Form:
        terms = [do("div", do("mul", a, y), do("add", a, three)) for a in x]
        squares = [do("mul", do("mul", a, a), fifth) for a in x]
        top, below = (do("add", do("add", *v[:2]), v[2]) for v in (terms, squares))
        return do("div", top, do("sqrt", below))

    return element(h, build)


def test_a_form_is_exact_while_it_is_small_and_bounded_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = sums(Heights())
    assert exact.exact is not None and len(exact.below) == 4
    monkeypatch.setattr(polynomials, "TERMS", 4)
    h = Heights()
    bounded = sums(h)
    assert bounded.exact is None
    # Bounds by the rules are no smaller than what the polynomials themselves say.
    assert bounded.degree >= exact.exact.degree and bounded.height >= exact.exact.weight({}) - 1e-9
    assert bounded.height < exact.exact.weight({}) + 4 and bounded.degree <= exact.exact.degree + 1


def test_one_radicand_has_one_root_whatever_it_is_multiplied_by() -> None:
    h = Heights()
    x, y = h.free("x"), h.free("y")
    twenty, five = (h.number(Fraction(n))[()] for n in (20, 5))

    def roots(do: Callable[..., Form]) -> Form:
        squares = do("add", do("mul", x, x), do("mul", y, y))
        a = do("sqrt", do("div", squares, five))
        b = do("sqrt", do("div", squares, twenty))
        return do("sub", a, do("add", b, b))

    assert element(h, roots).exact == Poly(()) and len(h.roots) == 1 and h.numbers == set()
    # √5 is a number of its own, with weight log₂(5)/2.
    found = element(h, lambda do: do("mul", x, do("sqrt", five)))
    assert h.numbers == {5} and found.height == pytest.approx(log2(5) / 2) and found.degree == 1
    eleven = h.number(Fraction(11))[()]
    with pytest.raises(Unsupported, match="only 2, 3, 5 and 7 have one"):
        element(h, lambda do: do("sqrt", eleven))
    with pytest.raises(Unsupported, match="root of a negative number"):
        element(h, lambda do: do("sqrt", do("neg", five)))


def test_exponentials() -> None:
    h = Heights()
    x, y = h.free("x"), h.free("y")
    both = element(h, lambda do: do("mul", do("exp", x), do("add", do("exp", y), do("exp", x))))
    assert (both.exponents, both.terms, both.degree, both.exact) == ({0, 1}, 2, 2, None)
    assert element(h, lambda do: do("exp", do("sub", x, x))).exact == number(1)
    with pytest.raises(Unsupported, match="an exponential"):
        element(h, lambda do: do("exp", do("exp", x)))
    with pytest.raises(Unsupported, match="nothing is known"):
        h.apply("root", [x])
    with pytest.raises(Unsupported, match="divides by 0"):
        element(h, lambda do: do("div", x, do("sub", y, y)))
    assert heights.PRIMES == (2, 3, 5, 7)
