"""Facts of expressions against what random ones come to, and the cases that proofs rest on."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from neptune.errors import Unsupported
from neptune.ir.analysis.facts import applied, converted, folded, linear_in, plus, range_of, slope, times
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import (
    Const,
    Expr,
    Load,
    Op,
    Var,
    binary,
    cast,
    children,
    maximum,
    minimum,
    op,
    select,
)
from neptune.ir.ops import ANY, OPS, SIGNS, Range
from neptune.ir.reducers import REDUCERS
from neptune.ir.text.printer import print_expr
from tests.examples.values import run

INF, F32 = math.inf, DTYPES["float32"].highest
X, Y = (Load(n, (), "float32") for n in "xy")
H, U, B = Load("h", (), "float16"), Load("u", (), "uint8"), Load("b", (), "bool")
T = Var("t", "float32")
GIVEN = (
    ANY,
    Range(0.0, 5.0, nonzero=True),
    Range(-3.0, 0.0),
    Range(0.25, 2.0),
    Range(-2.0, 7.0),
    Range(0.0, INF),
)
OPERATORS = [r.name for r in OPS.values() if r.kind in ("arith", "math") and r.name not in ("floordiv", "mod")]


def f32(value: float) -> Const:
    return Const(value, "float32")


def expression(rng: random.Random, depth: int, leaves: tuple[Expr, ...]) -> Expr:
    if depth == 0 or rng.random() < 0.15:
        return rng.choice((*leaves, *leaves, f32(rng.choice((-2.0, -1.0, 0.0, 0.5, 1.0, 3.0)))))
    inside = lambda: expression(rng, depth - 1, leaves)  # noqa: E731
    if rng.random() < 0.1:
        return select(binary("lt", inside(), inside()), inside(), inside())
    name = rng.choice(OPERATORS)
    if name == "pow":
        return op("pow", inside(), f32(rng.choice((-2.0, -0.5, 0.5, 2.0, 3.0, 4.0))))
    if name == "mul" and rng.random() < 0.2:
        return binary("mul", same := inside(), same)
    return op(name, *(inside() for _ in range(OPS[name].arity)))


def samples(rng: random.Random, of: Range) -> list[float]:
    """Numbers of an interval, its ends among them."""
    low, high = max(of.lo, -20.0), min(of.hi, 20.0)
    found = [low, high, 0.0, *(rng.uniform(low, high) for _ in range(6)), low + 1e-3, high - 1e-3]
    return [v for v in found if of.lo <= v <= of.hi and not (of.nonzero and v == 0)]


def holds(of: Range, value: float) -> bool:
    slack = 1e-9 * max(1.0, abs(value))
    return of.lo - slack <= value <= of.hi + slack


@pytest.mark.parametrize("seed", range(16))
def test_intervals_hold_what_expressions_come_to(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        e, of = expression(rng, 3, (X, Y)), {X: rng.choice(GIVEN), Y: rng.choice(GIVEN)}
        found = range_of(e, lambda node, of=of: of.get(node))  # type: ignore[misc]
        for x, y in itertools.product(samples(rng, of[X]), samples(rng, of[Y])):
            value = run(e, {"x": x, "y": y})
            if math.isfinite(value):
                assert holds(found, value), (print_expr(e), of, x, y, value, found)
                near = value == 0 or abs(value) >= found.least * (1 - 1e-6)
                assert near or _tiny(e, {"x": x, "y": y}), (print_expr(e), of, x, y, value, found)
                # Rounding and underflow make zeros of their own.
                assert value != 0 or not found.nonzero or _tiny(e, {"x": x, "y": y}), (print_expr(e), of, x, y)


def _tiny(e: Expr, env: dict[str, float]) -> bool:
    """Whether a part of it has underflowed, or been rounded to where a function is 0."""
    parts = [e, *children(e)]
    values = [abs(run(p, env)) for p in parts]
    return any(0 < v < 1e-150 or v > 300 for v in values) or any(_tiny(p, env) for p in parts[1:])


@pytest.mark.parametrize("seed", range(10))
def test_slopes_are_those_of_expressions(seed: int) -> None:
    rng, known = random.Random(seed), 0
    for _ in range(240):
        e, given = expression(rng, 3, (T, T, X)), {X: rng.choice(GIVEN), T: rng.choice(GIVEN)}
        try:
            way = slope(e, "t", lambda node, given=given: given.get(node))  # type: ignore[misc]
        except Unsupported:
            continue
        known += way != "0"
        for x in samples(rng, given[X]):
            ts = sorted(set(samples(rng, given[T])))
            values = [v for t in ts if math.isfinite(v := run(e, {"x": x, "t": t}))]
            for a, b in itertools.pairwise(values):
                slack = 1e-9 * max(1.0, abs(a), abs(b))
                right = {"0": abs(b - a) <= slack, "+": b >= a - slack, "-": b <= a + slack}
                assert right[way[-1]], (print_expr(e), given, x, ts, values, way)
    assert known > 10


@pytest.mark.parametrize(
    ("e", "way"),
    [
        (minimum(T, op("floor", T)), "0+"),
        (minimum(T, T * 2.0), "+"),
        (maximum(T, X), "0+"),
        (maximum(T, -T), None),
        (op("exp", -T), "-"),
        (X * T, None),
        (op("exp", X) * T, "+"),
        (op("abs", X) * T, "0+"),
        (1.0 / op("exp", T), "-"),
        (1.0 / T, None),
        (op("abs", op("abs", X) + op("exp", T)), "+"),
        (op("pow", op("exp", T), f32(-2.0)), "-"),
        (op("pow", op("abs", X), T), None),
        (cast(T, "float16"), "+"),
        (cast(T, "int32"), None),
        (T - T, None),
        (op("exp", X), "0"),
        (f32(0.0) * T, "0"),
    ],
)
def test_directions(e: Expr, way: str | None) -> None:
    try:
        assert slope(e, "t") == way
    except Unsupported as unknown:
        assert way is None and str(unknown)


@pytest.mark.parametrize(
    ("e", "sign"),
    [
        (op("exp", X), "+"),
        (X * X, "0+"),
        (op("exp", X) * op("exp", Y), "+"),
        (op("exp", X) - 1.0, None),
        # A sum that is above 1 by less than rounding shows is 1.
        (op("log", op("exp", X) + 1.0), "0+"),
        (1.0 - op("tanh", X), "0+"),
        (op("abs", X) + op("exp", Y), "+"),
        (op("abs", X) + op("abs", Y), "0+"),
        (maximum(X, 1e-6), "+"),
        (maximum(op("exp", X), Y), "+"),
        (maximum(X, Y), None),
        (minimum(-op("exp", X), Y), "-"),
        (op("pow", X, f32(2.0)), "0+"),
        (op("pow", X, f32(-2.0)), "+"),
        (op("pow", X, f32(-2.0)) * op("exp", X), "+"),
        (op("pow", X, f32(3.0)), None),
        (op("pow", -op("exp", X), f32(3.0)), "-"),
        (op("pow", -op("exp", X), f32(2.0)), "+"),
        (op("pow", -op("abs", X), f32(3.0)), "0-"),
        (op("sqrt", X), "0+"),
        (op("sqrt", op("exp", X)), "+"),
        (op("rsqrt", X), "+"),
        (op("tanh", -op("exp", X)), "-"),
        (op("floor", op("exp", X)), "0+"),
        (-op("abs", X), "0-"),
        (op("abs", X) / op("exp", Y), "0+"),
        (1.0 / X, None),
        (select(B, op("exp", X), f32(2.0)), "+"),
        (select(B, op("exp", X), f32(0.0)), "0+"),
        (cast(op("exp", X), "int32"), "0+"),
        (cast(Load("i", (), "int64"), "int8"), None),
        (U, "0+"),
        (cast(U, "float32"), "0+"),
        (f32(math.nan), None),
        (op("log2e") * op("ln2"), "+"),
    ],
)
def test_signs(e: Expr, sign: str | None) -> None:
    assert range_of(e).sign == sign


@pytest.mark.parametrize(
    ("e", "size"),
    [
        (H, 65504.0),
        (-H, 65504.0),
        (cast(H, "float32") + 1.0, 65505.0),
        (cast(H, "float32") * cast(H, "float32"), 65504.0**2),
        (cast(Load("i", (), "int8"), "float32"), 128.0),
        (op("tanh", X) * 3.0, 3.0),
        (op("sin", X), 1.0),
        (op("erf", X) / 4.0, 0.25),
        (X, F32),
        (X / 2.0, F32 / 2),
        # What leaves float32 on the way is infinite, whatever is made of it then.
        (X * X / 1e38 / 1e38, INF),
        (H * H / 2.0, INF),
        (cast(H, "float32") / X, INF),
        (minimum(op("abs", X), 5.0), 5.0),
        (select(B, H, Const(7.0, "float16")), 65504.0),
        (op("exp", op("abs", X)), INF),
        (op("exp", op("tanh", X) * 1e5), INF),
    ],
)
def test_magnitudes(e: Expr, size: float) -> None:
    assert range_of(e).most == size


def test_ends_are_rounded_outwards() -> None:
    third = applied("div", [Range(1.0, 1.0), Range(3.0, 3.0)])
    assert third.lo < third.hi and third.lo <= 1 / 3 <= third.hi
    assert applied("mul", [Range(1e300, 1e300)] * 2) == Range(DTYPES["float64"].highest, INF)
    tiny = applied("mul", [Range(1e-300, 1e-300)] * 2)
    assert tiny.sign == "+" and tiny.lo == 0 and tiny.hi > 0
    assert applied("exp", [Range(-1e4, -1e3)]).hi > 0 and applied("sigmoid", [Range(-1e4, -1e3)]).sign == "+"


def test_what_is_undefined_leaves_the_range() -> None:
    assert applied("sqrt", [Range(-4.0, -1.0)]) == SIGNS["0+"]
    assert applied("div", [ANY, Range(-1.0, 1.0)]) == ANY
    assert applied("log", [ANY]) == ANY
    assert applied("bitand", [Range(0.0, 1.0)] * 2) == ANY
    assert converted(Range(-0.5, 300.0), "float32", "uint8") == Range(0.0, 255.0, 1.0)
    assert converted(Range(0.0, 300.0), "int32", "int8") == Range(-128, 127, 1.0)


@pytest.mark.parametrize("reducer", ["sum", "prod", "max", "min", "argmax", "top3", "lse"])
@pytest.mark.parametrize("of", [*GIVEN, Range(0.0, 1.0), Range(-1.0, 1.0), SIGNS["0"], SIGNS["-"], Range(2.0, 3.0)])
def test_folds_hold_what_reductions_come_to(reducer: str, of: Range) -> None:
    found, row = folded(reducer, of), REDUCERS[reducer]
    if not row.op:
        assert found == ANY
        return
    rng = random.Random(7)
    for n in (1, 2, 3, 9):
        for _ in range(20):
            values = [rng.choice(samples(rng, of)) for _ in range(n)]
            total = values[0]
            for v in values[1:]:
                total = run(Op(row.op, (f32(total), f32(v)), "float32"), {})
            assert holds(found, total) and not (found.nonzero and total == 0), (of, values, total)


def test_folds_keep_signs() -> None:
    for reducer in ("sum", "max", "min"):
        assert all(folded(reducer, SIGNS[s]).sign == s for s in ("+", "0+", "0", "0-", "-", None))
    signs = {s: folded("prod", SIGNS[s]).sign for s in SIGNS}
    assert signs == {"+": "+", "0+": "0+", "0": "0", "0-": None, "-": None, None: None}
    assert folded("prod", Range(-1.0, 1.0)) == Range(-1.0, 1.0)


def test_signs_add_and_multiply() -> None:
    table = {"+": 2.0, "0+": None, "0": 0.0, "0-": None, "-": -2.0}
    numbers = {s: ([v] if v is not None else [0.0, 2.0 if s[1] == "+" else -2.0]) for s, v in table.items()}
    for a, b in itertools.product(table, repeat=2):
        for x, y in itertools.product(numbers[a], numbers[b]):
            product, total = times(a, b), plus(a, b)
            assert product is not None and _fits(product, x * y)
            assert total is None or _fits(total, x + y)
    assert times("+", None) is None and plus(None, "+") is None and times("-", "-") == "+"


def _fits(sign: str, v: float) -> bool:
    return {"+": v > 0, "0+": v >= 0, "0": v == 0, "0-": v <= 0, "-": v < 0}[sign]


def test_either_holds_both() -> None:
    assert Range(1.0, 2.0) | SIGNS["-"] == Range(-INF, 2.0, nonzero=True)
    assert SIGNS["0"] | SIGNS["+"] == SIGNS["0+"]


def test_8_bit_floats() -> None:
    """A cast to one is a step that no proof looks through; what it makes is within its range."""
    t = Var("t", "float32")
    assert not linear_in(cast(t, "float8_e5m2"), 0) and linear_in(cast(Load("x", (), "float8_e5m2"), "float32"), 0)
    with pytest.raises(Unsupported, match="keep the order"):
        slope(cast(t, "float8_e4m3fn"), "t")
    assert range_of(cast(t * 1e9, "float8_e4m3fn")) == Range(-448.0, 448.0, 2.0**-9)
    small = range_of(cast(op("exp", t), "float8_e4m3fn"))
    assert (small.lo, small.hi, small.nonzero) == (0.0, 448.0, False) and range_of(op("exp", t)).nonzero
    assert range_of(cast(t * 1e9, "float8_e5m2")).most == math.inf
    assert range_of(cast(Load("x", (), "float8_e4m3fn"), "float32")).least == 2.0**-9
