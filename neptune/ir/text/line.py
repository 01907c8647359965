"""One line of text as tokens, the kinds of fields that stand on it, and the grammar of expressions.

Each reader of a program (`neptune.ir.text.parser`, `tile.parser`, `hopper.parser`, `mirage.parser`) extends `Line` by
the kinds of fields that its notation has, as methods without arguments, which `neptune.ir.text.notation` calls by their
names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NoReturn, TypeVar

from neptune.errors import ExpressionError
from neptune.ir.dtypes import BY_SHORT, DTYPES, is_float, is_int
from neptune.ir.expr import OPS, Cast, Const, Expr, Load, Op, Select, Var, cast, op, select
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


# Binding strength of the infix operators, loosest first; `-` and `/` families associate to the left.
PRECEDENCE = {
    "or": 1,
    "and": 2,
    "lt": 4,
    "le": 4,
    "gt": 4,
    "ge": 4,
    "eq": 4,
    "ne": 4,
    "add": 5,
    "sub": 5,
    "mul": 6,
    "div": 6,
    "floordiv": 6,
    "mod": 6,
}
_DEFAULT = {"int32", "float32", "bool"}


def _const(e: Const) -> str:
    # By dtype, not by the Python type of the value: `Const(1, "float32")` must read back as a float.
    kind = DTYPES[e.dtype].kind
    text = repr(float(e.value) if kind == "float" else bool(e.value) if kind == "bool" else int(e.value))
    return text if e.dtype in _DEFAULT else f"{text}:{DTYPES[e.dtype].short}"


def print_expr(e: Expr, level: int = 0) -> str:
    """One expression; `level` is the binding strength of the context."""
    match e:
        case Const():
            text = _const(e)
            return f"({text})" if level > 5 and text.startswith("-") else text
        case Var(name, _):
            return name
        case Load(buffer, index, _):
            return f"{buffer}[{', '.join(print_expr(i) for i in index)}]"
        case Cast(arg, dtype):
            return f"cast({DTYPES[dtype].short}, {print_expr(arg)})"
        case Select(p, a, b):
            return f"select({print_expr(p)}, {print_expr(a)}, {print_expr(b)})"
        case Op(name, args, dtype):
            strength = PRECEDENCE.get(name)
            if strength is None:
                suffix = "" if args or dtype == "float32" else f":{DTYPES[dtype].short}"
                return f"{name}({', '.join(print_expr(a) for a in args)}){suffix}"
            # Comparisons do not chain. Each side is printed once: twice were exponential in the depth.
            left = print_expr(args[0], strength + (OPS[name].kind == "compare"))
            text = f"{left} {OPS[name].infix} {print_expr(args[1], strength + 1)}"
            return f"({text})" if strength < level else text


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

    def with_variables(self, *names: str) -> Env:
        """A scope that also has these loop variables."""
        return replace(self, variables={**self.variables, **dict.fromkeys(names, "int32")})

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
    line.env = env if isinstance(env, Env) else Env(env, env)
    result = line.expr()
    line.end()
    return result


@dataclass(frozen=True)
class Brackets:
    """Values between brackets, with the names of the operators that stand between them."""

    terms: tuple[Any, ...]


class Line:
    """One line of text as tokens, with the grammar of expressions over the names of `env`."""

    pattern = _TOKEN
    reads, code = "the program text", ""
    """What is being read, and the kind of code that its errors have."""

    def __init__(self, number: int, text: str) -> None:
        self.number, self.text = number, text
        self.indent = len(text) - len(text.lstrip(" "))
        self.tokens: list[str] = []
        self.position = 0
        self.env = Env()
        k = 0
        while k < len(text):
            if text[k].isspace():
                k += 1
                continue
            match = self.pattern.match(text, k)
            if match is None:
                self.fail(f"unexpected character {text[k]!r}")
            self.tokens.append(match.group())
            k = match.end()

    # --- tokens ---

    def fail(self, wrong: str, legal: Iterable[str] = ()) -> NoReturn:
        where = f"line {self.number}: {self.text.strip()}"
        raise ExpressionError(f"cannot read {self.reads}", wrong, where=where, legal=tuple(legal), kind=self.code)

    def peek(self, ahead: int = 0) -> str:
        """A token that is still to come; "" past the end."""
        return self.tokens[self.position + ahead] if self.position + ahead < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.position += 1
        return token

    def accept(self, token: str) -> bool:
        """Take `token` if it is next."""
        matches = self.peek() == token
        self.position += matches
        return matches

    def expect(self, *tokens: str) -> None:
        for token in tokens:
            if not self.accept(token):
                self.fail(f"expected {token!r}, found {self.peek() or 'the end of the line'!r}")

    def end(self) -> None:
        if self.peek():
            self.fail(f"unexpected {self.peek()!r} after the end of the statement")

    # --- kinds of fields ---

    def name(self) -> str:
        token = self.take()
        if not is_name(token):
            self.fail(f"expected a name, found {token or 'the end of the line'!r}")
        return token

    def integer(self) -> int:
        sign = -1 if self.accept("-") else 1
        token = self.take()
        if not token.isdecimal():
            self.fail(f"expected an integer, found {token or 'the end of the line'!r}")
        return sign * int(token)

    def integers(self) -> tuple[int, ...]:
        """`{64, 128}`"""
        self.expect("{")
        return self.list_of(self.integer, "}")

    def dtype(self) -> str:
        token = self.take()
        if token not in BY_SHORT:
            self.fail(f"unknown dtype {token!r}", BY_SHORT)
        return BY_SHORT[token].name

    def flag(self) -> bool:
        """What the words around it say by being there."""
        return True

    def names(self) -> tuple[str, ...]:
        """`(a, b)`"""
        self.expect("(")
        return self.list_of(self.name, ")")

    def list_of(self, item: Callable[[], _T], close: str) -> tuple[_T, ...]:
        """Items separated by commas up to and including `close`; there may be none."""
        items: list[_T] = []
        while not self.accept(close):
            if items:
                self.expect(",")
            items.append(item())
        return tuple(items)

    # --- expressions ---

    def expr(self) -> Expr:
        return self.scalar(self.terms())

    def index(self) -> tuple[Expr, ...]:
        self.expect("[")
        return self.list_of(self.expr, "]")

    def exprs(self) -> tuple[Expr, ...]:
        """One or more, separated by commas."""
        items = [self.expr()]
        while self.accept(","):
            items.append(self.expr())
        return tuple(items)

    def terms(self) -> tuple[Any, ...]:
        """Values, and the infix operators between them."""
        terms: list[Any] = [self.operand()]
        while self.peek() in INFIX:
            terms += [INFIX[self.take()], self.operand()]
        return tuple(terms)

    def scalar(self, terms: Any) -> Expr:
        """The expression of values and operators: the operator that binds loosest, the last of those, is the root."""
        if len(terms) == 1:
            (value,) = terms
            return self.scalar(value.terms) if isinstance(value, Brackets) else self.plain(value)
        k = min(range(len(terms) - 2, 0, -2), key=lambda k: PRECEDENCE[terms[k]])
        return self.built(op, terms[k], self.scalar(terms[:k]), self.scalar(terms[k + 1 :]))

    def plain(self, value: Any) -> Expr:
        """A value as a scalar."""
        scalar: Expr = value
        return scalar

    def built(self, make: Callable[..., Expr], *args: object) -> Expr:
        """Call a constructor; what it refuses is an error of this line."""
        try:
            return make(*args)
        except TypeError as error:
            wrong = str(error)
        self.fail(wrong)

    def operand(self) -> Any:
        """A value: a scalar, what stands between brackets, or what else a notation has."""
        token, after = self.peek(), self.peek(1)
        if self.accept("("):
            inside = self.terms()
            self.expect(")")
            return Brackets(inside)
        if token == "-" or token[:1].isdecimal():
            return self.literal()
        if after == "(":
            return self.call(self.take())
        if after == "[":
            return self.load()
        if token in LITERALS:
            return self.literal()
        if token not in self.env.variables:
            self.fail(f"unknown variable {token!r}" if NAME.fullmatch(token) else f"expected a value, found {token!r}")
        return Var(self.take(), self.env.variables[token])

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

    def call(self, name: str) -> Any:
        """A function of what stands between the brackets that come next."""
        self.expect("(")
        if name == "cast":
            dtype = self.dtype()
            self.expect(",")
            (arg,) = self.args(name, 1)
            return self.built(cast, arg, dtype)
        if name == "select":
            return self.built(select, *self.args(name, 3))
        if name not in CALLED:
            self.fail(f"unknown operator {name!r}", ("cast", "select", *CALLED))
        args = self.args(name, CALLED[name].arity)
        if args:
            return self.built(op, name, *args)
        return op(name, dtype=self.suffix() or "float32")

    def args(self, name: str, count: int) -> tuple[Expr, ...]:
        args = self.list_of(self.argument, ")")
        if len(args) != count:
            self.fail(f"{name} takes {count} arguments, not {len(args)}")
        return args

    def argument(self) -> Expr:
        return self.expr()

    def load(self) -> Load:
        """`x[i, j]`"""
        buffer = self.buffer_name()
        return Load(buffer, self.index(), self.env.buffers[buffer])

    def buffer_name(self) -> str:
        buffer = self.name()
        if buffer not in self.env.buffers:
            self.fail(f"unknown buffer {buffer!r}", self.env.buffers)
        return buffer


def is_name(token: str) -> bool:
    """True where a token may be a name."""
    return NAME.fullmatch(token) is not None and token not in LITERALS


L = TypeVar("L", bound=Line)


class Lines(Generic[L]):
    """The lines of a text that are not blank. With `head` the first one is that word and a name, which is free text."""

    def __init__(self, text: str, kind: type[L], head: str = "") -> None:
        self.source = [(k, line.rstrip()) for k, line in enumerate(text.splitlines(), 1) if line.strip()]
        self.kind, self.head = kind, head
        self.name = self.named() if head else ""
        self.lines = [kind(k, line) for k, line in self.source[bool(head) :]]
        self.position = 0

    def named(self) -> str:
        """The name behind `head`."""
        number, first = self.source[0] if self.source else (1, "")
        if not f"{first} ".startswith(f"{self.head} "):
            self.kind(number, "").fail(f"a {self.head.split()[-1]} starts with `{self.head} <name>`")
        return first.removeprefix(self.head).strip()

    def peek(self, indent: int = -1) -> L | None:
        """The line that is still to come where it stands deeper than `indent`."""
        line = self.lines[self.position] if self.position < len(self.lines) else None
        return line if line is not None and line.indent > indent else None

    def take(self) -> L:
        self.position += 1
        return self.lines[self.position - 1]

    def declarations(self, words: Iterable[str], end: str) -> dict[str, list[L]]:
        """The lines up to `end:`, by their first words, which are taken."""
        groups: dict[str, list[L]] = {word: [] for word in words}
        while (line := self.peek()) is None or line.peek() != end:
            if line is None:
                self.kind(*self.source[-1]).fail(f"the {self.head.split()[-1]} ends before its `{end}:`")
            word = self.take().take()
            if word not in groups:
                line.fail(f"unknown declaration {word!r}", (*groups, f"{end}:"))
            groups[word].append(line)
        self.take().expect(end, ":")
        line.end()
        return groups

    def below(self, indent: int) -> Iterator[L]:
        """The lines of the block that is deeper than `indent`; the caller takes what is below each of them."""
        own = line.indent if (line := self.peek(indent)) is not None else 0
        while self.peek(indent) is not None:
            line = self.take()
            if line.indent != own:
                line.fail("unexpected indentation")
            yield line

    def facts(self, indent: int, env: Env) -> tuple[Expr, ...]:
        """What holds in each iteration of a loop: the lines `fact i < m` that its block begins with."""
        facts: list[Expr] = []
        while (line := self.peek(indent)) is not None and line.peek() == "fact" and line.peek(1) != ":":
            self.take().expect("fact")
            line.env = env
            facts.append(line.expr())
            line.end()
        return tuple(facts)
