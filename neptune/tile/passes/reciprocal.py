"""reciprocal: one division per row instead of one per element.

o = acc / l[:, None]        →        inv_l = 1 / l;  o = acc * inv_l[:, None]
"""

from __future__ import annotations

from dataclasses import replace

from neptune.ir.dtypes import is_float
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
from neptune.tile.passes.util import Block, map_blocks, names_in


def reciprocal(kernel: TileKernel) -> TileKernel:
    """Replace divisions of a tile by something of fewer dimensions."""
    taken = names_in(kernel)

    def block(stmts: Block) -> Block:
        out: list[TStmt] = []
        for s in stmts:
            if isinstance(s, Loop | Branch):
                out.append(s)
                continue
            made: dict[TExpr, str] = {}

            def fn(e: TExpr, made: dict[TExpr, str] = made) -> TExpr | None:
                if not (isinstance(e, Map) and e.op == "div" and is_float(e.dtype)):
                    return None
                a, b = e.args
                if not isinstance(b, Rearrange) or a.dims != e.dims or "1" not in b.dims:
                    return None
                wish = f"inv_{b.arg.name}" if isinstance(b.arg, Local) else "inv"
                name = made.get(b.arg) or wish
                while name in taken and b.arg not in made:
                    name += "_"
                made[b.arg] = name
                taken.add(name)
                inverse = Local(name, b.arg.dims, b.arg.dtype)
                return replace(e, op="mul", args=(a, replace(b, arg=inverse)))

            fresh = map_stmt(s, lambda e, fn=fn: tile_rewrite(e, fn))  # type: ignore[misc]
            one = {d: Scalar(Const(1.0, d.dtype)) for d in made}
            out += [Assign(n, Map("div", (one[d], d), d.dims, d.dtype), n) for d, n in made.items()]
            out.append(fresh)
        return tuple(out)

    return replace(kernel, body=map_blocks(kernel.body, block))
