"""What float64 and rounded arithmetic say of a mutant that every check of a compilation accepts.

`in_numbers` runs it beside the expression on random sizes and on small ones of every kind, with ties and with -inf.
An element that differs makes it *missed*. What differs nowhere may still round worse than the program it was made of:
then the numeric criterion of docs/design/numerics.md, "Numerics", rejects it. The rest is *equal*: the mistake changes
nothing (a guard that the loop's bounds imply, a mean that any other value serves for).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from neptune.ir.dtypes import is_float
from neptune.ir.evaluate.domains import EvaluationError
from neptune.ir.evaluate.floats import Rounded, round_to
from neptune.ir.program import Program
from neptune.ir.program import Scalar as ScalarParam
from neptune.tile.ir import TileProgram
from neptune.verify.evaluate import evaluate
from neptune.verify.instances import compared_only, number, structural_sizes
from neptune.verify.numerics import allowance, rel_error
from qa.mutants_cases import CASES

AnyProgram = Program | TileProgram
RANDOM, SMALL = 24, 72
"""How many random sizes are tried, and how many of all small ones (fewer where there are not so many)."""
LONGEST, SHORT, PARTS = 9, 5, 3
"""The largest random size, the largest small one, and the most parts of a split reduction."""
TILES = (1, 2, 4)
STYLES = ("plain", "ties", "-inf", "plain")
HOSTILE: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Any]] = {
    "far from zero": lambda rng, shape: rng.standard_normal(shape) + 1e4,
    "outlier first": lambda rng, shape: _outlier(rng.standard_normal(shape)),
    "large": lambda rng, shape: rng.standard_normal(shape) * 30,
}
"""Inputs that rounding errors show on."""


def _outlier(x: Any) -> Any:
    x[..., :1] *= 1e4
    return x


@dataclass(frozen=True)
class Instance:
    """Sizes and inputs, and what the expression gives there."""

    style: str
    sizes: Mapping[str, Any]
    inputs: Mapping[str, Any]
    expected: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.style} inputs at " + ", ".join(f"{k}={v}" for k, v in self.sizes.items())


@cache
def instances(name: str) -> tuple[Instance, ...]:
    """Those on which the mutants of an operator are compared in float64."""
    rng = np.random.default_rng(0)
    drawn = (dict(_random_sizes(name, rng)) for _ in itertools.count())
    small = _small_sizes(name, rng)
    return (*_evaluated(name, drawn, RANDOM, rng), *_evaluated(name, iter(small), SMALL, rng))


def _evaluated(name: str, sizes: Iterator[dict[str, Any]], count: int, rng: np.random.Generator) -> list[Instance]:
    """Instances at so many of these sizes, where the expression makes sense."""
    original, found = CASES[name].forms().original, list[Instance]()
    for here in sizes:
        if len(found) == count:
            break
        style = STYLES[len(found) % len(STYLES)]
        inputs = _inputs(name, here, rng, style)
        try:
            found.append(Instance(style, here, inputs, evaluate(original, inputs, here)))
        except EvaluationError:
            continue
    return found


def _scalars(name: str) -> dict[str, ScalarParam]:
    forms = CASES[name].forms()
    return {s.name: s for p in (forms.original, forms.fused, forms.tiles) for s in p.scalars}


def _structural(name: str) -> frozenset[str]:
    forms = CASES[name].forms()
    return structural_sizes(forms.original) | structural_sizes(forms.fused) | structural_sizes(forms.tiles)


def _range(s: ScalarParam, structural: bool, longest: int) -> range:
    """Values of an integer scalar."""
    low = 1 if s.lo is None else s.lo
    high = min(longest, PARTS) if s.upto is not None else longest if structural else 2
    first = -(-low // s.divisor) * s.divisor
    return range(first, max(first, high) + 1, s.divisor)


def _random_sizes(name: str, rng: np.random.Generator) -> Iterator[tuple[str, Any]]:
    """One choice of all sizes and tunables."""
    structural = _structural(name)
    sizes: dict[str, Any] = {}
    for s in _scalars(name).values():
        floats = is_float(s.dtype)
        sizes[s.name] = (
            float(rng.standard_normal()) if floats else int(rng.choice(_range(s, s.name in structural, LONGEST)))
        )
    yield from _with_tiles(name, sizes, lambda: int(rng.choice(TILES))).items()


def _with_tiles(name: str, sizes: dict[str, Any], tile: Callable[[], int]) -> dict[str, Any]:
    forms = CASES[name].forms()
    for t in (*forms.fused.tunables, *forms.tiles.tunables):
        if t.covers is not None:
            sizes[t.name] = 1 << max(0, (number(t.covers, sizes) - 1).bit_length())
        elif t.name not in sizes:
            sizes[t.name] = tile()
    return sizes


def _small_sizes(name: str, rng: np.random.Generator) -> list[dict[str, Any]]:
    """All small sizes with all small tiles, in any order."""
    forms, structural = CASES[name].forms(), _structural(name)
    free = {t.name: TILES for t in (*forms.fused.tunables, *forms.tiles.tunables) if t.covers is None}
    numbers = {
        s.name: tuple(_range(s, True, SHORT)) if s.name in structural else (1,)
        for s in _scalars(name).values()
        if not is_float(s.dtype)
    }
    floats = {s.name: 0.5 for s in _scalars(name).values() if is_float(s.dtype)}
    ranges = numbers | free
    every = list(itertools.product(*ranges.values()))
    chosen = rng.permutation(len(every))[: 2 * SMALL]
    return [_with_tiles(name, {**floats, **dict(zip(ranges, every[int(k)], strict=True))}, int) for k in chosen]


def _inputs(name: str, sizes: Mapping[str, Any], rng: np.random.Generator, style: str) -> dict[str, Any]:
    forms, inputs = CASES[name].forms(), dict[str, Any]()
    for b in forms.original.inputs:
        shape = tuple(number(d, sizes) for d in b.shape)
        if not is_float(b.dtype):
            # What is only compared (lengths) reaches beyond the sizes: it fills some parts, and not others.
            longest = max(v for v in sizes.values() if isinstance(v, int)) + 2
            inputs[b.name] = rng.integers(0, longest if b.name in compared_only(forms.original) else 2, shape)
        elif style in HOSTILE:
            inputs[b.name] = HOSTILE[style](rng, shape)
        else:
            ties = style == "ties"
            inputs[b.name] = rng.integers(-1, 2, shape).astype(np.float64) if ties else rng.standard_normal(shape)
    if style == "-inf":
        _put_infinities(rng, [x for n, x in inputs.items() if x.dtype == np.float64 and n not in forms.finite])
    return inputs


def _put_infinities(rng: np.random.Generator, some: list[Any]) -> None:
    """-inf in one of the inputs: some elements, and now and then everything before a place."""
    if not some:
        return
    x = some[int(rng.integers(len(some)))]
    x[rng.random(x.shape) < 0.3] = -np.inf
    if x.ndim and rng.random() < 0.5:
        x[..., : int(rng.integers(x.shape[-1] + 1))] = -np.inf


def in_numbers(name: str, mutant: AnyProgram) -> tuple[str, str]:
    """("missed", "rounding errors" or "equal"; what shows it)."""
    outputs = CASES[name].forms().original.outputs
    for instance in instances(name):
        try:
            have = evaluate(mutant, instance.inputs, instance.sizes)
        except EvaluationError as error:
            return "missed", f"{error}, {instance}"
        for b, made in zip(outputs, mutant.outputs, strict=True):
            expected, got = instance.expected[b.name], have[made.name]
            same = np.isclose(got, expected, rtol=1e-6, atol=1e-9) | np.isnan(expected.astype(float))
            if not same.all():
                where = tuple(int(i) for i in np.argwhere(~same)[0])
                return "missed", f"{b.name}{list(where)} is {got[where]}, not {expected[where]}, {instance}"
    usual = _errors_as_made(name, isinstance(mutant, TileProgram))
    try:
        for (family, limit, mine), as_made in zip(rounding(name, mutant), usual, strict=True):
            if mine > max(limit, 2 * as_made):
                return "rounding errors", f"{mine:.2g} where {limit:.2g} is allowed, {family} inputs"
    except EvaluationError as error:
        return "missed", str(error)
    return "equal", f"in float64 on {len(instances(name))} instances; rounds no worse"


# --- rounding -------------------------------------------------------------------------------------


@cache
def _hostile(name: str) -> tuple[tuple[Instance, Mapping[str, Any]], ...]:
    """Instances that rounding errors show on, and what the expression as it is written makes of them."""
    rng, original = np.random.default_rng(1), CASES[name].forms().original
    structural = _structural(name)
    sizes: dict[str, Any] = {
        s.name: 0.5 if is_float(s.dtype) else _range(s, s.name in structural, 2 * LONGEST)[-1]
        for s in _scalars(name).values()
    }
    _with_tiles(name, sizes, lambda: 2)
    found = []
    for family in HOSTILE:
        inputs = _inputs(name, sizes, rng, family)
        inputs |= {b.name: round_to(inputs[b.name], b.dtype) for b in original.inputs if is_float(b.dtype)}
        instance = Instance(family, sizes, inputs, evaluate(original, inputs, sizes))
        found.append((instance, evaluate(original, inputs, sizes, Rounded())))
    return tuple(found)


def rounding(name: str, program: AnyProgram) -> Iterator[tuple[str, float, float]]:
    """(inputs, the error that is allowed, the error) of all outputs, in the worst row."""
    outputs = CASES[name].forms().original.outputs
    for instance, unfused in _hostile(name):
        have = evaluate(program, instance.inputs, instance.sizes, Rounded())
        for b, mine in zip(outputs, program.outputs, strict=True):
            if is_float(b.dtype):
                want = instance.expected[b.name]
                limit = allowance(b.dtype, rel_error(unfused[b.name], want).row)
                yield instance.style, limit, rel_error(have[mine.name], want).row


@cache
def _errors_as_made(name: str, tiles: bool) -> tuple[float, ...]:
    """The errors of the program that mutants are made of."""
    forms = CASES[name].forms()
    return tuple(error for _, _, error in rounding(name, forms.tiles if tiles else forms.fused))
