"""crosswise: a running fold of the rows of a loaded tile goes down the columns of its transpose.

    for j0: x = x[…]<i j>; s = s + reduce(x, sum, j)   →   s = s + reduce(rearrange(x, "i j -> j i"), sum, j)

Triton (3.6) rewrites the left form, where nothing else in the loop reads the new `s`, to sums that each thread keeps
(OptimizeThreadLocality), and takes for granted that what the loop leaves is used once and that nothing in the loop
reads the old `s`: it fails in the first case (`loopResult.hasOneUse()`), as where an `if` behind the loop adds what
is left, and gives wrong results in the second. The transpose of a tile in registers costs nothing.
"""

from __future__ import annotations

from dataclasses import replace

from neptune.ir.expr import Op, rewrite, rewrite_parts
from neptune.tile.ir import (
    Assign,
    Branch,
    LoadTile,
    Local,
    Loop,
    Rearrange,
    Reduce,
    TExpr,
    TileKernel,
    TStmt,
    walk_stmts,
)
from neptune.tile.passes.util import Block, reads


def crosswise(kernel: TileKernel) -> TileKernel:
    """One kernel without the form that Triton rewrites."""
    assigned = [s for s in walk_stmts(kernel.body) if isinstance(s, Assign)]
    loaded = frozenset(s.name for s in assigned if isinstance(s.value, LoadTile))

    def block(stmts: Block, looped: bool) -> Block:
        out: list[TStmt] = []
        for k, s in enumerate(stmts):
            if isinstance(s, Assign) and looped and not any(s.name in reads(x) for x in stmts[k + 1 :]):
                s = replace(s, value=rewrite(s.value, lambda e: _turned(e, loaded)))
            elif isinstance(s, Loop | Branch):
                s = replace(s, body=block(s.body, looped or isinstance(s, Loop)))
            out.append(s)
        return tuple(out)

    return replace(kernel, body=block(kernel.body, False))


def _turned(e: TExpr, loaded: frozenset[str]) -> TExpr | None:
    """A fold along the last dimension of a loaded tile, along the first dimension instead."""
    if not isinstance(e, Reduce) or len(e.arg.dims) < 2 or e.arg.dims[-1] != e.axis or not _bare(e.arg, loaded):
        return None
    dims = e.arg.dims
    arg = rewrite_parts(e.arg, lambda x: _turned(x, loaded))
    return replace(e, arg=Rearrange(arg, f"{' '.join(dims)} -> {' '.join((dims[-1], *dims[:-1]))}"))


def _bare(e: TExpr, loaded: frozenset[str]) -> bool:
    """True for what is in a register as it was loaded, or could be once Triton has simplified it (x * 1)."""
    if isinstance(e, Op):
        tiles = [a for a in e.args if a.dims]
        return len(tiles) == 1 and _bare(tiles[0], loaded)
    return isinstance(e, LoadTile) or (isinstance(e, Local) and e.name in loaded)
