"""Print TilePrograms: the notation of the paper's Fig. 13 with einops patterns spelled out."""

from __future__ import annotations

from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import OPS, Cast, Op, Select
from neptune.ir.printer import print_expr
from neptune.ir.program import Program, Seq
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
    TileProgram,
    TStmt,
)


def print_texpr(e: TExpr) -> str:
    """One tile expression on one line."""
    match e:
        case Scalar(expr):
            return print_expr(expr)
        case Full(value, dims, _):
            return f"full({print_texpr(value)}, {' '.join(dims)!r})"
        case Iota(axis):
            return f"iota({axis})"
        case Local(name, _, _):
            return name
        case LoadTile(buffer, index, mask, other, dims, _):
            text = f"{buffer}[{', '.join(print_texpr(i) for i in index)}]<{' '.join(dims)}>"
            return text if mask is None else f"masked({text}, {print_texpr(mask)}, {other})"
        case Op(op, args, _):
            infix = OPS[op].infix
            if infix and len(args) == 2:
                return f"({print_texpr(args[0])} {infix} {print_texpr(args[1])})"
            return f"{op}({', '.join(print_texpr(a) for a in args)})"
        case Cast(arg, dtype):
            return f"cast({DTYPES[dtype].short}, {print_texpr(arg)})"
        case Select(p, a, b):
            return f"where({print_texpr(p)}, {print_texpr(a)}, {print_texpr(b)})"
        case Reduce(reducer, axis, arg):
            return f"reduce({print_texpr(arg)}, {reducer}, {axis!r})"
        case Dot(a, b, acc, _):
            text = f"dot({print_texpr(a)}, {print_texpr(b)})"
            return text if acc is None else f"({print_texpr(acc)} + {text})"
        case Rearrange(arg, pattern):
            return f"rearrange({print_texpr(arg)}, {pattern!r})"
        case _:
            return str(e)  # a node that only a later form of kernels has


def print_tstmt(s: TStmt, indent: int) -> list[str]:
    """The lines of a statement."""
    pad = "  " * indent
    match s:
        case Assign(name, value, stage):
            tail = f"  # {stage}" if stage and stage != name else ""
            return [f"{pad}{name}<{' '.join(value.dims)}> = {print_texpr(value)}{tail}"]
        case StoreTile(buffer, index, value, mask, _, _):
            line = f"{pad}{buffer}[{', '.join(print_texpr(i) for i in index)}] = {print_texpr(value)}"
            return [line if mask is None else f"{line} if {print_texpr(mask)}"]
        case Loop(var, lo, hi, body, facts):
            head = [f"{pad}for {var} in [{print_expr(lo)}, {print_expr(hi)}):"]
            head += [f"{pad}  fact {print_expr(f)}" for f in facts]
            return head + [line for x in body for line in print_tstmt(x, indent + 1)]
        case Branch(pred, body):
            return [f"{pad}if {print_expr(pred)}:", *(line for x in body for line in print_tstmt(x, indent + 1))]


def print_grid(grid: tuple[GridAxis, ...]) -> str:
    """The variables of a grid, with their extents and launch dimensions."""
    return ", ".join(f"{g.var} < {print_expr(g.extent)} @{g.axis}" for g in grid)


def print_tile_program(program: TileProgram) -> str:
    """The whole program as text."""
    lines = [f"tile program {program.name}"]
    for kernel in program.kernels:
        axes = ", ".join(f"{name}: {print_expr(extent)}" for name, extent in kernel.axes)
        lines += [f"kernel {kernel.name}  grid({print_grid(kernel.grid)})  axes({axes})"]
        lines += [line for s in kernel.body for line in print_tstmt(s, 1)]
    return "\n".join(lines) + "\n"


def declarations(tiles: TileProgram) -> str:
    """The parameters of a TileProgram, which its own text does not have, as the text of a Program without a body."""
    declared = (tiles.inputs, tiles.outputs, tiles.temporaries, tiles.scalars, tiles.tunables)
    return str(Program(tiles.name, *declared, Seq(())))
