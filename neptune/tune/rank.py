"""Values of parameters in the order of the times that the cost model predicts, for sizes that a caller names.

    ranked(tiles, {"batch": 4, "heads": 16, "s_q": 4096, "s_kv": 4096}, DEVICES["H200"])[0].params
    →  {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3}

Candidates are those that a template declares for its tiles, times warps and stages; where a tile covers a size, it
follows from it, and where a launch folds an axis in parts, their number from its rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise, product
from math import inf, isfinite, prod

import numpy as np

from neptune.ir.dtypes import is_float
from neptune.ir.expr import variables
from neptune.tile.ir import TileProgram
from neptune.tile.registers import dots
from neptune.tune.columns import Points, columns_of
from neptune.tune.cost import Model
from neptune.tune.machine import Machine
from neptune.tune.parts import parts_of
from neptune.tune.prediction import KernelTime, Prediction, Predictions

WARPS, STAGES = (4, 8), (2, 3, 4)
"""With products: a warp group or two, and pipelines."""
ROW_WARPS, ROW_STAGES = (4, 8, 16), (2,)
"""Without: more threads for longer rows; nothing is pipelined."""
MOST = 512
"""Combinations of tiles that are compared one by one; where there are more, one tile at a time is changed."""
LONGEST = 1 << 32
"""The longest size that is told from longer ones: beyond, predictions are proportional, and floats have an end."""
DEPTH = 2
"""Stages with which tiles are compared, before warps and stages are."""
KEPT = 12
"""Combinations of tiles for which warps and stages are compared."""
CLOSE = 1.02
"""Predictions that differ by less say nothing: then fewer registers of all threads are better."""
PIPELINE = 3
"""Stages that were fastest most often among equals."""
LAUNCH = ("num_warps", "num_stages")


@dataclass(frozen=True)
class Ranked:
    """A value for each free tunable, num_warps and num_stages, with what the model says of it."""

    params: Mapping[str, int]
    prediction: Prediction


def ranked(
    program: TileProgram, sizes: Mapping[str, int], machine: Machine, given: Mapping[str, int] | None = None
) -> tuple[Ranked, ...]:
    """Candidates that fit the machine, best first, with the values that are `given`; none where a size is missing."""
    return _ranked(program, tuple(sorted(sizes.items())), machine, tuple(sorted((given or {}).items())))


@lru_cache(maxsize=16)
def model_of(program: TileProgram) -> Model:
    """The model of a program, kept with what it has counted."""
    return Model(program)


@lru_cache(maxsize=64)
def _ranked(
    program: TileProgram, sizes: tuple[tuple[str, int], ...], machine: Machine, given: tuple[tuple[str, int], ...]
) -> tuple[Ranked, ...]:
    return ranked_at(program, [dict(sizes)], machine, dict(given))[0]


def ranked_at(
    program: TileProgram,
    many: Sequence[Mapping[str, int]],
    machine: Machine,
    given: Mapping[str, int],
    most: int | None = None,
) -> list[tuple[Ranked, ...]]:
    """`ranked` at many sizes at once, of each the first `most`."""
    points = [{n: min(size, LONGEST) for n, size in sizes.items()} for sizes in many]
    needed = {s.name for s in program.scalars if s.upto is None and not is_float(s.dtype)}
    if not all(needed <= known.keys() for known in points):
        return [() for _ in points]
    space, model = _space(program), model_of(program)
    launches = {"num_warps": space["num_warps"][-1:], "num_stages": (DEPTH,)}
    tiles = _tiles(model, points, machine, space | launches | {n: (v,) for n, v in given.items()})
    asked: list[dict[str, int]] = []
    ends = [0]
    fixed = dict(given)
    for kept in tiles:
        whole = (params | launch | fixed for params in kept for launch in _combinations({n: space[n] for n in LAUNCH}))
        asked += {tuple(p.items()): p for p in whole}.values()
        ends.append(len(asked))
    if not asked:
        return [() for _ in points]
    at = [k for k, (a, b) in enumerate(pairwise(ends)) for _ in range(a, b)]
    found = predictions(model, Points(asked, points, range(len(asked)), at), machine)
    return [_ordered(found, asked, range(a, b), most) for a, b in pairwise(ends)]


def _ordered(
    found: Predictions, asked: Sequence[dict[str, int]], numbers: range, most: int | None
) -> tuple[Ranked, ...]:
    """Those of the predictions with these numbers that fit the machine, best first, `most` of them at most."""
    times = dict(zip(numbers, found.us[numbers.start : numbers.stop].tolist(), strict=True))
    fitting = [k for k in numbers if isfinite(times[k])]
    best = min((times[k] for k in fitting), default=0.0)

    def order(k: int) -> tuple[float, ...]:
        us, params = times[k], asked[k]
        if us > CLOSE * best:
            return True, us
        registers = max(t.needs[t.which[k]].registers for t in found.kernels) * params["num_warps"]
        # Larger tiles are fewer steps, and fewer latencies that may not be hidden.
        tiles = prod(v for n, v in params.items() if n not in LAUNCH)
        return False, registers, abs(params["num_stages"] - PIPELINE), -tiles, us

    return tuple(Ranked(asked[k], found.at(k)) for k in sorted(fitting, key=order)[:most])


def searches(program: TileProgram) -> bool:
    """True where combinations are too many to be compared one by one, which takes longer."""
    return prod(len(t.candidates) for t in program.tunables if t.covers is None) > MOST


def _space(program: TileProgram) -> dict[str, tuple[int, ...]]:
    """The values that are tried of each parameter."""
    products = any(True for k in program.kernels for _ in dots(k))
    tiles = {t.name: t.candidates for t in program.tunables if t.covers is None}
    return tiles | {"num_warps": WARPS if products else ROW_WARPS, "num_stages": STAGES if products else ROW_STAGES}


def _tiles(
    model: Model, points: Sequence[Mapping[str, int]], machine: Machine, space: Mapping[str, Sequence[int]]
) -> list[list[dict[str, int]]]:
    """The best combinations of values at each point: of all, or where these are too many, of those that a search has
    met."""
    if prod(len(values) for values in space.values()) > MOST:
        return [_searched(Predictor(model, known, machine), space) for known in points]
    every = list(_combinations(space))
    us = predictions(model, Points.product(every, points), machine).us
    rows = np.asarray(us).reshape(len(every), len(points)).T
    return [[every[k] for k in row.argsort(kind="stable")[:KEPT] if isfinite(row[k])] for row in rows]


def _searched(made: Predictor, space: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    starts = ({n: values[0] for n, values in space.items()}, {n: min(values) for n, values in space.items()})
    found = (r for start in starts for r in _descent(made, space, start))
    unique = {tuple(r.params.items()): r for r in found}.values()
    return [dict(r.params) for r in sorted(unique, key=lambda r: r.prediction.us)[:KEPT]]


def _descent(made: Predictor, space: Mapping[str, Sequence[int]], at: Mapping[str, int]) -> list[Ranked]:
    """What a search meets that changes one value at a time, as long as that makes the program faster: kernels have
    tiles of their own, and their times add up."""
    found: list[Ranked] = []
    best, before = inf, None
    while best != before:
        before = best
        for name, values in space.items():
            for r in made.of([{**at, name: value} for value in values]):
                found.append(r)
                if r.prediction.us < best:
                    best, at = r.prediction.us, r.params
    return found


def _combinations(space: Mapping[str, Sequence[int]]) -> Iterator[dict[str, int]]:
    return (dict(zip(space, values, strict=True)) for values in product(*space.values()))


@dataclass(frozen=True)
class Predictor:
    """Predictions of one program for one machine and sizes. The time of a kernel with the values that it reads is kept:
    most of what a search changes is of other kernels."""

    model: Model
    sizes: Mapping[str, int]
    machine: Machine
    known: dict[tuple[object, ...], KernelTime] = field(default_factory=dict)

    def of(self, candidates: Iterable[dict[str, int]]) -> list[Ranked]:
        """Those of the candidates that fit the machine."""
        asked = list(candidates)
        times = zip(*(self._times(k, asked) for k in range(len(self.model.works))), strict=True)
        launches = self.model.launches()
        found = (Prediction(launches + sum(t.us for t in kernels), kernels) for kernels in times)
        return [Ranked(params, p) for params, p in zip(asked, found, strict=True) if isfinite(p.us)]

    def _times(self, k: int, asked: Sequence[dict[str, int]]) -> list[KernelTime]:
        """The times of kernel k."""
        reads = self.reads[k]
        keys = [(k, *((n, v) for n, v in params.items() if n.rpartition(".")[2] in reads)) for params in asked]
        fresh = {key: params for key, params in zip(keys, asked, strict=True) if key not in self.known}
        if fresh:
            columns = columns_of(self.model.program, Points.at([*fresh.values()], self.sizes), self.machine)
            found = self.model.times(self.model.works[k], columns, self.machine)
            self.known.update((key, found.at(n)) for n, key in enumerate(fresh))
        return [self.known[key] for key in keys]

    @cached_property
    def reads(self) -> list[frozenset[str]]:
        """The names of parameters that the time of each kernel follows from."""
        program = self.model.program
        sources = {r.number: r.sizes for r in parts_of(program)}
        sources |= {t.name: variables(t.covers) for t in program.tunables if t.covers is not None}
        # Parts may follow from tiles that cover a size.
        read = [self.model.reads(work) for work in self.model.works]
        for name, names in sources.items():
            read = [r | names if name in r else r for r in read]
        return read


def predictions(model: Model, points: Points, machine: Machine) -> Predictions:
    """The predictions for parameters at sizes, with what follows from both: tiles that cover a size, and parts. What
    cannot be computed, as where a size is divided by 0, is predicted to take for ever."""
    return model.predict_all(columns_of(model.program, points, machine), machine)
