"""Read TilePrograms back from the text that `neptune.tile.printer` prints.

The text has no declarations: they are those of the Program that the tiles came from. Nor does it tell a product that
starts from an accumulator from one that is added to it, or an operator on scalars from a scalar, where that makes no
difference; `print_tile_program(parse_tiles(text, program)) == text`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from neptune.ir.expr import OPS, Cast, Expr, Op, Select
from neptune.ir.line import INFIX, LITERALS, NAME, Env, Line
from neptune.ir.nodes import Dims, join
from neptune.ir.printer import PRECEDENCE
from neptune.ir.program import Program, parameter_names
from neptune.tile.ir import (
    Assign,
    Branch,
    Dot,
    Full,
    GridAxis,
    Iota,
    LoadTile,
    Local,
    Loop,
    Rearrange,
    Reduce,
    Scalar,
    StoreTile,
    TExpr,
    TileKernel,
    TileProgram,
    TStmt,
)


def parse_tiles(text: str, program: Program | TileProgram) -> TileProgram:
    """Return the TileProgram that `text` prints, with the declarations of `program`.

    str(parse_tiles(str(tiles), tiles)) == str(tiles)
    """
    lines = [TileLine(k, line.rstrip()) for k, line in enumerate(text.splitlines(), 1) if line.strip()]
    first = lines[0] if lines else TileLine(1, "")
    first.expect("tile", "program")
    reader = TileReader(lines, scope_of(program))
    kernels = []
    while reader.at < len(lines):
        kernels.append(reader.kernel())
    return TileProgram(
        first.text.removeprefix("tile program ").strip(),
        program.inputs,
        program.outputs,
        program.temporaries,
        program.scalars,
        program.tunables,
        tuple(kernels),
    )


def scope_of(program: Program | TileProgram) -> Env:
    """The parameters and buffers of a program."""
    dtypes = {b.name: b.dtype for b in (*program.inputs, *program.outputs, *program.temporaries)}
    return Env(parameter_names(program.scalars, program.tunables), dtypes)


@dataclass
class TileReader:
    """The lines of a tile program; `env` holds parameters and buffers."""

    lines: list[TileLine]
    env: Env
    at: int = 1
    locals: dict[str, Local] = field(default_factory=dict)

    def kernel(self) -> TileKernel:
        line = self.lines[self.at]
        self.at += 1
        self.locals = {}
        line.expect("kernel")
        name = line.name()
        line.expect("grid", "(")
        grid = line.list_of(lambda: self.grid_axis(line), ")")
        line.expect("axes", "(")
        axes = line.list_of(lambda: self.axis(line), ")")
        line.end()
        env = self.env
        for g in grid:
            env = env.with_variable(g.var)
        return TileKernel(name, grid, axes, self.body(0, env))

    def grid_axis(self, line: TileLine) -> GridAxis:
        var = line.name()
        line.expect("<")
        extent = line.expr(self.env, PRECEDENCE["add"])
        line.expect("@")
        return GridAxis(var, extent, line.name())

    def axis(self, line: TileLine) -> tuple[str, Expr]:
        name = line.name()
        line.expect(":")
        return name, line.expr(self.env)

    def body(self, indent: int, env: Env) -> tuple[TStmt, ...]:
        """The statements deeper than `indent`."""
        found: list[TStmt] = []
        while self.at < len(self.lines) and self.lines[self.at].indent > indent:
            line = self.lines[self.at]
            self.at += 1
            found.append(self.statement(line, env))
        return tuple(found)

    def statement(self, line: TileLine, env: Env) -> TStmt:
        self.scope(line, env)
        if line.accept("for"):
            return self.loop(line, env)
        if line.accept("if"):
            pred = line.expr(line.env)
            line.expect(":")
            return Branch(pred, self.body(line.indent, env))
        if line.peek(1) == "[":
            return line.store()
        assign = line.assign()
        self.locals[assign.name] = Local(assign.name, assign.value.dims, assign.value.dtype)
        return assign

    def scope(self, line: TileLine, env: Env) -> None:
        """Tell a line what is known above it."""
        line.locals = self.locals
        scalars = {x.name: x.dtype for x in self.locals.values() if not x.dims}
        line.env = Env(env.variables, {**scalars, **env.buffers})

    def loop(self, line: TileLine, env: Env) -> Loop:
        var = line.name()
        line.expect("in", "[")
        lo = line.expr(line.env)
        line.expect(",")
        hi = line.expr(line.env)
        line.expect(")", ":")
        inside = env.with_variable(var)
        facts: list[Expr] = []
        while self.at < len(self.lines) and self.lines[self.at].peek() == "fact":
            fact = self.lines[self.at]
            self.at += 1
            fact.expect("fact")
            facts.append(fact.expr(inside))
        return Loop(var, lo, hi, self.body(line.indent, inside), tuple(facts))


class TileLine(Line):
    """One line of a tile program. Expressions are read from ranges of its tokens, whose ends are known."""

    pattern = re.compile(rf"'[^']*'|{Line.pattern.pattern}")
    functions = frozenset({"full", "iota", "masked", "where", "reduce", "dot", "rearrange"})
    """What makes a tile of its arguments."""

    def __init__(self, number: int, text: str) -> None:
        code, _, self.comment = text.partition("  # ")
        super().__init__(number, code)
        self.env = Env()
        self.locals: Mapping[str, Local] = {}
        self.matching, self.spans = self._brackets(), self._dims()

    def _brackets(self) -> dict[int, int]:
        """The closing bracket of every opening one; the `)` of a loop's range closes its `[`."""
        found: dict[int, int] = {}
        opened: list[int] = []
        for k, token in enumerate(self.tokens):
            if token in ("(", "["):
                opened.append(k)
            elif token in (")", "]") and opened:
                found[opened.pop()] = k
        return found

    def _dims(self) -> dict[int, int]:
        """Return the places of the dims of loads and assigned values: from their `<` to behind their `>`."""
        found: dict[int, int] = {}
        for k, token in enumerate(self.tokens):
            if token == "<" and (self.tokens[k - 1] == "]" or k == 1):
                end = k + 1
                while end < len(self.tokens) and (NAME.fullmatch(self.tokens[end]) or self.tokens[end] == "1"):
                    end += 1
                if self.tokens[end : end + 1] == [">"]:
                    found[k] = end + 1
        return found

    def dims(self, at: int) -> Dims:
        return tuple(self.tokens[at + 1 : self.spans[at] - 1])

    def assign(self) -> Assign:
        name = self.name()
        if self.at not in self.spans:
            self.fail("expected `name<dims> = …`")
        self.at = self.spans[self.at]
        self.expect("=")
        return Assign(name, self.tile(self.at, len(self.tokens)), self.comment or name)

    def store(self) -> StoreTile:
        close = self.matching[1]
        index = self.items(2, close)
        self.at = close + 1
        self.expect("=")
        ends = [k for k in self.outside(self.at, len(self.tokens)) if self.tokens[k] == "if"]
        end = ends[0] if ends else len(self.tokens)
        value = self.tile(self.at, end)
        mask = self.tile(end + 1, len(self.tokens)) if ends else None
        dims = join(*(i.dims for i in index))
        if dims is None:
            self.fail("the indices have no common dims")
        return StoreTile(self.tokens[0], index, value, mask, dims)

    # --- ranges of tokens ---

    def outside(self, start: int, end: int) -> list[int]:
        """The tokens of a range that stand in no brackets and no dims."""
        found, k = [], start
        while k < end:
            if k in self.spans:
                k = self.spans[k]
            elif k in self.matching:
                k = self.matching[k] + 1
            else:
                found.append(k)
                k += 1
        return found

    def items(self, start: int, end: int) -> tuple[TExpr, ...]:
        """Tile expressions between commas."""
        return tuple(self.tile(a, b) for a, b in self.ranges(start, end))

    def ranges(self, start: int, end: int) -> list[tuple[int, int]]:
        commas = [k for k in self.outside(start, end) if self.tokens[k] == ","]
        return list(zip([start, *(k + 1 for k in commas)], [*commas, end], strict=True)) if start < end else []

    def has_tile(self, start: int, end: int) -> bool:
        """True if a tile stands in a range."""
        for k in range(start, end):
            after = self.tokens[k + 1] if k + 1 < len(self.tokens) else ""
            if k in self.spans or (after == "(" and self.tokens[k] in self.functions):
                return True
            if self.tokens[k] in self.locals and after not in ("[", "("):
                return True
        return False

    def plain(self, start: int, end: int) -> Expr:
        # A scalar ends where its range does, also where an operator on tiles follows.
        whole, self.tokens, self.at = self.tokens, self.tokens[:end], start
        e = self.expr(self.env)
        self.end()
        self.tokens = whole
        return e

    def tile(self, start: int, end: int) -> TExpr:
        """The tile expression in a range."""
        if start >= end:
            self.fail("expected a tile expression")
        whole = self.matching.get(start) == end - 1
        if whole and self.tokens[start] == "(":
            return self.infix(start + 1, end - 1)
        if not self.has_tile(start, end):
            return Scalar(self.plain(start, end))
        head = self.tokens[start]
        if end == start + 1 and head in self.locals:
            return self.locals[head]
        close = self.matching.get(start + 1)
        if close == end - 1 and self.tokens[start + 1] == "(":
            return self.function(head, start + 2, end - 1)
        if close is not None and self.spans.get(close + 1) == end:
            if head not in self.env.buffers:
                self.fail(f"unknown buffer {head!r}", self.env.buffers)
            return LoadTile(head, self.items(start + 2, close), None, 0.0, self.dims(close + 1), self.env.buffers[head])
        self.fail(f"expected a tile expression, found {' '.join(self.tokens[start:end])!r}")

    def infix(self, start: int, end: int) -> TExpr:
        """`a + b`: a scalar beside a tile may itself be a sum, without brackets."""
        places = [k for k in self.outside(start, end) if k > start and self.tokens[k] in INFIX and self.ends(k - 1)]
        if not places:
            self.fail("expected an operator between brackets")
        if self.has_tile(start, places[0]):
            at = places[0]
        elif self.has_tile(places[-1] + 1, end):
            at = places[-1]
        else:
            at = min(reversed(places), key=lambda k: PRECEDENCE[INFIX[self.tokens[k]]])
        a, b, name = self.tile(start, at), self.tile(at + 1, end), INFIX[self.tokens[at]]
        if name == "add" and isinstance(b, Dot) and b.acc is None and (a.dims, a.dtype) == (b.dims, b.dtype):
            return Dot(b.a, b.b, a)
        return _operator(name, (a, b))

    def ends(self, k: int) -> bool:
        """True where a value ends at a token: a `-` behind it is no sign."""
        token = self.tokens[k]
        return token in (")", "]", ">") or token[:1].isdecimal() or (bool(NAME.fullmatch(token)) and token not in INFIX)

    def function(self, name: str, start: int, end: int) -> TExpr:
        parts = self.ranges(start, end)
        if name in OPS:
            return _operator(name, self.items(start, end))
        if name == "iota":
            return Iota(self.tokens[start])
        first = self.tile(*parts[0]) if name != "cast" else None
        words = [self.tokens[a].strip("'") for a, _ in parts]
        match name, len(parts):
            case "cast", 2:
                arg, self.at = self.tile(*parts[1]), start
                return Cast(arg, self.dtype())
            case "where", 3:
                p, a, b = self.items(start, end)
                return Select(p, a, b)
            case "dot", 2:
                a, b = self.items(start, end)
                return Dot(a, b, None)
            case "full", 2 if isinstance(first, Scalar):
                return Full(first, tuple(words[1].split()), first.dtype)
            case "reduce", 3 if first is not None:
                return Reduce(words[1], words[2], first)
            case "rearrange", 2 if first is not None:
                return Rearrange(first, words[1])
            case "masked", 3 if isinstance(first, LoadTile):
                return LoadTile(
                    first.buffer, first.index, self.tile(*parts[1]), self.padding(*parts[2]), first.dims, first.dtype
                )
        self.fail(f"unknown function {name!r} of {len(parts)}")

    def padding(self, start: int, end: int) -> float:
        text = "".join(self.tokens[start:end])
        sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
        return sign * (LITERALS[digits] if digits in LITERALS else int(digits) if digits.isdecimal() else float(digits))


def _operator(name: str, args: tuple[TExpr, ...]) -> TExpr:
    return Op(name, args, "bool" if OPS[name].kind in ("compare", "logic") else args[0].dtype)
