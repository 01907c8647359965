"""branches: neighbours that ask the same become one.

    if NUM_SPLITS != 1: store m          →    if NUM_SPLITS != 1:
    if NUM_SPLITS != 1: store l                 store m
                                                store l

A predicate without loads is the same behind what it guards: nothing that a kernel does changes a size or a loop.
"""

from __future__ import annotations

from dataclasses import replace

from neptune.ir.expr import loads
from neptune.tile.ir import Branch, TileKernel, TStmt
from neptune.tile.passes.util import Block, map_blocks


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
