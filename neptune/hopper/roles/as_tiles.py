"""An asynchronous kernel as two on tiles, without its synchronisation: for what asks about shapes, values or addresses.

What is copied in bulk is a box, all else goes through pointers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias, cast

from neptune.errors import InternalError
from neptune.hopper.ir import (
    AStmt,
    AsyncKernel,
    Await,
    Body,
    Drain,
    Fill,
    Finish,
    Issue,
    Release,
    Ring,
    Send,
    Staged,
    inside,
)
from neptune.ir.expr import Const, Expr, Var, rewrite
from neptune.tile.address import GROUPS, ONCE, Addressed
from neptune.tile.boxes import Box
from neptune.tile.ir import (
    Assign,
    Branch,
    Dot,
    GridAxis,
    LoadTile,
    Local,
    Loop,
    Scalar,
    StoreTile,
    TExpr,
    TileKernel,
    TileProgram,
    TStmt,
    map_stmt,
)
from neptune.tile.passes.addresses import Addresses
from neptune.tile.verify_addresses import verify_addresses


def as_tiles(kernel: AsyncKernel, program: TileProgram) -> TileProgram:
    """The program with two kernels in the place of this one: its producer, and its consumer.

    A fill is the assignment of a local of the ring's name, and so is every staged tile, one at the tensor's start.
    """
    rows = GridAxis(kernel.rows, Const(1, "int32"), "x")
    axes = tuple((name, Const(n, "int32")) for name, n in kernel.axes)
    zero = Scalar(Const(0, "int32"))
    counters = tuple(Assign(c, zero) for c in kernel.counters)
    ranks = {name: len(b.shape) for name, b in program.globals.items()}
    tiles = {r.name: _start(r, ranks.get(r.tensor, 0)) for r in kernel.rings}
    producer, consumer = (
        TileKernel(name, (*kernel.grid, rows), axes, (*counters, *plain(body, lambda s: tiles.get(s.ring))))
        for name, body in ((f"{kernel.name}_producer", kernel.producer), (kernel.name, kernel.consumer))
    )
    kernels = [x for k in program.kernels for x in ((producer, consumer) if k.name == kernel.name else (k,))]
    return TileProgram(
        program.name,
        program.inputs,
        program.outputs,
        program.temporaries,
        program.scalars,
        program.tunables,
        tuple(kernels) if consumer in kernels else (*kernels, producer, consumer),
    )


def _start(r: Ring, rank: int) -> LoadTile:
    zero = Scalar(Const(0, "int32"))
    return LoadTile(r.tensor, (zero,) * rank, None, 0.0, r.dims, r.dtype)


def plain(body: Body, tile: Callable[[Staged], TExpr | None]) -> Iterator[TStmt]:
    """A body without its synchronisation: fills and products are assignments, and `tile` stands for a staged one."""

    def unstaged(e: TExpr) -> TExpr:
        return rewrite(e, lambda x: tile(x) if isinstance(x, Staged) else None)

    for s in body:
        match s:
            case Fill(ring, _, load):
                yield Assign(ring, load)
            case Issue(name, dot, stage):
                yield Assign(name, unstaged(dot), stage)
            case Send(_, buffer, index, value, mask, dims, stage, at):
                yield map_stmt(StoreTile(buffer, index, value, mask, dims, stage, at), unstaged)
            case Await() | Release() | Finish() | Drain():
                pass
            case Loop(var, lo, hi, _, facts):
                yield Loop(var, lo, hi, tuple(plain(inside(s), tile)), facts)
            case Branch(pred, _):
                yield Branch(pred, tuple(plain(inside(s), tile)))
            case _:
                yield map_stmt(s, unstaged)


# --- addresses ------------------------------------------------------------------------------------


Role: TypeAlias = tuple[Addressed, Body]
"""A role as a kernel on tiles, and its body: both with the address of every access."""


def addressed_roles(program: TileProgram, kernel: AsyncKernel) -> dict[str, Role]:
    """The producer and the consumer."""
    scopes = ONCE if kernel.levers.once else GROUPS
    roles: dict[str, Role] = {}
    for role, body in (("producer", kernel.producer), ("consumer", kernel.consumer)):
        before = _plain(program, kernel, body)
        addresses = RoleAddresses(program, before, scopes=scopes)
        body = addresses.role(body)
        addressed = Addressed(program, _plain(program, kernel, body), frozenset(), addresses.reads(), scopes=scopes)
        verify_addresses(addressed, before)
        roles[role] = addressed, body
    return roles


class RoleAddresses(Addresses):
    """The pass over one role; `kernel` is its plain form."""

    def role(self, body: Body) -> Body:
        """The body with an address for every access."""
        return cast("Body", self.body(cast("tuple[TStmt, ...]", body)))

    def stmt(self, s: TStmt) -> TStmt:
        addressed = self.asynchronous(s)
        return super().stmt(s) if addressed is None else cast("TStmt", addressed)

    def asynchronous(self, s: object) -> AStmt | None:
        """A statement that only the asynchronous form has."""
        match s:
            case Fill(_, _, load):
                return replace(s, load=replace(load, at=self.copied(load.buffer, load.index, load.dims, load.mask)))
            case Send():
                sent = replace(s, value=self.expr(s.value))
                return replace(sent, at=self.copied(s.buffer, s.index, s.dims, s.mask))
            case Issue(_, dot, _):
                product = self.expr(dot)
                assert isinstance(product, Dot)
                return replace(s, dot=product)
            case Await() | Release() | Finish() | Drain():
                return s
            case _:
                return None

    def copied(self, buffer: str, index: tuple[TExpr, ...], dims: tuple[str, ...], mask: TExpr | None) -> Box:
        """The box of a copy in bulk, which holds all that its mask lets through."""
        if (box := self.box(buffer, index, dims, mask, temporaries=True)) is None:
            raise InternalError(f"an access to {buffer} is no box of it")
        return box


def _plain(program: TileProgram, kernel: AsyncKernel, body: Body) -> TileKernel:
    """The role as a kernel on tiles; the extent of an axis is the tunable that it had, where that has this value."""
    before = next((dict(k.axes) for k in program.kernels if k.name == kernel.name), {})
    values = {t.name: t.candidates[0] for t in program.tunables if len(t.candidates) == 1}
    axes: list[tuple[str, Expr]] = []
    for axis, extent in kernel.axes:
        e = before.get(axis)
        named = isinstance(e, Var) and values.get(e.name) == extent
        axes.append((axis, e if named and e is not None else Const(extent, "int32")))
    rows = [] if kernel.rows == kernel.group else [GridAxis(kernel.rows, Const(0, "int32"), "x")]
    tiles = tuple(plain(body, lambda s: Local(s.ring, s.dims, s.dtype)))
    return TileKernel(kernel.name, (*kernel.grid, *rows), tuple(axes), tiles)
