"""From a scheduled Program to the TileProgram that code is made from: a list of named passes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from neptune.errors import ScheduleError, TargetError
from neptune.ir.program import Program
from neptune.tile.ir import TileKernel, TileProgram
from neptune.tile.passes.accumulate import accumulate
from neptune.tile.passes.common import common
from neptune.tile.passes.copies import copies
from neptune.tile.passes.crosswise import crosswise
from neptune.tile.passes.exp2 import exp2
from neptune.tile.passes.guards import branches, outward
from neptune.tile.passes.hoist import hoist, name_loads
from neptune.tile.passes.narrow import narrow
from neptune.tile.passes.reciprocal import reciprocal
from neptune.tile.passes.short_operands import short_operands
from neptune.tile.passes.upright import upright
from neptune.tile.relax import check_tile_sizes, translate_relaxed
from neptune.tile.translate import translate


@dataclass(frozen=True)
class Pass:
    """A tile pass and why it stands where it stands."""

    name: str
    run: Callable[[TileKernel], TileKernel]
    why: str


PASSES = (
    Pass("outward", outward, "first: later passes look at one block at a time"),
    Pass("upright", upright, "before all that reads masks: a transposed one is another form of the same"),
    Pass(
        "accumulate",
        accumulate,
        "before all that looks for forms: later passes look at whole updates, not at their halves",
    ),
    Pass("reciprocal", reciprocal, "before exp2: it knows a sum of exponentials by the maximum taken off"),
    Pass("exp2", exp2, "before copies: it turns scaled scores into plain copies"),
    Pass("narrow", narrow, "after accumulate: an accumulator has its start and its updates only"),
    Pass("copies", copies, "after exp2 has made copies, before loads are named"),
    Pass("name_loads", name_loads, "after copies: what is dead must not be loaded"),
    Pass("short_operands", short_operands, "after name_loads: a load has one type, and what was widened a name"),
    Pass("crosswise", crosswise, "after name_loads: it looks for folds of what was loaded"),
    Pass("common", common, "after all that look for forms: a name in the place of an expression would hide one"),
    Pass("branches", branches, "before hoist, which moves statements between them"),
    Pass("hoist", hoist, "last: it moves the loads that name_loads named"),
)
LOG = logging.getLogger("neptune.tile")


Seen: TypeAlias = Callable[[str, str, TileProgram], None]
"""It is shown the name of a pass, why it stands where it stands, and what it made."""


def _unseen(name: str, why: str, tiles: TileProgram) -> None:
    pass


def lower(program: Program, seen: Seen = _unseen, *, relaxed: bool = False) -> TileProgram:
    """Translate a scheduled Program and run the tile passes; raises TargetError where it has no tile form.

    `seen` is called after each pass. With `relaxed`, tile axes that a nest cannot have become serial loops
    (`neptune.tile.relax`).
    """
    tiles = translate_relaxed(program) if relaxed else translate(program)
    if not relaxed:
        for k in tiles.kernels:
            check_tile_sizes(program, k)
    seen("translate", "first: the passes work on tiles", tiles)
    for p in PASSES:
        before, start = tiles, time.perf_counter()
        tiles = replace(tiles, kernels=tuple(p.run(k) for k in tiles.kernels))
        if LOG.isEnabledFor(logging.INFO):
            ms, what = 1e3 * (time.perf_counter() - start), "nothing to do" if tiles == before else "changed"
            LOG.info("pass %s: %s, %.1f ms", p.name, what, ms)
        seen(p.name, p.why, tiles)
    return tiles


@dataclass(frozen=True)
class Lowering:
    """A TileProgram with the forms on the way to it: each pass, why it stands where it stands, and what it made.

    `relaxed` says why some tile axes stayed loops, where any did.
    """

    forms: tuple[tuple[str, str, TileProgram], ...]
    relaxed: ScheduleError | TargetError | None = None

    @property
    def tiles(self) -> TileProgram:
        return self.forms[-1][-1]


def lowering(program: Program, seen: Seen = _unseen, *, strict: bool = False) -> Lowering:
    """The Lowering of a scheduled Program: with all of its tile axes; without some where there is no other and it need
    not be `strict`, which else raises as `lower` does."""
    forms: list[tuple[str, str, TileProgram]] = []

    def note(name: str, why: str, tiles: TileProgram) -> None:
        forms.append((name, why, tiles))
        seen(name, why, tiles)

    try:
        lower(program, note)
        return Lowering(tuple(forms))
    except (ScheduleError, TargetError) as error:
        if strict:
            raise
        wrong = error
    forms.clear()
    lower(program, note, relaxed=True)
    return Lowering(tuple(forms), wrong)
