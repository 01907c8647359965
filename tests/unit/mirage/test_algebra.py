"""Abstract expressions: every axiom keeps the form, the nearest false neighbours do not, and parts are found.

Expressions here are trees; `form_of` gives the form of one, `value_of` its values in float64 on positive inputs.
Rewriting by an axiom is random, and float64 says that the axiom was applied where it is true.
"""

import random
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

from neptune.mirage.enumeration.abstract import Labels
from neptune.mirage.enumeration.algebra import FOREIGN, Algebra, Term
from neptune.mirage.enumeration.prunes import Target
from neptune.mirage.ops import OPS
from tests.work import calls

Tree: TypeAlias = tuple[Any, ...]
AXES = ("i", "k")
INPUTS = {"x": "k", "y": "k", "a": "i", "b": "i", "c": ""}
RNG = np.random.default_rng(7)
ARRAYS = {
    n: RNG.uniform(0.5, 1.5, tuple(3 + AXES.index(a) if a in axes else 1 for a in AXES)) for n, axes in INPUTS.items()
}


def free(t: Tree) -> frozenset[str]:
    """The axes along which an expression varies."""
    if t[0] == "in":
        return frozenset(INPUTS[t[1]])
    inner = frozenset[str]().union(*(free(x) for x in t[1:] if isinstance(x, tuple)))
    return inner - {t[1]} if t[0] == "sum" else inner


def form_of(a: Algebra, t: Tree) -> int:
    labels = Labels(a, AXES)
    match t:
        case ("in", name):
            return a.atom("input", name)
        case ("sum", axis, x):
            return a.sum(form_of(a, x), labels.symbols(labels.bits(axis)))
        case (op, x):
            return int(getattr(a, op)(form_of(a, x)))
        case (op, x, y):
            return int(getattr(a, op)(form_of(a, x), form_of(a, y)))
    raise AssertionError(t)


def value_of(t: Tree) -> Any:
    match t:
        case ("in", name):
            return ARRAYS[name]
        case ("sum", axis, x):
            return value_of(x).sum(AXES.index(axis), keepdims=True)
        case ("exp", x):
            return np.exp(value_of(x) / 50)  # a small base keeps float64 far from its ends; the laws are the same
        case ("sqrt", x):
            return np.sqrt(value_of(x))
        case (op, x, y):
            f: Any = {"add": np.add, "mul": np.multiply, "div": np.divide}[op]
            return np.asarray(f(value_of(x), value_of(y)))
    raise AssertionError(t)


def rules(t: Tree) -> list[Tree]:
    """What the axioms of A_eq make of an expression at its top. Conditions are those of docs/mirage.md."""
    made: list[Tree] = []
    match t:
        case (("add" | "mul") as op, x, y):
            made.append((op, y, x))
            if x[0] == op:
                made.append((op, x[1], (op, x[2], y)))
    match t:
        case ("mul", ("add", x, y), z):
            made.append(("add", ("mul", x, z), ("mul", y, z)))
        case ("mul", ("div", x, y), z):
            made.append(("div", ("mul", x, z), y))
        case ("mul", ("exp", x), ("exp", y)):
            made.append(("exp", ("add", x, y)))
        case ("mul", ("sqrt", x), ("sqrt", y)):
            made.append(("sqrt", ("mul", x, y)))
        case ("mul", ("sum", axis, x), y) if axis not in free(y):
            made.append(("sum", axis, ("mul", x, y)))
        case ("div", ("add", x, y), z):
            made.append(("add", ("div", x, z), ("div", y, z)))
        case ("div", ("div", x, y), z) if z[0] != "add" and y[0] != "add":
            made.append(("div", x, ("mul", y, z)))
        case ("div", ("sum", axis, x), y) if axis not in free(y):
            made.append(("sum", axis, ("div", x, y)))
        case ("exp", ("add", x, y)):
            made.append(("mul", ("exp", x), ("exp", y)))
        case ("sqrt", ("mul", x, y)):
            made.append(("mul", ("sqrt", x), ("sqrt", y)))
        case ("sum", axis, ("add", x, y)) if axis in free(x) and axis in free(y):
            made.append(("add", ("sum", axis, x), ("sum", axis, y)))
        case ("sum", axis, ("mul", x, y)) if axis not in free(y):
            made.append(("mul", ("sum", axis, x), y))
        case ("sum", axis, ("div", x, y)) if axis not in free(y):
            made.append(("div", ("sum", axis, x), y))
    match t:
        case ("sum", axis, ("sum", other, x)):
            made.append(("sum", other, ("sum", axis, x)))
    return made


def rewritten(t: Tree, rng: random.Random) -> Tree:
    """The expression after one axiom somewhere, or as it is."""
    places: list[tuple[tuple[int, ...], Tree]] = []

    def walk(u: Tree, at: tuple[int, ...]) -> None:
        places.extend((at, made) for made in rules(u))
        for n, x in enumerate(u):
            if isinstance(x, tuple):
                walk(x, (*at, n))

    walk(t, ())
    if not places:
        return t
    at, made = rng.choice(places)

    def put(u: Tree, path: tuple[int, ...]) -> Tree:
        return made if not path else (*u[: path[0]], put(u[path[0]], path[1:]), *u[path[0] + 1 :])

    return put(t, at)


def tree(rng: random.Random, depth: int) -> Tree:
    """A random expression."""
    if depth == 0 or rng.random() < 0.1:
        return ("in", rng.choice(list(INPUTS)))
    x = tree(rng, depth - 1)
    op = rng.choice(["add", "mul", "div", "sum", "exp", "sqrt", "mul", "sum"])
    if op == "sum":
        axes = sorted(free(x))
        return ("sum", rng.choice(axes), x) if axes else x
    if op in ("exp", "sqrt"):
        return x if op == "exp" and "exp" in str(x) else (op, x)
    y = tree(rng, depth - 1)
    return (op, x, ("in", rng.choice(list(INPUTS))) if op == "div" and "add" in str(y) else y)


@pytest.mark.parametrize("seed", range(60))
def test_axioms_keep_the_form(seed: int) -> None:
    rng = random.Random(seed)
    a = Algebra()
    first = t = tree(rng, 4)
    for _ in range(12):
        t = rewritten(t, rng)
    assert form_of(a, t) == form_of(a, first), (first, t)
    np.testing.assert_allclose(np.broadcast_to(value_of(t), value_of(first).shape), value_of(first), rtol=1e-9)


def test_every_axiom_was_used() -> None:
    used = set()
    for seed in range(300):
        rng = random.Random(seed)
        t = tree(rng, 4)
        for _ in range(6):
            for n, u in enumerate([t, *(x for x in t if isinstance(x, tuple))]):
                used |= {(u[0], *(x[0] for x in u[1:] if isinstance(x, tuple)), m[0]) for m in rules(u) if n >= 0}
            t = rewritten(t, rng)
    tops = {(u[0], u[-1]) for u in used}
    for top in [("mul", "add"), ("mul", "div"), ("mul", "exp"), ("mul", "sqrt"), ("mul", "sum"), ("div", "add"),
                ("div", "div"), ("div", "sum"), ("exp", "mul"), ("sqrt", "mul"), ("sum", "add"), ("sum", "mul"),
                ("sum", "div"), ("sum", "sum")]:  # fmt: skip
        assert top in tops, top


X, Y, A, B, C = (("in", n) for n in "xyabc")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("sum", "k", ("mul", X, Y)), ("mul", ("sum", "k", X), ("sum", "k", Y))),
        (("mul", ("sum", "k", X), ("sum", "k", X)), ("sum", "k", ("mul", X, X))),
        (("sum", "k", ("mul", X, X)), ("sum", "i", ("mul", X, X))),
        (("sqrt", ("add", A, B)), ("add", ("sqrt", A), ("sqrt", B))),
        (("exp", ("mul", A, B)), ("mul", ("exp", A), ("exp", B))),
        (("sum", "k", ("exp", X)), ("exp", ("sum", "k", X))),
        (("div", A, ("add", B, C)), ("add", ("div", A, B), ("div", A, C))),
        (("div", ("mul", A, B), B), A),
        (("div", A, ("div", B, C)), ("div", ("div", A, B), C)),
        (("add", A, A), A),
    ],
)
def test_false_neighbours_differ(one: Tree, other: Tree) -> None:
    a = Algebra()
    assert form_of(a, one) != form_of(a, other)
    x, y = value_of(one), value_of(other)
    assert not np.allclose(x + 0 * y, y + 0 * x) or (one[0], other[0]) == ("div", "in")  # nothing is cancelled


def test_forms_that_differ_in_the_axes_they_are_free_of_are_told_by_types() -> None:
    a = Algebra()
    labels = Labels(a, AXES)
    wrong, right = ("mul", ("sum", "k", X), Y), ("sum", "k", ("mul", X, Y))
    assert form_of(a, wrong) == form_of(a, right) and free(wrong) != free(right)
    target = Target(a, form_of(a, right))
    assert target.has(form_of(a, right), 0)
    assert not target.has(form_of(a, wrong), labels.symbols(labels.bits("k")))


def parts(t: Tree) -> list[Tree]:
    return [t, *(p for x in t if isinstance(x, tuple) for p in parts(x))]


@pytest.mark.parametrize("seed", range(60))
def test_every_part_of_every_rewriting_is_found(seed: int) -> None:
    rng = random.Random(1000 + seed)
    a = Algebra()
    labels = Labels(a, AXES)
    t = tree(rng, 4)
    target, out = Target(a, form_of(a, t)), free(t)
    for _ in range(10):
        t = rewritten(t, rng)
        for part in parts(t):
            need = sum(labels.symbols(labels.bits(x)) for x in free(part) - out)
            assert target.has(form_of(a, part), need), (part, t)


@pytest.mark.parametrize(
    ("target", "not_part"),
    [
        (("sum", "k", ("mul", X, Y)), ("sum", "i", X)),
        (("sum", "k", ("mul", X, Y)), ("mul", X, X)),
        (("sum", "k", ("mul", X, Y)), ("add", X, Y)),
        (("div", A, ("sqrt", B)), ("mul", A, B)),
        (("exp", ("add", A, B)), ("mul", ("exp", A), ("exp", A))),
        (("div", A, ("add", B, C)), ("mul", B, C)),
        (("mul", ("add", A, B), C), ("mul", A, B)),
        (("sqrt", ("mul", A, B)), ("sqrt", ("mul", A, A))),
    ],
)
def test_what_is_no_part(target: Tree, not_part: Tree) -> None:
    a = Algebra()
    assert not Target(a, form_of(a, target)).has(form_of(a, not_part))


def test_maxima_are_one_over_all_parts() -> None:
    a = Algebra()
    labels = Labels(a, AXES)
    x = a.atom("input", "x")
    tile, loop = labels.symbols(labels.bits("k", 4)), labels.symbols(labels.bits("k", 3))
    both = a.max(a.max(x, tile), loop)
    assert both == a.max(x, tile + loop) != a.max(x, tile)
    target = Target(a, a.exp(both))
    assert target.has(a.max(x, tile), loop) and not target.has(a.max(x, tile), tile)
    assert a.maximum(a.maximum(x, both), x) == a.maximum(x, a.maximum(x, both)) != a.maximum(x, both)


def test_forms_are_written_alike_whatever_came_before() -> None:
    t = ("div", ("sum", "k", ("mul", X, ("exp", ("add", A, B)))), ("sqrt", ("add", ("mul", X, X), C)))
    one, two = Algebra(), Algebra()
    for other in (("mul", B, Y), ("exp", C), ("sum", "i", A)):
        form_of(two, other)
    assert one.written(form_of(one, t)) == two.written(form_of(two, t))
    assert two.read(one.written(form_of(one, t))) == form_of(two, t)


def test_a_closed_algebra_makes_no_new_atom() -> None:
    a = Algebra()
    x = a.atom("input", "x")
    a.closed = True
    assert a.mul(x, x) and a.exp(x)
    assert a.sigmoid(x) == OPS["silu"].applied(a.apply, x) == a.neg(x) == a.add(x, a.constant(2)) == FOREIGN
    assert a.div(x, a.add(x, x)) == a.max(x, a.unit("sum", ("i", "tile"))) == FOREIGN
    assert not a.unit("input", "y") and len(a.atoms) == 1


def norm_target(a: Algebra, build: Callable[[Tree], Tree] = lambda t: t) -> Target:
    norm = ("div", X, ("sqrt", ("sum", "k", ("mul", X, X))))
    return Target(a, form_of(a, build(("sum", "k", ("mul", norm, Y)))))


def test_a_distinct_query_takes_microseconds() -> None:
    """Ten, in 13 calls."""
    a = Algebra()
    target = norm_target(a)
    rng = random.Random(0)
    forms = {form_of(a, tree(rng, 4)) for _ in range(3000)}
    asked = norm_target(a)
    assert calls(lambda: [asked.has(f, 0) for f in forms]) < 30 * len(forms)
    assert len(forms) > 800 and target.has(a.atom("input", "x"))


def test_cofactors_are_what_makes_all_summands_each_as_often_as_it_is_there() -> None:
    a = Algebra()
    x, y, z = (a.atom("input", name) for name in "xyz")
    rooted = a.mul(a.sqrt(a.add(x, z)), a.exp(y))
    for f in (a.add(x, y), a.add(x, x), a.add(a.add(x, x), y), a.add(x, rooted)):
        for m in (z, a.mul(z, z), a.div(z, x), rooted, a.exp(z)):
            made = a.mul(f, m)
            (term,) = a.summands(m)
            for g in (made, a.add(made, z), a.add(made, made)):
                assert set(a.cofactors(f, g)) == _by_products(a, f, g) and term in set(a.cofactors(f, g))
            missing = a.less(a.mul(x, m), made)
            assert missing is not None and term not in set(a.cofactors(f, a.add(missing, z)))


def _by_products(a: Algebra, f: int, g: int) -> set[Term]:
    """The same by making every product."""
    first = a.summands(f)[0]
    found = (a.over(first, t) for t in a.summands(g))
    return {m for m in found if m is not None and a.less(a.mul(f, a.form([m])), g) is not None}
