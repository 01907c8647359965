"""Print Programs as text that `neptune.ir.parser` reads back to an equal Program.

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

from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import OPS, Cast, Const, Expr, Load, Op, Select, Var
from neptune.ir.program import Alloc, Buffer, For, If, Program, Scalar, Seq, Stage, Stmt, Store, stages
from neptune.ir.reducers import REDUCERS

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


def print_buffer(b: Buffer) -> str:
    """An input or a result: `x: f16[rows, cols]`."""
    return f"{b.name}: {DTYPES[b.dtype].short}[{', '.join(print_expr(d) for d in b.shape)}]"


def print_scalar(s: Scalar) -> str:
    """A size or scalar argument without what it is at most: `m: i32 lo 1`."""
    text = f"{s.name}: {DTYPES[s.dtype].short}"
    text += "" if s.lo is None else f" lo {s.lo}"
    text += "" if s.hi is None else f" hi {s.hi}"
    return text if s.divisor == 1 else f"{text} divisor {s.divisor}"


def print_stage(stage: Stage) -> str:
    """One stage on one line."""
    action = stage.action
    index = ", ".join(print_expr(i) for i in action.index)
    if isinstance(action, Store):
        text = f"{stage.name}: {action.buffer}[{index}] = {print_expr(action.value)}"
    else:
        targets = ", ".join(f"{b}[{index}]" for b in action.buffers)
        folded = ", ".join(print_expr(v) for v in action.values)
        text = f"{stage.name}: {targets} {REDUCERS[action.reducer].symbol} {folded}"
        if action.init is not None:
            text += f" init {', '.join(print_expr(v) for v in action.init)}"
    return text if stage.when is None else f"{text} when {print_expr(stage.when)}"


def print_stmt(s: Stmt, indent: int = 0) -> list[str]:
    """The lines of a statement."""
    pad = "  " * indent
    match s:
        case For(var, lo, hi, body, kind, facts):
            tail = "" if kind == "serial" else f" {kind}"
            lines = [f"{pad}for {var} in [{print_expr(lo)}, {print_expr(hi)}){tail}:"]
            lines += [f"{pad}  fact {print_expr(f)}" for f in facts]
            return lines + print_stmt(body, indent + 1)
        case If(pred, body):
            return [f"{pad}if {print_expr(pred)}:", *print_stmt(body, indent + 1)]
        case Alloc(buffer, body):
            return [f"{pad}alloc {print_buffer(buffer)} @{buffer.scope}", *print_stmt(body, indent)]
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
        lines += [f"  {word} {print_buffer(b)}" + ("" if b.scope == "global" else f" @{b.scope}") for b in group]
    for s in program.scalars:
        text = f"  scalar {print_scalar(s)}"
        lines.append(text + ("" if s.upto is None else f" upto {print_expr(s.upto)}"))
    for t in program.tunables:
        text = f"  tunable {t.name} in {{{', '.join(map(str, t.candidates))}}}"
        lines.append(text + ("" if t.covers is None else f" covers {print_expr(t.covers)}"))
    lines += [f"  owes {o.stage} <- {o.on} @ {o.loop}" for o in program.owes]
    made = {s.name: s.made for s in stages(program.body) if s.made is not None}
    lines += [f"  made {name} as {m.kind} of {m.of}" for name, m in made.items()]
    return "\n".join([*lines, "body:", *print_stmt(program.body, 1)]) + "\n"
