"""group_bounds: loops that end where data of their rows says so, by the data of all rows of a group.

qd_min = min(qd[i0 * B + iota(i)]); j0_first = …     →    qd_min_all = min(qd[group * (NW * B) + iota(i_all)]); …
for j0 in [j0_first, …): …                                for j0 in [j0_first_all, …): …

Bounds of the kernel whose tiles have the rows of a whole group are bounds for each of its parts: tiles beyond a
consumer's own are masked for it. So all roles compute the same bounds, and none depends on what another one reads.
Three consumers look at a fourth tile of rows, since a tile's extent is a power of two.
"""

from __future__ import annotations

from dataclasses import replace

from neptune.hopper.bodies.consumers import ConsumerKernel
from neptune.hopper.bodies.producer import pruned
from neptune.ir.expr import Expr, Load, binary, cast, loads, rewrite, substitute
from neptune.tile.ir import (
    Assign,
    Branch,
    Full,
    Iota,
    LoadTile,
    Local,
    Loop,
    Rearrange,
    Reduce,
    TExpr,
    TileKernel,
    TStmt,
    map_stmt,
)
from neptune.tile.passes.copies import drop_dead
from neptune.tile.passes.util import Block, assigns, free_name, names_in
from neptune.tile.scalars import in_block, reads_var, var


def by_group(single: ConsumerKernel, staged: frozenset[str], group: str, consumers: int) -> TileKernel:
    """The kernel with bounds that follow from data of rows computed for the group, whose variable is `group`."""
    kernel = single.kernel
    needed = {
        n
        for s in kernel.body
        if isinstance(s, Loop | Branch) and assigns(s) & staged
        for e in ((s.lo, s.hi) if isinstance(s, Loop) else (s.pred,))
        for n in (x.buffer for x in loads(e) if not x.index)
    }
    slice_ = pruned(kernel.body, frozenset(needed))
    if not needed or not any(reads_var(s, single.rows) for s in slice_):
        return kernel
    walks = tuple(s for s in kernel.body if assigns(s) & staged and isinstance(s, Loop | Branch))
    if not all(_by_positions(s, single) for s in (*slice_, *(replace(s, body=()) for s in walks))):
        return kernel
    change = _Change(single, frozenset(n for s in slice_ for n in assigns(s)), group, consumers)
    body: list[TStmt] = []
    for s in kernel.body:
        body += change.block(pruned((s,), change.made)) if assigns(s) & change.made else ()
        body.append(change.bounds(s) if assigns(s) & staged and isinstance(s, Loop | Branch) else s)
    axes = (*kernel.axes, *((name, change.extent) for name in change.axes.values()))
    return replace(kernel, axes=axes, body=drop_dead(tuple(body)))


def _by_positions(s: TStmt, single: ConsumerKernel) -> bool:
    """True if a statement knows its rows by where they lie, `rows * block`, which a group's rows have as well; what is
    kept for each tile of rows, such as the number of its expert, says nothing of a group."""
    rows, block = var(single.rows), var(single.block)
    pairs = [(rows, block), (cast(rows, "int64"), cast(block, "int64"))]
    places = {binary("mul", *x) for a, b in pairs for x in ((a, b), (b, a))}
    (hidden,) = in_block((s,), lambda e: rewrite(e, lambda x: cast(block, x.dtype) if x in places else None))
    return not reads_var(hidden, single.rows)


class _Change:
    """Statements of one consumer as those of its group: locals, rows and their axis have other names."""

    def __init__(self, single: ConsumerKernel, changed: frozenset[str], group: str, consumers: int) -> None:
        taken = names_in(single.kernel) | {name for name, _ in single.kernel.axes}
        self.made = changed
        self.names = {n: free_name(f"{n}_all", taken) for n in changed}
        self.axes = {single.axis: free_name(f"{single.axis}_all", taken)}
        block = var(single.block)
        tiles = 1 << (consumers - 1).bit_length()
        self.extent = binary("mul", block, tiles)
        self.env: dict[str, Expr] = {single.rows: var(group), single.block: binary("mul", block, consumers)}

    def block(self, body: Block) -> Block:
        """A body for the group."""
        return tuple(self._renamed(s) for s in in_block(body, self.scalar))

    def bounds(self, s: Loop | Branch) -> TStmt:
        """A loop or a branch that runs where the group's does."""
        if isinstance(s, Loop):
            return replace(s, lo=self.scalar(s.lo), hi=self.scalar(s.hi), facts=tuple(map(self.scalar, s.facts)))
        return replace(s, pred=self.scalar(s.pred))

    def scalar(self, e: Expr) -> Expr:
        def local(x: Expr) -> Expr | None:
            known = isinstance(x, Load) and not x.index and x.buffer in self.names
            return replace(x, buffer=self.names[x.buffer]) if known and isinstance(x, Load) else None

        return rewrite(substitute(e, self.env), local)

    def _renamed(self, s: TStmt) -> TStmt:
        if isinstance(s, Loop | Branch):
            return replace(s, body=tuple(self._renamed(x) for x in s.body))
        renamed = map_stmt(s, lambda e: rewrite(e, self._tile))
        return replace(renamed, name=self.names[renamed.name]) if isinstance(renamed, Assign) else renamed

    def _dims(self, dims: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(self.axes.get(d, d) for d in dims)

    def _tile(self, e: TExpr) -> TExpr | None:
        """A tile expression over the group's rows, its parts included; None for what has no dims of its own."""
        match e:
            case Iota(axis):
                return Iota(self.axes.get(axis, axis))
            case Local(name, dims, _):
                return replace(e, name=self.names.get(name, name), dims=self._dims(dims))
            case Full(_, dims, _):
                return replace(e, dims=self._dims(dims))
            case LoadTile(buffer, index, mask, other, dims, dtype):
                inner = None if mask is None else rewrite(mask, self._tile)
                return LoadTile(
                    buffer, tuple(rewrite(i, self._tile) for i in index), inner, other, self._dims(dims), dtype
                )
            case Reduce(reducer, axis, arg):
                return Reduce(reducer, self.axes.get(axis, axis), rewrite(arg, self._tile))
            case Rearrange(arg, pattern):
                return Rearrange(rewrite(arg, self._tile), " ".join(self.axes.get(w, w) for w in pattern.split()))
        return None
