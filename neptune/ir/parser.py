"""Read Programs back from the text that `neptune.ir.printer` prints.

`parse_program(print_program(p)) == p` for every Program built through the constructors.  The reader is a
tokenizer, a precedence climber for expressions, and one method per kind of line.  Text that is not a
Program raises `ExpressionError` with the line it stumbled over.

A dtype is never written at a use: variables take theirs from the `scalar` line (tunables and loop
variables are int32), loads from the declaration of their buffer.  So a name must be declared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn, TypeVar

from neptune.boundary import public
from neptune.errors import ExpressionError
from neptune.ir.dtypes import BY_SHORT, is_float, is_int
from neptune.ir.expr import OPS, Const, Expr, Load, Var, cast, op, select
from neptune.ir.printer import PRECEDENCE
from neptune.ir.program import (
    MADE,
    Alloc,
    Buffer,
    For,
    If,
    Made,
    Owe,
    Program,
    Scalar,
    Seq,
    Stage,
    Stmt,
    Store,
    Tunable,
    Update,
    seq,
    stages,
    walk,
)
from neptune.ir.reducers import BY_SYMBOL

NAME = re.compile(r"[^\W\d][\w.]*")
"""What a name may look like: a Python identifier, dots allowed inside."""
LITERALS: dict[str, float | bool] = {"True": True, "False": False, "inf": math.inf, "nan": math.nan}
"""Words that are literals, and so cannot be names."""

_TOKEN = re.compile(
    rf"(?P<number>\d+(\.\d*)?([eE][+-]?\d+)?)|(?P<name>{NAME.pattern})|(?P<symbol>//|[<>=!]=|[-+*/%<>=|&^(){{}}\[\],:@])"
)
INFIX = {row.infix: row.name for row in OPS.values() if row.infix}
_T = TypeVar("_T")


@dataclass(frozen=True)
class Env:
    """The dtypes of the names that are in scope; a variable and a buffer may share a name."""

    variables: Mapping[str, str] = field(default_factory=dict)
    buffers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program) -> Env:
        """Every name of a program: scalars, tunables, all loop variables, all buffers."""
        names = {s.var: "int32" for s in walk(program.body) if isinstance(s, For)}
        names |= parameter_names(program.scalars, program.tunables)
        return cls(names, {name: b.dtype for name, b in program.buffers.items()})

    def with_variable(self, name: str) -> Env:
        """A scope that also has the loop variable `name`."""
        return replace(self, variables={**self.variables, name: "int32"})

    def with_buffer(self, buffer: Buffer) -> Env:
        """A scope that also has `buffer`."""
        return replace(self, buffers={**self.buffers, buffer.name: buffer.dtype})


@public
def parse_program(text: str) -> Program:
    """The Program that `text` prints.

    >>> text = "program p\\n  out y: f32[]\\nbody:\\n  s: y[] = 1.0\\n"
    >>> str(parse_program(text)) == text
    True
    """
    return _ProgramReader(text).program()


def parse_expr(text: str, env: Env | Mapping[str, str]) -> Expr:
    """One expression. `env` is an `Env`, or maps names, of variables and buffers alike, to dtypes.

    >>> parse_expr("x[i] + 1.0", {"x": "float32", "i": "int32"})
    Op(name='add', args=(Load(buffer='x', index=(Var(name='i', dtype='int32'),), dtype='float32'), Const(value=1.0, \
dtype='float32')), dtype='float32')
    """
    line = Line(1, text)
    result = line.expr(env if isinstance(env, Env) else Env(env, env))
    line.end()
    return result


def parameter_names(scalars: Iterable[Scalar], tunables: Iterable[Tunable]) -> dict[str, str]:
    """The dtypes of scalars and tunables by name."""
    return {s.name: s.dtype for s in scalars} | {t.name: "int32" for t in tunables}


class Line:
    """One line of text as tokens, with the grammar of everything that fits on a line."""

    pattern = _TOKEN

    def __init__(self, number: int, text: str) -> None:
        self.number, self.text = number, text
        self.indent = len(text) - len(text.lstrip(" "))
        self.tokens: list[str] = []
        self.at = 0
        at = 0
        while at < len(text):
            if text[at].isspace():
                at += 1
                continue
            match = self.pattern.match(text, at)
            if match is None:
                self.fail(f"unexpected character {text[at]!r}")
            self.tokens.append(match.group())
            at = match.end()

    # --- tokens ---

    def fail(self, wrong: str, legal: Iterable[str] = ()) -> NoReturn:
        where = f"line {self.number}: {self.text.strip()}"
        raise ExpressionError("cannot read the program text", wrong, where=where, legal=tuple(legal))

    def peek(self, ahead: int = 0) -> str:
        """A token that is still to come; "" past the end."""
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def accept(self, token: str) -> bool:
        """Take `token` if it is next."""
        matches = self.peek() == token
        self.at += matches
        return matches

    def expect(self, *tokens: str) -> None:
        for token in tokens:
            if not self.accept(token):
                self.fail(f"expected {token!r}, found {self.peek() or 'the end of the line'!r}")

    def end(self) -> None:
        if self.peek():
            self.fail(f"unexpected {self.peek()!r} after the end of the statement")

    def name(self) -> str:
        token = self.take()
        if not NAME.fullmatch(token) or token in LITERALS:
            self.fail(f"expected a name, found {token or 'the end of the line'!r}")
        return token

    def integer(self) -> int:
        sign = -1 if self.accept("-") else 1
        token = self.take()
        if not token.isdecimal():
            self.fail(f"expected an integer, found {token or 'the end of the line'!r}")
        return sign * int(token)

    def dtype(self) -> str:
        token = self.take()
        if token not in BY_SHORT:
            self.fail(f"unknown dtype {token!r}", BY_SHORT)
        return BY_SHORT[token].name

    def list_of(self, item: Callable[[], _T], close: str) -> tuple[_T, ...]:
        """Items separated by commas up to and including `close`; there may be none."""
        items: list[_T] = []
        while not self.accept(close):
            if items:
                self.expect(",")
            items.append(item())
        return tuple(items)

    # --- expressions ---

    def built(self, make: Callable[..., Expr], *args: object) -> Expr:
        """Call a constructor; what it refuses is an error of this line."""
        try:
            return make(*args)
        except TypeError as error:
            wrong = str(error)
        self.fail(wrong)

    def expr(self, env: Env, level: int = 0) -> Expr:
        """An expression whose outermost infix operator binds at least as strongly as `level`."""
        left = self.operand(env)
        while (name := INFIX.get(self.peek())) is not None and PRECEDENCE[name] >= level:
            self.take()
            left = self.built(op, name, left, self.expr(env, PRECEDENCE[name] + 1))
        return left

    def operand(self, env: Env) -> Expr:
        token, after = self.peek(), self.peek(1)
        if self.accept("("):
            inner = self.expr(env)
            self.expect(")")
            return inner
        if token == "-" or token[:1].isdecimal():
            return self.literal()
        if after == "(":
            return self.call(env)
        if after == "[":
            return self.load(env)
        if token in LITERALS:
            return self.literal()
        if token not in env.variables:
            self.fail(f"unknown variable {token!r}" if NAME.fullmatch(token) else f"expected a value, found {token!r}")
        return Var(self.take(), env.variables[token])

    def literal(self) -> Const:
        """`-1.5:f16`: a sign, a value, and a dtype where it is not the default one."""
        negative = self.accept("-")
        token = self.take()
        value: int | float | bool
        if token in LITERALS:
            value = LITERALS[token]
        elif token[:1].isdecimal():
            value = int(token) if token.isdecimal() else float(token)
        else:
            self.fail(f"expected a number, found {token or 'the end of the line'!r}")
        if isinstance(value, bool):
            return Const(value, "bool")
        dtype = self.suffix() or ("float32" if isinstance(value, float) else "int32")
        if not is_float(dtype) and (isinstance(value, float) or not is_int(dtype)):
            self.fail(f"{token} is not a {dtype}")
        value = -value if negative else value
        return Const(float(value) if is_float(dtype) else value, dtype)

    def suffix(self) -> str | None:
        """The `:f16` of a literal. The `:` that ends a statement's head is followed by no dtype."""
        if self.peek() == ":" and self.peek(1) in BY_SHORT:
            self.take()
            return self.dtype()
        return None

    def call(self, env: Env) -> Expr:
        name = self.take()
        self.expect("(")
        if name == "cast":
            dtype = self.dtype()
            self.expect(",")
            (arg,) = self.args(env, name, 1)
            return self.built(cast, arg, dtype)
        if name == "select":
            return self.built(select, *self.args(env, name, 3))
        if name not in OPS:
            self.fail(f"unknown operator {name!r}", ("cast", "select", *OPS))
        args = self.args(env, name, OPS[name].arity)
        if args:
            return self.built(op, name, *args)
        return op(name, dtype=self.suffix() or "float32")

    def args(self, env: Env, name: str, count: int) -> tuple[Expr, ...]:
        args = self.list_of(lambda: self.expr(env), ")")
        if len(args) != count:
            self.fail(f"{name} takes {count} arguments, not {len(args)}")
        return args

    def load(self, env: Env) -> Load:
        buffer = self.name()
        if buffer not in env.buffers:
            self.fail(f"unknown buffer {buffer!r}", env.buffers)
        return Load(buffer, self.index(env), env.buffers[buffer])

    def index(self, env: Env) -> tuple[Expr, ...]:
        self.expect("[")
        return self.list_of(lambda: self.expr(env), "]")

    # --- declarations ---

    def buffer(self, env: Env) -> Buffer:
        name = self.name()
        self.expect(":")
        dtype = self.dtype()
        shape = self.index(env)
        buffer = Buffer(name, shape, dtype, self.name()) if self.accept("@") else Buffer(name, shape, dtype)
        self.end()
        return buffer

    def scalar(self) -> Scalar:
        """The line without `upto`, whose sizes may be declared further down."""
        name = self.name()
        self.expect(":")
        dtype = self.dtype()
        lo = self.integer() if self.accept("lo") else None
        hi = self.integer() if self.accept("hi") else None
        divisor = self.integer() if self.accept("divisor") else 1
        return Scalar(name, dtype, lo, hi, divisor)

    def tunable(self) -> Tunable:
        """The line without `covers`, whose sizes may be declared further down."""
        name = self.name()
        self.expect("in", "{")
        return Tunable(name, self.list_of(self.integer, "}"))

    def size(self, word: str, env: Env) -> Expr | None:
        """The size behind a word, where that stands at the end of the line."""
        size = self.expr(env) if self.accept(word) else None
        self.end()
        return size

    def owe(self) -> Owe:
        stage = self.name()
        self.expect("<", "-")
        on = self.name()
        self.expect("@")
        owe = Owe(stage, on, self.name())
        self.end()
        return owe

    def made(self) -> tuple[str, Made]:
        """A stage, and what it was made for."""
        name = self.name()
        self.expect("as")
        kind = self.name()
        if kind not in MADE:
            self.fail(f"a stage is not made as {kind!r}", MADE)
        self.expect("of")
        made = Made(kind, self.name())
        self.end()
        return name, made

    # --- stages ---

    def stage(self, env: Env) -> Stage:
        name = self.name()
        self.expect(":")
        targets = [self.load(env)]
        while self.accept(","):
            targets.append(self.load(env))
        if self.accept("="):
            if len(targets) > 1:
                self.fail("a plain store has one target")
            action: Store | Update = Store(targets[0].buffer, targets[0].index, self.expr(env))
        else:
            action = self.update(targets, env)
        when = self.expr(env) if self.accept("when") else None
        self.end()
        return Stage(name, action, when)

    def update(self, targets: list[Load], env: Env) -> Update:
        symbol = self.take()
        if not symbol.endswith("="):
            symbol += self.take()
        if symbol not in BY_SYMBOL:
            self.fail(f"unknown reducer {symbol!r}", BY_SYMBOL)
        if any(t.index != targets[0].index for t in targets):
            self.fail("the targets of an update share one index")
        folded = self.exprs(env)
        init = self.exprs(env) if self.accept("init") else None
        return Update(tuple(t.buffer for t in targets), targets[0].index, BY_SYMBOL[symbol].name, folded, init)

    def exprs(self, env: Env) -> tuple[Expr, ...]:
        items = [self.expr(env)]
        while self.accept(","):
            items.append(self.expr(env))
        return tuple(items)


class _ProgramReader:
    """The lines of a program, and the grammar of what spans lines."""

    def __init__(self, text: str) -> None:
        self.made: dict[str, Made] = {}
        # The first line is the program's name, which is free text.
        self.source = [(k, line.rstrip()) for k, line in enumerate(text.splitlines(), 1) if line.strip()]
        number, first = self.source[0] if self.source else (1, "")
        if not first.startswith("program "):
            Line(number, "").fail("a program starts with `program <name>`")
        self.name = first.removeprefix("program ").strip()
        self.lines = [Line(number, line) for number, line in self.source[1:]]
        self.at = 0

    def program(self) -> Program:
        words = ("in", "out", "temp", "scalar", "tunable", "owes", "made")
        groups: dict[str, list[Line]] = {word: [] for word in words}
        while (line := self.next_line()).peek() != "body":
            word = line.take()
            if word not in groups:
                line.fail(f"unknown declaration {word!r}", groups)
            groups[word].append(line)
        line.expect("body", ":")
        line.end()
        # Buffers are printed before the sizes in their shapes, so those are read first.
        numbers = [x.scalar() for x in groups["scalar"]]
        plain = [x.tunable() for x in groups["tunable"]]
        env = Env(parameter_names(numbers, plain))
        scalars = tuple(replace(s, upto=x.size("upto", env)) for s, x in zip(numbers, groups["scalar"], strict=True))
        tunables = tuple(
            replace(t, covers=x.size("covers", env)) for t, x in zip(plain, groups["tunable"], strict=True)
        )
        buffers = {word: tuple(x.buffer(env) for x in groups[word]) for word in ("in", "out", "temp")}
        owes = tuple(x.owe() for x in groups["owes"])
        self.made = dict(x.made() for x in groups["made"])
        env = Env(env.variables, {b.name: b.dtype for group in buffers.values() for b in group})
        body = self.inner(0, env)
        if self.at < len(self.lines):
            self.lines[self.at].fail("unexpected indentation")
        names = {s.name for s in stages(body)}
        for line in groups["made"]:
            if line.tokens[1] not in names:
                line.fail(f"no stage is called {line.tokens[1]!r}", sorted(names))
        return Program(self.name, buffers["in"], buffers["out"], buffers["temp"], scalars, tunables, body, owes)

    def next_line(self) -> Line:
        if self.at == len(self.lines):
            Line(self.source[-1][0], self.source[-1][1]).fail("the program ends before its `body:`")
        self.at += 1
        return self.lines[self.at - 1]

    def inner(self, indent: int, env: Env) -> Stmt:
        """The block below a line at `indent`; no deeper line means an empty one."""
        deeper = self.at < len(self.lines) and self.lines[self.at].indent > indent
        return self.block(self.lines[self.at].indent, env) if deeper else Seq(())

    def block(self, indent: int, env: Env) -> Stmt:
        stmts: list[Stmt] = []
        while self.at < len(self.lines) and self.lines[self.at].indent >= indent:
            line = self.next_line()
            if line.indent > indent:
                line.fail("unexpected indentation")
            stmts.append(self.statement(line, env))
        return seq(*stmts)

    def statement(self, line: Line, env: Env) -> Stmt:
        # `for: y[] = …` is a stage of that name: a keyword is one only where no stage text follows a colon.
        if line.peek(1) == ":" and line.peek(2):
            stage = line.stage(env)
            return replace(stage, made=self.made.get(stage.name))
        match line.take():
            case "for":
                return self.loop(line, env)
            case "if":
                pred = line.expr(env)
                self.head_end(line)
                return If(pred, self.inner(line.indent, env))
            case "alloc":
                buffer = line.buffer(env)
                return Alloc(buffer, self.block(line.indent, env.with_buffer(buffer)))
            case "block":
                self.head_end(line)
                return self.inner(line.indent, env)
        line.fail("expected a statement", ("for", "if", "alloc", "block", "<stage>: …"))

    def head_end(self, line: Line) -> None:
        line.expect(":")
        line.end()

    def loop(self, line: Line, env: Env) -> For:
        var = line.name()
        line.expect("in", "[")
        lo = line.expr(env)
        line.expect(",")
        hi = line.expr(env)
        line.expect(")")
        kind = "serial" if line.peek() == ":" else line.name()
        self.head_end(line)
        env = env.with_variable(var)
        facts: list[Expr] = []
        while self.at < len(self.lines) and self.lines[self.at].indent > line.indent and self.is_fact():
            fact = self.next_line()
            fact.take()
            facts.append(fact.expr(env))
            fact.end()
        return For(var, lo, hi, self.inner(line.indent, env), kind, tuple(facts))

    def is_fact(self) -> bool:
        line = self.lines[self.at]
        return line.peek() == "fact" and line.peek(1) != ":"
