"""The space of levers and tiles that fit, with predicted times, for a tuner and for the choice of templates.

One choice of levers is for all kernels of a program, as a caller settles them; a kernel that they do not fit stays on
tiles. Templates are compared by the time of a program before any form is derived:

estimated(Source(tiles), Wanted(machine=…), [Asked({"rows": 8192, …}, {"BLOCK_M": 128, …}, 4018.6)])
→  [Time(us=3110.2, close=True)]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite

from neptune.errors import Unsupported
from neptune.forms import Source, Time, Wanted
from neptune.hopper.bodies.role_bodies import RoleBodies
from neptune.hopper.bodies.write import bodies_of
from neptune.hopper.choice.memory import forms, free_tiles
from neptune.hopper.choice.predict import CLOSE, Predictor, with_parts
from neptune.hopper.choice.wanted import ordered, predictor, predictor_of
from neptune.hopper.explain import LEVERS
from neptune.hopper.ir import Levers
from neptune.tile.ir import TileProgram
from neptune.tune.gains import Asked
from neptune.tune.model.machine import Machine

ORDERS = {"table": ("table", "stride", "once", "reverse"), "stride": ("stride", "once"), "once": ("once", "stride")}
"""Orders in which groups of rows may come to programs, by what counts put first: a table, or the longest ones first,
is for groups that differ."""

FEW = 4
"""Tiles that are looked at beyond the first sizes: the best there."""
OFF = 1.3
"""The factor by which two predictions may be off: one form was predicted 1.14 times too slow, another 1.23 times too
fast."""


@dataclass
class Offer:
    """Tile sizes and `levers` (as `compile` takes them), and microseconds of each kernel that they fit, by name, with
    all that is chosen of it."""

    tiles: Mapping[str, int]
    levers: Mapping[str, int | str]
    us: dict[str, float] = field(default_factory=dict)
    forms: dict[str, Levers] = field(default_factory=dict)


@dataclass(frozen=True)
class Offers:
    """Offers in the order of counts; `kernels` predict the times of kernels in both forms."""

    every: tuple[Offer, ...]
    kernels: Mapping[str, Predictor]
    close: float = CLOSE

    def us(self, offer: Offer, on_tiles: Mapping[str, int], total: float) -> float:
        """Microseconds of the program, which takes `total` where all kernels are on tiles, with these values."""
        for name, us in offer.us.items():
            kernel = self.kernels[name]
            total += us - kernel.on_tiles(on_tiles) + kernel.beside(offer.forms[name], on_tiles)
        return total


def offers(
    program: TileProgram, sizes: Mapping[str, int], machine: Machine, given: Mapping[str, int] | None = None
) -> Offers:
    """The offers that fit, with times at some sizes, and the tile sizes that are `given`; nothing where no kernel has
    the form.

    Forms are those of a compilation that is told no sizes: they serve all.
    """
    offered: dict[tuple[object, ...], Offer] = {}
    kernels: dict[str, Predictor] = {}
    for kernel in program.kernels:
        bodies = bodies_of(program, kernel, {})
        if isinstance(bodies, Unsupported):
            continue
        with_given = with_parts(sizes, program, given or {})
        predictor = kernels[kernel.name] = predictor_of(program, bodies, with_given, machine)
        free = free_tiles(bodies, program)
        for fits in forms(bodies, program, given or {}):
            tiles = {t.name: fits.tiles[t.name] for t in free}
            for levers in _orders(fits):
                us = predictor.of(levers).us
                named = {n: getattr(levers, n) for n in LEVERS}
                if isfinite(us):
                    key = (*sorted(tiles.items()), *named.values())
                    offer = offered.setdefault(key, Offer(tiles, named))
                    offer.us[kernel.name], offer.forms[kernel.name] = us, levers
    return Offers(tuple(offered.values()), kernels)


def tile_names(program: TileProgram) -> frozenset[str]:
    """The tile sizes that forms choose, of kernels that have one."""
    every = (bodies_of(program, kernel, {}) for kernel in program.kernels)
    return frozenset(t.name for w in every if not isinstance(w, Unsupported) for t in free_tiles(w, program))


def _orders(levers: Levers) -> list[Levers]:
    every = (replace(levers, persistent=order) for order in ORDERS[levers.persistent])
    return [x for x in every if not (x.once and x.ahead)]


# --- times of a program, before any form is derived ----------------------------------------------


def estimated(source: Source, wanted: Wanted, points: Sequence[Asked]) -> list[Time]:
    """Microseconds at each of the sizes, where every kernel has its faster form; infinite where all are on tiles. They
    are close where a kernel is faster in its form, or by no more slower than predictions may be off.

    Sizes and values on tiles come from `points`, not from `wanted`; levers are chosen at the first sizes, a few remain
    for others.
    """
    times = []
    for point, both in zip(points, _both(source, wanted, points), strict=True):
        saved = sum(max(0.0, tiles - ours) for ours, tiles in both)
        near = any(ours < OFF * tiles for ours, tiles in both)
        times.append(Time(point.us - saved if saved else inf, near))
    return times


def _both(source: Source, wanted: Wanted, points: Sequence[Asked]) -> Iterator[list[tuple[float, float]]]:
    """Microseconds of each kernel that has the form, in it and on tiles, at each of the sizes."""
    wishes = [replace(wanted, sizes=a.sizes, on_tiles=a.params, ahead=False) for a in points]
    kernels: list[tuple[RoleBodies, list[Levers]]] = []
    program = source.tiles
    for kernel in program.kernels:
        bodies = bodies_of(program, kernel, source.shapes)
        order = bodies if isinstance(bodies, Unsupported) else ordered(bodies, program, wishes[0])
        if isinstance(bodies, RoleBodies) and isinstance(order, list):
            kernels.append((bodies, order))
    for k, (wish, on_tiles) in enumerate((w, w.on_tiles) for w in wishes):
        pairs = []
        for bodies, order in kernels:
            model = predictor(wish, program, bodies)
            looked = _several(order) if k else order[:1]
            ours = min(model.of(x).us + model.beside(x, on_tiles) for x in looked)
            pairs.append((ours, model.on_tiles(on_tiles)))
        yield pairs


def _several(order: Sequence[Levers]) -> list[Levers]:
    """The first of each choice of consumers and tiles, a few."""
    first: dict[tuple[object, ...], Levers] = {}
    for x in order:
        first.setdefault((x.consumers, *x.tiles.items()), x)
    return list(first.values())[:FEW]
