"""Fused against original in float32, on inputs of all magnitudes: overflow and underflow, which no exact model has.

    s[i] = Σ |x[i, j]|;  t[i] = Σ (x[i, j] / s[i])⁴      fused: Σ x⁴, then · (1 / s)⁴      at x ~ 1e10: inf · 0 = NaN

Both programs are evaluated with every operation rounded to its dtype. A hundred small instances are one evaluation
(`batched`): inputs are scaled by powers of ten, each by itself, all together and two against each other, as far as
their dtypes go; elements are zero, far from zero, one far from the others, or of many magnitudes in one row. Instances
that do not satisfy a bound that is listed as assumed are left out, and of those that do not, one nearer to ordinary
magnitudes that does is taken.

An element counts where the original is sure of it: none of its stages leaves the range of its dtype, and the element is
a normal number that rounding in two ways, to nearest and at random, leaves near its value in float64. There the fused
program may be off by what its dtypes lose, by several times what the original loses, and by last digits of a number
that it is said to fold in place of a smaller one (`RangePredicate.rounded`): x + y, less log l, for log (e^x / l) + y.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neptune.ir.analysis.ranges import RangePredicate
from neptune.ir.dtypes import DTYPES, is_float
from neptune.ir.evaluate.domains import Array, EvaluationError, Results, Unevaluated, Value, every
from neptune.ir.evaluate.floats import Float64, Rounded, Stochastic, round_to
from neptune.ir.evaluate.parallel import statement_exprs
from neptune.ir.evaluate.program import Runnable
from neptune.ir.expr import Cast
from neptune.ir.expr import walk as walk_expr
from neptune.ir.ops import Range
from neptune.ir.program import Buffer, Program
from neptune.ir.program import walk as walk_stmt
from neptune.verify.evaluate import evaluated
from neptune.verify.instances import COUNT, MakeInputs, Sizes, batched, draw_inputs, number, volume
from neptune.verify.ranged import Ranged, jumps

INSTANCES = 128
"""How many sets of inputs are tried at most."""
ELEMENTS = 1 << 16
"""How many elements the largest buffer may have in all of them together."""
ATTEMPTS = 6
"""How often integers are drawn until the original makes sense."""
DECADES = (-36, -25, -20, -16, -12, -8, -6, -3, 0, 0.5, 1, 1.5, 2, 2.5, 3, 6, 8, 12, 16, 20, 25, 30, 38)
"""Magnitudes of inputs as powers of ten. Exponentials overflow at 10², where steps are short."""
MIDDLE = 8
"""Decades of inputs that are taken to be finite: a running mean is made of them, and its moments are assumed to stay
in range by a sentence, not by a predicate; fourth powers of such numbers do."""
APART = (6, 12, 20, 30)
"""Two inputs are that many decades above and below 1."""
STYLES = ("plain", "zeros", "positive", "late", "wide", "needle")
"""Elements of both signs, some of them and of the rows zero, positive ones, little or nothing in front of some place
of a row, several magnitudes in one row, and one element in a row that is far from the others."""
OFFSETS = (20.0, 50.0, 84.0, 95.0)
"""What all elements of an input may be near: exp(84) is in the range of float32, and 84 times it is not."""
EDGES = 5
"""How often the way from 1 to the decades of an instance outside of what is assumed is halved, to find its edge."""
SURE = 0.05
"""An element counts where rounding moves it by no more than that, relatively."""
LOSS = 1e-3
"""What the fused program may lose in float32, relatively; with 16-bit dtypes it is eight units in the last place."""
OWN, MOST = 16.0, 2.0
"""How many times what the original loses in an element it may lose there, and of the most in any element."""


class InAnyOrder(Rounded):
    """`Rounded`, where a sum that some order of its terms would carry out of range is infinite."""

    name = "rounded, sums in any order"

    def fold(self, reducer: str, v: Value, axis: int, dtype: str) -> Value:
        result = super().fold(reducer, v, axis, dtype)
        if reducer != "sum":
            return result
        with np.errstate(all="ignore"):
            return np.where(np.abs(v).sum(axis=axis) > DTYPES[dtype].highest, np.inf, result)


@dataclass(frozen=True)
class Inputs:
    """The float inputs (and float scalars) of all instances: arrays with the instances in front, and the power of ten
    of each. `fixed` are the other inputs and the sizes."""

    values: dict[str, Array]
    decades: dict[str, Array]
    fixed: dict[str, Any]
    sizes: dict[str, Any]

    @property
    def count(self) -> int:
        return int(next(iter(self.decades.values())).size) if self.decades else 0

    def scaled(self, k: int) -> str:
        """Return the scales of instance k as text: "x about 1e+10, y about 1"."""
        return ", ".join(f"{n} about {10.0 ** float(d[k]):.0g}" for n, d in self.decades.items())


@dataclass(frozen=True)
class Difference:
    """An element of an output in which the programs differ, and on which inputs."""

    output: str
    index: tuple[int, ...]
    message: str


@dataclass(frozen=True)
class Scaled:
    """The result of the comparison: how many elements of how many instances it compared, and the first difference."""

    instances: int
    compared: int
    difference: Difference | None = None


def compare_magnitudes(
    original: Program,
    transformed: Program,
    sizes: Sizes,
    seed: int = 0,
    *,
    make: MakeInputs | None = None,
    ranges: Sequence[RangePredicate] = (),
    finite: frozenset[str] = frozenset(),
    elements: int = ELEMENTS,
) -> Scaled | Unevaluated:
    """Compare two Programs at some sizes on inputs of all magnitudes that satisfy `ranges`.

    Unevaluated where the original cannot be run at these sizes, or the fused one has no value there.
    """
    everything = (*original.outputs, *original.temporaries)
    before = Runnable(batched(original, everything))
    for attempt in range(ATTEMPTS):
        inputs = draw_scaled(original, sizes, seed, make, attempt, elements, finite)
        if not inputs.count:
            return Scaled(0, 0)
        inside = _inside(original, inputs, ranges)
        rounded = every(_run(before, inputs, d) for d in (Float64(), InAnyOrder(), Stochastic(seed)))
        # Integers may be no places of what is read there.
        if not isinstance(rounded, EvaluationError):
            break
    if isinstance(rounded, Unevaluated):
        return rounded
    exact, near, far = rounded
    inside &= _stays(everything, exact, near)
    inside &= _satisfied(ranges, {**inputs.values, **near}, inputs.sizes, inputs.count)
    fused = _run(Runnable(batched(transformed, transformed.outputs)), inputs, Rounded())
    if isinstance(fused, Unevaluated):
        return fused
    cancelled = _cancelled(ranges, {**inputs.values, **near}, inputs.sizes, inputs.count)
    loose = jumps(original) or jumps(transformed)
    compared, first = 0, None
    for b, mine in zip(original.outputs, transformed.outputs, strict=True):
        sure, wrong = _wrong(
            b, exact[b.name], near[b.name], far[b.name], fused[mine.name], _loss(transformed), loose, cancelled
        )
        lanes = inside.reshape(-1, *(1,) * (sure.ndim - 1))
        compared += int((sure & lanes).sum())
        if first is None and (wrong & lanes).any():
            k, *index = (int(i) for i in np.argwhere(wrong & lanes)[0])
            place = ", ".join(map(str, index))
            got, want = fused[mine.name][(k, *index)], exact[b.name][(k, *index)]
            message = f"output {b.name}[{place}] is {got:.6g}, not {want:.6g}, with {inputs.scaled(k)}"
            first = Difference(b.name, tuple(index), message)
    return Scaled(int(inside.sum()), compared, first)


# --- comparing -----------------------------------------------------------------------------------


def _run(program: Runnable, inputs: Inputs, domain: Float64) -> Results | Unevaluated:
    arrays = {**inputs.fixed, **{n: v for n, v in inputs.values.items() if n not in inputs.sizes}}
    # A scalar has a value for each instance, whose loop is the last axis of every array.
    scalars = {n: inputs.values.get(n, v) for n, v in inputs.sizes.items()}
    return evaluated(program, arrays, {**scalars, COUNT: inputs.count}, domain)


def _wrong(
    b: Buffer, exact: Array, near: Array, far: Array, got: Array, loss: float, loose: bool, cancelled: Array
) -> tuple[Array, Array]:
    """(where the original is sure of its value, where the fused program has another)."""
    if not is_float(b.dtype):
        sure = np.zeros(exact.shape, bool) if loose else (exact == near) & (exact == far)
        return sure, sure & (got != exact)
    smallest = DTYPES[b.dtype].smallest_normal
    with np.errstate(all="ignore"):
        size = np.abs(exact)
        lost = np.maximum(np.abs(near - exact), np.abs(far - exact))
        sure = np.isfinite(near) & np.isfinite(far) & (lost <= SURE * size) & ((size >= smallest) | (exact == 0))
        axes = tuple(range(1, exact.ndim))
        most = np.max(np.where(sure, lost, 0.0), axis=axes, keepdims=True, initial=0.0)
        # Of 0 any remainder may be left: another order does not cancel as well.
        more = MOST * most + OWN * _in_front(cancelled, exact)
        allowed = np.where(exact == 0, np.inf, loss * size + OWN * lost + more)
        off = ~np.isfinite(got) if loose else ~(np.isfinite(got) & (np.abs(got - exact) <= allowed))
    return sure, sure & off


def _stays(buffers: Sequence[Buffer], exact: Mapping[str, Array], near: Mapping[str, Array]) -> Array:
    """The instances in which the original stays in range: a result may be right by luck where a step is not."""
    leaves = [
        np.any((np.isfinite(exact[b.name]) & ~np.isfinite(near[b.name])).reshape(len(near[b.name]), -1), axis=1)
        for b in buffers
        if is_float(b.dtype)
    ]
    return np.asarray(~np.any(leaves, axis=0))


def _loss(program: Program) -> float:
    """Return the relative error that a program may have, by the coarsest dtype in it.

    What does not compute rounds in casts alone: 8-bit inputs lose nothing.
    """
    nodes = [x for s in walk_stmt(program.body) for e in statement_exprs(s) for x in walk_expr(e)]
    used = {b.dtype for b in program.buffers.values()} | {x.dtype for x in nodes}
    used = {d for d in used if DTYPES[d].computes} | {x.dtype for x in nodes if isinstance(x, Cast)}
    return max([LOSS, *(min(0.5, 8 * 2.0 ** -(DTYPES[d].mantissa + 1)) for d in used if is_float(d))])


def _inside(original: Program, inputs: Inputs, ranges: Sequence[RangePredicate]) -> Array:
    """Return a mask of instances whose inputs satisfy what is assumed of inputs alone. Inputs that do not are first
    brought nearer to 1 until they do, as far as halving their decades does it."""
    predicates = [p for p in ranges if p.buffers <= inputs.values.keys()]
    holds = _satisfied(predicates, inputs.values, inputs.sizes, inputs.count)
    low, high = np.zeros(inputs.count), np.ones(inputs.count)
    first = dict(inputs.values)
    failed = ~holds
    if not failed.any():
        return holds
    for _ in range(EDGES):
        middle = np.where(failed, (low + high) / 2, 1.0)
        for b in _floats(original):
            scale = 10.0 ** (inputs.decades[b.name] * (middle - 1.0))
            inputs.values[b.name] = round_to(first[b.name] * _in_front(scale, first[b.name]), b.dtype)
        now = _satisfied(predicates, inputs.values, inputs.sizes, inputs.count)
        low, high = np.where(now, middle, low), np.where(now, high, middle)
    for b in _floats(original):
        scale = 10.0 ** (inputs.decades[b.name] * (np.where(failed, low, 1.0) - 1.0))
        inputs.values[b.name] = round_to(first[b.name] * _in_front(scale, first[b.name]), b.dtype)
        inputs.decades[b.name] = inputs.decades[b.name] * np.where(failed, low, 1.0)
    return _satisfied(predicates, inputs.values, inputs.sizes, inputs.count)


def _in_front(scale: Array, like: Array) -> Array:
    return scale.reshape(-1, *(1,) * (like.ndim - 1))


def _satisfied(
    ranges: Sequence[RangePredicate], values: Mapping[str, Array], sizes: Mapping[str, Any], count: int
) -> Array:
    """The instances in which every predicate is sure to hold: none where one asks for what is not there."""
    ranges = [p for p in ranges if not p.rounded]
    if any(not p.buffers <= values.keys() for p in ranges):
        return np.zeros(count, bool)
    needed = sorted(frozenset[str]().union(*(p.buffers for p in ranges)))
    extremes = {n: _extremes(values[n]) for n in needed}
    plain = {n: int(v) for n, v in sizes.items() if isinstance(v, int | np.integer)}
    elements = max((values[n][0].size for n in needed), default=1)
    result = np.ones(count, bool)
    for k in range(count):
        instance = {n: e[k] for n, e in extremes.items()}
        result[k] = all(p.within(instance, plain, elements) for p in ranges)
    return result


def _cancelled(
    ranges: Sequence[RangePredicate], values: Mapping[str, Array], sizes: Mapping[str, Any], count: int
) -> Array:
    """Half a unit in the last place of the largest number that an instance is said to fold in place of smaller ones."""
    result = np.zeros(count)
    plain = {n: int(v) for n, v in sizes.items() if isinstance(v, int | np.integer)}
    for p in (p for p in ranges if p.rounded and p.buffers <= values.keys()):
        extremes = {n: _extremes(values[n]) for n in p.buffers}
        unit = 2.0 ** -(DTYPES[p.value.dtype].mantissa + 1)
        most = [unit * p.most({n: e[k] for n, e in extremes.items()}, plain) for k in range(count)]
        result = np.maximum(result, np.where(np.isfinite(most), most, 0.0))
    return result


def _extremes(values: Array) -> list[Range]:
    """The range of the finite numbers of each instance."""
    flat = values.reshape(values.shape[0], -1)
    finite, size = np.isfinite(flat), np.abs(flat)
    lo, hi = np.min(flat, 1, where=finite, initial=0.0), np.max(flat, 1, where=finite, initial=0.0)
    least = np.min(size, 1, where=finite & (size > 0), initial=np.inf)
    return [Range(float(a), float(b), float(c)) for a, b, c in zip(lo, hi, least, strict=True)]


# --- inputs --------------------------------------------------------------------------------------


def _floats(program: Program) -> list[Buffer]:
    """The inputs that are scaled: buffers of floats, and float scalars as buffers of one element."""
    scalars = [Buffer(s.name, (), s.dtype) for s in program.scalars if is_float(s.dtype)]
    return [*(b for b in program.inputs if is_float(b.dtype)), *scalars]


@dataclass(frozen=True)
class Job:
    """The recipe for one instance: the power of ten, the style (None: any) and the offset of each input."""

    decades: tuple[float, ...]
    styles: tuple[str | None, ...]
    offsets: tuple[float, ...]


def draw_scaled(
    program: Program,
    sizes: Sizes,
    seed: int,
    make: MakeInputs | None = None,
    attempt: int = 0,
    elements: int = ELEMENTS,
    finite: frozenset[str] = frozenset(),
) -> Inputs:
    """Inputs of all magnitudes at some sizes."""
    rng = np.random.default_rng((seed, 0x5CA1E))
    drawn, full = draw_inputs(program, sizes, Ranged(), rng, attempt, make)
    # What a caller gives has conditions to satisfy.
    arrays = {} if make is None else make(rng, sizes)
    floats = [b for b in _floats(program) if b.name not in arrays]
    most = max(1, min(INSTANCES, elements // max(1, volume(program, sizes))))
    jobs = list(_jobs(len(floats)))
    if len(jobs) > most:
        jobs = [jobs[int(k)] for k in np.sort(rng.choice(len(jobs), most, replace=False))]
    values: dict[str, Array] = {}
    decades: dict[str, Array] = {}
    for k, b in enumerate(floats):
        # Numbers of float64 reach eight times as far.
        far, limit = 8 if b.dtype == "float64" else 1, np.log10(DTYPES[b.dtype].highest)
        limit = min(limit, MIDDLE * far) if b.name in finite else limit
        powers = np.clip([job.decades[k] * far for job in jobs], -limit, limit)
        styles = [job.styles[k] or str(rng.choice(STYLES)) for job in jobs]
        offsets = np.array([job.offsets[k] for job in jobs])
        shape = tuple(number(d, sizes) for d in b.shape)
        values[b.name], decades[b.name] = _drawn(rng, powers, styles, offsets, shape, b.dtype), powers
    for name in drawn.keys() & {b.name for b in program.inputs if is_float(b.dtype)} & arrays.keys():
        values[name] = np.broadcast_to(np.asarray(drawn[name], np.float64), (len(jobs), *np.shape(drawn[name])))
        decades[name] = np.zeros(len(jobs))
    return Inputs(values, decades, {n: v for n, v in drawn.items() if n not in values}, dict(full))


def _jobs(n: int) -> Iterator[Job]:
    """Yield recipes: inputs of one magnitude, one of another than the rest, two against each other, and among
    ordinary ones some that are far from zero, beside one with an element that its exponential lets vanish."""
    plain, zero = (None,) * n, (0.0,) * n

    def at(**places: float) -> tuple[float, ...]:
        return tuple(places.get(f"_{i}", 0.0) for i in range(n))

    for e in DECADES:
        yield Job((e,) * n, plain, zero)
        yield from (Job(at(**{f"_{k}": e}), plain, zero) for k in range(n) if n > 1)
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
    yield from (Job(at(**{f"_{a}": e, f"_{b}": -e}), plain, zero) for e in APART for a, b in pairs)
    for k in range(n):
        high, needle = (tuple(style if i == k else None for i in range(n)) for style in ("positive", "needle"))
        # So high that two elements overflow, where nothing else decides which of them counts, or something does.
        yield from (Job(tuple(38.0 if i == k else e for i in range(n)), high, zero) for e in (-3.0, 0.0))
        yield from (Job(zero, plain, at(**{f"_{k}": x * s})) for x in OFFSETS for s in (-1, 1))
        yield from [Job(at(**{f"_{k}": 2.0}), needle, zero)] * 2
    for a, b in pairs:
        needle = tuple("needle" if i == a else None for i in range(n))
        yield Job(at(**{f"_{a}": 2.0}), needle, at(**{f"_{b}": OFFSETS[-1]}))


def _drawn(
    rng: np.random.Generator, powers: Array, styles: Sequence[str], offsets: Array, shape: tuple[int, ...], dtype: str
) -> Array:
    """Values of an input: about a power of ten in each instance, each instance in a style of its own."""
    whole = (len(powers), *shape)
    x = rng.standard_normal(whole)

    def of(name: str) -> Array:
        return _in_front(np.array([s == name for s in styles]), x)

    rows = (*whole[:-1], 1) if shape else whole
    last = shape[-1] if shape else 1
    zero = (rng.random(whole) < 0.4) | (rng.random(rows) < 0.2)
    x = np.where(of("zeros") & zero, 0.0, x)
    x = np.where(of("positive"), 0.5 + np.abs(x) / 2, x)
    x = np.where(of("wide"), x * 10.0 ** rng.uniform(-4, 4, whole), x)
    if shape:
        early = np.arange(last) < rng.integers(0, last + 1, rows)
        one = np.arange(last) == rng.integers(0, max(1, last), rows)
        little = _in_front(rng.choice((0.0, 1e-3), len(powers)), x)
        x = np.where(of("late"), np.where(early, little, np.abs(x)), x)
        x = np.where(of("needle"), np.where(one, 1.5, 0.01 * x), x)
    x = x * _in_front(10.0**powers, x) + _in_front(offsets, x)
    highest = DTYPES[dtype].highest
    return np.asarray(round_to(np.clip(x, -highest, highest), dtype))
