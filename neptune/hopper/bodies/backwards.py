"""backwards: a walk from its last tile to the first, the first one visited peeled, its late products rotated.

for j in [0, clean): C(j)              end, clean = …
for j in [clean, end): G(j)      →     for t in [0, all_end - end): what is loaded of tile all_end - 1 - t
                                       if 0 < end:
                                         G(end - 1), without its late products
                                         for t in [1, end - clean): G(end - 1 - t), with late products of end - t
                                         for t in [max(1, end - clean), end): C(end - 1 - t), likewise
                                         the late products of tile 0

Masked tiles come first, where a mask is at the end of the walk: then the loop over the others has none. Tiles that only
other consumers of the group need are loaded and not used.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from neptune.hopper.bodies.bounds import Bounds
from neptune.hopper.bodies.pieces import Piece, Run
from neptune.ir.expr import Const, Expr, binary, maximum, op
from neptune.tile.ir import Assign, Branch, Loop, TStmt, read_by
from neptune.tile.passes.rotate import Rotated, any_order, rotated
from neptune.tile.passes.same import same_but_for_masks
from neptune.tile.passes.util import Block
from neptune.tile.scalars import put, var


@dataclass(frozen=True)
class Plan:
    """A run that is walked backwards: each piece with its parts, and the general one that serves any tile."""

    run: Run
    parts: tuple[Rotated, ...]
    general: Rotated


def plan(run: Run, staged: frozenset[str], escaping: Collection[str]) -> Plan | str:
    """The walk backwards with rotated products, or why there is none. `escaping` are locals that are read behind."""
    parts: list[Rotated] = []
    for p in run.pieces:
        part = rotated(p.body, staged)
        if isinstance(part, str):
            return part
        if (wrong := any_order(p.body, escaping)) is not None:
            return wrong
        parts.append(part)
    k = _general(run.pieces, parts)
    return (
        "its masked and its other tiles differ by more than masks" if k is None else Plan(run, tuple(parts), parts[k])
    )


def _general(pieces: Collection[Piece], parts: list[Rotated]) -> int | None:
    """The piece whose body serves every tile: all others are the same but for masks that it has."""
    bodies = [p.body for p in pieces]
    names = [{s.name for s in p.back if isinstance(s, Assign)} & {*_live(p)} for p in parts]
    if any(p.names != parts[0].names or p.carried != parts[0].carried for p in parts):
        return None
    for k, body in enumerate(bodies):
        if all(
            same_but_for_masks(body, other, {*names[k], *names[i], *parts[k].names}) for i, other in enumerate(bodies)
        ):
            return k
    return None


def _live(p: Rotated) -> set[str]:
    """The locals that an iteration leaves to the next: those read before they are assigned, or by late products."""
    first: set[str] = set()
    live = set(p.carried)
    for s in (*p.front, *p.back):
        if isinstance(s, Assign):
            live |= read_by(s.value) - first
            first.add(s.name)
    return live


def backwards(p: Plan, b: Bounds, step: str, loads: Block) -> Block:
    """The body of a consumer that walks a run backwards."""
    begin, end = b.edges[0], b.edges[-1]
    variable = p.run.var

    def tile(body: Block, index: Expr) -> Block:
        return put(body, variable, index)

    t = var(step)
    here, before = minus(end, t), binary("sub", end, t)
    inner: list[TStmt] = [*tile(p.general.front, minus(end)), *tile(p.general.back, minus(end))]
    pieces = list(zip(p.run.pieces, p.parts, b.edges, b.edges[1:], strict=False))
    first: Expr = Const(1, "int32")
    for piece, parts, low, high in reversed(pieces):
        if piece.once and high == end:
            continue  # its one tile is the first
        if high != end and not (pieces[-1][0].once and high == pieces[-1][2]):
            first = maximum(1, binary("sub", end, high))
        body = (*tile(parts.front, here), *tile(p.general.late, before), *tile(parts.back, here))
        inner.append(Loop(step, first, binary("sub", end, low), body))
    inner += tile(p.general.late, begin)
    return (
        *unused(b.all_end, end, step, variable, loads),
        Branch(op("lt", begin, end), tuple(inner)),
        *unused(begin, b.all_begin, step, variable, loads),
    )


def minus(end: Expr, t: Expr | int = 0) -> Expr:
    """The tile that is visited in step t of a walk from `end`."""
    return binary("sub", binary("sub", end, 1), t)


def unused(above: Expr, below: Expr, step: str, variable: str, loads: Block) -> Block:
    """The tiles from `above` down to `below`, which are loaded only."""
    if above == below:
        return ()
    return (Loop(step, Const(0, "int32"), binary("sub", above, below), put(loads, variable, minus(above, var(step)))),)
