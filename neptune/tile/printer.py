"""Print TilePrograms: the notation of the paper's Fig. 13 with einops patterns spelled out.

What stands on one line is a row that `neptune.tile.parser` reads, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neptune.ir.expr import OPS, Cast, Op, Select
from neptune.ir.program import Program, Seq
from neptune.ir.text.line import print_expr
from neptune.ir.text.notation import LOOPS, Syntax
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


def print_texpr(e: TExpr) -> str:
    """One tile expression on one line."""
    match e:
        case Scalar(expr):
            return print_expr(expr)
        case Local(name, _, _):
            return name
        case LoadTile(buffer, index, mask, other, dims, _):
            text = f"{buffer}{_index(index)}<{' '.join(dims)}>"
            return text if mask is None else f"masked({text}, {print_texpr(mask)}, {other})"
        case Op(op, args, _):
            infix = OPS[op].infix
            if infix and len(args) == 2:
                return f"({print_texpr(args[0])} {infix} {print_texpr(args[1])})"
            return f"{op}({', '.join(map(print_texpr, args))})"
        case Dot(a, b, acc, _) if acc is not None:
            return f"({print_texpr(acc)} + {print_texpr(Dot(a, b))})"
        case _:
            row = TERMS.get(type(e))
            return str(e) if row is None else row.write(e)  # a node that only a later form of kernels has


def _index(index: tuple[TExpr, ...]) -> str:
    return f"[{', '.join(map(print_texpr, index))}]"


TILES = LOOPS.extended(
    tile=print_texpr,
    tile_index=_index,
    quoted=repr,
    quoted_words=lambda words: repr(" ".join(words)),
    grid=lambda grid: f"({print_grid(grid)})",
    extents=lambda axes: f"({', '.join(f'{name}: {print_expr(extent)}' for name, extent in axes)})",
)
TERMS: Mapping[type, Syntax[Any]] = {
    Full: TILES.row(Full, "full({value:tile}, {dims:quoted_words})"),
    Iota: TILES.row(Iota, "iota({axis:word})"),
    Cast: TILES.row(Cast, "cast({dtype:dtype}, {arg:tile})"),
    Select: TILES.row(Select, "where({pred:tile}, {then:tile}, {other:tile})"),
    Reduce: TILES.row(Reduce, "reduce({arg:tile}, {reducer:word}, {axis:quoted})"),
    Dot: TILES.row(Dot, "dot({a:tile}, {b:tile})"),
    Rearrange: TILES.row(Rearrange, "rearrange({arg:tile}, {pattern:quoted})"),
}
"""Expressions that are written as functions of their fields."""
KERNEL_TEXT = TILES.row(TileKernel, "kernel {name}  grid{grid:grid}  axes{axes:extents}")
AXIS_TEXT = TILES.row(GridAxis, "{var} < {extent:expr} @{axis}")
LOOP_TEXT = TILES.row(Loop, "for {var} in [{lo:expr}, {hi:expr}):")
BRANCH_TEXT = TILES.row(Branch, "if {pred:expr}:")
STORE_TEXT = TILES.row(StoreTile, "{buffer}{index:tile_index} = {value:tile}‹ if {mask:tile}›")


def print_assigned(name: str, value: TExpr, stage: str) -> str:
    """`x<i j> = value  # stage`: the dims are those of the value."""
    tail = f"  # {stage}" if stage and stage != name else ""
    return f"{name}<{' '.join(value.dims)}> = {print_texpr(value)}{tail}"


def print_tstmt(s: TStmt, indent: int) -> list[str]:
    """The lines of a statement."""
    pad = "  " * indent
    match s:
        case Assign(name, value, stage):
            return [pad + print_assigned(name, value, stage)]
        case StoreTile():
            return [pad + STORE_TEXT.write(s)]
        case Loop():
            head = [pad + LOOP_TEXT.write(s), *(f"{pad}  fact {print_expr(f)}" for f in s.facts)]
            return head + [line for x in s.body for line in print_tstmt(x, indent + 1)]
        case Branch():
            return [pad + BRANCH_TEXT.write(s), *(line for x in s.body for line in print_tstmt(x, indent + 1))]


def print_grid(grid: tuple[GridAxis, ...]) -> str:
    """The variables of a grid, with their extents and launch dimensions."""
    return ", ".join(map(AXIS_TEXT.write, grid))


def print_tile_program(program: TileProgram) -> str:
    """The whole program as text."""
    lines = [f"tile program {program.name}"]
    for kernel in program.kernels:
        lines += [KERNEL_TEXT.write(kernel)]
        lines += [line for s in kernel.body for line in print_tstmt(s, 1)]
    return "\n".join(lines) + "\n"


def declarations(tiles: TileProgram) -> str:
    """The parameters of a TileProgram, which its own text does not have, as the text of a Program without a body."""
    declared = (tiles.inputs, tiles.outputs, tiles.temporaries, tiles.scalars, tiles.tunables)
    return str(Program(tiles.name, *declared, Seq(())))
