"""copies: read the original instead of a plain copy, and drop what nothing reads.

score = s; p = exp(score - m)        →        p = exp(s - m)
"""

from __future__ import annotations

from dataclasses import replace

from neptune.ir.expr import rewrite
from neptune.tile.ir import Assign, Branch, Local, Loop, TExpr, TileKernel, TStmt, map_stmt
from neptune.tile.passes.util import Block, assigns, bound_reads, map_blocks, reads


def _propagate(stmts: Block) -> Block:
    out: list[TStmt] = []
    copy_of: dict[str, Local] = {}

    def fn(e: TExpr) -> TExpr | None:
        return copy_of.get(e.name) if isinstance(e, Local) else None

    for s in stmts:
        if isinstance(s, Loop | Branch):
            touched = assigns(s)
            copy_of = {n: o for n, o in copy_of.items() if n not in touched and o.name not in touched}
        s = map_stmt(s, lambda e: rewrite(e, fn))
        if isinstance(s, Assign):
            copy_of = {n: o for n, o in copy_of.items() if n != s.name and o.name != s.name}
            if isinstance(s.value, Local) and s.value.name != s.name:
                copy_of[s.name] = s.value
        out.append(s)
    return tuple(out)


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
