"""Values of parameters in the order of the times that the cost model predicts, for sizes that a caller names.

    ranked(tiles, {"batch": 4, "heads": 16, "s_q": 4096, "s_kv": 4096}, DEVICES["H200"])[0].params
    →  {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3}

Candidates are those that a template declares for its tiles, times warps and stages; where a tile covers a size, it
follows from it, and where a launch folds an axis in parts, their number from its rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise, product
from math import inf, isfinite, prod
from typing import TypeAlias

import numpy as np

from neptune.ir.dtypes import is_float
from neptune.ir.expr import variables
from neptune.ir.integers import known_size
from neptune.tile.ir import TileProgram
from neptune.tile.registers import dots
from neptune.tune.model.columns import Points, columns_of
from neptune.tune.model.cost import Model
from neptune.tune.model.machine import Machine
from neptune.tune.model.prediction import Prediction, Predictions
from neptune.tune.model.work import KernelWork
from neptune.tune.parts import parts_of

WARPS, STAGES = (4, 8), (2, 3, 4)
"""With products: a warp group or two, and pipelines."""
DEEP, GROUP_ROWS = 5, 64
"""A longer pipeline where a loop streams an operand past fewer rows than a warp group takes: nothing else hides
loads."""
ROW_WARPS, ROW_STAGES = (4, 8, 16), (2,)
"""Without: more threads for longer rows; nothing is pipelined."""
MOST = 512
"""Combinations of tiles that are compared one by one; where there are more, one tile at a time is changed."""
LONGEST = 1 << 32
"""The longest size that is told from longer ones: beyond, predictions are proportional, and floats have an end."""
DEPTH = 3
"""Stages with which tiles are compared, before warps and stages are: with fewer, latencies mislead."""
KEPT = 24
"""Combinations of tiles for which warps and stages are compared."""
FEW = 4
"""Combinations of each group of kernels, which are combined with each other."""
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
    choices: list[dict[str, int]] = []
    ends = [0]
    fixed = dict(given)
    for kept in tiles:
        launched = (params | launch for params in kept for launch in _combinations({n: space[n] for n in LAUNCH}))
        complete = (params | fixed for params in launched if _of_use(model, params))
        choices += {tuple(p.items()): p for p in complete}.values()
        ends.append(len(choices))
    if not choices:
        return [() for _ in points]
    which = [k for k, (a, b) in enumerate(pairwise(ends)) for _ in range(a, b)]
    predicted = predictions(model, Points(choices, points, range(len(choices)), which), machine)
    return [_ordered(predicted, choices, range(a, b), most) for a, b in pairwise(ends)]


def _ordered(
    predicted: Predictions, choices: Sequence[dict[str, int]], numbers: range, most: int | None
) -> tuple[Ranked, ...]:
    """Those of the predictions with these numbers that fit the machine, best first, `most` of them at most."""
    times = dict(zip(numbers, predicted.us[numbers.start : numbers.stop].tolist(), strict=True))
    fitting = [k for k in numbers if isfinite(times[k])]
    best = min((times[k] for k in fitting), default=0.0)

    def order(k: int) -> tuple[float, ...]:
        us, params = times[k], choices[k]
        if us > CLOSE * best:
            return True, us
        return False, *preferred(predicted, k, params), us

    return tuple(Ranked(choices[k], predicted.at(k)) for k in sorted(fitting, key=order)[:most])


def preferred(predicted: Predictions, k: int, params: Mapping[str, int]) -> tuple[float, ...]:
    """What decides between choices that are predicted to be as fast, the least first: prediction number k is of one."""
    registers = max(t.needs[t.which[k]].registers for t in predicted.kernels) * params["num_warps"]
    # Larger tiles are fewer steps, and fewer latencies that may not be hidden.
    tiles = prod(v for n, v in params.items() if n not in LAUNCH)
    return registers, abs(params["num_stages"] - PIPELINE), -tiles


def worth_trying(
    program: TileProgram, many: Sequence[Mapping[str, int]], machine: Machine, given: Mapping[str, int]
) -> list[dict[str, int]]:
    """All combinations of the values that are tried of each parameter, with the values that are `given`; where these
    are too many, what ranks at one of the sizes."""
    if prod(len(t.candidates) for t in program.tunables if t.covers is None) > MOST:
        every: Iterable[Mapping[str, int]] = (
            r.params for sizes in many for r in ranked(program, sizes, machine, given)
        )
    else:
        of_use = (values for values in _combinations(_space(program)) if _of_use(model_of(program), values))
        every = ({**values, **given} for values in of_use)
    return [dict(p) for p in {tuple(p.items()): p for p in every}.values()]


def _space(program: TileProgram) -> dict[str, tuple[int, ...]]:
    """The values that are tried of each parameter."""
    products = any(True for k in program.kernels for _ in dots(k))
    tiles = {t.name: t.candidates for t in program.tunables if t.covers is None}
    stages = (*STAGES, DEEP) if products else ROW_STAGES
    return tiles | {"num_warps": WARPS if products else ROW_WARPS, "num_stages": stages}


def _of_use(model: Model, params: Mapping[str, int]) -> bool:
    """False for a longer pipeline than the others where no loop multiplies few rows by what it loads."""
    return params["num_stages"] != DEEP or any(_streams(work, params) for work in model.works)


def _streams(work: KernelWork, params: Mapping[str, int]) -> bool:
    extents = dict(work.kernel.axes)
    loops = (s.products for s in work.sections if s.loop is not None and s.products)
    loaded = (p for products in loops if not any(x.in_registers for x in products) for p in products)
    return any(p.rows in extents and known_size(extents[p.rows], params) < GROUP_ROWS for p in loaded)


def _tiles(
    model: Model, points: Sequence[Mapping[str, int]], machine: Machine, space: Mapping[str, Sequence[int]]
) -> list[list[dict[str, int]]]:
    """The best combinations of values at each point: of all, or where these are too many, of the best of each group of
    kernels; where those are too many as well, of those that a search has met."""
    if prod(len(values) for values in space.values()) > MOST:
        groups = _groups(model, space)
        if all(prod(len(space[n]) for n in names) <= MOST for names, _ in groups):
            return _of_groups(model, points, machine, space, groups)
        return [_searched(partial(_times, model, known, machine), space) for known in points]
    every = list(_combinations(space))
    us = predictions(model, Points.product(every, points), machine).us
    rows = np.asarray(us).reshape(len(every), len(points)).T
    return [[every[k] for k in row.argsort(kind="stable")[:KEPT] if isfinite(row[k])] for row in rows]


def _groups(model: Model, space: Mapping[str, Sequence[int]]) -> list[tuple[list[str], list[int]]]:
    """The names of values that the same kernels read, and the numbers of these kernels: times of groups add up."""
    groups: list[tuple[set[str], list[int]]] = []
    for k, read in enumerate(reads(model)):
        names = {n for n in space if n.rpartition(".")[2] in read and len(space[n]) > 1}
        sharing = [g for g in groups if g[0] & names]
        groups = [g for g in groups if g not in sharing]
        groups.append((names.union(*(g[0] for g in sharing)), sorted([k, *(i for g in sharing for i in g[1])])))
    return [([n for n in space if n in names], kernels) for names, kernels in groups]


def _of_groups(
    model: Model,
    points: Sequence[Mapping[str, int]],
    machine: Machine,
    space: Mapping[str, Sequence[int]],
    groups: Sequence[tuple[list[str], list[int]]],
) -> list[list[dict[str, int]]]:
    """The best combinations at each point, of the FEW best ones of each group."""
    first = {n: values[0] for n, values in space.items()}
    kept: list[list[tuple[float, dict[str, int]]]] = [[(0.0, first)] for _ in points]
    for names, kernels in groups:
        every = list(_combinations({n: space[n] for n in names}))
        predicted = predictions(model, Points.product([first | own for own in every], points), machine)
        us = np.asarray(sum(predicted.kernels[k].us for k in kernels)).reshape(len(every), len(points))
        for point, row in enumerate(us.T):
            best = [k for k in row.argsort(kind="stable")[:FEW] if isfinite(row[k])]
            complete = [(before + float(row[k]), params | every[k]) for before, params in kept[point] for k in best]
            kept[point] = sorted(complete, key=lambda w: w[0])[:KEPT]
    return [[params for _, params in paths] for paths in kept]


Asked: TypeAlias = Callable[[list[dict[str, int]]], Sequence[float]]
"""The times of choices of parameters, in microseconds."""


def _times(model: Model, sizes: Mapping[str, int], machine: Machine, choices: list[dict[str, int]]) -> Sequence[float]:
    return [float(us) for us in predictions(model, Points.at(choices, sizes), machine).us]


def _searched(ask: Asked, space: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    starts = ({n: values[0] for n, values in space.items()}, {n: min(values) for n, values in space.items()})
    times = {tuple(params.items()): us for start in starts for us, params in _descent(ask, space, start)}
    return [dict(params) for params in sorted(times, key=lambda params: times[params])[:KEPT]]


def _descent(
    ask: Asked, space: Mapping[str, Sequence[int]], params_now: dict[str, int]
) -> Iterator[tuple[float, dict[str, int]]]:
    """What a search meets that changes one value at a time, as long as that makes the program faster."""
    best, before = inf, None
    while best != before:
        before = best
        for name, values in space.items():
            choices = [{**params_now, name: value} for value in values]
            for us, params in zip(ask(choices), choices, strict=True):
                if isfinite(us):
                    yield us, params
                if us < best:
                    best, params_now = us, params


def _combinations(space: Mapping[str, Sequence[int]]) -> Iterator[dict[str, int]]:
    return (dict(zip(space, values, strict=True)) for values in product(*space.values()))


def reads(model: Model) -> list[frozenset[str]]:
    """The names of parameters that the time of each kernel follows from."""
    sources = {r.number: r.sizes for r in parts_of(model.program)}
    sources |= {t.name: variables(t.covers) for t in model.program.tunables if t.covers is not None}
    # Parts may follow from tiles that cover a size.
    read = [model.reads(work) for work in model.works]
    for name, names in sources.items():
        read = [r | names if name in r else r for r in read]
    return read


def predictions(model: Model, points: Points, machine: Machine) -> Predictions:
    """The predictions for parameters at sizes, with what follows from both: tiles that cover a size, and parts. What
    cannot be computed, as where a size is divided by 0, is predicted to take for ever."""
    return model.predict_all(columns_of(model.program, points, machine), machine)
