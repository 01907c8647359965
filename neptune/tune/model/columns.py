"""Many choices of parameters at many sizes, as columns: an array for every name that a prediction reads.

    columns_of(matmul, Points.product([{"BLOCK_M": 64, …}], [{"m": 4096, …}, {"m": 1, …}]), machine)
    →  {"m": [4096., 1.], …, "BLOCK_M": [64., 64.], …}

Beside what is given there are the numbers that follow from it: tiles that cover a size, and parts. Points are made of
few different choices and few different sizes, each of which is read once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import TypeAlias

import numpy as np

from neptune.ir.dtypes import is_float
from neptune.runtime.modules import covers
from neptune.runtime.parts import Parts, count_parts
from neptune.tile.ir import TileProgram
from neptune.tune.model.machine import Machine
from neptune.tune.model.numbers import Array, Numbers
from neptune.tune.parts import parts_of

Known: TypeAlias = Mapping[str, int]
Columns: TypeAlias = dict[str, Array]


@dataclass(frozen=True)
class Points:
    """Choices of parameters at sizes: of each point the number of either."""

    params: Sequence[Known]
    sizes: Sequence[Known]
    which_params: Sequence[int] | Array
    which_sizes: Sequence[int] | Array

    @staticmethod
    def product(params: Sequence[Known], sizes: Sequence[Known]) -> Points:
        """Every choice of parameters at all sizes, the first one first."""
        numbers = np.arange(len(params) * len(sizes))
        return Points(params, sizes, numbers // max(1, len(sizes)), numbers % max(1, len(sizes)))

    @staticmethod
    def at(params: Sequence[Known], sizes: Known) -> Points:
        """Choices of parameters at the same sizes."""
        return Points.product(params, (sizes,))

    def __len__(self) -> int:
        return len(self.which_params)

    def __iter__(self) -> Iterator[tuple[Known, Known]]:
        return ((self.params[p], self.sizes[s]) for p, s in zip(self.which_params, self.which_sizes, strict=True))


def columns_of(program: TileProgram, points: Points, machine: Machine) -> Columns:
    """The columns of points, with what follows from parameters and sizes; where that cannot be computed, as where a
    size is divided by 0, it is 1."""
    # Numbers that are arguments decide no time.
    numbers = {s.name: 1 for s in program.scalars if is_float(s.dtype)}
    rules = parts_of(program)
    if len(points) and _alike(points.params) and _alike(points.sizes):
        given = {n: np.ones(len(points)) for n in numbers}
        given |= _columns(points.sizes, points.which_sizes) | _columns(points.params, points.which_params)
        try:
            with np.errstate(divide="raise", invalid="raise", over="raise"):
                return given | _following(program, rules, given, machine)
        except FloatingPointError:
            pass
    rows = [_whole(program, rules, p, {**numbers, **s}, machine) for p, s in points]
    names = dict.fromkeys(n for row in rows for n in row)
    # A parameter of one kernel alone is that of all where a point does not give it.
    values = {n: [row.get(n, row.get(n.rpartition(".")[2], 1)) for row in rows] for n in names}
    return {n: np.array(v, dtype=np.float64) for n, v in values.items()}


def _alike(rows: Sequence[Known]) -> bool:
    """True if all rows have the same names."""
    return all(row.keys() == rows[0].keys() for row in rows)


def _columns(rows: Sequence[Known], which: Sequence[int] | Array) -> Columns:
    """The columns of so many rows, by the number of each."""
    return {n: np.array([row[n] for row in rows], np.float64)[which] for n in rows[0]}


def _following(program: TileProgram, rules: Sequence[Parts], given: Columns, machine: Machine) -> Columns:
    """The columns of what follows from others; FloatingPointError where a size is divided by 0."""
    columns: Columns = {}
    one, size = np.ones(len(next(iter(given.values())))), Numbers()
    for t in program.tunables:
        if t.covers is not None:
            lengths = (one * size.of(t.covers)(given)).tolist()
            columns[t.name] = np.array([1 << max(0, int(n) - 1).bit_length() for n in lengths], np.float64)
    known = given | columns
    for rule in rules:
        if rule.number not in known:
            all_known = {**known, rule.number: one}
            grids = [prod((size.of(e)(all_known) for e in grid), start=one) for grid in rule.grids]
            programs, steps = reduce(np.maximum, grids) if grids else one, one * size.of(rule.steps)(known)
            pairs = list(zip(map(int, programs.tolist()), map(int, steps.tolist()), strict=True))
            there_are = rule.processors or machine.processors
            parts = {x: count_parts(*x, there_are, rule.most, rule.busy) for x in dict.fromkeys(pairs)}
            columns[rule.number] = np.array([parts[x] for x in pairs], np.float64)
    return columns


def _whole(program: TileProgram, rules: Sequence[Parts], params: Known, sizes: Known, machine: Machine) -> Known:
    """Sizes and parameters, with those that follow; where these cannot be computed they are 1."""
    known = {**sizes, **params}
    try:
        known |= covers(program, known)
        own = [r for r in rules if r.number not in known]
        return {**known, **{r.number: r.default(known, machine.processors) for r in own}}
    except ZeroDivisionError:
        covering = [t.name for t in program.tunables if t.covers is not None]
        return {**known, **dict.fromkeys([*covering, *(r.number for r in rules)], 1)}
