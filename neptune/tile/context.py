"""The state of the translation of one kernel, with what is known of the contents of its tiles.

Contents that are known where a guard is false make masks unnecessary.

    score = where(j < n, s, -inf);  p = exp(score - m);  l = l + reduce(p, sum)

Where `j < n` is false, score is -inf, m is never -inf (it starts from the finite extreme), so p is 0 and
the sum needs no mask of its own.  Knowledge is dropped as soon as anything it rests on is assigned again.

Tile expressions are brought to common dimensions with einops patterns:

`align_to(t<c r>, ("r", "c"))` is `rearrange(t, "c r -> r c")`; `align_to(m<r>, ("r", "c"))` is
`rearrange(m, "r -> r 1")`, which broadcasts (paper §5, "dimension order reconciliation").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

from neptune.errors import InternalError
from neptune.ir.analysis.absorb import ONE, ZERO, IsFalse, Known, Same, conjunct_false, known_value
from neptune.ir.analysis.facts import constant_range
from neptune.ir.expr import Const, Expr, Load, Op, Select, Var, children, conjuncts, loads, variables
from neptune.ir.program import Buffer, For, Program, Stage, values, writes
from neptune.tile.ir import Rearrange, Scalar, TExpr

Masks = Callable[[Load], list[Expr]]
"""The guards under which a load from global memory is masked to 0."""


@dataclass(frozen=True)
class Content:
    """The expression a tile was last assigned from, over its tile axes, and how its loads were masked."""

    value: Expr
    masks: Mapping[Load, list[Expr]]


@dataclass
class Contents:
    """Present knowledge of every tile of a kernel."""

    known: dict[str, Content] = field(default_factory=dict)
    # Tiles that never hold -inf: maxima that started from a finite value, and copies of them.
    above: set[str] = field(default_factory=set)

    def store(self, buffer: str, value: Expr, masks: Masks) -> None:
        """`buffer = value` has been translated."""
        copied = isinstance(value, Load) and value.buffer in self.above
        finite = copied or (isinstance(value, Const) and value.value > -inf)
        self.forget([buffer])
        if all(x.buffer != buffer for x in loads(value)):
            self.known[buffer] = Content(value, {x: masks(x) for x in loads(value)})
        if finite:
            self.above.add(buffer)

    def update(self, buffer: str, reducer: str) -> None:
        """A value has been folded into `buffer`."""
        finite = buffer in self.above and reducer == "max"
        self.forget([buffer])
        if finite:
            self.above.add(buffer)

    def may_run(self, stages: Iterable[Stage]) -> None:
        """These stages run here, any number of times."""
        for stage in stages:
            for b in writes(stage.action):
                self.update(b, stage.action.reducer)

    def forget(self, buffers: Iterable[str]) -> None:
        """These tiles may have been assigned: drop them, and what is known in terms of them."""
        todo = list(buffers)
        self.above -= set(todo)
        while todo:
            gone = todo.pop()
            self.known.pop(gone, None)
            todo += [n for n, c in self.known.items() if any(x.buffer == gone for x in loads(c.value))]

    def outside(self, e: Expr, guard: Expr, masks: Masks, tiles: Iterable[str]) -> Known:
        """Return the known value of `e` where `guard` is false; `tiles` names all buffers that are tiles."""
        memory: dict[str, Known] = {}
        for load in loads(e):
            value = self._load(load, guard, masks, frozenset(tiles))
            memory[load.buffer] = value if memory.get(load.buffer, value) == value else None
        is_false = conjunct_false(guard)
        operators = [x for x in _reached(e, is_false) if isinstance(x, Op)]
        if any(_may_be_nan(x, [known_value(a, memory, is_false) for a in x.args]) for x in operators):
            return None
        return known_value(e, memory, is_false)

    def _load(self, load: Load, guard: Expr, masks: Masks, tiles: frozenset[str]) -> Known:
        if load.buffer not in tiles:
            return ZERO if guard in masks(load) else None
        content = self.known.get(load.buffer)
        if content is None:
            return Same(load.buffer, load.buffer in self.above, load.index)
        return self.outside(content.value, guard, lambda x: content.masks.get(x, []), tiles)


def _reached(e: Expr, is_false: IsFalse) -> Iterator[Expr]:
    """Every node that contributes to the value: not the branch of a choice that is certainly not taken."""
    yield e
    untaken = isinstance(e, Select) and is_false(conjuncts(e.pred))
    for child in (e.other,) if isinstance(e, Select) and untaken else children(e):
        yield from _reached(child, is_false)


def _may_be_nan(e: Op[Expr], known: list[Known]) -> bool:
    """True for 0 · x and 0 / x where nothing is known of x: it may be infinite, NaN, or 0."""
    if e.name == "div":
        return known[0] == ZERO and not _plain(e.args[1])
    if e.name == "mul" and ZERO in known:
        return any(k not in (ZERO, ONE) and not _plain(a) for a, k in zip(e.args, known, strict=True))
    return False


def _plain(e: Expr) -> bool:
    """A finite constant other than 0."""
    limits = constant_range(e)
    return limits.nonzero and limits.most < inf


# --- the state --------------------------------------------------------------------------------------

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


# --- common dimensions ------------------------------------------------------------------------------


def align_to(tile: TExpr, dims: tuple[str, ...]) -> TExpr:
    """`tile` permuted to the order of `dims`, with "1" where it lacks one; scalars stay scalars."""
    if isinstance(tile, Scalar) or tile.dims == dims or not tile.dims:
        return tile
    own = [d for d in tile.dims if d != "1"]
    if isinstance(tile, Rearrange) and "1" in tile.dims:
        return align_to(tile.arg, dims)
    if not set(own) <= set(dims):
        raise InternalError(f"a tile over {tile.dims} was to be aligned to {dims}")
    target = [d if d in own else "1" for d in dims]
    return Rearrange(tile, f"{' '.join(tile.dims)} -> {' '.join(target)}")
