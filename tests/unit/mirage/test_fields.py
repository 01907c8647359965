"""The pair of fields: laws of the reals that hold in it, false neighbours that do not, and what has no value."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import sympy

from neptune.mirage.verifier.fields import NONE, Pair, RootField
from neptune.verify.residues import BAD, P, Q, inverse, power, reduced, root

F = RootField(draws=64, seed=3)
A, B, C = (F.draw(np.random.default_rng(k), (6,)) for k in range(3))


def do(name: str, *args: Pair) -> Pair:
    found = F.apply(name, args)
    assert isinstance(found, Pair)
    return found


def num(x: Fraction | int) -> Pair:
    return Pair(*(v.reshape(1, 1) for v in F.number(Fraction(x))))


def test_the_primes_are_what_the_roots_and_the_exponential_need() -> None:
    assert sympy.isprime(P) and sympy.isprime(Q) and P == 2 * Q + 1
    assert P % 4 == Q % 4 == 3 and (P - 1) ** 2 < 2**63
    for m in (P, Q):
        assert all(pow(n, (m - 1) // 2, m) == 1 for n in (2, 3, 5, 7))


@pytest.mark.parametrize("m", [23, 2039, Q, P])
def test_powers_roots_and_inverses_are_those_of_integers(m: int) -> None:
    x = np.random.default_rng(0).integers(0, m, 300)
    x[0] = 0
    assert power(x, m - 4, m).tolist() == [pow(int(v), m - 4, m) for v in x]
    assert reduced(x * x, m).tolist() == [int(v) ** 2 % m for v in x]
    for v, r, i in zip(x.tolist(), root(x, m).tolist(), inverse(x, m).tolist(), strict=True):
        square = v == 0 or pow(v, (m - 1) // 2, m) == 1
        assert (r != BAD) == square and (not square or (r * r % m == v and (r == 0 or pow(r, (m - 1) // 2, m) == 1)))
        assert i == BAD if v == 0 else i * v % m == 1


LAWS: dict[str, tuple[Callable[[], Pair], Callable[[], Pair]]] = {
    "exp(a + b) = exp(a)·exp(b)": (lambda: do("exp", do("add", A, B)), lambda: do("mul", do("exp", A), do("exp", B))),
    "√a·√b = √(ab)": (lambda: do("mul", do("sqrt", A), do("sqrt", B)), lambda: do("sqrt", do("mul", A, B))),
    "√a·√a = a": (lambda: do("mul", do("sqrt", A), do("sqrt", A)), lambda: A),
    "rsqrt(a) = √a/a": (lambda: do("rsqrt", A), lambda: do("div", do("sqrt", A), A)),
    "√(a/20) = √a/(2·√5)": (
        lambda: do("sqrt", do("div", A, num(20))),
        lambda: do("div", do("sqrt", A), do("mul", num(2), do("sqrt", num(5)))),
    ),
    "a/b + c = (a + b·c)/b": (
        lambda: do("add", do("div", A, B), C),
        lambda: do("div", do("add", A, do("mul", B, C)), B),
    ),
    "sigmoid(a) = exp(a)/(1 + exp(a))": (
        lambda: do("sigmoid", A),
        lambda: do("div", do("exp", A), do("add", num(1), do("exp", A))),
    ),
    "max(a, b) = max(b, a)": (lambda: do("max", A, B), lambda: do("max", B, A)),
    "f(a + b) = f(b + a)": (lambda: do("erf", do("add", A, B)), lambda: do("erf", do("add", B, A))),
    "exp(exp(a)) = exp(exp(a))": (lambda: do("exp", do("exp", A)), lambda: do("exp", do("exp", A))),
}
NEIGHBOURS: dict[str, tuple[Callable[[], Pair], Callable[[], Pair]]] = {
    "exp(a + b) ≠ exp(a) + exp(b)": (
        lambda: do("exp", do("add", A, B)),
        lambda: do("add", do("exp", A), do("exp", B)),
    ),
    "exp(a·b) ≠ exp(a)·exp(b)": (lambda: do("exp", do("mul", A, B)), lambda: do("mul", do("exp", A), do("exp", B))),
    "√(a + b) ≠ √a + √b": (lambda: do("sqrt", do("add", A, B)), lambda: do("add", do("sqrt", A), do("sqrt", B))),
    "√(a²) ≠ a": (lambda: do("sqrt", do("mul", A, A)), lambda: A),
    "√a ≠ a": (lambda: do("sqrt", A), lambda: A),
    "a/b ≠ b/a": (lambda: do("div", A, B), lambda: do("div", B, A)),
    "max(a, b) ≠ a": (lambda: do("max", A, B), lambda: A),
    "f(a) ≠ g(a)": (lambda: do("erf", A), lambda: do("tanh", A)),
    "f(a, b) ≠ f(b, a)": (lambda: do("f", A, B), lambda: do("f", B, A)),
    "exp(exp(a)) ≠ exp(a)": (lambda: do("exp", do("exp", A)), lambda: do("exp", A)),
}


@pytest.mark.parametrize("law", LAWS)
def test_laws(law: str) -> None:
    a, b = (side() for side in LAWS[law])
    both = F.known(a) & F.known(b)
    assert not F.differs(a, b).any() and (both.sum(0) >= 8).all()


@pytest.mark.parametrize("law", NEIGHBOURS)
def test_false_neighbours(law: str) -> None:
    a, b = (side() for side in NEIGHBOURS[law])
    assert F.differs(a, b).any(0).all()


def test_what_has_no_value_is_undefined_for_itself_alone() -> None:
    zero = do("sub", A, A)
    assert not F.known(do("div", B, zero)).any()
    rooted = do("add", do("sqrt", A), B)
    assert 0.3 < F.known(rooted).mean() < 0.7
    # Of what goes into an exponential the second part alone is needed.
    assert (F.known(do("exp", do("sqrt", A))) == (root(A.q, Q) >= 0)).all()
    assert (do("exp", A).q == NONE).all() and (do("mul", do("exp", A), B).q == NONE).all()
    total = F.fold("sum", rooted, 1)
    assert (F.known(total) == F.known(rooted).all(1)).all()


def test_draws_and_seeds() -> None:
    again, other = RootField(64, seed=3), RootField(64, seed=4)
    assert (again.apply("exp", (A,)).p == do("exp", A).p).all() and (other.apply("erf", (A,)).p != do("erf", A).p).all()
    # Every draw has an ω of its own: exp(1) differs.
    assert len(set(do("exp", num(1)).p.ravel().tolist())) == 64
    with pytest.raises(ValueError, match="no pair of primes"):
        RootField(1, p=227, q=113)
