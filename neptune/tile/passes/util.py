"""Questions about blocks of tile statements that several tile passes ask."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from itertools import count

from neptune.ir.expr import loads, rewrite, variables, walk
from neptune.tile.ir import (
    Assign,
    Branch,
    Dot,
    LoadTile,
    Local,
    Loop,
    Scalar,
    StoreTile,
    TExpr,
    TileKernel,
    TStmt,
    bound_exprs,
    map_stmt,
    read_by,
    stmt_exprs,
    walk_stmts,
)

Block = tuple[TStmt, ...]
Known = Mapping[str, Local]


def map_blocks(body: Block, fn: Callable[[Block], Block]) -> Block:
    """Apply `fn` to every block, inner ones first."""
    inner = tuple(replace(s, body=map_blocks(s.body, fn)) if isinstance(s, Loop | Branch) else s for s in body)
    return fn(inner)


def reads(s: TStmt) -> Iterator[str]:
    """Names of the locals a statement reads, those in its body included."""
    for x in walk_stmts((s,)):
        for e in stmt_exprs(x):
            yield from read_by(e)
        yield from bound_reads(x)


def bound_reads(s: TStmt) -> set[str]:
    """Names that the bounds of a loop or the condition of a branch read: locals, and buffers of one element."""
    return {x.buffer for e in bound_exprs(s) for x in loads(e) if not x.index}


def assigns(s: TStmt) -> set[str]:
    """Names of the locals a statement assigns, those in its body included."""
    return {x.name for x in walk_stmts((s,)) if isinstance(x, Assign)}


def products(body: Block) -> Iterator[tuple[TStmt, Dot]]:
    """Every product of matrices with the statement that computes it, those of inner bodies included."""
    return ((s, e) for s in walk_stmts(body) for whole in stmt_exprs(s) for e in walk(whole) if isinstance(e, Dot))


def uses(e: TExpr, name: str) -> int:
    """Return how often an expression reads a local."""
    return sum(1 for n in walk(e) if isinstance(n, Local) and n.name == name)


def scalar_names(e: TExpr) -> set[str]:
    """Loop variables, sizes and tunables that occur in an expression."""
    return {v for n in walk(e) if isinstance(n, Scalar) for v in variables(n.expr)}


def loaded_buffers(e: TExpr) -> set[str]:
    """Global buffers that an expression reads."""
    buffers = {n.buffer for n in walk(e) if isinstance(n, LoadTile)}
    return buffers | {x.buffer for n in walk(e) if isinstance(n, Scalar) for x in loads(n.expr)}


def depends(e: TExpr, s: TStmt) -> bool:
    """True if running `s` may change the value of `e`."""
    stored = {x.buffer for x in walk_stmts((s,)) if isinstance(x, StoreTile)}
    return bool(read_by(e) & assigns(s) or loaded_buffers(e) & stored)


def forward(
    stmts: Block, source: Callable[[TExpr], TExpr | None], use: Callable[[TExpr, Known], TExpr | None]
) -> Block:
    """Rewrite a block by `use`, given the locals whose values follow from another one, as long as neither changes.

    `source` says which local a value follows from, if it is one.
    """
    out: list[TStmt] = []
    known: dict[str, Local] = {}
    for s in stmts:
        touched = assigns(s)
        still = {n: value for n, value in known.items() if n not in touched and value.name not in touched}
        before = still if isinstance(s, Loop | Branch) else known
        s = map_stmt(s, lambda e, before=before: rewrite(e, lambda x: use(x, before)))  # type: ignore[misc]
        known = still
        if isinstance(s, Assign) and isinstance(value := source(s.value), Local) and value.name != s.name:
            known[s.name] = value
        out.append(s)
    return tuple(out)


def confined(body: Block) -> set[str]:
    """Locals whose every read sees an assignment of the same block or of one around it, and no other.

    No value of theirs comes out of a loop or a branch, or from an earlier iteration.
    """
    every = {s.name for s in walk_stmts(body) if isinstance(s, Assign)}
    return every - _escaping(body, frozenset())


def _escaping(block: Block, known: frozenset[str]) -> set[str]:
    """Locals that are read where none of `known`, nor an assignment of this block, says what they are."""
    escaping: set[str] = set()
    for s in block:
        if isinstance(s, Loop | Branch):
            escaping |= bound_reads(s) - known
            known = known - assigns(s)
            escaping |= _escaping(s.body, known)
        else:
            escaping |= set(reads(s)) - known
            if isinstance(s, Assign):
                known |= {s.name}
    return escaping


def free_name(wish: str, taken: Collection[str]) -> str:
    """`wish`, or the first of `wish_`, `wish__`, … that is not taken."""
    return next(name for name in (wish + "_" * k for k in count()) if name not in taken)


def names_in(kernel: TileKernel) -> set[str]:
    """Every name a new local must not take: locals, loops, sizes and tunables of a kernel."""
    names = {g.var for g in kernel.grid} | {v for g in kernel.grid for v in variables(g.extent)}
    names |= {v for _, extent in kernel.axes for v in variables(extent)}
    for s in walk_stmts(kernel.body):
        if isinstance(s, Assign):
            names.add(s.name)
        elif isinstance(s, Loop):
            names |= {s.var} | variables(s.lo) | variables(s.hi)
        elif isinstance(s, Branch):
            names |= variables(s.pred)
        names |= {v for e in stmt_exprs(s) for v in scalar_names(e)}
    return names
