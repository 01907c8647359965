"""Writes a kernel as the body of a producer and that of its consumers, on tiles (see `RoleBodies`).

    consumers  consumers of 64 rows, neighbours along one grid variable
    staged     which tiles go through shared memory
    backwards  walks in which a product is rotated: last tile first
    forwards   all other loops, as they are
    columns    masks that compare columns with numbers of rows

The consumer's body stays a kernel that computes what the kernel computes. Whether it does is for the exact check
(`neptune.verify.exact`) of `RoleBodies.symbolic`, in which tile sizes are still tunables: an order of tiles that ⊕ does
not allow is rejected there, as a wrong repair is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from neptune.errors import Unsupported, answered
from neptune.hopper.bodies.backwards import backwards, minus, plan
from neptune.hopper.bodies.bounds import Bounds, bounds, by_group
from neptune.hopper.bodies.consumers import consumer_kernel
from neptune.hopper.bodies.pieces import Group, Piece, Run, runs
from neptune.hopper.bodies.producer import BY_POSITION, assigns_any, check_for_all, masks, pruned, read, unmasked
from neptune.hopper.bodies.role_bodies import RoleBodies
from neptune.hopper.bodies.staged import Staging, stage
from neptune.hopper.ir import Levers
from neptune.ir.expr import Const, Expr, Var, binary, loads, substitute, variables
from neptune.tile.boxes import GivenShapes, sent
from neptune.tile.ir import Assign, Branch, Loop, TileKernel, TileProgram, TStmt, walk_stmts
from neptune.tile.passes.columns import in_columns
from neptune.tile.passes.operands import operands
from neptune.tile.passes.util import Block, assigns, confined, free_name, names_in
from neptune.tile.scalars import in_block, put, var, with_values


def role_bodies(program: TileProgram, kernel: TileKernel, levers: Levers) -> RoleBodies:
    """The role bodies of a group of consumers; `levers.tiles` gives tile sizes. Raises Unsupported where it has
    none."""
    single = consumer_kernel(program, kernel, levers.tiles)
    single = replace(single, kernel=operands(single.kernel))
    staging = stage(program, single)
    together = free_name("group", names_in(single.kernel) | program.globals.keys())
    single = replace(single, kernel=by_group(single, staging.names, together, levers.consumers))
    taken = frozenset(names_in(single.kernel) | program.globals.keys())
    sizes = {d.name for b in program.globals.values() for d in b.shape if isinstance(d, Var)}
    counts = frozenset(sizes | {g.var for g in single.kernel.grid})
    tunables = frozenset(t.name for t in program.tunables)
    group = Group(single.rows, together, levers.consumers, tunables, counts)
    assigned = {n for s in single.kernel.body for n in assigns(s)}
    writer = _Writer(staging, group, taken, frozenset(assigned - confined(single.kernel.body)))
    consumer, producer = writer.block(single.kernel.body)
    consumer = put(consumer, together, group.of_consumer(var(together)))
    producer = pruned(producer, staging.names)
    check_for_all(producer, staging, single)
    symbolic = replace(single.kernel, body=in_columns(consumer, counts | tunables))
    numbered = with_values(symbolic, single.values)
    return RoleBodies(
        kernel=numbered,
        producer=in_block(producer, _numbers(single.values)),
        rows=single.rows,
        group=group.group,
        consumers=levers.consumers,
        staged=staging.tiles,
        late=tuple(writer.late),
        read=staging.read,
        kept=tuple(writer.kept),
        sent=tuple(
            (s.buffer, s in numbered.body) for s in sent(numbered.body, GivenShapes(program, dict(numbered.axes)))
        ),
        symbolic=symbolic,
        values=dict(single.values),
    )


def bodies_of(program: TileProgram, kernel: TileKernel, shapes: Mapping[str, int]) -> RoleBodies | Unsupported:
    """The role bodies of a kernel, with the tiles that cover a size of typical `shapes`; Unsupported where it has
    none."""
    return _bodies_of(program, kernel, tuple(_covering(program, shapes).items()))


@lru_cache(maxsize=32)
def _bodies_of(
    program: TileProgram, kernel: TileKernel, tiles: tuple[tuple[str, int], ...]
) -> RoleBodies | Unsupported:
    """Kept: forms are compared by it before one is derived. Any step may refuse the kernel."""
    return answered(role_bodies, program, kernel, Levers(tiles=dict(tiles)))


def _covering(program: TileProgram, shapes: Mapping[str, int]) -> dict[str, int]:
    """Tile sizes that are a size of the call: from typical sizes."""
    from neptune.runtime.modules import covers

    # Numbers of parts are none: no tile covers what launches choose.
    known = {s.name for s in program.scalars if s.upto is None} <= shapes.keys()
    return covers(program, shapes) if known else {}


def _numbers(values: Mapping[str, int]) -> Callable[[Expr], Expr]:
    env: dict[str, Expr] = {n: Const(v, "int32") for n, v in values.items()}
    return lambda e: substitute(e, env)


@dataclass
class _Writer:
    """Writes the bodies of consumers and producer. `late` gathers the products that are late, `kept` why others are
    not."""

    staging: Staging
    group: Group
    taken: frozenset[str]
    escaping: frozenset[str]
    late: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    def block(self, body: Block) -> tuple[Block, Block]:
        """A block as consumers and as the producer have it."""
        consumer: list[TStmt] = []
        producer: list[TStmt] = []
        for s in runs(body):
            consuming, producing = self._run(s) if isinstance(s, Run) else self._one(s)
            consumer += consuming
            producer += producing
        return tuple(consumer), tuple(producer)

    def _one(self, s: TStmt) -> tuple[Block, Block]:
        match s:
            case Loop(_, _, _, body, _) | Branch(_, body):
                consumer, producer = self.block(body)
                return (replace(s, body=consumer),), (replace(s, body=producer),)
            case Assign():
                return (s,), (s,)
        return (s,), ()

    def _run(self, run: Run) -> tuple[Block, Block]:
        if not assigns_any(run.statements, self.staging.names):
            return run.statements, run.statements
        rotated = plan(run, self.staging.names, self.escaping)
        step = free_name("t", self.taken)
        if isinstance(rotated, str):
            self._keep(run, rotated)
            return self._forwards(run)
        copies = pruned(run.pieces[rotated.parts.index(rotated.general)].body, self.staging.names)
        if _carries(copies):
            self._keep(run, "what it loads depends on the tile before")
            return self._forwards(run)
        limits = self._limits(run)
        self.late += [n for n in rotated.general.names if n not in self.late]
        body = backwards(rotated, limits, step, copies)
        consumer = (*read(limits.defined, body), *body)
        index = put(copies, run.var, minus(limits.all_end, var(step)))
        count = binary("sub", limits.all_end, limits.all_begin)
        return consumer, (*limits.shared, Loop(step, Const(0, "int32"), count, index))

    def _keep(self, run: Run, why: str) -> None:
        """Note why a walk is not turned, once; "" where it has nothing to turn."""
        note = f"loop {run.var} is walked forwards: {why}"
        self.kept += [note] * bool(why and note not in self.kept)

    def _limits(self, run: Run) -> Bounds:
        """The names of where a run begins and ends, for a consumer and for its group."""
        data = [x for p in run.pieces for e in (p.lo, p.hi) for x in loads(e)]
        if any(self.group.rows in variables(x) for x in data):
            # A consumer behind the last row must not read there.
            raise Unsupported(f"loop {run.var} ends where data of its rows says so", run.var, BY_POSITION)
        return bounds(run, self.group, self.taken)

    def _forwards(self, run: Run) -> tuple[Block, Block]:
        """The loops as they are, those that differ in what a copy does by itself as one. Where they are of other tiles
        for every consumer, those of the group are loaded."""
        run = self._joined(run)
        parts = [self._one(s) for s in run.statements]
        consumer, producer = tuple(s for m, _ in parts for s in m), tuple(s for _, t in parts for s in t)
        copies = self._merged(run)
        if not any(self.group.rows in variables(e) for p in run.pieces for e in (p.lo, p.hi)):
            return consumer, producer if copies is None else (Loop(run.var, run.lo, run.hi, copies),)
        if copies is None or _carries(copies):
            return consumer, producer
        limits = self._limits(run)
        before = _ahead(limits.all_begin, limits.edges[0], run.var, copies)
        pieces = zip(run.pieces, limits.edges, limits.edges[1:], strict=False)
        loops = tuple(Loop(run.var, lo, hi, self.block(p.body)[0], p.facts) for p, lo, hi in pieces)
        after = _ahead(limits.edges[-1], limits.all_end, run.var, copies)
        all_copies = _ahead(limits.all_begin, limits.all_end, run.var, copies)
        return (*limits.defined, *before, *loops, *after), (*limits.shared, *all_copies)

    def _joined(self, run: Run) -> Run:
        """A run as one loop, where its pieces differ in the masks of copies alone."""
        bodies = [p.body for p in run.pieces]
        if len(bodies) == 1 or any(
            unmasked(b, self.staging.names) != unmasked(bodies[0], self.staging.names) for b in bodies
        ):
            return run
        loop = Loop(run.var, run.lo, run.hi, _most_masked(bodies))
        return Run(run.var, (Piece(run.lo, run.hi, loop.body),), (loop,))

    def _merged(self, run: Run) -> Block | None:
        """The producer's body of any tile of a run, where that is one: that of the piece with the most masks."""
        bodies = [pruned(self.block(p.body)[1], self.staging.names) for p in run.pieces]
        if any(unmasked(b) != unmasked(bodies[0]) for b in bodies):
            return None
        return _most_masked(bodies)


def _most_masked(bodies: Sequence[Block]) -> Block:
    """The body that is right for every tile, of some that differ in masks."""
    return max(bodies, key=lambda b: sum(masks(s) for s in walk_stmts(b)))


def _carries(body: Block) -> bool:
    """True if an iteration reads what the one before has left."""
    return not {n for s in body for n in assigns(s)} <= confined(body)


def _ahead(lo: Expr, hi: Expr, variable: str, copies: Block) -> Block:
    return () if lo == hi else (Loop(variable, lo, hi, copies),)
