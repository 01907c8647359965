"""narrow: an accumulator that is the same along an axis keeps one element of it.

b = full(0, (m, k)); for …: b = b + rows[None, :]; o = o - s[:, None] * b
    →  b = full(0, (1, k)); for …: b = b + rows[None, :]; o = o - s[:, None] * b
"""

from __future__ import annotations

from dataclasses import replace

from neptune.ir.expr import Op, children, rewrite
from neptune.tile.ir import (
    Assign,
    Branch,
    Full,
    Local,
    Loop,
    TExpr,
    TileKernel,
    TStmt,
    leaves,
    map_leaves,
    map_stmt,
    stmt_exprs,
    walk_stmts,
)
from neptune.tile.passes.util import Block, reads


def narrow(kernel: TileKernel) -> TileKernel:
    """Narrow every local whose values do not vary along an axis, where all that reads it spreads it out again."""
    body = kernel.body
    dims_of = {s.name: s.value.dims for s in walk_stmts(body) if isinstance(s, Assign) and s.name in reads(s)}
    for name, dims in dims_of.items():
        for k in range(len(dims)) if len(dims) > 1 else ():
            body = _narrowed(body, name, k)
    return replace(kernel, body=body)


def _narrowed(body: Block, name: str, k: int) -> Block:
    """The body with dimension `k` of a local of length one, or as it is."""
    assignments = [s for s in walk_stmts(body) if isinstance(s, Assign) and s.name == name]
    others = [e for s in walk_stmts(body) if s not in assignments for e in stmt_exprs(s)]
    if any(_one(s.value, name, k) is None for s in assignments) or not all(_spread(e, name, k) for e in others):
        return body

    def shorter(e: TExpr) -> TExpr | None:
        return replace(e, dims=_unit(e.dims, k)) if isinstance(e, Local) and e.name == name else None

    def visit(s: TStmt) -> TStmt:
        if isinstance(s, Loop | Branch):
            return replace(s, body=tuple(map(visit, s.body)))
        value = _one(s.value, name, k) if isinstance(s, Assign) and s.name == name else None
        return map_stmt(s, lambda e: rewrite(e, shorter)) if value is None else replace(s, value=value)

    return tuple(map(visit, body))


def _unit(dims: tuple[str, ...], k: int) -> tuple[str, ...]:
    return (*dims[:k], "1", *dims[k + 1 :])


def _one(e: TExpr, name: str, k: int) -> TExpr | None:
    """A value of the local with dimension `k` of length one; None where it may vary along it."""
    long = [x for x in leaves(e) if x.dims and x.dims[k] != "1"]
    if not all(isinstance(x, Full) or (isinstance(x, Local) and x.name == name) for x in long):
        return None

    def shorter(x: TExpr) -> TExpr:
        return replace(x, dims=_unit(x.dims, k)) if isinstance(x, Full | Local) and x in long else x

    return map_leaves(e, shorter)


def _spread(e: TExpr, name: str, k: int) -> bool:
    """True if wherever the local is read something beside it has all elements of dimension `k`."""
    parts = children(e)
    uses = [x for x in parts if isinstance(x, Local) and x.name == name]
    if uses:
        long = [x for x in parts if x.dims and x not in uses and x.dims[k] == uses[0].dims[k]]
        if not isinstance(e, Op) or not long:
            return False
    return not (isinstance(e, Local) and e.name == name) and all(_spread(x, name, k) for x in parts if x not in uses)
