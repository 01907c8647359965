"""hoist: name the loads, and move what a loop does not change in front of it.

    for j0: s = dot(q[…]<i d>, k[…]<j d>)     →     q = q[…]
                                                    for j0: k = k[…]; s = dot(q, k)

A hoisted load runs even if the loop does not; masks make that safe.
"""

from __future__ import annotations

from dataclasses import replace

from neptune.tile.ir import (
    Assign,
    Branch,
    LoadTile,
    Local,
    Loop,
    StoreTile,
    TExpr,
    TileKernel,
    TStmt,
    tile_children,
    tile_rebuild,
    tile_walk,
    walk_stmts,
)
from neptune.tile.passes.util import Block, assigns, map_blocks, names_in, scalar_names, stored_buffers


def name_loads(kernel: TileKernel) -> TileKernel:
    """Give every tile load a name: that of its buffer, or one with a number for a second, other load."""
    taken = names_in(kernel)

    def block(stmts: Block) -> Block:
        out: list[TStmt] = []
        known: dict[TExpr, Local] = {}

        def named(e: TExpr) -> TExpr:
            parts = tile_children(e)
            fresh = tuple(named(p) for p in parts)
            e = e if all(a is b for a, b in zip(parts, fresh, strict=True)) else tile_rebuild(e, fresh)
            return known.get(e) or declare(e) if isinstance(e, LoadTile) and e.dims else e

        def declare(load: LoadTile) -> Local:
            used = taken | {x.name for x in known.values()}
            name, k = load.buffer, 1
            while name in used:
                name, k = f"{load.buffer}_{k}", k + 1
            out.append(Assign(name, load, name))
            known[load] = Local(name, load.dims, load.dtype)
            return known[load]

        for s in stmts:
            if isinstance(s, Assign):
                # A load that is an assignment already has its name.
                out.append(s if isinstance(s.value, LoadTile) else replace(s, value=named(s.value)))
            elif isinstance(s, StoreTile):
                out.append(replace(s, value=named(s.value)))
            else:
                out.append(s)
        return tuple(out)

    return replace(kernel, body=map_blocks(kernel.body, block))


def _invariant(s: TStmt, loop: Loop, stored: set[str]) -> bool:
    if not isinstance(s, Assign):
        return False
    changed = assigns(loop)
    times = sum(1 for x in walk_stmts(loop.body) if isinstance(x, Assign) and x.name == s.name)
    if times != 1 or loop.var in scalar_names(s.value):
        return False
    for node in tile_walk(s.value):
        if isinstance(node, Local) and node.name in changed:
            return False
        if isinstance(node, LoadTile) and node.buffer in stored:
            return False
    return True


def hoist(kernel: TileKernel) -> TileKernel:
    """Move invariant assignments out of loops and branches; equal ones from several pieces become one."""
    stored = stored_buffers(kernel)

    def block(stmts: Block) -> Block:
        out: list[TStmt] = []
        ready: dict[str, TExpr] = {}
        for s in stmts:
            if isinstance(s, Loop | Branch):
                moved = _movable(s, stored, ready)
                for m in moved:
                    if m.name not in ready:
                        out.append(m)
                        ready[m.name] = m.value
                s = replace(s, body=tuple(x for x in s.body if x not in moved))
            for name in assigns(s):
                ready.pop(name, None)
            out.append(s)
        return tuple(out)

    return replace(kernel, body=map_blocks(kernel.body, block))


def _movable(s: Loop | Branch, stored: set[str], ready: dict[str, TExpr]) -> list[Assign]:
    if isinstance(s, Branch):
        # Only what is computed in front already: a branch may be there to avoid the work.
        return [x for x in s.body if isinstance(x, Assign) and ready.get(x.name) == x.value]
    found = [x for x in s.body if isinstance(x, Assign) and _invariant(x, s, stored)]
    return [x for x in found if ready.get(x.name, x.value) == x.value]
