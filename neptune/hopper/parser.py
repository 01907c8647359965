"""Read asynchronous kernels back from the text that `neptune.hopper.printer` prints.

print_async(parse_async(text, program)) == text
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast

from neptune.hopper.ir import AStmt, AsyncKernel, Issue, Levers, Out, Ring, Send, Staged, tile_of
from neptune.hopper.printer import COUNTERS_TEXT, HEAD, OUT_TEXT, RING_TEXT, STATEMENTS, WEIGHT_TEXT
from neptune.ir.nodes import Dims
from neptune.ir.text.line import Env
from neptune.tile.ir import Dot, Local, TileProgram, TStmt
from neptune.tile.parser import TileLine, TileReader, index_dims, scope_of

_BY_WORD = {row.text.partition(" ")[0]: row for row in STATEMENTS.values()}


def parse_async(text: str, program: TileProgram) -> AsyncKernel:
    """The kernel that `text` prints, with the declarations of `program`."""
    return _Reader(text, scope_of(program)).async_kernel()


class AsyncLine(TileLine):
    """One line; `rings` are declared above it."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(number, text)
        self.rings: Mapping[str, Ring] = {}

    def words(self) -> Dims:
        words = super().words()
        if "also" not in words:
            return words
        # The locals that a `finish` keeps in their registers.
        self.position -= len(words) - words.index("also")
        return words[: words.index("also")]

    def sizes(self) -> tuple[tuple[str, int], ...]:
        self.expect("(")
        return self.list_of(self.size, ")")

    def size(self) -> tuple[str, int]:
        name = self.name()
        self.expect(":")
        return name, self.integer()

    def levers(self) -> Levers:
        """`name=value`, …: what is no field is a tunable."""
        values: dict[str, Any] = {}
        while self.peek():
            name = self.name()
            self.expect("=")
            word = self.take()
            values[name] = int(word) if word.isdecimal() else word == "True" if word in ("True", "False") else word
            self.accept(",")
        known = {f.name for f in fields(Levers)}
        tiles = {n: v for n, v in values.items() if n not in known}
        return Levers(**{n: v for n, v in values.items() if n in known}, tiles=tiles)

    def ring(self) -> str:
        """The name of a ring that is declared above."""
        name = self.name()
        if name not in self.rings:
            self.fail(f"unknown ring {name!r}", self.rings)
        return name

    def operand(self) -> Any:
        if self.peek() != "staged" or self.peek(1) != "(":
            return super().operand()
        self.expect("staged", "(")
        ring = self.rings[self.ring()]
        self.expect(",")
        turn = self.expr()
        self.expect(")")
        return tile_of(Staged(ring.name, turn, ring.dims, ring.dtype))


class _Reader(TileReader[AsyncLine]):
    """The lines of an asynchronous kernel."""

    def __init__(self, text: str, env: Env) -> None:
        super().__init__(text, AsyncLine, env)
        self.rings: dict[str, Ring] = {}

    def async_kernel(self) -> AsyncKernel:
        head: dict[str, Any] = {}
        for row in HEAD:
            head |= self.fields(row)
        outs: list[Out] = []
        while (line := self.peek()) is not None and line.peek() in ("ring", "out"):
            self.take()
            if line.peek() == "ring":
                ring = RING_TEXT.read_line(line, self.env)
                self.rings[ring.name] = ring
            else:
                outs.append(OUT_TEXT.read_line(line, self.env))
        head |= self.fields(COUNTERS_TEXT)
        self.env = self.env.with_variables(*(g.var for g in head["grid"]), head["rows"])
        if (line := self.peek()) is not None and line.peek() == "weight":
            head |= self.fields(WEIGHT_TEXT)
        producer, consumer = (self.role(role, head["counters"]) for role in ("producer", "consumer"))
        rings = tuple(self.rings.values())
        return AsyncKernel(**head, rings=rings, outs=tuple(outs), producer=producer, consumer=consumer)

    def fields(self, row: Any) -> dict[str, Any]:
        """The fields of the kernel that the next line holds."""
        values: dict[str, Any] = row.line_values(self.take(), self.env)
        return values

    def role(self, role: str, counters: tuple[str, ...]) -> tuple[AStmt, ...]:
        line = self.take()
        line.expect(role, ":")
        self.locals = {c: Local(c, (), "int32") for c in counters}
        return cast("tuple[AStmt, ...]", self.body(0, self.env))

    def statement(self, line: AsyncLine, env: Env) -> TStmt:
        self.enter(line, env)
        line.rings = self.rings
        if line.peek(1) in ("<", "[") or (line.peek() != "issue" and line.peek() not in _BY_WORD):
            return super().statement(line, env)
        return cast("TStmt", self.of_role(line))

    def of_role(self, line: AsyncLine) -> AStmt:
        """A statement that tile programs do not have."""
        if line.accept("issue"):
            name, dot, stage = self.define(line)
            if not isinstance(dot, Dot):
                line.fail("only a product is issued")
            return Issue(name, dot, stage)
        row = _BY_WORD[line.peek()]
        values = row.line_values(line, line.env)
        if row.node is Send:
            values["dims"] = index_dims(line, values["index"])
        statement: AStmt = row.node(**values)
        return statement
