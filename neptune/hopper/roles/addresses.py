"""addresses of the roles of an asynchronous kernel: what is copied in bulk is a box, all else goes through pointers."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias, cast

from neptune.errors import InternalError
from neptune.hopper.ir import AStmt, AsyncKernel, Await, Drain, Fill, Finish, Issue, Release, Send
from neptune.hopper.roles.plain import plain
from neptune.ir.expr import Const, Expr, Var
from neptune.tile.address import GROUPS, ONCE, Addressed
from neptune.tile.boxes import Box
from neptune.tile.ir import Dot, GridAxis, Local, TExpr, TileKernel, TileProgram, TStmt
from neptune.tile.passes.addresses import Addresses
from neptune.tile.verify_addresses import verify_addresses

Role: TypeAlias = tuple[Addressed, tuple[AStmt, ...]]
"""A role as a kernel on tiles, and its body: both with the address of every access."""


def addressed_roles(program: TileProgram, kernel: AsyncKernel) -> dict[str, Role]:
    """The producer and the consumer."""
    scopes = ONCE if kernel.levers.persistent == "once" else GROUPS
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

    def role(self, body: tuple[AStmt, ...]) -> tuple[AStmt, ...]:
        """The body with an address for every access."""
        return cast("tuple[AStmt, ...]", self.body(cast("tuple[TStmt, ...]", body)))

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


def _plain(program: TileProgram, kernel: AsyncKernel, body: tuple[AStmt, ...]) -> TileKernel:
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
