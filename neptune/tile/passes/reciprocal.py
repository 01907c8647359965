"""reciprocal: one division per row instead of one per element.

o = acc / l[:, None]        →        inv_l = 1 / l;  o = acc * inv_l[:, None]
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from neptune.ir.dtypes import DTYPES, is_float
from neptune.ir.expr import Const
from neptune.tile.ir import (
    Assign,
    Branch,
    Local,
    Loop,
    Map,
    Rearrange,
    Scalar,
    TExpr,
    TileKernel,
    TStmt,
    map_stmt,
    tile_rewrite,
)
from neptune.tile.passes.util import Block, depends, map_blocks, names_in


def reciprocal(kernel: TileKernel) -> TileKernel:
    """Replace divisions of a tile by something of fewer dimensions."""
    taken = names_in(kernel)

    def block(stmts: Block) -> Block:
        out: list[TStmt] = []
        made: dict[TExpr, Local] = {}

        def inverse(e: TExpr) -> Local:
            if e not in made:
                wish = f"inv_{e.name}" if isinstance(e, Local) else "inv"
                name = next(n for n in (wish + "_" * k for k in count()) if n not in taken)
                taken.add(name)
                one = Scalar(Const(1.0, e.dtype))
                out.append(Assign(name, Map("div", (one, e), e.dims, e.dtype), name))
                made[e] = Local(name, e.dims, e.dtype)
            return made[e]

        def fn(e: TExpr) -> TExpr | None:
            match e:
                case Map("div", (a, Rearrange(arg, _) as b), dims, dtype) if _pays(arg, dtype):
                    if a.dims == dims and "1" in b.dims:
                        return replace(e, op="mul", args=(a, replace(b, arg=inverse(arg))))
            return None

        for s in stmts:
            # What a loop or branch repeats has been rewritten inside it.
            fresh = s if isinstance(s, Loop | Branch) else map_stmt(s, lambda e: tile_rewrite(e, fn))
            made = {e: name for e, name in made.items() if not depends(e, s)}
            out.append(fresh)
        return tuple(out)

    return replace(kernel, body=map_blocks(kernel.body, block))


def _pays(divisor: TExpr, dtype: str) -> bool:
    """A short dtype would round the inverse, or take it out of its range."""
    return is_float(dtype) and DTYPES[dtype].bits >= 32 and bool(divisor.dims)
