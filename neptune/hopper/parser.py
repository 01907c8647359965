"""Read asynchronous kernels back from the text that `neptune.hopper.printer` prints.

print_async(parse_async(text, program)) == text
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, cast

from neptune.hopper.ir import (
    AStmt,
    AsyncKernel,
    Await,
    Drain,
    Fill,
    Finish,
    Issue,
    Levers,
    Out,
    Release,
    Ring,
    Send,
    Staged,
    tile_of,
)
from neptune.ir.expr import Expr
from neptune.ir.line import Env
from neptune.ir.nodes import Dims
from neptune.tile.ir import Dot, LoadTile, Local, TExpr, TileProgram, TStmt
from neptune.tile.parser import TileLine, TileReader, scope_of


def parse_async(text: str, program: TileProgram) -> AsyncKernel:
    """The kernel that `text` prints, with the declarations of `program`."""
    lines = [AsyncLine(k, line.rstrip()) for k, line in enumerate(text.splitlines(), 1) if line.strip()]
    return _Reader(list(lines), scope_of(program), 0).async_kernel()


class AsyncLine(TileLine):
    """One line; `rings` are declared above it."""

    functions = TileLine.functions | {"staged"}

    def __init__(self, number: int, text: str) -> None:
        super().__init__(number, text)
        self.rings: Mapping[str, Ring] = {}

    def function(self, name: str, start: int, end: int) -> TExpr:
        if name != "staged":
            return super().function(name, start, end)
        ring = self.tokens[start]
        if ring not in self.rings:
            self.fail(f"unknown ring {ring!r}", self.rings)
        turn = self.plain(start + 2, end)
        return tile_of(Staged(ring, turn, self.rings[ring].dims, self.rings[ring].dtype))

    def behind(self, word: str) -> AsyncLine:
        """What stands behind a word, as a line of its own."""
        tail = f"  # {self.comment}" if self.comment else ""
        inner = AsyncLine(self.number, self.text.partition(word)[2] + tail)
        inner.rings, inner.env, inner.locals = self.rings, self.env, self.locals
        return inner

    def declared_dims(self) -> Dims:
        """The `<i j>` behind a name."""
        self.expect("<")
        found: list[str] = []
        while not self.accept(">"):
            found.append(self.take())
        return tuple(found)

    def names(self, *ends: str) -> tuple[str, ...]:
        """Names up to the end, or to one of some words."""
        found: list[str] = []
        while self.peek() and self.peek() not in ends:
            found.append(self.name())
        return tuple(found)


@dataclass
class _Reader(TileReader):
    """The lines of an asynchronous kernel."""

    rings: dict[str, Ring] = field(default_factory=dict)

    def line(self) -> AsyncLine:
        line = self.lines[self.at]
        self.at += 1
        assert isinstance(line, AsyncLine)
        return line

    def async_kernel(self) -> AsyncKernel:
        line = self.line()
        line.expect("async", "kernel")
        name = line.name()
        line.expect("grid", "(")
        grid = line.list_of(lambda: self.grid_axis(line), ")")
        line.expect("axes", "(")
        axes = line.list_of(lambda: _axis(line), ")")
        line.end()
        line = self.line()
        line.expect("groups")
        group = line.name()
        line.expect("of")
        rows = line.name()
        levers = _levers(self.line())
        outs: dict[str, Out] = {}
        while self.lines[self.at].peek() in ("ring", "out"):
            self.declaration(self.line(), outs)
        line = self.line()
        line.expect("counters")
        counters = line.names()
        env = self.env
        for var in (*(g.var for g in grid), rows):
            env = env.with_variable(var)
        weight: Expr | None = None
        if self.lines[self.at].accept("weight"):
            line = self.line()
            weight = line.expr(env)
            line.end()
        producer, consumer = (self.role(role, counters, env) for role in ("producer", "consumer"))
        rings = tuple(self.rings.values())
        return AsyncKernel(
            name, grid, rows, group, axes, rings, tuple(outs.values()), counters, producer, consumer, levers, weight
        )

    def declaration(self, line: AsyncLine, outs: dict[str, Out]) -> None:
        what, name = line.take(), line.name()
        dims = line.declared_dims()
        line.expect("of")
        tensor = line.name()
        line.expect(":")
        dtype = line.dtype()
        if what == "ring":
            line.expect(",")
            stages = line.integer()
            line.expect("stages")
            more = line.accept(",")
            own = more and line.accept("own")
            more = line.accept(",") if own else more
            barrier = line.name() if more and line.accept("barrier") else None
            self.rings[name] = Ring(name, tensor, dims, dtype, stages, own, barrier)
        else:
            over = line.name() if line.accept(",") and line.accept("over") else None
            outs[name] = Out(name, tensor, dims, dtype, over)
        line.end()

    def role(self, role: str, counters: tuple[str, ...], env: Env) -> tuple[AStmt, ...]:
        line = self.line()
        line.expect(role, ":")
        self.locals = {c: Local(c, (), "int32") for c in counters}
        return cast("tuple[AStmt, ...]", self.body(0, env))

    def statement(self, line: TileLine, env: Env) -> TStmt:
        assert isinstance(line, AsyncLine)
        line.rings = self.rings
        reads = {"fill": self.fill, "await": _await, "release": _release, "issue": self.issue, "finish": _finish}
        reads |= {"send": _send, "drain": _drain}
        if line.peek() not in reads or line.peek(1) in ("<", "["):
            return super().statement(line, env)
        self.scope(line, env)
        found = reads[line.take()](line)
        return cast("TStmt", found)

    def fill(self, line: AsyncLine) -> Fill:
        ring, turn = _turn(line)
        line.expect("=")
        load = line.tile(line.at, len(line.tokens))
        if not isinstance(load, LoadTile):
            line.fail("a ring is filled by a load")
        return Fill(ring, turn, load)

    def issue(self, line: AsyncLine) -> Issue:
        # The dims of an assigned value stand behind its name, here one token later.
        assign = line.behind("issue ").assign()
        if not isinstance(assign.value, Dot):
            line.fail("only a product is issued")
        self.locals[assign.name] = Local(assign.name, assign.value.dims, assign.value.dtype)
        return Issue(assign.name, assign.value, assign.stage)


def _axis(line: AsyncLine) -> tuple[str, int]:
    name = line.name()
    line.expect(":")
    return name, line.integer()


def _levers(line: AsyncLine) -> Levers:
    """`name=value`, …: what is no field is a tunable."""
    line.expect("levers")
    found: dict[str, Any] = {}
    while line.peek():
        name = line.name()
        line.expect("=")
        word = line.take()
        found[name] = int(word) if word.isdecimal() else word == "True" if word in ("True", "False") else word
        line.accept(",")
    known = {f.name for f in fields(Levers)}
    tiles = {n: v for n, v in found.items() if n not in known}
    return Levers(**{n: v for n, v in found.items() if n in known}, tiles=tiles)


def _turn(line: AsyncLine) -> tuple[str, Expr]:
    """`ring(turn)`."""
    ring = line.name()
    if ring not in line.rings:
        line.fail(f"unknown ring {ring!r}", line.rings)
    line.expect("(")
    turn = line.expr(line.env)
    line.expect(")")
    return ring, turn


def _await(line: AsyncLine) -> Await:
    return Await(*_turn(line))


def _release(line: AsyncLine) -> Release:
    return Release(*_turn(line))


def _finish(line: AsyncLine) -> Finish:
    pending = line.integer()
    line.expect(":")
    names = line.names("also")
    return Finish(pending, names, line.names() if line.accept("also") else ())


def _send(line: AsyncLine) -> Send:
    out = line.name()
    line.expect(":")
    s = line.behind(": ").store()
    return Send(out, s.buffer, s.index, s.value, s.mask, s.dims, s.stage)


def _drain(line: AsyncLine) -> Drain:
    return Drain(line.name())
