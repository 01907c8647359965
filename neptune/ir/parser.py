"""Read Programs back from the text that `neptune.ir.printer` prints.

`parse_program(print_program(p)) == p` for every Program built through the constructors.  The reader is a
tokenizer and a precedence climber for expressions (`neptune.ir.line`), and one method per kind of line.  Text that is
not a Program raises `ExpressionError` with the line it stumbled over.

A dtype is never written at a use: variables take theirs from the `scalar` line (tunables and loop
variables are int32), loads from the declaration of their buffer.  So a name must be declared.
"""

from __future__ import annotations

from dataclasses import replace

from neptune.boundary import public
from neptune.ir.expr import Expr, Load
from neptune.ir.line import Env as Env
from neptune.ir.line import Line
from neptune.ir.line import parse_expr as parse_expr
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
    parameter_names,
    seq,
    stages,
)
from neptune.ir.reducers import BY_SYMBOL


@public
def parse_program(text: str) -> Program:
    """The Program that `text` prints.

    >>> text = "program p\\n  out y: f32[]\\nbody:\\n  s: y[] = 1.0\\n"
    >>> str(parse_program(text)) == text
    True
    """
    return _ProgramReader(text).program()


class ProgramLine(Line):
    """One line of a program, with the grammar of declarations and stages."""

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
            ProgramLine(number, "").fail("a program starts with `program <name>`")
        self.name = first.removeprefix("program ").strip()
        self.lines = [ProgramLine(number, line) for number, line in self.source[1:]]
        self.at = 0

    def program(self) -> Program:
        words = ("in", "out", "temp", "scalar", "tunable", "owes", "made")
        groups: dict[str, list[ProgramLine]] = {word: [] for word in words}
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

    def next_line(self) -> ProgramLine:
        if self.at == len(self.lines):
            ProgramLine(self.source[-1][0], self.source[-1][1]).fail("the program ends before its `body:`")
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

    def statement(self, line: ProgramLine, env: Env) -> Stmt:
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

    def head_end(self, line: ProgramLine) -> None:
        line.expect(":")
        line.end()

    def loop(self, line: ProgramLine, env: Env) -> For:
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
