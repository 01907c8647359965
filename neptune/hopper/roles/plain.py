"""An asynchronous kernel as two on tiles, without its synchronisation: for what only asks about shapes and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from neptune.hopper.ir import AStmt, AsyncKernel, Await, Drain, Fill, Finish, Issue, Release, Ring, Send, Staged, inside
from neptune.ir.expr import Const, rewrite
from neptune.tile.ir import (
    Assign,
    Branch,
    GridAxis,
    LoadTile,
    Loop,
    Scalar,
    StoreTile,
    TExpr,
    TileKernel,
    TileProgram,
    map_stmt,
)
from neptune.tile.ir import TStmt as Plain


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


def plain(body: tuple[AStmt, ...], tile: Callable[[Staged], TExpr | None]) -> Iterator[Plain]:
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
