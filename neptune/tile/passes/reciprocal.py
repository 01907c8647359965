"""reciprocal: one division per row instead of one per element, where the row's divisor cannot be too small for it.

o = acc / l[:, None]        →        inv_l = 1 / l;  o = acc * inv_l[:, None]

Below 2.9e-39 a float32 has no finite inverse, and x / max|x| of a row of such numbers would come out infinite or
NaN: the divisor must be shown to be 0, NaN or larger.  Where it is not, x * (1 / s), which deferring a factor leaves
behind the loop, becomes x / s.
"""

from __future__ import annotations

from dataclasses import replace

from neptune.ir.dtypes import DTYPES, is_float
from neptune.ir.expr import Const, Op, rewrite, rewrite_parts
from neptune.tile.ir import Assign, Branch, Local, Loop, Rearrange, Scalar, TExpr, TileKernel, TStmt, map_stmt
from neptune.tile.passes.sums import Lows
from neptune.tile.passes.util import Block, depends, free_name, map_blocks, names_in

LEAST = {d: 8.0 / row.highest for d, row in DTYPES.items() if row.kind == "float"}
"""What has an inverse in its dtype, with a factor of 8 to spare for the error of a fold."""


def reciprocal(kernel: TileKernel) -> TileKernel:
    """Replace divisions of a tile by something of fewer dimensions."""
    used, lows = names_in(kernel), Lows(kernel)

    def block(stmts: Block) -> Block:
        out: list[TStmt] = []
        inverses: dict[TExpr, Local] = {}

        def inverse(e: TExpr) -> Local:
            if e not in inverses:
                wish = f"inv_{e.name}" if isinstance(e, Local) else "inv"
                name = free_name(wish, used)
                used.add(name)
                one = Scalar(Const(1.0, e.dtype))
                out.append(Assign(name, Op("div", (one, e), e.dtype), name))
                inverses[e] = Local(name, e.dims, e.dtype)
            return inverses[e]

        def fn(e: TExpr) -> TExpr | None:
            match e := rewrite_parts(e, fn) if isinstance(e, Op) else e:
                case Op("mul", (a, Rearrange(Op("div", (Scalar(Const(1, _)), s)), _) as b), dtype):
                    if (
                        a.dims == e.dims
                        and is_float(dtype)
                        and s.dims == b.arg.dims
                        and lows.of(s).least < LEAST[dtype]
                    ):
                        return replace(e, name="div", args=(a, replace(b, arg=s)))
                case Op("div", (a, Rearrange(arg, _) as b), dtype) if _pays(arg, dtype):
                    if a.dims == e.dims and "1" in b.dims and lows.of(arg).least >= LEAST[dtype]:
                        return replace(e, name="mul", args=(a, replace(b, arg=inverse(arg))))
            return e if isinstance(e, Op) else None

        for s in stmts:
            # What a loop or branch repeats has been rewritten inside it.
            fresh = s if isinstance(s, Loop | Branch) else map_stmt(s, lambda e: rewrite(e, fn))
            inverses = {e: name for e, name in inverses.items() if not depends(e, s)}
            out.append(fresh)
        return tuple(out)

    return replace(kernel, body=map_blocks(kernel.body, block))


def _pays(divisor: TExpr, dtype: str) -> bool:
    """A short dtype would round the inverse, or take it out of its range."""
    return is_float(dtype) and DTYPES[dtype].bits >= 32 and bool(divisor.dims)
