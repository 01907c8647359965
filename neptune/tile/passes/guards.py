"""outward, branches: guards that no iteration changes go in front of the loop, and equal neighbours become one.

outward: what no iteration of a loop changes is asked in front of it.

    for k0: if i0 < n: c = dot(…)        →    if i0 < n: for k0: c = dot(…)
    if k0_end < k: if i0 < n: c = dot(…)      if i0 < n: if k0_end < k: c = dot(…)

A predicate without loads is the same behind what it guards: nothing that a kernel does changes a size or a loop. Of two
that are nested, the one that tells programs apart comes first: those with nothing to do then end at once.

branches: neighbours that ask the same become one.

    if NUM_SPLITS != 1: store m          →    if NUM_SPLITS != 1:
    if NUM_SPLITS != 1: store l                 store m
                                                store l

A predicate without loads is the same behind what it guards: nothing that a kernel does changes a size or a loop.
"""

from __future__ import annotations

from dataclasses import replace

from neptune.ir.expr import loads, variables
from neptune.tile.ir import Branch, Loop, TileKernel, TStmt
from neptune.tile.passes.util import Block, map_blocks


def outward(kernel: TileKernel) -> TileKernel:
    """One kernel with branches in front of loops that do not change them."""
    grid = frozenset(g.var for g in kernel.grid)
    return replace(kernel, body=map_blocks(kernel.body, lambda body: tuple(_outward(s, grid) for s in joined(body))))


def _outward(s: TStmt, grid: frozenset[str]) -> TStmt:
    """A loop or a branch whose whole body is a branch, with that branch around it where it may and should be."""
    if not isinstance(s, Loop | Branch) or len(s.body) != 1:
        return s
    (inner,) = s.body
    if not isinstance(inner, Branch) or loads(inner.pred):
        return s
    read = variables(inner.pred)
    first = s.var not in read if isinstance(s, Loop) else bool(read & grid) and not variables(s.pred) & grid
    if not first:
        return s
    return replace(inner, body=(_outward(replace(s, body=inner.body), grid),))


# --- neighbours that ask the same -------------------------------------------------------------------


def branches(kernel: TileKernel) -> TileKernel:
    """One kernel with neighbouring branches on one predicate joined."""
    return replace(kernel, body=map_blocks(kernel.body, joined))


def joined(body: Block) -> Block:
    """One block with neighbouring branches on one predicate joined."""
    result: list[TStmt] = []
    for s in body:
        last = result[-1] if result else None
        if isinstance(s, Branch) and isinstance(last, Branch) and s.pred == last.pred and not loads(s.pred):
            result[-1] = replace(last, body=joined((*last.body, *s.body)))
        else:
            result.append(s)
    return tuple(result)
