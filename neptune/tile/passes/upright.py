"""upright: what is spread out of vectors and transposed is spread out the other way.

x[…] if rearrange(n[:, None] and m[None, :], "j i -> i j")        →        x[…] if n[None, :] and m[:, None]

No element moves then. Of expressions all of whose tiles are vectors that are spread out, or one number: a tile that is
there is transposed once, not each of several.
"""

from __future__ import annotations

from dataclasses import replace

from neptune.ir.expr import rewrite
from neptune.tile.index import oriented
from neptune.tile.ir import Full, Rearrange, TExpr, TileKernel, leaves, map_stmt


def upright(kernel: TileKernel) -> TileKernel:
    """The kernel without such transposes."""
    return replace(kernel, body=tuple(map_stmt(s, lambda e: rewrite(e, _turned)) for s in kernel.body))


def _turned(e: TExpr) -> TExpr | None:
    if not isinstance(e, Rearrange):
        return None
    source, target = (tuple(side.split()) for side in e.pattern.split("->"))
    if source == target or "1" in source or sorted(source) != sorted(target) or e.arg.dims != source:
        return None
    tiles = [x for x in leaves(e.arg) if x.dims]
    return oriented(e.arg, source, target) if all(_spread(x, len(source)) for x in tiles) else None


def _spread(x: TExpr, rank: int) -> bool:
    """True for a vector that is spread out to the rank of all, and for one number everywhere."""
    wide = isinstance(x, Full) or (isinstance(x, Rearrange) and "1" in x.dims and len(x.arg.dims) < rank)
    return wide and len(x.dims) == rank
