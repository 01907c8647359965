"""What the tile passes share: questions about blocks of tile statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from neptune.ir.expr import Const, variables
from neptune.tile.ir import (
    Assign,
    Branch,
    Local,
    Loop,
    Scalar,
    StoreTile,
    TExpr,
    TileKernel,
    TStmt,
    stmt_exprs,
    tile_walk,
    walk_stmts,
)

Block = tuple[TStmt, ...]


def map_blocks(body: Block, fn: Callable[[Block], Block]) -> Block:
    """Apply `fn` to every block, inner ones first."""
    from dataclasses import replace

    inner = tuple(replace(s, body=map_blocks(s.body, fn)) if isinstance(s, Loop | Branch) else s for s in body)
    return fn(inner)


def reads(s: TStmt) -> Iterator[str]:
    """Names of the locals a statement reads, those in its body included."""
    for x in walk_stmts((s,)):
        for e in stmt_exprs(x):
            for node in tile_walk(e):
                if isinstance(node, Local):
                    yield node.name


def assigns(s: TStmt) -> set[str]:
    """Names of the locals a statement assigns, those in its body included."""
    return {x.name for x in walk_stmts((s,)) if isinstance(x, Assign)}


def uses(e: TExpr, name: str) -> int:
    """How often an expression reads a local."""
    return sum(1 for n in tile_walk(e) if isinstance(n, Local) and n.name == name)


def scalar_names(e: TExpr) -> set[str]:
    """Loop variables, sizes and tunables that occur in an expression."""
    return {v for n in tile_walk(e) if isinstance(n, Scalar) for v in variables(n.expr)}


def stored_buffers(kernel: TileKernel) -> set[str]:
    """Global buffers the kernel writes."""
    return {s.buffer for s in walk_stmts(kernel.body) if isinstance(s, StoreTile)}


def names_in(kernel: TileKernel) -> set[str]:
    """Every local name of a kernel."""
    return {s.name for s in walk_stmts(kernel.body) if isinstance(s, Assign)}


def is_const(e: TExpr, value: float) -> bool:
    """True for the constant `value`."""
    return isinstance(e, Scalar) and isinstance(e.expr, Const) and e.expr.value == value
