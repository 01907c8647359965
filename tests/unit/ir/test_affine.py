"""Affine analysis against enumeration: a proof may be missing, but none may be wrong."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from neptune.ir.expr import Const, Expr, Var, binary, cast, logical_and, maximum, minimum, op
from neptune.ir.indices.affine import (
    Poly,
    Scope,
    always,
    as_nonnegative,
    extreme,
    linear,
    never,
    nonnegative,
    number,
    poly,
    simplify,
    split_by,
    to_expr,
    within,
)
from neptune.ir.program import ZERO
from tests.examples.schedule_examples import values_of
from tests.work import calls

I0, I1, B, N = Var("i0"), Var("i1"), Var("B"), Var("n")
# i0 over [0, n), i1 over [0, B): what a split loop looks like. n ≥ 0 and B ≥ 1 are sizes.
SCOPE = Scope({"i0": (ZERO, N - 1), "i1": (ZERO, B - 1)}, {"n": 0, "B": 1})
SIZES = [{"n": n, "B": b} for n in range(4) for b in range(1, 4)]


def points() -> Iterator[dict[str, int]]:
    for s in SIZES:
        for i0 in range(s["n"]):
            for i1 in range(s["B"]):
                yield {**s, "i0": i0, "i1": i1}


POINTS = list(points())
QUOTIENTS = [(I0 + 3) // 2, (I0 - 2) // 2, (I0 * B + I1) // B, (I0 + I1) // B, I1 % 2, (I0 - 2) % 3, (I0 * B + I1) % B]
atoms = st.sampled_from([I0, I1, B, N, I0 * B, I1 * B, maximum(ZERO, I0 - 1), minimum(I1, N), *QUOTIENTS])


@st.composite
def affine(draw: st.DrawFn) -> Expr:
    e: Expr = Const(draw(st.integers(-4, 4)), "int32")
    for atom in draw(st.lists(atoms, max_size=3)):
        e = e + atom * draw(st.integers(-2, 2))
    return e


@st.composite
def predicates(draw: st.DrawFn) -> Expr:
    parts = draw(st.lists(st.sampled_from(["lt", "le", "gt", "ge", "eq"]), min_size=1, max_size=2))
    return logical_and(*(op(name, draw(affine()), draw(affine())) for name in parts))


@settings(max_examples=150, deadline=None)
@given(affine(), affine())
def test_polynomials_keep_the_value(a: Expr, b: Expr) -> None:
    for e in (simplify(a), to_expr(poly(a) - poly(b)) + b, to_expr(poly(a * b))):
        expected = a * b if e == to_expr(poly(a * b)) else a
        assert all(values_of(e, p) == values_of(expected, p) for p in POINTS[::5])
    hit, miss = split_by(poly(a), frozenset({"i1"}))
    assert hit + miss == poly(a)


@settings(max_examples=150, deadline=None)
@given(affine(), st.sampled_from(["i0", "i1", "n"]))
def test_linear(e: Expr, var: str) -> None:
    parts = linear(poly(e), var)
    assume(parts is not None)
    assert parts is not None
    coefficient, rest = map(to_expr, parts)
    assert all(
        values_of(e, p) == values_of(coefficient, p) * p[var] + values_of(rest, {**p, var: 99}) for p in POINTS[::5]
    )


@settings(max_examples=200, deadline=None)
@given(affine(), st.booleans(), st.sampled_from([["i1"], ["i1", "i0"], ["i0"]]))
def test_extreme_is_a_bound(e: Expr, largest: bool, names: list[str]) -> None:
    bound = extreme(poly(e), names, SCOPE, largest=largest)
    assume(bound is not None)
    assert bound is not None
    limit = to_expr(bound)
    for p in POINTS:
        assert (values_of(e, p) <= values_of(limit, p)) if largest else (values_of(e, p) >= values_of(limit, p))


def test_extreme_is_reached_by_a_tile() -> None:
    top = extreme(poly(I0 * B + I1), ["i1"], SCOPE, largest=True)
    assert top == poly(I0 * B + B - 1)


def test_nonnegative_from_floors() -> None:
    """A product is no less than a factor where the other one is at least 1, and not where it may be 0."""
    scope = Scope({}, {"g": 1, "b": 1, "z": 0})
    g, b, z = (poly(Var(name)) for name in "gbz")
    assert nonnegative(g * b - b, scope) and nonnegative(g * b - g - b + number(1), scope)
    assert not nonnegative(g * b - b - number(1), scope) and not nonnegative(z * b - b, scope)


@settings(max_examples=200, deadline=None)
@given(affine(), affine())
def test_nonnegative_and_within(e: Expr, width: Expr) -> None:
    if nonnegative(poly(e), SCOPE):
        assert all(values_of(e, p) >= 0 for p in POINTS)
    if within(poly(e), ["i1", "i0"], poly(width), SCOPE):
        assert all(0 <= values_of(e, p) < values_of(width, p) for p in POINTS)


@settings(max_examples=300, deadline=None)
@given(predicates(), st.lists(affine(), max_size=1))
def test_always_and_never(pred: Expr, given_facts: list[Expr]) -> None:
    facts = tuple(poly(f) for f in given_facts)
    scope = Scope(SCOPE.ranges, SCOPE.at_least, facts)
    seen = [values_of(pred, p) for p in POINTS if all(values_of(f, p) >= 0 for f in given_facts)]
    if always(pred, scope):
        assert all(seen)
    if never(pred, scope):
        assert not any(seen)


def test_what_the_schedule_needs_is_proved() -> None:
    inside = binary("le", I0 * B + B, N)
    fact = tuple(as_nonnegative(inside) or ())
    scope = Scope({"i0": (ZERO, N - 1), "i1": (ZERO, B - 1)}, {"n": 0, "B": 1}, fact)
    assert always(I0 * B + I1 < N, scope)
    assert never(I0 * B + I1 >= N, scope)
    assert not always(I0 * B + I1 < N, SCOPE)
    assert within(poly(I1), ["i1"], poly(B), SCOPE)
    assert not within(poly(I1 + 1), ["i1"], poly(B), SCOPE)


def test_quotients_are_multiplied_out_and_remainders_are_bounded() -> None:
    row, scope = I0 * B + I1, Scope(SCOPE.ranges, SCOPE.at_least, tuple(as_nonnegative(I0 * B + I1 < N * 4) or ()))
    assert always(row // 4 < N, scope) and not always(row // 4 < N, SCOPE)
    assert always(row // 4 >= 0, SCOPE) and never(row // 4 < 0, SCOPE)
    assert always(row % B < B, SCOPE) and always(row % 4 + I1 * 4 < B * 4, SCOPE) and not always(row % 4 < 3, SCOPE)
    # 3*q <= r // 4 is 12*q <= r: only where the divisor is known to be positive.
    assert as_nonnegative(I0 * 3 <= I1 // 4, SCOPE) == [poly(I1 - I0 * 12)]
    assert as_nonnegative(I1 // 4 <= I0, SCOPE) == [poly(I0 * 4 + 3 - I1)]
    assert as_nonnegative(I0 <= I1 // N, SCOPE) == as_nonnegative(I0 <= I1 // N)


def test_what_is_not_affine_is_not_decided() -> None:
    x = binary("lt", Var("x", "float32"), 1.0)
    assert as_nonnegative(x) is None
    assert not always(x, SCOPE) and not never(x, SCOPE)
    assert as_nonnegative(op("ne", I0, I1)) is None
    assert linear(poly(I0 * I0), "i0") is None
    assert extreme(poly(minimum(I0, N)), ["i0"], SCOPE, largest=True) is None
    assert not nonnegative(poly(Var("unknown")), SCOPE)


def test_mixed_widths_print_in_the_wider_one() -> None:
    wide = Var("w", "int64")
    e = cast(I0, "int64") * wide + I1.astype("int64")
    assert simplify(e).dtype == "int64"
    assert to_expr(poly(e)).dtype == "int64"


def test_readable_forms() -> None:
    assert simplify(I0 + 1 - 1) == I0
    assert to_expr(Poly(())) == ZERO
    assert to_expr(number(-3)) == Const(-3, "int32")
    assert to_expr(poly(ZERO - I0)) == ZERO - I0


def test_a_proof_over_many_loops_takes_them_one_at_a_time() -> None:
    """Each variable is substituted once for a fact, not once for every one outside of it."""

    def work(count: int) -> int:
        names = [f"i{k}" for k in range(count)]
        scope = Scope({n: (Const(0, "int32"), Const(7, "int32")) for n in names}, {"n": 1}, (poly(Var("n")),))
        whole = reduce(lambda a, b: binary("add", a, b), [Var(n) for n in names])
        assert always(op("le", whole, Const(7 * count, "int32")), scope)
        assert not always(op("le", whole, Const(7 * count - 1, "int32")), scope)
        return calls(lambda: always(op("lt", whole, Const(7 * count, "int32")), scope))

    work(16)
    assert work(16) < 12 * work(4)
