"""producer: what is left of a body where only copies count, and what they depend on."""

from __future__ import annotations

from dataclasses import replace

from neptune.errors import Unsupported
from neptune.hopper.bodies.consumers import ConsumerKernel
from neptune.hopper.bodies.staged import Staging
from neptune.ir.expr import conjuncts
from neptune.tile.ir import Assign, Branch, LoadTile, Loop, TStmt, walk_stmts
from neptune.tile.passes.util import Block, assigns
from neptune.tile.scalars import reads_itself, reads_var

BY_POSITION = "bounds by positions, or by the data of all rows of a tile"


def unmasked(body: Block, names: frozenset[str] | None = None) -> Block:
    """A body whose copies (of `names`, or all) have no masks, which say no more than what a copy does by itself."""
    return tuple(
        replace(s, body=unmasked(s.body, names))
        if isinstance(s, Loop | Branch)
        else replace(s, value=replace(s.value, mask=None))
        if isinstance(s, Assign) and isinstance(s.value, LoadTile) and (names is None or s.name in names)
        else s
        for s in body
    )


def masks(s: TStmt) -> int:
    """The number of conditions that a copy is masked by."""
    return len(conjuncts(s.value.mask)) if isinstance(s, Assign) and isinstance(s.value, LoadTile) else 0


def assigns_any(body: Block, names: frozenset[str]) -> bool:
    """True if a body assigns one of some locals."""
    return any(assigns(s) & names for s in body)


def pruned(body: Block, staged: frozenset[str]) -> Block:
    """A producer's body: copies, and what their places and their loops depend on."""
    wanted = set(staged)
    while True:
        kept = [s for s in walk_stmts(body) if assigns(s) & wanted]
        more = wanted | {n for s in kept for n in reads_itself(s)}
        if more == wanted:
            return _kept(body, frozenset(wanted))
        wanted = more


def read(lines: Block, body: Block) -> Block:
    """The scalars of `lines` that a body reads, or that are read for those."""
    needed = {n for s in walk_stmts(body) for n in reads_itself(s)}
    kept: list[TStmt] = []
    for s in reversed(lines):
        if assigns(s) & needed:
            needed |= reads_itself(s)
            kept.append(s)
    return tuple(reversed(kept))


def _kept(body: Block, wanted: frozenset[str]) -> Block:
    """The assignments of a body that are wanted, and the loops and branches around them."""
    out: list[TStmt] = []
    for s in body:
        if isinstance(s, Loop | Branch) and assigns(s) & wanted:
            out.append(replace(s, body=_kept(s.body, wanted)))
        elif isinstance(s, Assign) and s.name in wanted:
            out.append(s)
    return tuple(out)


def check_for_all(producer: Block, staging: Staging, single: ConsumerKernel) -> None:
    """Unsupported where one producer cannot load for all: nothing but their own copies may depend on their rows."""
    own = {name for name, own in staging.tiles if own}
    for s in walk_stmts(producer):
        if isinstance(s, Assign) and s.name in own:
            continue
        if reads_var(replace(s, body=()) if isinstance(s, Loop | Branch) else s, single.rows):
            where = s.var if isinstance(s, Loop) else s.name if isinstance(s, Assign) else "a condition"
            raise Unsupported("what is loaded depends on the rows of one consumer", where, BY_POSITION)
