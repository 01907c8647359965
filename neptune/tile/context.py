"""The state of the translation of one kernel."""

from __future__ import annotations

from dataclasses import dataclass, field

from neptune.ir.expr import Const, Expr, Var, loads, variables
from neptune.ir.program import Buffer, For, Program, Stage, values, writes
from neptune.tile.contents import Contents

SHORTEST_DOT = 16
"""The shortest axis that the matrix unit sums over."""


@dataclass
class Context:
    """Loops around the present statement, tile axes, and the tiles of the kernel."""

    program: Program
    outer: list[For] = field(default_factory=list)
    axes: dict[str, Expr] = field(default_factory=dict)
    local: dict[str, Buffer] = field(default_factory=dict)
    tile_dims: dict[str, tuple[str, ...]] = field(default_factory=dict)
    contents: Contents = field(default_factory=Contents)
    # Loops around the allocation of a local: those inside it may reduce into it.
    born: dict[str, frozenset[str]] = field(default_factory=dict)
    # Tile variables assigned so far, each with the guards that held at the assignment.
    assigned: set[str] = field(default_factory=set)
    given_under: dict[str, frozenset[Expr]] = field(default_factory=dict)
    stored: list[str] = field(default_factory=list)
    # Tile variables that stand for no buffer.
    helpers: set[str] = field(default_factory=set)
    # Constant axes are padded to this length.
    shortest: int = 1

    def extent(self, f: For) -> Expr:
        """The tile extent of a loop: constants are padded to a power of two."""
        if isinstance(f.hi, Const):
            return Const(max(self.shortest, _pow2(int(f.hi.value))), "int32")
        return f.hi

    def sums_products(self, axis: str) -> bool:
        """Return True if the matrix unit can sum over an axis: no value of its tunable may be too short."""
        extent = self.axes[axis]
        if isinstance(extent, Const):
            return int(extent.value) >= SHORTEST_DOT
        tunable = next((t for t in self.program.tunables if extent == Var(t.name)), None)
        return tunable is not None and tunable.least >= SHORTEST_DOT

    def reducing(self, buffer: str, index: tuple[Expr, ...]) -> frozenset[str]:
        """Loops (not tile axes) that fold into one element of a local."""
        spatial = frozenset[str]().union(*(variables(i) for i in index))
        outside = self.born.get(buffer, frozenset()) | spatial
        return frozenset(f.var for f in self.outer if f.var not in outside)

    def local_accesses(self, stage: Stage) -> list[tuple[str, tuple[Expr, ...]]]:
        pairs = [(b, stage.action.index) for b in writes(stage.action)]
        pairs += [(x.buffer, x.index) for v in values(stage.action) for x in loads(v)]
        return [(b, ix) for b, ix in pairs if b in self.local]

    def buffer(self, name: str) -> Buffer:
        return self.local[name] if name in self.local else self.program.globals[name]


def _pow2(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()
