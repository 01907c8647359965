"""Values of parameters in the order of the times that the cost model predicts, for sizes that a caller names.

    ranked(tiles, {"batch": 4, "heads": 16, "s_q": 4096, "s_kv": 4096}, DEVICES["H200"])[0].params
    →  {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3}

Candidates are those that a template declares for its tiles, times warps and stages; where a tile covers a size, it
follows from it, and where a launch folds an axis in parts, their number from its rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from math import inf, isfinite, prod

import numpy as np

from neptune.ir.dtypes import is_float
from neptune.runtime.modules import covers
from neptune.runtime.parts import Parts
from neptune.tile.ir import TileProgram
from neptune.tile.registers import dots
from neptune.tune.cost import Model
from neptune.tune.machine import Machine
from neptune.tune.parts import parts_of
from neptune.tune.prediction import Prediction, Predictions

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
    program: TileProgram, many: Sequence[Mapping[str, int]], machine: Machine, given: Mapping[str, int]
) -> list[tuple[Ranked, ...]]:
    """`ranked` at many sizes at once."""
    points = [{n: min(size, LONGEST) for n, size in sizes.items()} for sizes in many]
    needed = {s.name for s in program.scalars if s.upto is None and not is_float(s.dtype)}
    if not all(needed <= known.keys() for known in points):
        return [() for _ in points]
    space, model = _space(program), model_of(program)
    launches = {"num_warps": space["num_warps"][-1:], "num_stages": (DEPTH,)}
    tiles = _tiles(model, points, machine, space | launches | {n: (v,) for n, v in given.items()})
    asked: list[tuple[dict[str, int], Mapping[str, int]]] = []
    ends = [0]
    fixed = dict(given)
    for known, kept in zip(points, tiles, strict=True):
        whole = (params | launch | fixed for params in kept for launch in _combinations({n: space[n] for n in LAUNCH}))
        asked += [(params, known) for params in {tuple(p.items()): p for p in whole}.values()]
        ends.append(len(asked))
    if not asked:
        return [() for _ in points]
    found = predictions(model, asked, machine)
    return [_ordered(found, asked, range(a, b)) for a, b in pairwise(ends)]


def _ordered(
    found: Predictions, asked: Sequence[tuple[dict[str, int], Mapping[str, int]]], numbers: range
) -> tuple[Ranked, ...]:
    """Those of the predictions with these numbers that fit the machine, best first."""
    fitting = [Ranked(asked[k][0], found.at(k)) for k in numbers if isfinite(found.us[k])]
    best = min((r.prediction.us for r in fitting), default=0.0)

    def order(r: Ranked) -> tuple[float, ...]:
        us, kernels = r.prediction.us, r.prediction.kernels
        if us > CLOSE * best:
            return True, us
        registers = max(k.needs.registers for k in kernels) * r.params["num_warps"]
        # Larger tiles are fewer steps, and fewer latencies that may not be hidden.
        tiles = prod(v for n, v in r.params.items() if n not in LAUNCH)
        return False, registers, abs(r.params["num_stages"] - PIPELINE), -tiles, us

    return tuple(sorted(fitting, key=order))


def combinations_of(program: TileProgram) -> Iterator[dict[str, int]]:
    """All combinations of the values that are tried of each parameter."""
    return _combinations(_space(program))


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
    us = predictions(model, [(params, known) for known in points for params in every], machine).us
    rows = np.asarray(us).reshape(len(points), len(every))
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
    """Predictions of one program for one machine and sizes."""

    model: Model
    sizes: Mapping[str, int]
    machine: Machine

    def of(self, candidates: Iterable[dict[str, int]]) -> list[Ranked]:
        """Those of the candidates that fit the machine."""
        asked = list(candidates)
        if not asked:
            return []
        found = predictions(self.model, [(params, self.sizes) for params in asked], self.machine)
        return [Ranked(params, found.at(k)) for k, params in enumerate(asked) if isfinite(found.us[k])]


def predictions(
    model: Model, points: Sequence[tuple[Mapping[str, int], Mapping[str, int]]], machine: Machine
) -> Predictions:
    """The predictions for parameters at sizes, with what follows from both: tiles that cover a size, and parts. What
    cannot be computed, as where a size is divided by 0, is predicted to take for ever."""
    program, rules = model.program, parts_of(model.program)
    # Numbers that are arguments decide no time.
    numbers = {s.name: 1 for s in program.scalars if is_float(s.dtype)}
    rows = [_whole(program, rules, params, {**numbers, **sizes}, machine) for params, sizes in points]
    names = dict.fromkeys(n for row in rows for n in row)
    # A parameter of one kernel alone is that of all where a point does not give it.
    columns = {n: [row.get(n, row.get(n.rpartition(".")[2], 1)) for row in rows] for n in names}
    return model.predict_all(columns, machine)


def _whole(
    program: TileProgram, rules: Sequence[Parts], params: Mapping[str, int], sizes: Mapping[str, int], machine: Machine
) -> Mapping[str, int]:
    """Sizes and parameters, with those that follow; where these cannot be computed they are 1."""
    known = {**sizes, **params}
    try:
        known |= covers(program, known)
        own = [r for r in rules if r.number not in known]
        return {**known, **{r.number: r.default(known, machine.processors) for r in own}}
    except ZeroDivisionError:
        covering = [t.name for t in program.tunables if t.covers is not None]
        return {**known, **dict.fromkeys([*covering, *(r.number for r in rules)], 1)}
