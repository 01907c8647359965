"""Many choices of parameters at many sizes, as columns: an array for every name that a prediction reads.

    columns_of(matmul, [({"BLOCK_M": 64, …}, {"m": 4096, …}), ({"BLOCK_M": 64, …}, {"m": 1, …})], machine)
    →  {"m": [4096., 1.], …, "BLOCK_M": [64., 64.], …}

Beside what is given there are the numbers that follow from it: tiles that cover a size, and parts. Points are made of
few different choices and few different sizes, each of which is read once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from math import prod
from typing import TypeAlias

import numpy as np

from neptune.ir.dtypes import is_float
from neptune.runtime.modules import covers
from neptune.runtime.parts import Parts, count_parts
from neptune.tile.ir import TileProgram
from neptune.tune.machine import Machine
from neptune.tune.numbers import Array, Numbers
from neptune.tune.parts import parts_of

Known: TypeAlias = Mapping[str, int]
Columns: TypeAlias = dict[str, Array]


def columns_of(program: TileProgram, points: Sequence[tuple[Known, Known]], machine: Machine) -> Columns:
    """The columns of points, each parameters at sizes, with what follows from both; where that cannot be computed, as
    where a size is divided by 0, it is 1."""
    # Numbers that are arguments decide no time.
    numbers = {s.name: 1 for s in program.scalars if is_float(s.dtype)}
    rules = parts_of(program)
    params, sizes = _Rows([p for p, _ in points]), _Rows([s for _, s in points])
    if params.alike and sizes.alike:
        given = {n: np.ones(len(points)) for n in numbers} | sizes.columns() | params.columns()
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


class _Rows:
    """Mappings, of which many are one object."""

    def __init__(self, rows: Sequence[Known]) -> None:
        number: dict[int, int] = {}
        self.which = [number.setdefault(id(row), len(number)) for row in rows]
        self.different = list({id(row): row for row in rows}.values())

    @property
    def alike(self) -> bool:
        """True if all of them have the same names."""
        return all(row.keys() == self.different[0].keys() for row in self.different)

    def columns(self) -> Columns:
        return {n: np.array([row[n] for row in self.different], np.float64)[self.which] for n in self.different[0]}


def _following(program: TileProgram, rules: Sequence[Parts], given: Columns, machine: Machine) -> Columns:
    """The columns of what follows from others; FloatingPointError where a size is divided by 0."""
    made: Columns = {}
    one, size = np.ones(len(next(iter(given.values())))), Numbers()
    for t in program.tunables:
        if t.covers is not None:
            lengths = (one * size.of(t.covers)(given)).tolist()
            made[t.name] = np.array([1 << max(0, int(n) - 1).bit_length() for n in lengths], np.float64)
    known = given | made
    for rule in rules:
        if rule.number not in known:
            whole = {**known, rule.number: one}
            grids = [prod((size.of(e)(whole) for e in grid), start=one) for grid in rule.grids]
            programs, steps = reduce(np.maximum, grids) if grids else one, one * size.of(rule.steps)(known)
            pairs = list(zip(map(int, programs.tolist()), map(int, steps.tolist()), strict=True))
            there_are = rule.processors or machine.processors
            parts = {x: count_parts(*x, there_are, rule.most, rule.busy) for x in dict.fromkeys(pairs)}
            made[rule.number] = np.array([parts[x] for x in pairs], np.float64)
    return made


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
