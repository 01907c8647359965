"""The sizes for which schedules are chosen where a caller names none: a typical choice, and many around it.

    reference(matmul)  →  {"m": 4096, "n": 4096, "k": 4096}
    points(matmul)     →  that, each of its sizes from 1 to 128k, and combinations of short and long ones

A size that leads the dimensions of every tensor it is a size of, as batch and heads do, counts repetitions of the same
work: it is a few, others are long. No point has tensors beyond what a GPU holds.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from itertools import product
from math import log2, prod

import numpy as np

from neptune.ir.dtypes import DTYPES, is_float
from neptune.ir.expr import Var, variables
from neptune.ir.program import Program
from neptune.runtime.family import class_of
from neptune.tile.ir import TileProgram
from neptune.tune.model.numbers import Numbers

Sizes = dict[str, int]
Limits = tuple[int, int, int]
"""The least and the largest value of a size, and what divides it."""
FEW, LONG = 8, 4096
"""A typical number of repetitions, and a typical length."""
REPEATED = ((1, 1), (1, FEW), (4, FEW), (16, 16))
"""Repetitions that are combined with lengths, of the first size and of others."""
LENGTHS = (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
"""Lengths that are combined with each other: each power of two from 16 on, since what fits registers as the tile of one
length may be spilled at the next."""
LADDER = (1, 4, 16, 64, 256, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
"""Lengths that each size has once, the others being typical."""
TYPICAL_BYTES, MOST_BYTES = 1 << 31, 1 << 36
"""Of all inputs and outputs: of the typical choice, and of any point."""
MOST = 1024
"""Points at most: of more combinations, so many by chance, always the same."""


def sizes_of(program: Program | TileProgram) -> tuple[str, ...]:
    """The sizes that a call decides, integers that are arguments included."""
    return tuple(s.name for s in program.scalars if s.upto is None and not is_float(s.dtype))


def reference(program: Program, typical: Mapping[str, int], bounds: Mapping[str, int]) -> Sizes:
    """Typical sizes: those that are given, and for the others what is usual and fits."""
    limits, few = _limits(program, bounds), repeated(program)
    sizes = {n: _within(FEW if n in few else LONG, limits[n]) for n in limits} | dict(typical)
    free = [n for n in limits if n not in typical and n not in few]
    while _bytes(program, sizes) > TYPICAL_BYTES and any(sizes[n] > max(1, limits[n][0]) for n in free):
        sizes |= {n: _within(sizes[n] // 2, limits[n]) for n in free}
    return sizes


def points(program: Program, typical: Mapping[str, int], bounds: Mapping[str, int]) -> tuple[Sizes, ...]:
    """The sizes at which schedules are compared, the reference first."""
    start, limits, few = reference(program, typical, bounds), _limits(program, bounds), repeated(program)
    free = [n for n in limits if n not in typical]
    every = [start, *_one_by_one(start, free), *_combined(start, free, few)]
    legal = ({n: _within(v, limits[n]) if n in free else v for n, v in p.items()} for p in every)
    fitting = [p for p in legal if _bytes(program, p) <= MOST_BYTES]
    unique = list({tuple(p.items()): p for p in (start, *fitting)}.values())
    if len(unique) > MOST:
        unique = [start, *random.Random(0).sample(unique[1:], MOST - 1)]
    return tuple(unique)


def between(program: Program, bounds: Mapping[str, int], count: int) -> list[Sizes]:
    """So many other sizes, even in their logarithms, always the same: half of them with lengths alike, as queries and
    keys are."""
    limits, few, draw = _limits(program, bounds), repeated(program), random.Random(0)
    sizes: list[Sizes] = []
    for k in range(count * 4):
        one = {n: _within(round(2 ** draw.uniform(0, log2(max(2, limit[1])))), limit) for n, limit in limits.items()}
        if k % 2 and (lengths := [n for n in one if n not in few]):
            one |= {n: _within(one[lengths[0]], limits[n]) for n in lengths}
        if len(sizes) < count and _bytes(program, one) <= MOST_BYTES:
            sizes.append(one)
    return sizes


def class_sizes(program: Program, sizes: Mapping[str, int | float]) -> Sizes:
    """The sizes that stand for those of a call, and of all calls of their class: the largest that are legal."""
    known, found = {s.name: s for s in program.scalars}, Sizes()
    for n in sizes_of(program):
        value, s = int(sizes[n]), known[n]
        if value >= max(1, s.lo or 0):
            longest = -(-class_of(value) // s.divisor) * s.divisor
            found[n] = value if s.hi is not None and longest > s.hi else longest
    return found


def _one_by_one(start: Sizes, free: list[str]) -> Iterator[Sizes]:
    for name in free:
        yield from ({**start, name: length} for length in LADDER)


def _combined(start: Sizes, free: list[str], repeated: frozenset[str]) -> Iterator[Sizes]:
    """Combinations of lengths, each with few and with many repetitions."""
    long, times = [n for n in free if n not in repeated], [n for n in free if n in repeated]
    wide = LENGTHS if len(long) <= 3 else LENGTHS[::3]
    for first, others in REPEATED if times else ((1, 1),):
        counts = {**dict.fromkeys(times, others), **dict.fromkeys(times[:1], first)}
        for values in product(wide, repeat=min(len(long), 5)):
            yield {**start, **counts, **dict(zip(long, values, strict=False))}


def _limits(program: Program, bounds: Mapping[str, int]) -> dict[str, Limits]:
    known = {s.name: s for s in program.scalars}
    limits: dict[str, Limits] = {}
    for n in sizes_of(program):
        lo = known[n].lo or 0
        hi = min(x for x in (bounds.get(n), known[n].hi, LADDER[-1]) if x is not None)
        limits[n] = (lo, max(lo, hi), known[n].divisor)
    return limits


def _within(value: int, limits: Limits) -> int:
    lo, hi, by = limits
    return max(-(-lo // by), min(value, hi) // by) * by


def repeated(program: Program) -> frozenset[str]:
    """Sizes of leading dimensions alone: neither of the last two of any tensor, and of every result."""
    outer: set[str] = set()
    inner: set[str] = set()
    for b in (*program.inputs, *program.outputs):
        for k, d in enumerate(b.shape):
            (inner if k >= len(b.shape) - 2 else outer).update(variables(d))
    everywhere = [{v for d in b.shape if isinstance(d, Var) for v in variables(d)} for b in program.outputs]
    return frozenset(n for n in outer - inner if all(n in names for names in everywhere))


def _bytes(program: Program, sizes: Sizes) -> float:
    """The bytes of all inputs and outputs."""
    known = {n: float(v) for n, v in sizes.items()}
    tensors = (*program.inputs, *program.outputs)
    # Sizes that others are divided by may be 0.
    with np.errstate(all="ignore"):
        lengths = [prod(float(Numbers().of(d)(known)) for d in b.shape) for b in tensors]
    return sum(n * DTYPES[b.dtype].bits / 8 for n, b in zip(lengths, tensors, strict=True))
