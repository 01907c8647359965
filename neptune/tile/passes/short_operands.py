"""short_operands: a product reads 16-bit operands, not what they were widened to.

z = cast(f32, x); y = y + dot(z, cast(f32, w))        →        y = y + dot(x, w)

The matrix unit multiplies 16-bit numbers exactly and sums in float32: both forms are the same, but float32 operands are
multiplied one by one on most GPUs. Where one operand alone is short, both stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from neptune.ir.expr import Cast, rewrite
from neptune.tile.ir import Assign, Branch, Dot, Local, Loop, Rearrange, TExpr, TileKernel, TStmt, map_stmt
from neptune.tile.passes.copies import drop_dead
from neptune.tile.passes.util import Block, assigns, map_blocks

SHORT = ("float16", "bfloat16")


def short_operands(kernel: TileKernel) -> TileKernel:
    """Shorten the operands of products within blocks, then drop the casts that nothing reads any more."""
    return replace(kernel, body=drop_dead(map_blocks(kernel.body, _block)))


def _block(stmts: Block) -> Block:
    out: list[TStmt] = []
    short_of: dict[str, Local] = {}
    for s in stmts:
        touched = assigns(s)
        if isinstance(s, Loop | Branch):
            short_of = _untouched(short_of, touched)
        known = dict(short_of)
        s = map_stmt(s, lambda e, known=known: rewrite(e, lambda x: _product(x, known)))  # type: ignore[misc]
        short_of = _untouched(short_of, touched)
        if isinstance(s, Assign) and isinstance(of := _short(s.value, {}), Local):
            short_of[s.name] = of
        out.append(s)
    return tuple(out)


def _untouched(short_of: Mapping[str, Local], touched: set[str]) -> dict[str, Local]:
    """Return the entries that hold after a statement that assigns the names `touched`."""
    return {n: of for n, of in short_of.items() if n not in touched and of.name not in touched}


def _product(e: TExpr, short_of: Mapping[str, Local]) -> TExpr | None:
    if not isinstance(e, Dot) or e.a.dtype != "float32":
        return None
    a, b = _short(e.a, short_of), _short(e.b, short_of)
    return replace(e, a=a, b=b) if a is not None and b is not None and a.dtype == b.dtype else None


def _short(e: TExpr, short_of: Mapping[str, Local]) -> TExpr | None:
    """Return the expression that an operand was widened from; None if it was not."""
    if isinstance(e, Rearrange):
        inner = _short(e.arg, short_of)
        return None if inner is None else replace(e, arg=inner)
    if isinstance(e, Cast) and e.dtype == "float32" and e.arg.dtype in SHORT:
        return e.arg
    return short_of.get(e.name) if isinstance(e, Local) else None
