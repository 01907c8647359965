"""Regions hold every index that is touched, and no more than they say."""

from __future__ import annotations

import random

from neptune.ir.expr import Const, Expr, Load, Var, maximum, minimum
from neptune.ir.indices.affine import Scope
from neptune.schedule.region import Interval, hull, interval
from tests.examples.schedule_examples import grid, values_of

OUT, J, K, N = Var("i"), Var("j"), Var("k"), Var("n")
RANGES = {"i": range(3), "j": range(4), "k": range(2)}
SCOPE = Scope({v: (Const(0, "int32"), Const(r.stop - 1, "int32")) for v, r in RANGES.items()}, {"n": 1})
INNER = ("k", "j")  # i is outside


def expression(rng: random.Random, depth: int) -> Expr:
    if depth == 0:
        return rng.choice([OUT, J, K, N, Const(rng.randint(-3, 5), "int32")])
    a, b = expression(rng, depth - 1), expression(rng, depth - 1)
    c = Const(rng.randint(1, 4), "int32")
    return rng.choice([a + b, a - b, a * c, a // c, a % c, minimum(a, b), maximum(a, b), a // N, a % N])


def test_random_expressions_stay_within() -> None:
    rng = random.Random(0)
    found = 0
    for _ in range(600):
        e = expression(rng, rng.randint(1, 3))
        part = interval(e, INNER, SCOPE)
        if part is None:
            continue
        found += 1
        for n in (1, 5):
            for point in grid(RANGES):
                outside = {"i": point["i"], "n": n}
                value = values_of(e, {**point, "n": n})
                assert values_of(part.lo, outside) <= value <= values_of(part.hi, outside), (e, part)
    assert found > 300


def test_affine_regions_are_exact() -> None:
    part = interval(OUT * 4 + J - K, INNER, SCOPE)
    assert part == Interval(*((OUT * 4 + c) if c > 0 else (OUT * 4 - 1) for c in (-1, 3)))
    assert part is not None and part.length == Const(5, "int32")


def test_what_has_no_bounds() -> None:
    table = Load("table", (J,), "int32")
    assert interval(table, INNER, SCOPE) is None
    assert interval(OUT + table, INNER, SCOPE) is None
    assert interval(J // (K + 1), INNER, SCOPE) is None


def test_a_hull_holds_all() -> None:
    parts = [Interval(OUT, OUT + 3), Interval(OUT - 1, OUT + 2), Interval(N, N + OUT)]
    whole = hull(parts, SCOPE)
    for n in (1, 9):
        for i in range(3):
            env = {"i": i, "n": n}
            for p in parts:
                assert values_of(whole.lo, env) <= values_of(p.lo, env)
                assert values_of(p.hi, env) <= values_of(whole.hi, env)
    assert hull(parts[:2], SCOPE) == Interval(OUT - 1, OUT + 3)
