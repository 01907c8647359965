"""Tier 2: the bound on a false accept, its certificates, and what is measured in small fields."""

from math import inf, log2

import numpy as np
import pytest
import sympy

from bench.mirage_programs import BENCHMARKS
from neptune.ir.evaluate.domains import Array
from neptune.ir.expr import Const
from neptune.mirage.ir import Graph
from neptune.mirage.reference import reference as graph_of
from neptune.mirage.verifier import bound
from neptune.mirage.verifier.bound import PAIRS, PAPER, STRONG, TARGET, chances, check, differences
from neptune.mirage.verifier.evaluate import Evaluator
from neptune.mirage.verifier.fields import RootField
from neptune.mirage.verifier.witness import draw_inputs, witness
from tests.unit.mirage import verified as v
from tests.unit.mirage.test_candidates import AXIOMS, NEIGHBOURS, elementwise
from tests.unit.mirage.test_evaluate import RIGHT, WRONG


@pytest.mark.parametrize("name", RIGHT)
def test_right_graphs_have_a_bound(name: str) -> None:
    found = check(*RIGHT[name])
    assert found.accepted and found.log is not None and found.log <= TARGET, found
    assert found.counted > 0 and found.why == ""
    # Without exponentials everything is written out and compared as it is.
    assert (found.log == -inf) == (name in ("rms", "lora")) == ("no false accept: equal when written" in str(found))
    assert "inf" not in str(found)
    assert found.theorem == STRONG or found.log == -inf


@pytest.mark.parametrize("name", WRONG)
def test_wrong_graphs_are_rejected(name: str) -> None:
    found = check(*WRONG[name])
    assert not found.accepted and "output `out` differs" in str(found)


@pytest.mark.parametrize("law", [*AXIOMS, *NEIGHBOURS])
def test_axioms_and_their_false_neighbours(law: str) -> None:
    left, right = (AXIOMS | NEIGHBOURS)[law]
    assert check(elementwise(*left), elementwise(*right)).accepted == (law in AXIOMS)


def rate(reference: Graph, graph: Graph, primes: tuple[int, int], draws: int = 20000) -> tuple[Array, Array]:
    """How often a draw counts for an element and shows no difference, and how often it counts."""
    at, field = witness(reference), RootField(draws, 11, *primes)
    inputs, scalars = draw_inputs(field, reference, at, np.random.default_rng(11))
    evaluator = Evaluator(field, at, inputs, scalars, free=True)
    a, b = (evaluator.outputs(g)["out"] for g in (reference, graph))
    counts = field.known(a) & field.known(b)
    return (counts & (a.p == b.p)).mean(0), counts.mean(0)


SCORES = v.program(
    "i j d",
    "Q:id K:jd V:j",
    "o:i",
    v.n("s", "matmul", "Q K", "d"),
    v.n("p", "exp", "s"),
    v.n("pv", "matmul", "p V", "j"),
    v.n("l", "sum", "p", "j"),
    v.n("o", "div", "pv l"),
)
ROOTED = v.program(
    "i k",
    "X:ik Y:i",
    "y:i",
    v.n("xx", "sqr", "X"),
    v.n("sum", "sum", "xx", "k"),
    v.n("root", "sqrt", "sum"),
    v.n("y", "mul", "root Y"),
)
NORMED = v.swapped(
    v.program("i k", "X:ik Y:ik", "y:i", *ROOTED.steps[:3], v.n("t", "div", "Y root"), v.n("y", "sum", "t", "k")),
)
KEYS_NORMED = v.program(
    "i j d",
    "Q:id K:jd V:j",
    "o:i",
    v.n("kk", "sqr", "K"),
    v.n("ks", "sum", "kk", "d"),
    v.n("kr", "sqrt", "ks"),
    v.n("kn", "div", "K kr"),
    v.n("s", "matmul", "Q kn", "d"),
    *SCORES.steps[1:],
)
"""Scores are affine in no input; each depends on a row of K that no other one has."""
MEASURED = {
    "a weight forgotten behind a norm": (KEYS_NORMED, v.swapped(KEYS_NORMED, o=v.n("o", "div", "l pv"))),
    "a weight forgotten": (SCORES, v.swapped(SCORES, o=v.n("o", "div", "l pv"))),
    "not divided": (SCORES, v.swapped(SCORES, o=v.n("o", "mul", "pv l"))),
    "values twice": (SCORES, v.swapped(SCORES, pv=v.n("pv", "matmul", "s V", "j"))),
    "a rescaling forgotten": (v.ATTENTION, v.FORGOTTEN),
    "no root": (ROOTED, v.swapped(ROOTED, root=v.n("root", "mul", "sum sum"))),
    "another root": (ROOTED, v.swapped(ROOTED, xx=v.n("xx", "mul", "X Y"))),
    "multiplied": (NORMED, v.swapped(NORMED, t=v.n("t", "mul", "Y root"))),
}


@pytest.mark.parametrize("primes", [(167, 83), (719, 359)])
@pytest.mark.parametrize("name", MEASURED)
def test_measured_in_small_fields_wrong_graphs_pass_more_rarely_than_the_bound_says(
    name: str, primes: tuple[int, int]
) -> None:
    reference, graph = MEASURED[name]
    known, why = chances(differences(reference, graph, witness(reference)), primes, log2(primes[0]))
    assert not why
    limit = np.vectorize(lambda c: 2.0**c.log)(known["out"])
    found, counts = rate(reference, graph, primes)
    assert (found <= np.minimum(limit, 1)).all() and (limit < 1.2).all()
    # They do pass now and then, so that the comparison says something.
    assert (found > 0.3 * counts / primes[1]).any()


def test_the_paper_says_little_and_is_said() -> None:
    """50 terms: q^(−1/2500) a draw. One exponential has two terms, and 16 draws do."""
    attention = check(*RIGHT["attention"])
    assert attention.paper is None and "Theorem 2 of the paper says nothing" in str(attention)
    one = check(elementwise("a = exp X", "z = mul a Y"), elementwise("a = exp X", "z = mul Y a"))
    assert one.paper is not None and one.log is not None and one.log < one.paper <= -30
    assert "Theorem 2 of the paper says ≤ 2^-" in str(one)
    assert check(*RIGHT["qk norm"]).paper is None and "Theorem 2" not in str(check(*RIGHT["qk norm"]))


def test_normed_queries_and_keys_have_a_bound() -> None:
    reference = graph_of(BENCHMARKS["QKNorm-both"].program())
    found = check(reference, reference)
    assert found.accepted and found.log is not None and found.log <= TARGET and found.chance is not None
    assert (found.chance.exponents, found.chance.radicands) == (5, 6)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmarks_have_a_bound_at_the_sizes_of_the_paper(name: str) -> None:
    benchmark = BENCHMARKS[name]
    reference = graph_of(benchmark.program(**benchmark.sizes(8)))
    found = check(reference, reference)
    assert found.accepted and found.log is not None and found.log <= TARGET, found


def one_step(reference: tuple[str, ...], graph: tuple[str, ...]) -> bound.Checked:
    return check(elementwise(*reference), elementwise(*graph))


def test_where_exponents_are_not_affine_the_paper_stands_in() -> None:
    """x and x² are exponents of full rank in no input."""
    found = one_step(("a = exp X", "b = sqr X", "c = exp b", "z = mul a c"), ("a = sqr X", "b = add X a", "z = exp b"))
    assert found.accepted and found.theorem == PAPER and found.log is not None and found.log <= TARGET
    assert "neither affine of full row rank in an input" in found.why and "Theorem 2" in str(found)


_SUM = ("i = add b c", "j = add f h", "k = add i j", "z = mul e k")


@pytest.mark.parametrize(
    ("reference", "graph", "why"),
    [
        (("a = exp X", "z = exp a"), ("a = exp X", "z = exp a"), "an exponential, or what is too large"),
        (("a = exp X", "z = sqrt a"), ("a = exp X", "z = sqrt a"), "an exponential, or what is too large"),
        (("a = exp X", "z = maximum a Y"), ("a = exp X", "z = maximum Y a"), "for maxima alone"),
        (("a = exp X", "z = minimum a Y"), ("a = exp X", "z = minimum Y a"), "for maxima alone"),
        (
            ("e = exp X", "a = add X Y", "b = sqr a", "c = sqrt b", "z = mul c e"),
            ("e = exp X", "a = add Y X", "b = sqr a", "c = sqrt b", "z = mul e c"),
            "may be squares",
        ),
        (
            ("e = exp X", "b = sqrt X", "c = sqrt Y", "d = mul X Y", "f = sqrt d", "g = div X Y", "h = sqrt g", *_SUM),
            ("e = exp X", "b = sqrt X", "c = sqrt Y", "d = mul X Y", "f = sqrt d", "g = div X Y", "h = sqrt g", *_SUM),
            "go round in a circle",
        ),
        (
            ("a = mul X Y", "b = sqrt X", "c = sqrt Y", "d = sqrt a", "f = add b c", "g = add d f", "z = exp g"),
            ("a = mul X Y", "b = sqrt X", "c = sqrt Y", "d = sqrt a", "f = add b c", "g = add f d", "z = exp g"),
            "has a root of a product",
        ),
    ],
)
def test_where_there_is_no_bound_it_says_why(reference: tuple[str, ...], graph: tuple[str, ...], why: str) -> None:
    found = one_step(reference, graph)
    assert found.accepted and found.log is None and why in found.why and "no bound" in str(found), found


def test_results_without_dimensions() -> None:
    made = v.program("k", "X:k Y:k", "z:", v.n("e", "exp", "X"), v.n("z", "matmul", "e Y", "k"))
    other = v.swapped(made, z=v.n("z", "matmul", "e X", "k"))
    found = check(made, made)
    assert found.accepted and found.log is not None and found.log <= TARGET
    assert not check(made, other).accepted


@pytest.mark.parametrize(
    ("reference", "graph"),
    [
        (("a = mul X Y", "b = sqrt a"), ("a = sqrt X", "c = sqrt Y", "b = mul a c")),
        (("a = sqrt X", "c = sqrt Y", "b = mul a c"), ("a = mul X Y", "b = sqrt a")),
        (("a = sqrt X", "c = rsqrt Y", "b = mul a c"), ("a = div X Y", "b = sqrt a")),
        (("a = mul X Y", "c = sqrt a", "d = sqrt Y", "b = div c d"), ("b = sqrt X",)),
    ],
)
def test_roots_that_depend_on_each_other_are_one(reference: tuple[str, ...], graph: tuple[str, ...]) -> None:
    found = one_step((*reference, "e = exp X", "z = mul b e"), (*graph, "e = exp X", "z = mul e b"))
    assert found.accepted and found.theorem == STRONG and found.log is not None and found.log <= TARGET
    wrong = one_step((*reference, "e = exp X", "z = mul b e"), (*graph, "e = exp Y", "z = mul e b"))
    assert not wrong.accepted


def test_opaque_functions_have_no_bound() -> None:
    made = v.program("i", "X:i", "z:i", v.n("z", "opaque", "X", function="erf"))
    found = check(made, made)
    assert (found.accepted, found.log, found.why) == (True, None, "of erf nothing is known")


def test_a_square_under_a_root_is_no_radicand_of_the_theorem() -> None:
    """√(x²) is |x|, of which the field knows the sign in half of the draws: no bound is claimed for the pair."""
    reference, graph = elementwise("a = sqr X", "z = sqrt a"), elementwise("a = add X X", "z = sub a X")
    known, why = chances(differences(reference, graph, witness(reference)))
    assert all(c is None for c in known["out"].ravel())
    assert "may be squares" in why and not check(reference, graph).accepted


def scaled(times: int, order: str, by: Const) -> Graph:
    """eˣ·thousand^times·y."""
    steps = [
        v.n("e", "exp", "X"),
        *(v.n(f"s{k}", "scale", f"s{k - 1}" if k else "e", constant=by) for k in range(times)),
    ]
    return v.program("i", "X:i Y:i", "z:i", *steps, v.n("z", "mul", order))


@pytest.mark.parametrize(("times", "pairs"), [(2, 1), (4, 2), (12, 4)])
def test_heights_beyond_p_take_more_primes(times: int, pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[int] = set()
    plain = RootField.__init__

    def made(self: RootField, draws: int, seed: int, p: int, q: int) -> None:
        used.add(p)
        plain(self, draws, seed, p, q)

    monkeypatch.setattr(RootField, "__init__", made)
    thousand = Const(1000.0, "float32")
    found = check(scaled(times, f"s{times - 1} Y", thousand), scaled(times, f"Y s{times - 1}", thousand))
    assert found.accepted and found.log is not None and found.log <= TARGET
    assert used == {p for p, _ in PAIRS[:pairs]}


def test_heights_beyond_all_primes_have_no_bound() -> None:
    thousand = Const(1000.0, "float32")
    found = check(scaled(13, "s12 Y", thousand), scaled(13, "Y s12", thousand))
    assert found.accepted and found.log is None and "beyond the primes" in found.why


def test_the_pairs_are_like_the_first() -> None:
    for p, q in PAIRS:
        assert p == 2 * q + 1 and p % 4 == q % 4 == 3 and sympy.isprime(p) and sympy.isprime(q)
        assert all(pow(n, (m - 1) // 2, m) == 1 for n in (2, 3, 5, 7) for m in (p, q))


def test_constants_of_many_digits_are_drawn() -> None:
    """0.1 as a float has 55 bits, more than p; whatever it is, (0.1·x)·eʸ is 0.1·(x·eʸ)."""
    tenth = Const(0.1, "float32")
    left = (v.n("e", "exp", "Y"), v.n("a", "scale", "X", constant=tenth), v.n("z", "mul", "a e"))
    right = (v.n("e", "exp", "Y"), v.n("a", "mul", "X e"), v.n("z", "scale", "a", constant=tenth))
    found = check(v.program("i", "X:i Y:i", "z:i", *left), v.program("i", "X:i Y:i", "z:i", *right))
    assert found.accepted and found.log is not None and found.log <= TARGET
    twice = (v.n("e", "exp", "Y"), v.n("a", "mul", "X e"), v.n("z", "scale", "a", constant=Const(0.2, "float32")))
    assert not check(v.program("i", "X:i Y:i", "z:i", *left), v.program("i", "X:i Y:i", "z:i", *twice)).accepted


def test_roots_of_sizes_are_numbers_of_the_fields() -> None:
    """√(Σ x²/5) = √(Σ x²)/√5, and not √(Σ x²)/5."""
    left = v.program("i k", "X:ik", "z:i", *v._MEAN, v.n("z", "sqrt", "mean"))
    apart = (*v._MEAN[:2], v.n("r", "sqrt", "sum"), v.n("f", "scale", "r", constant=v.root_per("k")))
    wrong = (*v._MEAN[:2], v.n("r", "sqrt", "sum"), v.n("f", "scale", "r", constant=v.per("k")))
    found = check(left, v.program("i k", "X:ik", "f:i", *apart))
    assert found.accepted and found.log is not None and found.log <= TARGET
    assert not check(left, v.program("i k", "X:ik", "f:i", *wrong)).accepted
