"""Draw small instances of programs: sizes, tunables and inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from neptune.ir.dtypes import is_float
from neptune.ir.expr import Expr, variables
from neptune.ir.program import Program, Scalar
from neptune.tile.ir import TileProgram
from neptune.verify.domains import Model
from neptune.verify.expressions import Evaluator
from neptune.verify.floats import Float64
from neptune.verify.memory import Memory

AnyProgram = Program | TileProgram
Sizes = dict[str, int]
# Custom inputs: by name, for those that random small values do not serve (page tables, offsets).
MakeInputs = Callable[[np.random.Generator, Mapping[str, int]], Mapping[str, Any]]

LARGEST = 7
TILES = (1, 2, 4)
# No buffer of an instance has more elements, unless constant dimensions make it so.
VOLUME = 1024


def number(e: Expr, sizes: Mapping[str, int]) -> int:
    """The value of an integer expression over sizes."""
    return int(Evaluator(Memory(Float64())).run(e, sizes))


def _allowed(s: Scalar, largest: int) -> list[int]:
    """Small values of a scalar that respect its bounds and divisor."""
    low = 1 if s.lo is None else s.lo
    first = -(-low // s.divisor) * s.divisor
    last = max(first, largest if s.lo is None else max(largest, s.lo + 3))
    last = last if s.hi is None else min(last, s.hi)
    return list(range(first, last + 1, s.divisor)) or [first]


def draw_sizes(
    original: AnyProgram,
    transformed: AnyProgram,
    rng: np.random.Generator,
    tunables: Mapping[str, Sequence[int]] | None = None,
) -> Sizes:
    """Values for all integer scalars (different ones where their bounds let them be) and all tunables."""
    scalars = {s.name: s for s in (*transformed.scalars, *original.scalars) if not is_float(s.dtype)}
    largest = LARGEST
    while True:
        sizes: Sizes = {}
        for s in scalars.values():
            allowed = _allowed(s, largest)
            fresh = [v for v in allowed if v not in sizes.values()]
            sizes[s.name] = int(rng.choice(fresh or allowed))
        if largest <= 2 or _volume(original, sizes) <= VOLUME:
            break
        largest -= 1
    for t in (*original.tunables, *transformed.tunables):
        if t.covers is not None:
            sizes[t.name] = 1 << max(0, (number(t.covers, sizes) - 1).bit_length())
        elif t.name not in sizes:
            sizes[t.name] = int(rng.choice(list((tunables or {}).get(t.name, TILES))))
    return sizes


def _volume(program: AnyProgram, sizes: Sizes) -> int:
    """Elements of the largest buffer that does not depend on tunables."""
    tuned = {t.name for t in program.tunables}
    free = [b for b in program.globals.values() if not any(variables(d) & tuned for d in b.shape)]
    return max([1, *(prod(number(d, sizes) for d in b.shape) for b in free)])


def draw_inputs(
    program: AnyProgram,
    sizes: Sizes,
    model: Model,
    rng: np.random.Generator,
    attempt: int,
    make: MakeInputs | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(inputs, sizes with the float scalars). Later attempts draw smaller, then sorted, integers."""
    given = {} if make is None else dict(make(rng, sizes))
    inputs: dict[str, Any] = {}
    for b in program.inputs:
        shape = tuple(number(d, sizes) for d in b.shape)
        if b.name in given:
            inputs[b.name] = given[b.name]
        elif is_float(b.dtype):
            inputs[b.name] = model.draw(rng, shape)
        elif b.dtype == "bool":
            inputs[b.name] = rng.random(shape) < 0.5
        else:
            values = rng.integers(0, max(1, 4 - attempt % 4), shape)
            inputs[b.name] = np.sort(values, axis=-1) if shape and attempt >= 4 else values
    floats = {s.name: model.draw(rng, ()) for s in program.scalars if is_float(s.dtype)}
    return inputs, {**sizes, **floats}
