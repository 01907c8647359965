"""Two role bodies as the roles of one kernel: rings that the producer fills, consumers that wait and release.

    producer     k = k[…]                   →  Fill(k, k_turn); k_turn = k_turn + 1
    consumer     k = k[…]; s = dot(q, kᵀ)   →  Await(k, k_turn); Issue s = dot(q, kᵀ)
                                               Finish(0, s); Release(k, k_turn); k_turn = k_turn + 1

Each staged tile has a ring: `levers.stages` deep where a loop loads it; of one stage where it is loaded once a group,
or of two, so that the next group's comes while this one is computed (`levers.ahead`).
Each ring has a counter, which both roles advance by one for each of its tiles, where they are through with it; the
bodies load the tiles of one name in the same order and as often, so that a turn is the same tile in both.

A wait holds in place those locals that were made under the products it waits for, and are read behind it:

    Issue acc = …; p = exp2(…); t = p · 2; Finish(0, acc, also p t); acc = acc · p
                                                    →  Finish(0, acc, also p)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from neptune.errors import InternalError, Unsupported
from neptune.hopper.bodies.role_bodies import RoleBodies
from neptune.hopper.choice.memory import misfit, producer_registers
from neptune.hopper.group_order import weight_of
from neptune.hopper.ir import (
    AStmt,
    AsyncKernel,
    Body,
    Fill,
    Finish,
    Issue,
    Levers,
    Out,
    Ring,
    locals_of,
    with_inside,
)
from neptune.hopper.ir import inside as body_of
from neptune.hopper.roles.consume import consumed
from neptune.hopper.roles.ring_groups import advanced, shared, together, turn_of
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Const, ceildiv
from neptune.ir.integers import known_size
from neptune.ir.names import fresh_name
from neptune.tile.boxes import GivenShapes, box_of, inside, sent
from neptune.tile.ir import Assign, Branch, GridAxis, LoadTile, Local, Loop, StoreTile, TileProgram, bare
from neptune.tile.passes.util import Block, names_in, products


def roles(bodies: RoleBodies, program: TileProgram, levers: Levers) -> AsyncKernel:
    """The asynchronous kernel of role bodies. `program` has the declarations, `levers.tiles` a number for every tunable
    that an extent of an axis is. Raises Unsupported for a product or a load that the form does not take, and for levers
    that need more memory or registers than there are."""
    levers = replace(levers, producer=max(levers.producer, producer_registers(bodies)))
    if (unfit := misfit(bodies, program, levers)) is not None:
        raise unfit
    if levers.consumers != bodies.consumers:
        raise InternalError(f"the walk of {bodies.kernel.name} is one of {bodies.consumers} consumers")
    kernel = bodies.kernel
    axes = tuple((name, int(known_size(extent, levers.tiles))) for name, extent in kernel.axes)
    numbers = GivenShapes(program, {name: Const(n, "int32") for name, n in axes})
    rings = _rings(bodies, numbers, levers)
    _check_products(kernel.body, rings)
    taken = names_in(kernel) | rings.keys()
    counters = _counters(rings, taken)
    outs = _outs(kernel.body, rings, numbers, levers)
    produced = tuple(_produced(bodies.producer, rings, counters))
    computed = with_live(consumed(kernel.body, rings, outs, counters, again=not levers.once))
    turn = fresh_name({*taken, *counters.values()}, "turn")
    kept, (producer, consumer) = shared(tuple(counters.values()), (produced, computed), turn)
    sharing, (producer, consumer) = together(tuple(rings.values()), (producer, consumer))
    return AsyncKernel(
        kernel.name,
        tuple(_of_groups(g, bodies) for g in kernel.grid),
        bodies.rows,
        bodies.group,
        axes,
        sharing,
        tuple(outs.values()),
        kept,
        producer,
        consumer,
        levers,
        weight_of(bodies),
    )


def _counters(rings: Mapping[str, Ring], taken: Collection[str]) -> dict[str, str]:
    """The name of each ring's counter, none of which is taken."""
    counters: dict[str, str] = {}
    for name in rings:
        counters[name] = fresh_name({*taken, *counters.values()}, f"{name}_turn")
    return counters


def _of_groups(g: GridAxis, bodies: RoleBodies) -> GridAxis:
    """The grid variable over consumers as one over their groups."""
    return GridAxis(bodies.group, ceildiv(g.extent, bodies.consumers), g.axis) if g.var == bodies.rows else g


def _check_products(body: Block, staged: Collection[str]) -> None:
    """Raise Unsupported for a product that cannot be issued: it has to add to the local that it is assigned to, and to
    read its right operand from shared memory, its left one from there or from registers as it stands."""
    for s, dot in products(body):
        assert isinstance(s, Assign | StoreTile)
        name = s.name if isinstance(s, Assign) else s.buffer
        where, left, right = s.stage or name, bare(dot.a), bare(dot.b)
        if s.value != dot or dot.acc not in (None, Local(name, dot.dims, dot.dtype)):
            raise Unsupported("it adds to another product than its own", where)
        if not isinstance(right, Local) or right.name not in staged:
            raise Unsupported(
                "the right operand of its product is made in registers, and products read it from shared memory",
                where,
                legal=[f"{n}, as it is loaded" for n in sorted(staged)],
            )
        if DTYPES[dot.a.dtype].bits > 16 and not dot.allow_tf32:
            raise Unsupported(f"it multiplies {dot.a.dtype}", where, legal=["float16", "bfloat16", "8 bits"])
        # Role bodies name what they multiply from registers: nothing else than a transposed operand comes here.
        if not isinstance(left, Local) or (left != dot.a and left.name not in staged):
            raise Unsupported("the left operand of its product would be transposed in registers", where)


# --- rings -------------------------------------------------------------------------------------


def _rings(bodies: RoleBodies, numbers: GivenShapes, levers: Levers) -> dict[str, Ring]:
    """The ring of each staged tile, by its name."""
    loads, looped = bodies.loads, bodies.looped
    rings = {}
    for name, own in bodies.staged:
        load = loads[name]
        assert isinstance(load, LoadTile)
        box = box_of(numbers, load.buffer, load.index, load.dims, temporaries=True)
        if box is None or load.other != 0 or not inside(numbers, load.buffer, load.index, load.mask):
            raise Unsupported(
                f"it is no box of the tensor {load.buffer}, as copies in bulk take them",
                name,
                legal=[
                    "consecutive elements of each dimension, 256 of them at most",
                    "rows of whole 16 bytes",
                    "0 outside of the tensor",
                ],
            )
        dims = tuple(a for a in box.axes if a is not None)
        rings[name] = Ring(name, load.buffer, dims, load.dtype, levers.stages_of(name in looped), own)
    return rings


def _produced(body: Block, rings: Mapping[str, Ring], counters: Mapping[str, str]) -> Iterator[AStmt]:
    for s in body:
        if isinstance(s, Loop | Branch):
            yield with_inside(s, tuple(_produced(s.body, rings, counters)))
        elif isinstance(s, Assign) and s.name in rings and isinstance(s.value, LoadTile):
            yield Fill(s.name, turn_of(counters[s.name]), s.value)
            yield advanced(counters[s.name])
        else:
            yield s


# --- results -----------------------------------------------------------------------------------


def _outs(body: Block, rings: Mapping[str, Ring], numbers: GivenShapes, levers: Levers) -> dict[str, Out]:
    """The results that leave as boxes, by buffer: in memory of their own, or over the ring of a tile of their size."""
    loaded = {s.name for s in body if isinstance(s, Assign) and isinstance(s.value, LoadTile)}
    once = [n for n, r in rings.items() if r.own and r.stages == 1 and n in loaded]
    outs: dict[str, Out] = {}
    for s in sent(body, numbers):
        over = None
        if not levers.own_out and s in body:
            over = next((n for n in once if _alike(rings[n], s, numbers)), None)
        if over is not None:
            once.remove(over)
        outs[s.buffer] = Out(f"{s.buffer}_out", s.buffer, s.dims, s.value.dtype, over)
    return outs


def _alike(ring: Ring, s: StoreTile, numbers: GivenShapes) -> bool:
    """True where a result takes as much memory as a tile, in as many columns."""
    bits = DTYPES[ring.dtype].bits == DTYPES[s.value.dtype].bits
    return bits and [numbers.extents[d] for d in ring.dims] == [numbers.extents[d] for d in s.dims]


# --- what waits hold in place ---------------------------------------------------------------------


def with_live(body: Body) -> Body:
    """The body whose waits name, of `also`, tiles alone that are read behind them."""
    return _with_live(body, frozenset())[0]


def _with_live(body: Body, live: frozenset[str]) -> tuple[Body, frozenset[str]]:
    """The block, and what is live before it, given what is behind it."""
    tiles = {s.name: s.value.dims for s in body if isinstance(s, Assign)}
    tiles |= {s.name: s.dot.dims for s in body if isinstance(s, Issue)}
    out: list[AStmt] = []
    for s in reversed(body):
        match s:
            case Loop() | Branch():
                fresh, before = _with_live(body_of(s), live)
                while isinstance(s, Loop) and not before <= live:
                    # What an iteration reads first comes from the one before.
                    live |= before
                    fresh, before = _with_live(body_of(s), live)
                s, live = with_inside(s, fresh), live | before
            case Finish():
                s = replace(s, also=tuple(n for n in s.also if n in live and tiles[n]))
            case Assign(name, _, _) | Issue(name, _, _):
                live -= {name}
            case _:
                pass
        live |= locals_of(s)
        out.append(s)
    return tuple(out[::-1]), live
