"""hoist: name the loads, and move what a loop does not change in front of it.

    for j0: s = dot(q[…]<i d>, k[…]<j d>)     →     q = q[…]
                                                    for j0: k = k[…]; s = dot(q, k)

A hoisted load runs even if the loop does not; masks make that safe.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from neptune.ir.expr import children, rebuild
from neptune.tile.ir import Assign, Branch, LoadTile, Local, Loop, StoreTile, TExpr, TileKernel, TStmt, walk_stmts
from neptune.tile.passes.util import Block, assigns, confined, depends, map_blocks, names_in, scalar_names


def name_loads(kernel: TileKernel) -> TileKernel:
    """Give every tile load a name: that of its buffer, or one with a number for a second, other load.

    Loops side by side may use one name for different loads of one shape; a block and what is inside it may
    not: the inner load would overwrite the outer one.
    """
    taken = names_in(kernel)
    used: dict[str, tuple[tuple[str, ...], str]] = {}

    def block(stmts: Block, around: dict[str, LoadTile]) -> Block:
        out: list[TStmt] = []
        known: dict[LoadTile, Local] = {}
        here: dict[str, LoadTile] = {}

        def named(e: TExpr) -> TExpr:
            parts = children(e)
            fresh = tuple(named(p) for p in parts)
            e = e if all(a is b for a, b in zip(parts, fresh, strict=True)) else rebuild(e, fresh)
            return known.get(e) or declare(e) if isinstance(e, LoadTile) else e

        def declare(load: LoadTile) -> Local:
            shape = (load.dims, load.dtype)
            names = (load.buffer if k == 0 else f"{load.buffer}_{k}" for k in count())
            free = (n for n in names if n not in taken and used.get(n, shape) == shape)
            name = next(n for n in free if here.get(n, load) == load and around.get(n, load) == load)
            used[name] = shape
            here[name] = load
            out.append(Assign(name, load, name))
            known[load] = Local(name, *shape)
            return known[load]

        # Loads outside of inner bodies first: the names of those are then not free inside.
        placed: list[TStmt | Loop | Branch] = []
        for s in stmts:
            out = []
            if isinstance(s, Assign):
                # A load that is an assignment already has its name.
                fresh: TStmt = s if isinstance(s.value, LoadTile) else replace(s, value=named(s.value))
            elif isinstance(s, StoreTile):
                fresh = replace(s, value=named(s.value))
            else:
                fresh = s
            placed += [*out, fresh]
            known = {load: name for load, name in known.items() if not depends(load, s)}
        inside = around | here
        return tuple(replace(s, body=block(s.body, inside)) if isinstance(s, Loop | Branch) else s for s in placed)

    return replace(kernel, body=block(kernel.body, {}))


def _invariant(s: Assign, around: Loop | Branch) -> bool:
    """True if the assignment does the same in every run of the body it stands in, and does it once."""
    times = sum(1 for x in walk_stmts(around.body) if isinstance(x, Assign) and x.name == s.name)
    if times != 1 or depends(s.value, around):
        return False
    return not (isinstance(around, Loop) and around.var in scalar_names(s.value))


def hoist(kernel: TileKernel) -> TileKernel:
    """Move invariant assignments out of loops; equal ones from several loops and branches become one."""
    movable = confined(kernel.body)

    def block(stmts: Block) -> Block:
        out: list[TStmt] = []
        ready: dict[str, TExpr] = {}
        for s in stmts:
            if isinstance(s, Loop | Branch):
                moved = [x for x in s.body if isinstance(x, Assign) and x.name in movable and _invariant(x, s)]
                # A branch may be there to avoid the work: it only reuses what is computed in front already.
                known = {} if isinstance(s, Branch) else {x.name: x.value for x in moved}
                moved = [x for x in moved if ready.get(x.name, known.get(x.name)) == x.value]
                out += [x for x in moved if x.name not in ready]
                ready |= {x.name: x.value for x in moved}
                s = replace(s, body=tuple(x for x in s.body if x not in moved))
            changed = assigns(s)
            ready = {n: e for n, e in ready.items() if n not in changed and not depends(e, s)}
            if isinstance(s, Assign) and s.name in movable and not depends(s.value, s):
                ready[s.name] = s.value
            out.append(s)
        return tuple(out)

    return replace(kernel, body=map_blocks(kernel.body, block))
