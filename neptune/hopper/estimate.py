"""The time of a program in its asynchronous form, before any is derived: by which templates are compared.

estimated(program, [Asked({"rows": 8192, …}, {"BLOCK_M": 128, …}, 4018.6)], Wanted(machine=…), shapes)
→  [Time(us=3110.2, close=True)]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

from neptune.errors import Unsupported
from neptune.forms import Time, Wanted
from neptune.hopper.derive import walked_of
from neptune.hopper.ir import Levers
from neptune.hopper.walked import Walked
from neptune.hopper.wanted import ordered, predictor
from neptune.tile.ir import TileProgram
from neptune.tune.gains import Asked

FEW = 4
"""Tiles that are looked at beyond the first sizes: the best there."""
OFF = 1.3
"""Of two forms, of which one was predicted 1.14 times too slow, and the other 1.23 times too fast."""


def estimated(program: TileProgram, at: Sequence[Asked], wanted: Wanted, shapes: Mapping[str, int]) -> list[Time]:
    """Microseconds at each of the sizes, where every kernel has its faster form; infinite where all are on tiles. They
    are close where a kernel is faster in its form, or by no more slower than predictions may be off.

    Of `wanted` sizes and values on tiles are those of `at`; levers are chosen at the first sizes, a few remain for
    others. `shapes` are typical sizes, which tiles may cover.
    """
    found = []
    for asked, both in zip(at, _both(program, at, wanted, shapes), strict=True):
        saved = sum(max(0.0, tiles - ours) for ours, tiles in both)
        near = any(ours < OFF * tiles for ours, tiles in both)
        found.append(Time(asked.us - saved if saved else inf, near))
    return found


def _both(
    program: TileProgram, at: Sequence[Asked], wanted: Wanted, shapes: Mapping[str, int]
) -> Iterator[list[tuple[float, float]]]:
    """Microseconds of each kernel that has the form, in it and on tiles, at each of the sizes."""
    wishes = [replace(wanted, sizes=a.sizes, on_tiles=a.params, ahead=False) for a in at]
    kernels: list[tuple[Walked, list[Levers]]] = []
    for kernel in program.kernels:
        walked = walked_of(program, kernel, shapes)
        order = walked if isinstance(walked, Unsupported) else ordered(walked, program, wishes[0])
        if isinstance(walked, Walked) and isinstance(order, list):
            kernels.append((walked, order))
    for k, (asked, on_tiles) in enumerate((w, w.on_tiles) for w in wishes):
        found = []
        for walked, order in kernels:
            known = predictor(asked, program, walked)
            looked = _several(order) if k else order[:1]
            ours = min(known.of(x).us + known.beside(x, on_tiles) for x in looked)
            found.append((ours, known.on_tiles(on_tiles)))
        yield found


def _several(order: Sequence[Levers]) -> list[Levers]:
    """The first of each choice of consumers and tiles, a few."""
    first: dict[tuple[object, ...], Levers] = {}
    for x in order:
        first.setdefault((x.consumers, *x.tiles.items()), x)
    return list(first.values())[:FEW]
