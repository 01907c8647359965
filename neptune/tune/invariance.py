"""What may decide how a kernel computes a row so that its bits do not depend on the rows that are computed beside it.

Those are the sizes of reduced axes alone: for all others, the template, its tiles and the number of parts are the same.

    reduced_sizes(prefill_global())  →  {"s_kv"}
"""

from __future__ import annotations

from collections.abc import Iterator

from neptune.errors import ScheduleError
from neptune.ir.expr import variables
from neptune.ir.program import Program, for_loops, paths, reduction_loops
from neptune.tile.ir import TileProgram
from neptune.tune.parts import parts_of
from neptune.tune.points import sizes_of


def reduced_sizes(program: Program) -> frozenset[str]:
    """The sizes that the ranges of an expression's reductions are made of."""
    nests = ((for_loops(path), stage) for path, stage in paths(program.body))
    ranges = (e for loops, stage in nests for f in reduction_loops(stage, loops) for e in (f.lo, f.hi))
    return frozenset[str]().union(*map(variables, ranges)) & set(sizes_of(program))


def varying(tiles: TileProgram, deciding: frozenset[str]) -> Iterator[str]:
    """What of a kernel follows from other sizes than these at each launch: tiles that cover one, numbers of parts."""
    others = set(sizes_of(tiles)) - deciding
    for t in tiles.tunables:
        if t.covers is not None and (read := sorted(variables(t.covers) & others)):
            yield f"tile {t.name} covers a size of {', '.join(read)}"
    for p in parts_of(tiles):
        if read := sorted(variables(p.steps) & others):
            yield f"{p.number} is a number of parts of {', '.join(read)}"


def check_invariant(tiles: TileProgram, deciding: frozenset[str]) -> None:
    """Raise ScheduleError where a kernel would compute a row in another way for other numbers of rows."""
    if reasons := list(varying(tiles, deciding)):
        raise ScheduleError(
            f"compile `{tiles.name}` with batch_invariant=True",
            "\n".join(reasons),
            hint="split the axis by a param in place of cover: only sizes of reduced axes may decide"
            + (f", here {', '.join(sorted(deciding))}" if deciding else ", of which there is none"),
        )
