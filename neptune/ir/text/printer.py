"""Print Programs as text that `neptune.ir.text.parser` reads back to an equal Program.

    program xsum
      in inp: f32[m, n]
      out xsum: f32[m]
      temp xmax: f32[m]
      scalar m: i32 lo 1
      tunable BLOCK_M in {64, 128}
      owes xsum <- xmax @ j
      made t_init as init of t
    body:
      for i in [0, m) grid.x:
        fact i < m
        alloc t: f32[BLOCK_M] @tile
        for j in [0, n):
          xmax: xmax[i] max= inp[i, j] init -3.4e+38 when j < n

A `made` line says what a stage was added for. An `alloc` line scopes over the rest of its block. Literals
carry a dtype suffix unless they are i32 integers, f32 floats or bools: `2:i64`, `0.5:f16`. `cast(f16, e)`
is a Cast, `select(p, a, b)` a Select.
"""

from __future__ import annotations

from neptune.ir.program import (
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
    stages,
)
from neptune.ir.reducers import REDUCERS
from neptune.ir.text.line import print_expr as print_expr
from neptune.ir.text.notation import LOOPS

BUFFER_TEXT = LOOPS.row(Buffer, "{name}: {dtype:dtype}{shape:index}‹ @{scope}›")
SCALAR_TEXT = LOOPS.row(
    Scalar, "{name}: {dtype:dtype}‹ lo {lo:integer}›‹ hi {hi:integer}›‹ divisor {divisor:integer}›‹ upto {upto:expr}›"
)
TUNABLE_TEXT = LOOPS.row(Tunable, "{name} in {candidates:integers}‹ covers {covers:expr}›")
OWE_TEXT = LOOPS.row(Owe, "{stage} <- {on} @ {loop}")
MADE_TEXT = LOOPS.extended(made=str).row(Made, "{kind:made} of {of}")
FOR_TEXT = LOOPS.row(For, "for {var} in [{lo:expr}, {hi:expr})‹ {kind}›:")
IF_TEXT = LOOPS.row(If, "if {pred:expr}:")


def print_buffer(b: Buffer) -> str:
    """An input or a result: `x: f16[rows, cols]`."""
    return BUFFER_TEXT.write(b)


def print_scalar(s: Scalar) -> str:
    """A size or scalar argument: `m: i32 lo 1`."""
    return SCALAR_TEXT.write(s)


def print_stage(stage: Stage) -> str:
    """One stage on one line."""
    action, exprs = stage.action, LOOPS.writers["exprs"]
    index = LOOPS.writers["index"](action.index)
    if isinstance(action, Store):
        text = f"{stage.name}: {action.buffer}{index} = {print_expr(action.value)}"
    else:
        targets = ", ".join(f"{b}{index}" for b in action.buffers)
        text = f"{stage.name}: {targets} {REDUCERS[action.reducer].symbol} {exprs(action.values)}"
        if action.init is not None:
            text += f" init {exprs(action.init)}"
    return text if stage.when is None else f"{text} when {print_expr(stage.when)}"


def print_stmt(s: Stmt, indent: int = 0) -> list[str]:
    """The lines of a statement."""
    pad = "  " * indent
    match s:
        case For():
            facts = [f"{pad}  fact {print_expr(f)}" for f in s.facts]
            return [pad + FOR_TEXT.write(s), *facts, *print_stmt(s.body, indent + 1)]
        case If():
            return [pad + IF_TEXT.write(s), *print_stmt(s.body, indent + 1)]
        case Alloc(buffer, body):
            return [f"{pad}alloc {BUFFER_TEXT.write(buffer)}", *print_stmt(body, indent)]
        case Seq(stmts):
            lines = []
            for k, part in enumerate(stmts):
                # An alloc scopes over the rest of its block, so one that ends earlier needs a block.
                if isinstance(part, Alloc) and k + 1 < len(stmts):
                    lines += [f"{pad}block:", *print_stmt(part, indent + 1)]
                else:
                    lines += print_stmt(part, indent)
            return lines
        case Stage():
            return [pad + print_stage(s)]


def print_program(program: Program) -> str:
    """The whole program as text."""
    lines = [f"program {program.name}"]
    for word, group in (("in", program.inputs), ("out", program.outputs), ("temp", program.temporaries)):
        lines += [f"  {word} {BUFFER_TEXT.write(b)}" for b in group]
    lines += [f"  scalar {SCALAR_TEXT.write(s)}" for s in program.scalars]
    lines += [f"  tunable {TUNABLE_TEXT.write(t)}" for t in program.tunables]
    lines += [f"  owes {OWE_TEXT.write(o)}" for o in program.owes]
    provenance = {s.name: s.made for s in stages(program.body) if s.made is not None}
    lines += [f"  made {name} as {MADE_TEXT.write(m)}" for name, m in provenance.items()]
    return "\n".join([*lines, "body:", *print_stmt(program.body, 1)]) + "\n"
