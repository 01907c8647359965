"""Read TilePrograms back from the text that `neptune.tile.printer` prints.

The text has no declarations: they are those of the Program that the tiles came from. Nor does it tell a product that
starts from an accumulator from one that is added to it, or an operator on scalars from a scalar, where that makes no
difference; `print_tile_program(parse_tiles(text, program)) == text`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from neptune.ir.expr import OPS, Cast, Expr, Load, Op, cast
from neptune.ir.nodes import Dims, Tile, join
from neptune.ir.program import Program, parameter_names
from neptune.ir.text.line import PRECEDENCE, Brackets, Env, Line, Lines, is_name
from neptune.tile.ir import (
    Assign,
    Branch,
    Dot,
    Full,
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
)
from neptune.tile.printer import AXIS_TEXT, BRANCH_TEXT, KERNEL_TEXT, LOOP_TEXT, STORE_TEXT, TERMS


def parse_tiles(text: str, program: Program | TileProgram) -> TileProgram:
    """Return the TileProgram that `text` prints, with the declarations of `program`.

    str(parse_tiles(str(tiles), tiles)) == str(tiles)
    """
    reader = TileReader(text, TileLine, scope_of(program), "tile program")
    kernels = tuple(reader.kernel(line) for line in reader.below(-1))
    parameters = (program.inputs, program.outputs, program.temporaries, program.scalars, program.tunables)
    return TileProgram(reader.name, *parameters, kernels)


def scope_of(program: Program | TileProgram) -> Env:
    """The parameters and buffers of a program."""
    dtypes = {b.name: b.dtype for b in (*program.inputs, *program.outputs, *program.temporaries)}
    return Env(parameter_names(program.scalars, program.tunables), dtypes)


class TileLine(Line):
    """One line of a tile program. Scalars and tiles stand side by side: an operator is of what its operands are."""

    pattern = re.compile(rf"'[^']*'|{Line.pattern.pattern}")
    functions: ClassVar = {row.text.partition("(")[0]: row for row in TERMS.values() if row.node is not Cast}

    def __init__(self, number: int, text: str) -> None:
        code, _, self.comment = text.partition("  # ")
        super().__init__(number, code)
        self.locals: Mapping[str, Local] = {}

    # --- kinds of fields ---

    def word(self) -> str:
        return self.take()

    def words(self) -> Dims:
        """Names, and "1", up to what is neither."""
        words: list[str] = []
        while is_name(self.peek()) or self.peek() == "1":
            words.append(self.take())
        return tuple(words)

    def quoted(self) -> str:
        return self.take().strip("'")

    def quoted_words(self) -> Dims:
        return tuple(self.quoted().split())

    def grid(self) -> tuple[GridAxis, ...]:
        self.expect("(")
        return self.list_of(lambda: AXIS_TEXT.read(self), ")")

    def extents(self) -> tuple[tuple[str, Expr], ...]:
        self.expect("(")
        return self.list_of(self.extent, ")")

    def extent(self) -> tuple[str, Expr]:
        name = self.name()
        self.expect(":")
        return name, self.expr()

    def tile_index(self) -> tuple[TExpr, ...]:
        self.expect("[")
        return self.list_of(self.tile, "]")

    def assigned(self) -> tuple[str, TExpr, str]:
        """`x<i j> = value  # stage`: a name, a value, and a stage."""
        name = self.name()
        if not self.dims_follow():
            self.fail("expected `name<dims> = …`")
        self.dims()
        self.expect("=")
        value = self.tile()
        self.end()
        return name, value, self.comment or name

    def dims_follow(self) -> bool:
        """True where `<i 1>` comes next, and not a comparison."""
        k = 1
        while is_name(self.peek(k)) or self.peek(k) == "1":
            k += 1
        return self.peek() == "<" and self.peek(k) == ">"

    def dims(self) -> Dims:
        self.expect("<")
        words = self.words()
        self.expect(">")
        return words

    # --- tiles and scalars ---

    def tile(self) -> TExpr:
        """A tile, or a scalar, which is not written between brackets."""
        return self.tiled(self.terms())

    def tiled(self, terms: tuple[Any, ...]) -> TExpr:
        """Return one value as a tile, or several values, which are a scalar."""
        if len(terms) > 1:
            return Scalar(self.scalar(terms))
        (value,) = terms
        if isinstance(value, Brackets):
            return self.infix(value.terms)
        return value if is_tile(value) else Scalar(value)

    def infix(self, terms: tuple[Any, ...]) -> TExpr:
        """`a + b` between brackets: a scalar beside a tile may itself be a sum, without brackets."""
        if len(terms) == 1:
            self.fail("expected an operator between brackets")
        if is_tile(terms[0]):
            k = 1
        elif is_tile(terms[-1]):
            k = len(terms) - 2
        else:
            k = min(range(len(terms) - 2, 0, -2), key=lambda k: PRECEDENCE[terms[k]])
        a, name, b = self.tiled(terms[:k]), terms[k], self.tiled(terms[k + 1 :])
        if name == "add" and isinstance(b, Dot) and b.acc is None and (a.dims, a.dtype) == (b.dims, b.dtype):
            return Dot(b.a, b.b, a)
        return _operator(name, (a, b))

    def operand(self) -> Any:
        token, after = self.peek(), self.peek(1)
        if token in self.locals and after not in ("[", "("):
            return self.locals[self.take()]
        if after == "(" and token in self.functions:
            row = self.functions[token]
            fields = row.values(self)
            return row.node(**fields, **({"dtype": fields["value"].dtype} if row.node is Full else {}))
        if after == "(" and token == "masked":
            return self.masked()
        return super().operand()

    def masked(self) -> LoadTile:
        """`masked(load, mask, other)`"""
        self.expect("masked", "(")
        load = self.load_tile()
        self.expect(",")
        mask = self.tile()
        self.expect(",")
        other = self.literal().value
        self.expect(")")
        return LoadTile(load.buffer, load.index, mask, other, load.dims, load.dtype)

    def load_tile(self) -> LoadTile:
        load = self.tile()
        if not isinstance(load, LoadTile):
            self.fail("expected a load")
        return load

    def load(self) -> Any:
        """`x[i]`, of a tile where dims follow."""
        buffer = self.buffer_name()
        self.expect("[")
        index, dtype = self.list_of(self.argument, "]"), self.env.buffers[buffer]
        if self.dims_follow():
            return LoadTile(buffer, tuple(self.tiled((i,)) for i in index), None, 0.0, self.dims(), dtype)
        return Load(buffer, tuple(self.plain(i) for i in index), dtype)

    def argument(self) -> Any:
        tile = self.tile()
        return tile.expr if isinstance(tile, Scalar) else tile

    def plain(self, value: Any) -> Expr:
        if is_tile(value):
            self.fail("expected a scalar, found a tile")
        return super().plain(value)

    def built(self, make: Callable[..., Expr], *args: Any) -> Any:
        """An operator or a cast, of tiles where one of its arguments is a tile."""
        values = [x for x in args if not isinstance(x, str)]
        if not any(is_tile(x) for x in values):
            return super().built(make, *args)
        tiles = tuple(self.tiled((x,)) for x in values)
        return Cast(tiles[0], args[1]) if make is cast else _operator(args[0], tiles)


def is_tile(value: Any) -> bool:
    """True for a tile expression: the leaves of operators are scalars or tiles, and never both."""
    if isinstance(value, Brackets):
        return any(is_tile(x) for x in value.terms[::2])
    return isinstance(value, Tile) or (bool(value.parts) and is_tile(value.parts[0]))


def _operator(name: str, args: tuple[TExpr, ...]) -> TExpr:
    return Op(name, args, "bool" if OPS[name].kind in ("compare", "logic") else args[0].dtype)


T = TypeVar("T", bound=TileLine)


class TileReader(Lines[T], Generic[T]):
    """The lines of a tile program; `env` holds parameters and buffers."""

    def __init__(self, text: str, kind: type[T], env: Env, head: str = "") -> None:
        super().__init__(text, kind, head)
        self.env = env
        self.locals: dict[str, Local] = {}

    def kernel(self, line: T) -> TileKernel:
        self.locals = {}
        head = KERNEL_TEXT.line_values(line, self.env)
        return TileKernel(**head, body=self.body(0, self.env.with_variables(*(g.var for g in head["grid"]))))

    def body(self, indent: int, env: Env) -> tuple[TStmt, ...]:
        """The statements deeper than `indent`."""
        return tuple(self.statement(line, env) for line in self.below(indent))

    def statement(self, line: T, env: Env) -> TStmt:
        self.enter(line, env)
        if line.peek() == "for":
            head = LOOP_TEXT.line_values(line, line.env)
            env = env.with_variables(head["var"])
            facts = self.facts(line.indent, env)
            return Loop(**head, body=self.body(line.indent, env), facts=facts)
        if line.peek() == "if":
            head = BRANCH_TEXT.line_values(line, line.env)
            return Branch(**head, body=self.body(line.indent, env))
        if line.peek(1) == "[":
            fields = STORE_TEXT.line_values(line, line.env)
            return StoreTile(**fields, dims=index_dims(line, fields["index"]))
        return Assign(*self.define(line))

    def enter(self, line: T, env: Env) -> None:
        """Tell a line what is known above it: tile variables, of which scalars are also read as buffers: `n[]`."""
        line.locals = self.locals
        scalars = {x.name: x.dtype for x in self.locals.values() if not x.dims}
        line.env = Env(env.variables, {**scalars, **env.buffers})

    def define(self, line: T) -> tuple[str, TExpr, str]:
        """The name, value and stage of the tile variable that a line assigns, which the lines below it know."""
        name, value, stage = line.assigned()
        self.locals[name] = Local(name, value.dims, value.dtype)
        return name, value, stage


def index_dims(line: TileLine, index: tuple[TExpr, ...]) -> Dims:
    """The dims of what a tuple of indices reaches."""
    dims = join(*(i.dims for i in index))
    if dims is None:
        line.fail("the indices have no common dims")
    return dims
