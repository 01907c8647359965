"""operands: products as statements of their own, of tiles that have names.

acc = acc + dot(cast(f16, p), v)        →        acc_left = cast(f16, p)
                                                 acc = acc + dot(acc_left, v)
y = gelu(dot(h, w))                     →        y_product = dot(h, w)
                                                 y = gelu(y_product)

acc = acc + dot(a, b), of 8-bit floats  →        acc_product = dot(a, b)
                                                 acc = acc + acc_product

A product that is issued late reads its operand from registers: what is computed for it is computed where it stands.
Hopper's unit cuts running sums of 8-bit floats to some 14 bits, so that each tile's is begun anew and added in float32.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from neptune.ir.dtypes import FLOAT8
from neptune.ir.expr import Op, rewrite
from neptune.tile.ir import Assign, Branch, Dot, Local, Loop, TExpr, TileKernel, TStmt, bare, map_stmt
from neptune.tile.passes.util import Block, assigns, free_name, map_blocks, names_in, products, reads


def multiplied(s: TStmt) -> Dot | None:
    """The product of `s = dot(a, b)`, `acc = acc + dot(a, b)` and `acc = dot(a, b, acc)`."""
    if not isinstance(s, Assign):
        return None
    match s.value:
        case Dot(_, _, None, _) as dot:
            return dot
        case Dot(_, _, Local(name, _, _), _) as dot if name == s.name:
            return dot
        case Op("add", (Local(name, _, _), Dot(_, _, None, _) as dot), _) if name == s.name:
            return dot
    return None


def accumulated(s: TStmt) -> Dot | None:
    """The product of `acc = acc + dot(a, b)`."""
    dot = multiplied(s)
    return None if dot is None or (isinstance(s, Assign) and s.value == dot and dot.acc is None) else dot


def sums_of(body: Block, staged: Collection[str]) -> set[str]:
    """The locals that a loop's body does nothing with but to add products of staged tiles to them."""
    sums = {s.name for s in body if isinstance(s, Assign) and _of_tiles(accumulated(s), staged)}
    other = {n for s in body if not _of_tiles(accumulated(s), staged) for n in (*assigns(s), *reads(s))}
    return sums - other


def _of_tiles(dot: Dot | None, staged: Collection[str]) -> bool:
    """True for a product that reads no registers."""
    return dot is not None and all(isinstance(x, Local) and x.name in staged for x in (bare(dot.a), bare(dot.b)))


def operands(kernel: TileKernel) -> TileKernel:
    """The kernel with every product a statement, and with a name for what is computed for it."""
    taken = names_in(kernel)
    # One name for one statement's operand, in whichever loop it stands: what is late reads that of another one.
    chosen: dict[tuple[str, str], str] = {}

    def name(stem: str, what: str) -> str:
        if (stem, what) not in chosen:
            chosen[stem, what] = free_name(f"{stem}_{what}", taken)
            taken.add(chosen[stem, what])
        return chosen[stem, what]

    def apart(s: TStmt) -> Block:
        if isinstance(s, Loop | Branch):
            return (s,)
        inner = next((dot for _, dot in products((s,))), None)
        if inner is None:
            return (s,)
        dot = multiplied(s)
        stem = s.name if isinstance(s, Assign) else s.buffer
        if dot is None:
            named = Local(name(stem, "product"), inner.dims, inner.dtype)
            if inner.acc is not None:
                return (s,)
            return (
                *apart(Assign(named.name, inner, named.name)),
                *apart(map_stmt(s, lambda e: _swapped(e, inner, named))),
            )
        if dot.a.dtype in FLOAT8 and s.value != replace(dot, acc=None):
            named = Local(name(stem, "product"), dot.dims, dot.dtype)
            added: TExpr = Op("add", (Local(stem, dot.dims, dot.dtype), named), dot.dtype)
            return (*apart(Assign(named.name, replace(dot, acc=None), named.name)), map_stmt(s, lambda _: added))
        if isinstance(bare(dot.a), Local):
            return (s,)
        left = Local(name(stem, "left"), dot.a.dims, dot.a.dtype)
        return (
            Assign(left.name, dot.a, left.name),
            map_stmt(s, lambda e: _swapped(e, dot, replace(dot, a=left))),
        )

    return replace(kernel, body=map_blocks(kernel.body, lambda block: tuple(x for s in block for x in apart(s))))


def _swapped(e: TExpr, old: TExpr, new: TExpr) -> TExpr:
    return rewrite(e, lambda x: new if x == old else None)
