"""The asynchronous forms that a tuner may try: levers and tiles that fit, with predicted times of each kernel.

One choice of levers is for all kernels of a program, as a caller settles them; a kernel that they do not fit stays on
tiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite

from neptune.errors import Unsupported
from neptune.hopper.derive import walked_of
from neptune.hopper.ir import Levers
from neptune.hopper.memory import forms, free_tiles
from neptune.hopper.predict import CLOSE, Predictor, with_parts
from neptune.hopper.said import LEVERS
from neptune.hopper.wanted import predictor_of
from neptune.tile.ir import TileProgram
from neptune.tune.machine import Machine

ORDERS = {"table": ("table", "stride", "once"), "stride": ("stride", "once"), "once": ("once", "stride")}
"""How groups of rows may come to programs, by what counts put first: a table is for groups that differ."""


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

    def us(self, offer: Offer, on_tiles: Mapping[str, int], whole: float) -> float:
        """Microseconds of the program, which takes `whole` where all kernels are on tiles, with these values."""
        for name, us in offer.us.items():
            kernel = self.kernels[name]
            whole += us - kernel.on_tiles(on_tiles) + kernel.beside(offer.forms[name], on_tiles)
        return whole


def offers(
    program: TileProgram, sizes: Mapping[str, int], machine: Machine, given: Mapping[str, int] | None = None
) -> Offers:
    """What fits, with times at some sizes, and the tile sizes that are `given`; nothing where no kernel has the form.

    Forms are those of a compilation that is told no sizes: they serve all.
    """
    found: dict[tuple[object, ...], Offer] = {}
    kernels: dict[str, Predictor] = {}
    for kernel in program.kernels:
        walked = walked_of(program, kernel, {})
        if isinstance(walked, Unsupported):
            continue
        at = with_parts(sizes, program, given or {})
        predictor = kernels[kernel.name] = predictor_of(program, walked, at, machine)
        free = free_tiles(walked, program)
        for fits in forms(walked, program, given or {}):
            tiles = {t.name: fits.tiles[t.name] for t in free}
            for levers in _orders(fits):
                us = predictor.of(levers).us
                named = {n: getattr(levers, n) for n in LEVERS}
                if isfinite(us):
                    key = (*sorted(tiles.items()), *named.values())
                    offer = found.setdefault(key, Offer(tiles, named))
                    offer.us[kernel.name], offer.forms[kernel.name] = us, levers
    return Offers(tuple(found.values()), kernels)


def tile_names(program: TileProgram) -> frozenset[str]:
    """The tile sizes that forms choose, of kernels that have one."""
    walks = (walked_of(program, kernel, {}) for kernel in program.kernels)
    return frozenset(t.name for w in walks if not isinstance(w, Unsupported) for t in free_tiles(w, program))


def _orders(levers: Levers) -> list[Levers]:
    return [
        replace(levers, persistent=order) for order in ORDERS[levers.persistent] if order != "once" or not levers.ahead
    ]
