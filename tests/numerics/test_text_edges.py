"""What is generated means what the table of edges says: NaN, infinities, signed zeros, subnormals, extreme integers.

Every operator, cast and reducer, and shipped operators, as LLVM compiles them and as Triton's interpreter runs the
generated text (of tiles, and of scalars), against the evaluator. Many outputs share one program.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import neptune
from neptune import Program
from neptune.frontend import builder as nb
from neptune.ir.dtypes import DTYPES, FLOAT8, is_float
from neptune.ir.edges import CAST, EDGES, NO_FLOATS, REDUCER_EDGES, SELECT, table
from neptune.ir.evaluate.floats import VALUES, Rounded
from neptune.ir.expr import OPS, Const, Expr, invert, op
from neptune.ir.reducers import REDUCERS
from neptune.ops.linear import matmul
from neptune.ops.softmax import figure1, softmax
from neptune.verify.evaluate import evaluate

INF, NAN = math.inf, math.nan
Arrays = Mapping[str, np.ndarray[Any, Any]]
FLOATS = {
    "float32": [
        0.0,
        1e-45,
        1e-40,
        1.1754944e-38,
        1e-30,
        0.3,
        0.5,
        1.0,
        1.5,
        2.5,
        3.0,
        88.0,
        8388609.0,
        2.0**30,
        3.4028235e38,
    ],
    "float16": [0.0, 6e-8, 6.1e-5, 0.3, 0.5, 1.0, 1.5, 2.5, 9.0, 1025.0, 65504.0],
    "bfloat16": [0.0, 1e-40, 0.5, 1.0, 1.5, 2.5, 88.0, 3.38e38],
    "float64": [0.0, 5e-324, 1e-310, 0.5, 1.0, 1.5, 2.5, 700.0, 2.0**52 + 1, 1.7e308],
}
COMPUTED = list(FLOATS)
FLOATS |= {d: sorted({v for v in VALUES[d].tolist() if 0 <= v < INF}) for d in FLOAT8}
NEAR_FLOAT8 = [1.0625, 1.0626, 1.125, 1.1875, 1.2, 2.0**-10, 2.0**-10 * 1.001, 2.0**-17, 2.0**-17 * 1.01, 3e-3, 0.0147]
NEAR_FLOAT8 += [447.0, 449.0, 463.9, 464.0, 464.1, 480.0, 1e4, 57344.0, 61439.0, 61440.0, 61441.0]
"""What 8-bit floats round, and do not hold."""
ULP = {"float32": 2.0**-22, "float16": 2.0**-10, "bfloat16": 2.0**-7, "float64": 2.0**-50}
ULP |= {d: 2.0 ** -DTYPES[d].mantissa for d in FLOAT8}
TINY = {"float32": 1e-44, "float16": 6e-8, "bfloat16": 1e-40, "float64": 1e-322, **dict.fromkeys(FLOAT8, 0.0)}
INTEGERS = {
    d: sorted({i.min, i.min + 1, i.min // 2, -100, -7, -1, 0, 1, 2, 6, 100, i.max // 2 + 1, i.max - 1, i.max})
    for d, i in ((d, np.iinfo(d)) for d in ("int8", "int32", "int64"))
} | {"uint8": [0, 1, 2, 6, 100, 127, 128, 200, 254, 255]}


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared here is the last thing made."""
    monkeypatch.setenv("NEPTUNE_VERIFY", "0")


def both_signs(dtype: str) -> list[float]:
    return [NAN, INF, -INF, *(s * v for v in FLOATS[dtype] for s in (1, -1))]


def pairs(values: list[Any]) -> tuple[list[Any], list[Any]]:
    a, b = zip(*itertools.product(values, repeat=2), strict=True)
    return list(a), list(b)


# --- running -----------------------------------------------------------------------------------------


def results(program: Program, inputs: Arrays, template: Any = None, **options: Any) -> Any:
    """(target, outputs by name) of each target, with what the evaluator says first."""
    tensors = [torch.from_numpy(np.asarray(inputs[b.name])).to(getattr(torch, b.dtype)) for b in program.inputs]
    given = {
        b.name: (t.double() if is_float(b.dtype) else t).numpy() for b, t in zip(program.inputs, tensors, strict=True)
    }
    sizes = {
        d.name: n
        for b, t in zip(program.inputs, tensors, strict=True)
        for d, n in zip(b.shape, t.shape, strict=True)
        if not isinstance(d, Const)
    }
    yield "evaluator", evaluate(program, given, sizes, Rounded())
    kernel = neptune.compile(program, template, target="interpret", **options)
    for target in ("interpret",) if template is scalars else ("interpret", "llvm"):
        found = kernel.for_target(target)(*tensors)
        found = found if isinstance(found, tuple) else (found,)
        yield (
            target,
            {
                b.name: (t.double() if is_float(b.dtype) else t).numpy()
                for b, t in zip(program.outputs, found, strict=True)
            },
        )


def differences(want: Any, got: Any, dtype: str, sign: bool, slack: Any = 1.0) -> Any:
    """Where `got` is not `want`: NaN, infinity and (where `sign`) the sign of zero alike, else within a few ulps."""
    if not is_float(dtype):
        return want != got
    highest = DTYPES[dtype].highest
    with np.errstate(all="ignore"):
        near = np.abs(want - got) <= TINY[dtype] + slack * ULP[dtype] * np.abs(want)
        # Rounding at the very edge of the range may be a step too far.
        edge = (np.abs(want) >= highest * (1 - slack * ULP[dtype])) & (
            np.abs(got) >= highest * (1 - slack * ULP[dtype])
        )
        near |= (edge & (np.sign(want) == np.sign(got)) & (slack > 0)) | (want == got)
    near = np.where(np.isnan(want), np.isnan(got), near & ~np.isnan(got))
    zeros = (want == 0) & (got == 0)
    return ~near | (sign & zeros & (np.signbit(want) != np.signbit(got)))


def compare(
    program: Program, inputs: Arrays, defined: Mapping[str, Any], rows: Mapping[str, Any], template: Any
) -> None:
    """Every output on every target as the evaluator has it, where it is `defined`."""
    found = results(program, inputs, template)
    _, expected = next(found)
    dtypes = {b.name: b.dtype for b in program.outputs}
    wrong = []
    for target, got in found:
        for name, want in expected.items():
            sign, slack = rows.get(name, (True, 1.0))
            bad = differences(want, got[name], dtypes[name], sign, slack) & defined.get(name, True)
            wrong += [
                f"{target}: {name}{tuple(x[k].item() for x in inputs.values())} is {got[name][k]}, not {want[k]}"
                for k in np.flatnonzero(bad)[:4]
            ]
    assert not wrong, "\n".join(wrong)


def scalars(sch: Any) -> None:
    """A template that leaves all loops serial: every expression is printed as scalars."""


def by_template(name: str, dtypes: list[str], also: tuple[str, ...]) -> Any:
    """Each dtype in tiles (and on LLVM, which knows no tiles), and those of `also` as scalars."""
    cases = [pytest.param(d, None, id=f"{d}-tiles") for d in dtypes]
    return pytest.mark.parametrize(
        (name, "template"), cases + [pytest.param(d, scalars, id=f"{d}-scalars") for d in also]
    )


# --- operators of floats ---------------------------------------------------------------------------

EXACT = {"neg", "abs", "floor", "ceil", "round", "trunc", "min", "max", "fmod"}


def float_ops(arity: int) -> list[str]:
    kinds = ("arith", "math", "compare")
    return [o.name for o in OPS.values() if o.arity == arity and o.kind in kinds and EDGES[o.name].nan != NO_FLOATS]


@by_template("dtype", COMPUTED, ("float32", "bfloat16"))
def test_functions_of_one_float(dtype: str, template: Any) -> None:
    n = nb.var("n")
    x = nb.placeholder((n,), dtype, "x")
    names = float_ops(1)
    program = nb.build([nb.compute((n,), partial(lambda f, i: op(f, x[i]), f), f"f_{f}") for f in names])
    values = np.array(both_signs(dtype))
    # Far arguments of a periodic function hang on the argument's reduction.
    defined = {f"f_{f}": ~(np.abs(values) > 1e5) | np.isinf(values) for f in ("sin", "cos")}
    rows: dict[str, Any] = {f"f_{f}": (EDGES[f].zero == "exact", 0.0 if f in EXACT else 4.0) for f in names}
    # By exp2(x log2 e): an error of |x| units in the last place.
    far = 4.0 + np.where(np.abs(values) < 1e6, np.abs(values), 0.0)
    # Between its poles log Γ goes through zero, and Python's own, which the evaluator takes, loses digits there.
    rows |= {"f_exp": (True, far), "f_sigmoid": (True, far), "f_lgamma": (True, np.where(values < 0, 100.0, 4.0))}
    compare(program, {"x": values}, defined, rows, template)


@by_template("dtype", COMPUTED, ("float32", "bfloat16"))
def test_operators_of_two_floats(dtype: str, template: Any) -> None:
    n = nb.var("n")
    x, y = (nb.placeholder((n,), dtype, v) for v in "xy")
    names = float_ops(2)
    outs = [nb.compute((n,), partial(lambda f, i: op(f, x[i], y[i]), f), f"f_{f}") for f in names]
    outs += [
        nb.compute((n,), lambda i: nb.select(op("lt", x[i], y[i]), x[i], y[i]), "f_select"),
        nb.compute((n,), lambda i: nb.minimum(nb.maximum(x[i], -1.0), 1.0), "f_clamp"),
        nb.compute((n,), lambda i: nb.select(op("not", op("gt", x[i], y[i])), 1.0, 2.0), "f_not"),
    ]
    a, b = (np.array(v) for v in pairs(both_signs(dtype)))
    with np.errstate(all="ignore"):
        rounded = torch.tensor(a).to(getattr(torch, dtype)).double().numpy()
        exponent = np.abs(b * np.log2(np.abs(rounded)))
    undefined = np.isneginf(a) | ((np.abs(a) == 1) & np.isinf(b)) | ((a == 1) & np.isnan(b))
    rows = {f"f_{f}": (EDGES[f].zero == "exact", 0.0 if f in EXACT else 1.0) for f in names}
    # By exp2(y log2 x): an error of |y log2 x| units in the last place.
    rows["f_pow"] = (False, 4.0 + np.where(exponent < 1e6, exponent, 0.0))
    rows["f_clamp"] = (False, 0.0)
    with np.errstate(all="ignore"):
        near = ~(np.abs(rounded / torch.tensor(b).to(getattr(torch, dtype)).double().numpy()) >= 2.0**24)
    defined = {"f_pow": ~undefined, "f_fmod": near | np.isinf(a) | (b == 0)}
    compare(nb.build(outs), {"x": a, "y": b}, defined, rows, template)


# --- operators of integers -------------------------------------------------------------------------

DIVISORS = {
    "int8": (1, 3, 64, 127, -1, -2, -128),
    "uint8": (1, 3, 128, 200, 255),
    "int32": (1, 2, 3, 2**30, 2**30 + 1, 2**31 - 1, -1, -3, -(2**31)),
    "int64": (3, 2**62, 2**62 + 1, 2**63 - 1, -(2**63)),
}
EXACTLY: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "min": min,
    "max": max,
    "bitand": lambda a, b: a & b,
    "bitor": lambda a, b: a | b,
    "bitxor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
    **{
        name: lambda a, b, f=f: f(a, b)
        for name, f in {
            "lt": int.__lt__,
            "le": int.__le__,
            "gt": int.__gt__,
            "ge": int.__ge__,
            "eq": int.__eq__,
            "ne": int.__ne__,
        }.items()
    },
}


def exact(name: str, a: int, b: int, dtype: str) -> int | None:
    """The result in the integers, of shl wrapped; None where it is undefined."""
    bits = DTYPES[dtype].bits
    if (name in ("floordiv", "mod") and b == 0) or (name in ("shl", "shr") and not 0 <= b < bits):
        return None
    value = EXACTLY[name](a, b)
    low, high = int(DTYPES[dtype].lowest), int(DTYPES[dtype].highest)
    if name == "shl":
        return (value - low) % (1 << bits) + low
    return value if low <= value <= high else None


@by_template("dtype", list(INTEGERS), ("int32", "uint8"))
def test_operators_of_integers(dtype: str, template: Any) -> None:
    n = nb.var("n")
    x, y = (nb.placeholder((n,), dtype, v) for v in "xy")
    a, b = pairs(INTEGERS[dtype])
    outs: list[Any] = []
    expected: dict[str, list[int | None]] = {}

    def add(name: str, value: Callable[[Any], Expr], want: list[int | None]) -> None:
        outs.append(nb.compute((n,), value, name))
        expected[name] = want

    for f in EXACTLY:
        add(
            f"f_{f}",
            partial(lambda f, i: op(f, x[i], y[i]), f),
            [exact(f, u, v, dtype) for u, v in zip(a, b, strict=True)],
        )
    for f, c in itertools.product(("floordiv", "mod"), DIVISORS[dtype]):
        name = f"{f}_{'m' if c < 0 else ''}{abs(c)}"
        add(name, partial(lambda f, c, i: op(f, x[i], Const(c, dtype)), f, c), [exact(f, u, c, dtype) for u in a])
    low, high = DTYPES[dtype].lowest, DTYPES[dtype].highest
    add("f_abs", lambda i: op("abs", x[i]), [abs(u) if abs(u) <= high else None for u in a])
    add("f_neg", lambda i: op("neg", x[i]), [-u if low <= -u <= high else None for u in a])
    add("f_invert", lambda i: invert(x[i]), [high - u if low == 0 else ~u for u in a])
    kind = np.dtype(dtype)
    tensors = {"x": np.array(a, kind), "y": np.array(b, kind)}
    program = nb.build(outs)
    defined = {k: np.array([w is not None for w in want]) for k, want in expected.items()}
    kernel = neptune.compile(program, template, target="interpret")
    for target in ("interpret",) if template is scalars else ("interpret", "llvm"):
        found = kernel.for_target(target)(*(torch.from_numpy(t) for t in tensors.values()))
        for (name, want), got in zip(expected.items(), found, strict=True):
            clean = np.array([w or 0 for w in want])
            bad = np.flatnonzero((got.numpy() != clean) & defined[name])
            assert not bad.size, f"{target}: {name}({a[bad[0]]}, {b[bad[0]]}) is {got[bad[0]]}, not {want[bad[0]]}"


# --- casts, reducers -------------------------------------------------------------------------------


@by_template("source", [d for d in DTYPES if d != "bool"], ("float32", "int64", *FLOAT8))
def test_casts(source: str, template: Any) -> None:
    n = nb.var("n")
    x = nb.placeholder((n,), source, "x")
    others = [d for d in DTYPES if d != source]
    beside = [126.5, *NEAR_FLOAT8]
    values = np.array([*(both_signs(source) if is_float(source) else ()), *(s * v for v in beside for s in (1, -1))])
    values = values if is_float(source) else np.array(INTEGERS[source])
    if is_float(source):
        values = torch.tensor(values).to(getattr(torch, source)).double().numpy()
    defined = {}
    for d in others:
        if is_float(source) and not is_float(d) and d != "bool":
            defined[f"to_{d}"] = (np.trunc(values) >= DTYPES[d].lowest) & (np.trunc(values) <= DTYPES[d].highest)
            defined[f"to_{d}"] &= np.abs(values) < 2.0**62
    program = nb.build([nb.compute((n,), partial(lambda d, i: x[i].astype(d), d), f"to_{d}") for d in others])
    compare(program, {"x": values}, defined, {f"to_{d}": (True, 0.0) for d in others}, template)


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": nb.sum,
    "prod": nb.prod,
    "max": nb.max,
    "min": nb.min,
    "argmax": nb.argmax,
    "argmin": nb.argmin,
    "lse": nb.max_sumexp,
    "all": lambda e, axis: nb.all(nb.isfinite(e), axis),
    "any": lambda e, axis: nb.any(e > 1.0, axis),
    "bitor": lambda e, axis: nb.bitor((e > 1.0).astype("int32") * 5 + (e < 0.0).astype("int32") * 18, axis),
    "bitxor": lambda e, axis: nb.bitxor((e > 1.0).astype("int32") * 5 + 18, axis),
    **{f"top{k}": lambda e, axis, k=k: nb.top_k(e, k, axis) for k in (1, 3)},
}
ROWS = [
    [1.0, NAN, 3.0, -2.0, NAN],
    [NAN] * 5,
    [INF, -INF, 1.0, 0.0, 2.0],
    [-INF] * 5,
    [INF, INF, 1.0, 0.0, -1.0],
    [0.0, -0.0, 0.0, -0.0, 0.0],
    [1e-45, -1e-45, 1e-40, -1e-40, 1e-38],
    [3.4e38, -3.4e38, 3.4e38, -3.4e38, 1.0],
    [1.0, 1.0, 2.0, 2.0, -5.0],
    [NAN, INF, -INF, 0.0, -0.0],
]


@pytest.mark.parametrize("template", ["softmax_row", scalars], ids=["tiles", "scalars"])
def test_reducers(template: Any) -> None:
    assert set(REDUCER_EDGES) == set(REDUCERS) and set(REDUCTIONS) | {f"top{k}" for k in range(1, 9)} == set(REDUCERS)
    n, m = nb.var("n"), nb.var("m")
    x = nb.placeholder((n, m), "float32", "x")
    j = nb.reduce_axis((0, m), "j")
    outs: list[Any] = []
    for name, fold in REDUCTIONS.items():
        made = nb.compute((n,), partial(lambda fold, i: fold(x[i, j], axis=j), fold), f"r_{name}")
        outs += made if isinstance(made, tuple | list) else [made]
    found = results(nb.build(outs), {"x": np.array(ROWS)}, template)
    _, expected = next(found)
    for target, got in found:
        for name, want in expected.items():
            kind = "float32" if np.asarray(got[name]).dtype.kind == "f" else "int32"
            bad = differences(want, got[name], kind, sign=False, slack=8.0)
            if name in ("r_max", "r_min"):  # of nothing but NaN: the start, or NaN
                bad &= ~np.isnan(np.array(ROWS)).all(axis=1)
            assert not bad.any(), f"{target}: {name} of {ROWS[bad.argmax()]} is {got[name]}, not {want}"


# --- shipped operators -----------------------------------------------------------------------------


def hostile(shape: tuple[int, ...], seed: int, plant: bool = True) -> Any:
    """Ordinary numbers, with one row each of NaN, ±inf, zeros of both signs and subnormals."""
    x = np.random.default_rng(seed).standard_normal(shape)
    if plant:
        rows = x.reshape(-1, shape[-1])
        for at, value in ((1, NAN), (3, INF), (4, -INF)):
            rows[at, min(at, shape[-1] - 1)] = value
        rows[5], rows[6], rows[7] = 0.0, -0.0, 1e-40
    return x


SHIPPED: dict[str, tuple[Program, str | None, Any, dict[str, int]]] = {
    "softmax": (softmax(), None, lambda: {"x": hostile((9, 20), 0)}, {}),
    "figure1": (figure1(), None, lambda: {"inp": hostile((9, 20), 1)}, {}),
    "matmul": (
        matmul(dtype="float32"),
        None,
        lambda: {"a": hostile((20, 16), 2), "b": hostile((16, 16), 3, plant=False)},
        {},
    ),
}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_operators(name: str) -> None:
    program, template, inputs, params = SHIPPED[name]
    found = results(program, inputs(), template, params=params)
    _, expected = next(found)
    for target, got in found:
        for out, want in expected.items():
            np.testing.assert_allclose(got[out], want, rtol=1e-5, atol=1e-5, equal_nan=True, err_msg=f"{target}: {out}")


# --- the table -------------------------------------------------------------------------------------


def test_the_table_has_a_row_for_all_there_is() -> None:
    assert set(EDGES) == {o.name for o in OPS.values() if o.arity and o.kind != "instruction"} and SELECT and CAST
    page = (Path(__file__).parents[2] / "docs/numerics.md").read_text()
    assert table() in page
