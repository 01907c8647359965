"""Schedules of random calls that mostly succeed."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

from neptune.errors import NeptuneError
from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Var
from neptune.ir.program import Program

KINDS = ("split", "tile", "fuse", "reorder", "bind", "reverse", "inline", "partition", "privatize", "cover", "roll")
MOVES = ("fuse_at", "compute_at", "reverse_compute_at")
COPIES = ("cache_read", "cache_write", "set_scope", "decompose_reduction")


def random_schedule(program: Program, seed: int) -> Schedule:
    """Up to ten calls, drawn by `seed`."""
    rng = random.Random(seed)
    sch = Schedule(program)
    sch.param("BM", [2, 4])
    for _ in range(rng.randint(3, 10)):
        kind = rng.choice([*KINDS, *MOVES, *MOVES, *COPIES])
        for _ in range(8):
            with suppress(NeptuneError):
                attempt(sch, rng, kind)
                break
    return sch


def attempt(sch: Schedule, rng: random.Random, kind: str) -> None:
    """One primitive with random arguments."""
    stage = rng.choice(sch.stages)
    loops = sch.loops(stage)
    loop = rng.choice([f for s in sch.stages for f in sch.loops(s)] or loops)
    factors: list[int | Var] = [2, 3, Var("BM")]
    k = rng.randrange(max(1, len(loops) - 1))
    steps: dict[str, Callable[[], object]] = {
        "split": lambda: sch.split(loop, rng.choice(factors)),
        "tile": lambda: sch.tile(rng.sample(loops, min(2, len(loops))), factors[: len(loops)][:2]),
        "fuse": lambda: sch.fuse(*loops[k : k + 2]) if len(loops) > 1 else None,
        "reorder": lambda: sch.reorder(*rng.sample(loops, min(3, len(loops)))),
        "bind": lambda: sch.bind(loop, rng.choice(["grid.x", "grid.y"])),
        "reverse": lambda: sch.reverse(loop),
        "inline": lambda: sch.inline(stage),
        "fuse_at": lambda: sch.fuse_at(stage, loop),
        "compute_at": lambda: sch.compute_at(stage, loop),
        "reverse_compute_at": lambda: sch.reverse_compute_at(stage, loop),
        "partition": lambda: sch.partition(loop),
        "privatize": lambda: sch.privatize(stage, rng.choice(loops)),
        "roll": lambda: sch.rolling_update(stage, loop),
        "cover": lambda: sch.cover(loop, rng.choice(["WIDE", "LONG"])),
        "cache_read": lambda: sch.cache_read(stage, rng.choice(sorted(sch.program.globals))),
        "cache_write": lambda: sch.cache_write(stage),
        "set_scope": lambda: sch.set_scope(rng.choice(sorted(sch.program.globals)), rng.choice(["tile", "global"])),
        "decompose_reduction": lambda: sch.decompose_reduction(stage, rng.choice(loops)),
    }
    steps[kind]()
