"""The role bodies of a group on tiles, before any synchronisation: one for its producer, one for its consumers.

A *consumer* is the program of 64 rows that the kernel has where the tile of its row axis is 64. `consumers` of them,
neighbours along the grid variable `rows`, share what does not depend on it::

    grid(b, h, i0 < cdiv(s_q, 64))      →      grid(b, h, group < cdiv(cdiv(s_q, 64), NW)),  i0 = group * NW + w

Both bodies are plain tile IR over the same parameters, axes and grid variables as the kernel, `rows` among them, so
that the verifier, the evaluator and the exact check of tile programs serve them: `consumer` alone computes what the
kernel computes. A tile that is to be loaded through shared memory is `Assign(name, LoadTile)` of a name in `staged`,
in both; for every consumer the loads of one name come in the same order in both bodies, as many times. A load that the
consumer does not use is one that it releases unread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from neptune.tile.ir import Assign, Loop, TExpr, TileKernel, TStmt, walk_stmts


@dataclass(frozen=True, eq=False)
class RoleBodies:
    """`kernel` is the consumer's: its grid has the variable `rows` over single consumers, 64 rows each.

    `staged` has every tile that goes through shared memory, in the order of its first load: the name, and whether each
    consumer has one of its own (its index reads `rows`) or all share it. In `producer` a shared tile is loaded for
    the union of what the consumers of a group read; there `group` stands for the group, and `rows` in the index of a
    tile of its own for one consumer after the other.
    `late` names the products that are issued one step late (rotated), `kept` says of other loops why none of theirs is.
    `read` are staged tiles that consumers also read into registers. The mask of a staged load says no more than "inside
    of the tensor", what a copy by descriptor does by itself; it stays so that the bodies can be evaluated.
    `sent` are the results that leave as boxes, with whether they do at the end of each group, on no condition.
    `symbolic` is the kernel with its tile sizes as tunables, for the exact check; with `values` it is `kernel`.
    """

    kernel: TileKernel
    producer: tuple[TStmt, ...]
    rows: str
    group: str
    consumers: int
    staged: tuple[tuple[str, bool], ...]
    late: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    sent: tuple[tuple[str, bool], ...] = ()
    symbolic: TileKernel | None = None
    values: Mapping[str, int] = field(default_factory=dict)

    @property
    def loads(self) -> dict[str, TExpr]:
        """The values that the producer assigns, by name: the load of each staged tile among it."""
        return {s.name: s.value for s in walk_stmts(self.producer) if isinstance(s, Assign)}

    @property
    def looped(self) -> frozenset[str]:
        """The names that loops of the producer assign."""
        loops = (s for s in walk_stmts(self.producer) if isinstance(s, Loop))
        return frozenset(s.name for loop in loops for s in walk_stmts(loop.body) if isinstance(s, Assign))
