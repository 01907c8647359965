"""Every column of the operator table, held against samples; the oracle is numpy's float64."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from neptune.ir.evaluate.floats import Float64
from neptune.ir.foreign import NAMES
from neptune.ir.ops import ANY, INTEGER, OPS, SIGNS, OpInfo

F = Float64()
VALUES = (1e-30, 1e-3, 0.1, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 7.0, 30.0, 600.0)
GRID = (*(-v for v in reversed(VALUES)), 0.0, *VALUES)
WIDE = (*GRID, *np.linspace(-9, 9, 999), *(s * 10.0**k for s in (-1, 1) for k in range(-12, 13)))
REAL = [row for row in OPS.values() if row.value is not None]
rows = pytest.mark.parametrize("row", REAL, ids=lambda row: row.name)


def f(name: str, *args: Any) -> Any:
    """An operator on numbers, by numpy."""
    with np.errstate(all="ignore"):
        if name == "sigmoid":
            # The domain's own form of it is 0 far below 0.
            return np.exp(-np.logaddexp(0.0, -np.asarray(args[0], np.float64)))
        if name == "floordiv":
            return np.floor_divide(*(np.asarray(a, np.float64) for a in args))
        return F.apply(name, [np.asarray(a, np.float64) for a in args], "float64")


def value(row: OpInfo, *args: float) -> float:
    return float(f(row.name, *args))


def allowed(need: str, x: float) -> bool:
    """Whether an argument has the sign that its column asks for; "one": it is not 0."""
    return {"+": x > 0, "0+": x >= 0, "base": x >= 0, "one": x != 0, "": True}[need]


def arguments(row: OpInfo, grid: tuple[float, ...] = GRID) -> list[tuple[float, ...]]:
    """Points of the domain at which the operator is finite."""
    points = itertools.product(grid, repeat=row.arity)
    inside = [p for p in points if all(map(allowed, row.domain or ("",) * row.arity, p))]
    return [p for p in inside if np.isfinite(value(row, *p))]


def test_rows_are_complete() -> None:
    for row in REAL:
        assert len(row.slopes) == row.arity and len(row.domain) in (0, row.arity)
        assert len(row.partials) in (0, row.arity) and len(row.degrees) in (0, row.arity)
        assert row.partials or row.name in ("floordiv", "fmod", "min", "max", "log2e", "ln2")
    assert not any(row.slopes or row.inverse or row.turns for row in OPS.values() if row.value is None)


@rows
def test_values_are_numpys(row: OpInfo) -> None:
    assert row.value is not None
    for point in arguments(row):
        try:
            mine = float(row.value(*(map(Fraction, point) if row.exact and all(point) else point)))
        except OverflowError:
            continue
        assert mine == pytest.approx(value(row, *point), rel=1e-12, abs=1e-300)


@rows
def test_ranges_hold_every_result_and_no_less(row: OpInfo) -> None:
    points = itertools.product(GRID if row.arity > 1 else WIDE, repeat=row.arity)
    found = [v for p in points if np.isfinite(v := value(row, *p))]
    assert all(row.range.lo <= v <= row.range.hi for v in found)
    # Where 0 is left out, it is met by underflow alone.
    near = [value(row, *p) for p in arguments(row) if all(abs(x) < 100 for x in p)]
    assert not row.range.nonzero or all(v != 0 for v in near)
    if row.range != ANY and row.arity:
        assert min(found) <= row.range.lo + 1e-3 and max(found) >= min(row.range.hi, 1e3) - 1e-3


@pytest.mark.parametrize("row", [r for r in OPS.values() if r.kind in ("compare", "logic")], ids=lambda row: row.name)
def test_truth_lies_between_0_and_1(row: OpInfo) -> None:
    assert (row.range.lo, row.range.hi) == (0, 1)


@rows
def test_inside_of_the_domain_all_is_defined(row: OpInfo) -> None:
    for point in itertools.product([x for x in GRID if abs(x) <= 30], repeat=row.arity):
        if all(map(allowed, row.domain or ("",) * row.arity, point)) and (row.name != "pow" or point[0]):
            assert np.isfinite(value(row, *point)) or any(0 < abs(x) < 1e-3 for x in point)


@rows
def test_outside_of_the_domain_nothing_is_defined(row: OpInfo) -> None:
    for k, need in enumerate(row.domain):
        for point in itertools.product(GRID, repeat=row.arity):
            if not allowed(need, point[k]) and (need != "base" or point[1] % 1):
                assert not np.isfinite(value(row, *point))


def way(row: OpInfo, k: int, point: tuple[float, ...]) -> str:
    """The direction that the column gives at a point."""
    column = row.slopes[k]
    if column[-1:] not in ("a", "b"):
        return column
    by = point["ab".index(column[-1])] * (-1 if "-" in column else 1)
    return "+" if by > 0 else "-" if by < 0 else "0"


def pairs(row: OpInfo, k: int) -> list[tuple[tuple[float, ...], float, float]]:
    """(a point, what the operator is there, and with argument k at the next larger value of the same sign)."""
    found, points = [], set(arguments(row))
    for point in points:
        later = [x for x in GRID if x > point[k] and x * point[k] >= 0]
        if later and (then := (*point[:k], later[0], *point[k + 1 :])) in points:
            found.append((point, value(row, *point), value(row, *then)))
    assert row.arity == 0 or found
    return found


@rows
def test_slopes_are_those_of_differences(row: OpInfo) -> None:
    for k in range(row.arity):
        for point, here, there in pairs(row, k):
            up = {"+": there >= here, "0+": there >= here, "-": there <= here, "0-": there <= here, "0": True}
            own = row.slopes[k] == "ab"[k] and point[k] == 0
            assert up.get("0" if own else way(row, k, point), True), (row.name, k, point)


@rows
def test_strict_slopes_are_strict_and_others_are_not(row: OpInfo) -> None:
    for k in range(row.arity):
        close = [(p, a, b) for p, a, b in pairs(row, k) if all(1e-3 <= abs(x) <= 1.5 for x in p)]
        flat = [p for p, a, b in close if a == b]
        if row.slopes[k] in ("+", "-", "a", "b", "-a"):
            assert not [p for p in flat if all(p)], (row.name, k)
        if row.slopes[k].startswith("0"):
            assert flat
        if row.slopes[k] == "":
            signs = {np.sign(b - a) for _, a, b in pairs(row, k)}
            assert {1.0, -1.0} <= signs


@rows
def test_one_way_for_the_others_given(row: OpInfo) -> None:
    """A "?" turns with the other argument, and with nothing else."""
    for k in (k for k, column in enumerate(row.slopes) if column == "?"):
        ways: dict[tuple[float, ...], set[float]] = {}
        for point, here, there in pairs(row, k):
            ways.setdefault((*point[:k], *point[k + 1 :]), set()).add(float(np.sign(there - here)))
        assert all(not {1.0, -1.0} <= signs for signs in ways.values())
        assert {1.0, -1.0} <= set().union(*ways.values())


@rows
def test_nonzero_arguments_make_no_zero(row: OpInfo) -> None:
    results = [value(row, *p) for p in arguments(row) if all(p) and all(1e-3 <= abs(x) <= 7 for x in p)]
    if row.nonzero:
        assert all(v != 0 for v in results)
    elif row.arity and row.slopes != ("",):
        assert any(v == 0 for v in results)


@rows
def test_the_sign_of_sized_arguments_changes_no_magnitude(row: OpInfo) -> None:
    points = [p for p in itertools.product(GRID, repeat=row.arity) if np.isfinite(value(row, *p))]
    for k, name in enumerate("ab"[: row.arity]):
        turned = [(p, (*p[:k], -p[k], *p[k + 1 :])) for p in points if p[k] > 0]
        both = [(abs(value(row, *p)), abs(value(row, *q))) for p, q in turned if np.isfinite(value(row, *q))]
        assert name not in row.sizes or all(a == pytest.approx(b, rel=1e-12) for a, b in both)
        needless = not both or row.whole or row.slopes == ("",)
        assert name in row.sizes or needless or any(a != b for a, b in both)


@rows
def test_whole_results(row: OpInfo) -> None:
    found = [value(row, *p) for p in arguments(row)]
    assert row.whole == all(v == np.rint(v) for v in found)


@pytest.mark.parametrize("name", [row.name for row in OPS.values() if row.within])
def test_results_lie_between_0_and_an_argument(name: str) -> None:
    for point in itertools.product(GRID, [x for x in GRID if x]):
        result, bound = {"fmod": np.fmod, "mod": np.mod}[name](*point), point["ab".index(OPS[name].within)]
        assert min(bound, 0) <= result <= max(bound, 0), point


@rows
def test_inverses_undo(row: OpInfo) -> None:
    for k, inverse in enumerate(row.inverse):
        tried = 0
        for point in arguments(row):
            t = value(row, *point)
            if inverse is None or not 1e-6 < abs(t) < 1e6 or not all(1e-3 <= abs(x) <= 30 for x in point):
                continue
            back = float(inverse(f, np.float64(t), *map(np.float64, point)))
            # A sum forgets what is small beside the other term.
            assert back == pytest.approx(point[k], rel=1e-9, abs=1e-9), (row.name, k, point)
            tried += 1
        assert tried > 5 or inverse is None
    assert row.inverse or row.slopes != ("+",) or row.name in ("tanh", "tanh_approx", "sigmoid", "erf")


@rows
def test_partials_are_those_of_finite_differences(row: OpInfo) -> None:
    h, tried = 1e-6, 0
    for point in arguments(row):
        if not all(0.1 <= abs(x) <= 3 for x in point) or (row.slopes == ("0+",) and point[0] % 0.5 == 0):
            continue
        for k, partial in enumerate(row.partials):
            ends = [value(row, *point[:k], point[k] + d, *point[k + 1 :]) for d in (h, -h)]
            exact = float(partial(f, *map(np.float64, point)))
            assert exact == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-5, abs=1e-6), (row.name, k, point)
            tried += 1
    assert tried > 1 or not row.partials


@rows
def test_partials_have_the_sign_of_the_slopes(row: OpInfo) -> None:
    for k, partial in enumerate(row.partials):
        for point in (p for p in arguments(row) if all(1e-3 <= abs(x) <= 3 for x in p)):
            by = float(partial(f, *map(np.float64, point)))
            known = {"+": by > 0, "-": by < 0, "0+": by >= 0, "0-": by <= 0, "0": by == 0}
            assert known.get(way(row, k, point), True), (row.name, k, point)


@rows
def test_degrees(row: OpInfo) -> None:
    """f(λa, b) = λ^d · f(a, b), and f(λa, λb) = λ · f(a, b) where all move together."""
    points = [p for p in arguments(row) if all(1e-3 <= abs(x) <= 30 for x in p)]
    for point, scale in itertools.product(points, (0.25, 3.0)):
        here = value(row, *point)
        for k, degree in enumerate(row.degrees):
            assert value(row, *point[:k], scale * point[k], *point[k + 1 :]) == pytest.approx(scale**degree * here)
        if row.together:
            assert value(row, *(scale * x for x in point)) == pytest.approx(scale * here, abs=1e-12)
    linear = all(value(row, *(4.0 * x for x in p)) == pytest.approx(4.0 * value(row, *p), abs=1e-12) for p in points)
    assert row.together or not row.arity or not linear or row.degrees


@rows
def test_linear_arguments(row: OpInfo) -> None:
    """f(a + c, b) = f(a, b) + f(c, b) in those that are linear, and in no other."""
    for k in range(row.arity):
        differences = {
            value(row, *p[:k], p[k] + 1.75, *p[k + 1 :]) - value(row, *p) - value(row, *p[:k], 1.75, *p[k + 1 :])
            for p in arguments(row, (-1.5, 1.0, 2.25, 3.5))
        }
        assert all(abs(d) < 1e-12 for d in differences) == (row.linear[k : k + 1] == (True,)), k


@rows
def test_turns(row: OpInfo) -> None:
    if row.turns is None:
        assert row.name not in ("exp", "exp2", "log", "log2")
        return
    before, after = row.turns
    numbers = [p[0] for p in arguments(row) if 1e-3 <= abs(p[0]) <= 30]
    for x, y in itertools.product(numbers, repeat=2):
        assert value(row, float(f(before, x, y))) == pytest.approx(float(f(after, value(row, x), value(row, y))))


def test_signs_are_those_of_their_intervals() -> None:
    assert all(x.sign == name for name, x in SIGNS.items())


@pytest.mark.parametrize("name", INTEGER)
def test_integers_are_numpys(name: str) -> None:
    theirs = {ours: n for n, ours in NAMES.items() if hasattr(np, n)} | {
        f"bit{n}": f"bitwise_{n}" for n in ("and", "or", "xor")
    }
    truths = OPS[name].kind == "logic"
    samples = (False, True) if truths else range(1, 9) if name in ("shl", "shr") else (-7, -2, -1, 1, 2, 7)
    for point in itertools.product(samples, repeat=OPS[name].arity):
        assert INTEGER[name](*point) == getattr(np, theirs.get(name, name))(*point)
