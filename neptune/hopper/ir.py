"""The asynchronous tile form: a kernel as a producer warp and warpgroups that consume what it loads (paper: none; the
form is that of FlashAttention-3, derived from any loop).

    async kernel := name, grid, rows group consumers, axes, ring…, out…, counter…, producer body, consumer body
    ring  := name, dims, dtype, stages, own, barrier
                                                `stages` tiles in shared memory, each with a full and an empty barrier;
                                                `own`: a tile for every consumer in each stage; `barrier`: the ring
                                                before it whose barriers it shares
    out   := name, dims, dtype, over            tiles through which results leave; `over`: a ring whose memory they take
    stmt  := the statements of `neptune.tile.ir`, and
             Fill(ring, turn, load)                 producer: wait until the stage is empty, then copy; sets full
             Await(ring, turn)                      consumer: wait until it is full
             Release(ring, turn)                    consumer: it is done with it
             Issue(name, dot)                       start an asynchronous product
             Finish(pending, names, also)           wait until no more than `pending` products are in flight
             Send(out, buffer, index, value, mask)  store through shared memory, without waiting
             Drain(out)                             wait until the memory of `out` has been read
    texpr := those of `neptune.tile.ir`, and Staged(ring, turn, dims, dtype): the tile as it lies in shared memory

Semantics.
- `turn` is an int32 expression, the number of the tile in the life of its ring in this program: stage turn % stages,
  phase (turn // stages) & 1. `counters` are int32 locals (`Load(name)` in a turn, `Local(name)` in an `Assign`), each
  role's own: 0 when a program starts, and kept from group to group.
- A ring's `dims` are in the order of the buffer's dimensions, also where the load that fills it names them in another.
- Rings that share barriers have as many stages, and are filled, awaited and released side by side, in their order.
- A `Fill` of an `own` ring copies one tile per consumer: the load's index reads `rows`, each consumer's in turn.
- `Staged` is an operand of an issued product only, or read into registers by an `Assign` after its `Await`.
- A product in flight owns its accumulator, its register operands and the stages that it reads until a `Finish` that
  covers it. `Finish` makes `names` readable; `also` are locals in registers that may not move behind it, and sums to
  which products add that it leaves in flight.
- A `Drain` before anything was sent does nothing. A program that has gone through its groups drains all that it sent.
- `grid` has `group`, which counts groups of consumers; consumer w of a group is `rows` = group · consumers + w, which
  the consumer's body reads, and the producer's in the loads of `own` rings. A consumer behind the last row does all
  waits and releases, and stores nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias, cast

from neptune.ir.expr import Expr, loads, walk
from neptune.ir.nodes import Tile
from neptune.ir.text.printer import print_expr
from neptune.tile.address import Address
from neptune.tile.ir import (
    Assign,
    Branch,
    Dot,
    GridAxis,
    LoadTile,
    Loop,
    StoreTile,
    TExpr,
    TStmt,
    bound_exprs,
    read_by,
    stmt_exprs,
)


@dataclass(frozen=True, slots=True)
class Staged(Tile["TExpr"]):
    """The tile of one turn of a ring, in shared memory."""

    ring: str
    turn: Expr
    dims: tuple[str, ...]
    dtype: str

    def __str__(self) -> str:
        return f"staged({self.ring}, {print_expr(self.turn)})"


@dataclass(frozen=True, slots=True)
class Ring:
    """Tiles of `dims` in `stages` stages of shared memory, copied from the buffer `tensor`. `barrier` is a ring whose
    barriers are also this one's."""

    name: str
    tensor: str
    dims: tuple[str, ...]
    dtype: str
    stages: int
    own: bool = False
    barrier: str | None = None


@dataclass(frozen=True, slots=True)
class Out:
    """A tile per consumer through which a result leaves; with `over` it lies in the (own) ring of that name."""

    name: str
    tensor: str
    dims: tuple[str, ...]
    dtype: str
    over: str | None = None


@dataclass(frozen=True, slots=True)
class Fill:
    """The producer waits until a stage of `ring` is empty and copies `load` there; its full barrier completes then."""

    ring: str
    turn: Expr
    load: LoadTile


@dataclass(frozen=True, slots=True)
class Await:
    """A consumer waits until the stage of this ring iteration is full."""

    ring: str
    turn: Expr


@dataclass(frozen=True, slots=True)
class Release:
    """A consumer is done with the stage of this ring iteration."""

    ring: str
    turn: Expr


@dataclass(frozen=True, slots=True)
class Issue:
    """`name = dot`, asynchronously. The accumulator of `dot` is None (start at zero) or the local `name` itself."""

    name: str
    dot: Dot
    stage: str = ""


@dataclass(frozen=True, slots=True)
class Finish:
    """Wait until no more than `pending` products are in flight; `names` can be read then."""

    pending: int
    names: tuple[str, ...]
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Send:
    """Store a tile through the shared memory of `out`, without waiting."""

    out: str
    buffer: str
    index: tuple[TExpr, ...]
    value: TExpr
    mask: TExpr | None
    dims: tuple[str, ...]
    stage: str = ""
    at: Address | None = None


@dataclass(frozen=True, slots=True)
class Drain:
    """Wait until the memory of `out` has been read, so that it can be written again."""

    out: str


AStmt: TypeAlias = Assign | StoreTile | Loop | Branch | Fill | Await | Release | Issue | Finish | Send | Drain
"""Loops and branches hold these statements too."""
Body: TypeAlias = tuple[AStmt, ...]


@dataclass(frozen=True)
class Levers:
    """What is chosen of the form: consumers of 64 rows, stages of what a loop loads, how groups of rows come to the
    programs ("once": one program a group; "reverse": so, from the last group on; "stride": program, program + programs,
    …; "table": as the host balances them), in bands of how many groups of rows (0: all of them) the other grid
    variables are gone through, whether results have memory of their own, whether what is loaded once a group has two
    stages, so that the next group's comes while this one is computed, and registers of the producer's threads, which
    leave the rest."""

    consumers: int = 2
    stages: int = 2
    persistent: str = "once"
    own_out: bool = True
    pin: bool = False
    tiles: Mapping[str, int] = field(default_factory=dict)
    band: int = 0
    producer: int = 24
    ahead: bool = False

    @property
    def once(self) -> bool:
        """True where each group of rows has a program of its own."""
        return self.persistent in ("once", "reverse")

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a thread of a consumer and of the producer: 64 Ki for all, in eights (setmaxnreg)."""
        groups = self.consumers + 1
        every = 65536 // (128 * groups) // 8 * 8 * groups
        return (min(240, (every - self.producer) // self.consumers // 8 * 8), self.producer)

    def stages_of(self, looped: bool) -> int:
        """The stages of a tile that a loop loads, or of one that is loaded once a group."""
        return self.stages if looped else 1 + self.ahead


@dataclass(frozen=True)
class AsyncKernel:
    """One kernel. `axes` are numbers here: an asynchronous form is of given tile sizes (`levers.tiles` by tunable).

    `weight` is the work of a group, an int32 expression over grid variables (`group` among them) and sizes, which the
    host balances programs by; None where all are equal.
    """

    name: str
    grid: tuple[GridAxis, ...]
    rows: str
    group: str
    axes: tuple[tuple[str, int], ...]
    rings: tuple[Ring, ...]
    outs: tuple[Out, ...]
    counters: tuple[str, ...]
    producer: tuple[AStmt, ...]
    consumer: tuple[AStmt, ...]
    levers: Levers
    weight: Expr | None = None

    @property
    def extents(self) -> dict[str, int]:
        """The extent of each axis."""
        return dict(self.axes)

    def __str__(self) -> str:
        from neptune.hopper.printer import print_async

        return print_async(self)


# --- traversal ---------------------------------------------------------------------------------
# The bodies and operands of `neptune.tile.ir` are typed for its own statements and expressions; that asynchronous
# ones stand there is said here and nowhere else.


def inside(s: Loop | Branch) -> tuple[AStmt, ...]:
    """The body of a loop or branch."""
    return cast("tuple[AStmt, ...]", s.body)


def with_inside(s: Loop | Branch, body: tuple[AStmt, ...]) -> Loop | Branch:
    """The loop or branch with another body."""
    return replace(s, body=cast("tuple[TStmt, ...]", body))


def tile_of(s: Staged) -> TExpr:
    """A staged tile as an operand."""
    return cast("TExpr", s)


def staged_in(e: TExpr) -> tuple[Staged, ...]:
    """The staged tiles that an expression reads."""
    return tuple(n for n in cast("Iterator[object]", walk(e)) if isinstance(n, Staged))


def walk_async(body: tuple[AStmt, ...]) -> Iterator[AStmt]:
    """Every statement in program order, a parent before its parts."""
    for s in body:
        yield s
        if isinstance(s, Loop | Branch):
            yield from walk_async(inside(s))


def exprs_of(s: AStmt) -> tuple[TExpr, ...]:
    """The tile expressions of one statement (not of its body)."""
    match s:
        case Fill(_, _, load):
            return (load,)
        case Issue(_, dot, _):
            return (dot,)
        case Send(_, _, index, value, mask):
            return (*index, value) if mask is None else (*index, value, mask)
        case Await() | Release() | Finish() | Drain():
            return ()
        case _:
            return stmt_exprs(s)


def scalars_of(s: AStmt) -> tuple[Expr, ...]:
    """The scalar expressions of one statement: its turn, its bounds or its condition."""
    match s:
        case Fill(_, turn, _) | Await(_, turn) | Release(_, turn):
            return (turn,)
        case Loop() | Branch():
            return bound_exprs(s)
        case _:
            return ()


def locals_of(s: AStmt) -> set[str]:
    """The locals that one statement reads (not its body), in its tiles or in its scalars."""
    tiles = {name for e in exprs_of(s) for name in read_by(e)}
    return tiles | {x.buffer for e in scalars_of(s) for x in loads(e) if not x.index}
