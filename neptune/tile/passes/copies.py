"""copies: read the original instead of a plain copy, and drop what nothing reads.

score = s; p = exp(score - m)        →        p = exp(s - m)
"""

from __future__ import annotations

from dataclasses import replace

from neptune.tile.ir import Assign, Branch, Local, Loop, TileKernel, TStmt
from neptune.tile.passes.util import Block, bound_reads, forward, map_blocks, reads


def _propagate(stmts: Block) -> Block:
    return forward(stmts, lambda e: e, lambda e, known: known.get(e.name) if isinstance(e, Local) else None)


def drop_dead(body: Block) -> Block:
    """The body of a kernel without assignments that nothing reads."""
    return _drop_dead(body, frozenset())[0]


def _drop_dead(stmts: Block, live: frozenset[str]) -> tuple[Block, frozenset[str]]:
    """The block without assignments that are not read; `live` is read behind it. Returns what it reads."""
    out: list[TStmt] = []
    for s in reversed(stmts):
        if isinstance(s, Loop):
            # What an iteration reads first may come from the one before.
            body, first = _drop_dead(s.body, live)
            while True:
                body, again = _drop_dead(s.body, live | first)
                if again <= first:
                    break
                first |= again
            s, live = replace(s, body=body), live | first | bound_reads(s)
        elif isinstance(s, Branch):
            body, inside = _drop_dead(s.body, live)
            s, live = replace(s, body=body), live | inside | bound_reads(s)
        elif isinstance(s, Assign):
            if s.name not in live:
                continue
            live = (live - {s.name}) | frozenset(reads(s))
        else:
            live = live | frozenset(reads(s))
        if not (isinstance(s, Loop | Branch) and not s.body):
            out.append(s)
    return tuple(reversed(out)), live


def copies(kernel: TileKernel) -> TileKernel:
    """Propagate copies within blocks, then drop assignments that nothing reads."""
    return replace(kernel, body=drop_dead(map_blocks(kernel.body, _propagate)))
