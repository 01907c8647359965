"""Read Programs back from the text that `neptune.ir.text.printer` prints.

`parse_program(print_program(p)) == p` for every Program built through the constructors. Lines are read by the rows that
they are printed by (`neptune.ir.text.printer`); here is what spans lines, and the text of stages. Text that is not a
Program raises `ExpressionError` with the line it stumbled over.

A dtype is never written at a use: variables take theirs from the `scalar` line (tunables and loop
variables are int32), loads from the declaration of their buffer.  So a name must be declared.
"""

from __future__ import annotations

from dataclasses import replace

from neptune.base.boundary import public
from neptune.ir.dtypes import BY_SHORT
from neptune.ir.expr import Load
from neptune.ir.program import MADE, Alloc, For, If, Made, Program, Stage, Stmt, Store, Update, seq, stages
from neptune.ir.reducers import BY_SYMBOL
from neptune.ir.text.line import Env as Env
from neptune.ir.text.line import L, Line, Lines
from neptune.ir.text.line import parse_expr as parse_expr
from neptune.ir.text.printer import BUFFER_TEXT, FOR_TEXT, IF_TEXT, MADE_TEXT, OWE_TEXT, SCALAR_TEXT, TUNABLE_TEXT


@public
def parse_program(text: str) -> Program:
    """The Program that `text` prints.

    >>> text = "program p\\n  out y: f32[]\\nbody:\\n  s: y[] = 1.0\\n"
    >>> str(parse_program(text)) == text
    True
    """
    return _ProgramReader(text).program()


class ProgramLine(Line):
    """One line of a program, with the grammar of stages."""

    def made(self) -> str:
        """What a stage was made for."""
        kind = self.name()
        if kind not in MADE:
            self.fail(f"a stage is not made as {kind!r}", MADE)
        return kind

    def stage(self) -> Stage:
        name = self.name()
        self.expect(":")
        targets = [self.load()]
        while self.accept(","):
            targets.append(self.load())
        if self.accept("="):
            if len(targets) > 1:
                self.fail("a plain store has one target")
            action: Store | Update = Store(targets[0].buffer, targets[0].index, self.expr())
        else:
            action = self.update(targets)
        when = self.expr() if self.accept("when") else None
        self.end()
        return Stage(name, action, when)

    def update(self, targets: list[Load]) -> Update:
        symbol = self.take()
        if not symbol.endswith("="):
            symbol += self.take()
        if symbol not in BY_SYMBOL:
            self.fail(f"unknown reducer {symbol!r}", BY_SYMBOL)
        if any(t.index != targets[0].index for t in targets):
            self.fail("the targets of an update share one index")
        values = self.exprs()
        init = self.exprs() if self.accept("init") else None
        return Update(tuple(t.buffer for t in targets), targets[0].index, BY_SYMBOL[symbol].name, values, init)


def sizes_of(lines: list[L]) -> dict[str, str]:
    """The dtypes of the sizes that some lines declare, `m: i32 …`, before they are read."""
    return {line.peek(): BY_SHORT[line.peek(2)].name for line in lines if line.peek(2) in BY_SHORT}


class _ProgramReader(Lines[ProgramLine]):
    """The lines of a program, and the grammar of what spans lines."""

    def __init__(self, text: str) -> None:
        super().__init__(text, ProgramLine, "program")
        self.made: dict[str, Made] = {}

    def program(self) -> Program:
        groups = self.declarations(("in", "out", "temp", "scalar", "tunable", "owes", "made"), "body")
        # A line may use the sizes that are declared further down.
        env = Env(sizes_of(groups["scalar"]) | {line.peek(): "int32" for line in groups["tunable"]})
        scalars = tuple(SCALAR_TEXT.read_line(line, env) for line in groups["scalar"])
        tunables = tuple(TUNABLE_TEXT.read_line(line, env) for line in groups["tunable"])
        inputs, outputs, temporaries = (
            tuple(BUFFER_TEXT.read_line(line, env) for line in groups[word]) for word in ("in", "out", "temp")
        )
        owes = tuple(OWE_TEXT.read_line(line, env) for line in groups["owes"])
        for line in groups["made"]:
            name = line.name()
            line.expect("as")
            self.made[name] = MADE_TEXT.read_line(line, env)
        env = Env(env.variables, {b.name: b.dtype for b in (*inputs, *outputs, *temporaries)})
        body = self.block(0, env)
        if (behind := self.peek()) is not None:
            behind.fail("unexpected indentation")
        names = {s.name for s in stages(body)}
        for line in groups["made"]:
            if line.tokens[1] not in names:
                line.fail(f"no stage is called {line.tokens[1]!r}", sorted(names))
        return Program(self.name, inputs, outputs, temporaries, scalars, tunables, body, owes)

    def block(self, indent: int, env: Env) -> Stmt:
        """The statements deeper than `indent`; none is an empty block."""
        return seq(*(self.statement(line, env) for line in self.below(indent)))

    def statement(self, line: ProgramLine, env: Env) -> Stmt:
        line.env = env
        # `for: y[] = …` is a stage of that name: a keyword is one only where no stage text follows a colon.
        if line.peek(1) == ":" and line.peek(2):
            stage = line.stage()
            return replace(stage, made=self.made.get(stage.name))
        match line.peek():
            case "for":
                head = FOR_TEXT.line_values(line, env)
                env = env.with_variables(head["var"])
                facts = self.facts(line.indent, env)
                return For(**head, body=self.block(line.indent, env), facts=facts)
            case "if":
                head = IF_TEXT.line_values(line, env)
                return If(**head, body=self.block(line.indent, env))
            case "alloc":
                line.take()
                buffer = BUFFER_TEXT.read_line(line, env)
                return Alloc(buffer, self.block(line.indent - 1, env.with_buffer(buffer)))
            case "block":
                line.expect("block", ":")
                line.end()
                return self.block(line.indent, env)
        line.fail("expected a statement", ("for", "if", "alloc", "block", "<stage>: …"))
