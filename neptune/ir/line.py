"""One line of text as tokens, and the expressions on it: what the readers of programs and of tile programs share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn, TypeVar

from neptune.errors import ExpressionError
from neptune.ir.dtypes import BY_SHORT, is_float, is_int
from neptune.ir.expr import OPS, Const, Expr, Load, Var, cast, op, select
from neptune.ir.printer import PRECEDENCE
from neptune.ir.program import Buffer, For, Program, parameter_names, walk

NAME = re.compile(r"[^\W\d][\w.]*")
"""What a name may look like: a Python identifier, dots allowed inside."""
LITERALS: dict[str, float | bool] = {"True": True, "False": False, "inf": math.inf, "nan": math.nan}
"""Words that are literals, and so cannot be names."""

_TOKEN = re.compile(
    rf"(?P<number>\d+(\.\d*)?([eE][+-]?\d+)?)|(?P<name>{NAME.pattern})|(?P<symbol>//|[<>=!]=|[-+*/%<>=|&^(){{}}\[\],:@])"
)
INFIX = {row.infix: row.name for row in OPS.values() if row.infix}
CALLED = {name: row for name, row in OPS.items() if row.kind != "instruction"}
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


class Line:
    """One line of text as tokens, with the grammar of expressions."""

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
        if name not in CALLED:
            self.fail(f"unknown operator {name!r}", ("cast", "select", *CALLED))
        args = self.args(env, name, CALLED[name].arity)
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
