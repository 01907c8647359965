"""The launch function of a Gluon module: sizes, descriptors, the table of tiles, and the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from neptune.codegen.triton_kernel import KernelText, Parameter, grid_order
from neptune.codegen.triton_launch import (
    HOST,
    describe,
    launch_signature,
    launched,
    passed,
    prepared,
    shape_sources,
    sizes_needed,
)
from neptune.codegen.triton_text import MUL, TL_DTYPES, Text, wrap
from neptune.errors import InternalError
from neptune.hopper.gluon_roles import FIRST, TABLE
from neptune.hopper.ir import AsyncKernel
from neptune.ir.expr import Const, Expr, Var, rewrite, variables
from neptune.runtime.addressing import extent_of
from neptune.runtime.recording import KEPT, LAUNCHER
from neptune.tile.ir import TileProgram

DESCRIBED = """\
def described(tensor, box, dtype):
    return TensorDescriptor.from_tensor(tensor, box, gl.NVMMASharedLayout.get_default_for(box, dtype))
"""
BALANCED = f'''\
TABLES = {{}}


def balanced(weights, programs, device):
    """The numbers of the tiles, program after program, and where those of each program begin.

    The heaviest tile that is left goes to the program that is free first.
    """
    free = [(0, p) for p in range(programs)]
    given = [[] for _ in range(programs)]
    for tile in sorted(range(len(weights)), key=lambda t: -weights[t]):
        busy, p = heapq.heappop(free)
        given[p].append(tile)
        heapq.heappush(free, (busy + weights[tile], p))
    first = [0]
    for tiles in given:
        first.append(first[-1] + len(tiles))
    made = [torch.tensor(x, dtype=torch.int32, device=device) for x in (sum(given, []), first)]
    for table in made:
        table.{KEPT} = True
    return made
'''
"""A table is made once for all calls of one shape, and not while a graph is captured: call once before."""
MOST_TABLES = 64
Params: TypeAlias = Mapping[str, int]
"""Tile sizes, warps and stages of the kernels on tiles."""


def write_launch(
    program: TileProgram, kernel: AsyncKernel, main: KernelText, others: Mapping[str, KernelText], params: Params
) -> list[str]:
    """The launch function's lines: `main` is the asynchronous kernel, `others` are those on tiles, by name."""
    sources, host = shape_sources(program), _Host(program, kernel)
    known = {p.name for text in others.values() for p in text.parameters if p.kind == "tunable"}
    tiled = replace(
        program,
        tunables=tuple(t for t in program.tunables if t.name in known),
        kernels=tuple(k for k in program.kernels if k.name in others),
    )
    lines = [f"def {program.name}({launch_signature(tiled, params, numbers=bool(others))}):"]
    lines += describe(program, frozenset(p.of for p in main.parameters if p.kind == "descriptor"))
    needed = host.names() | {p.name for p in main.parameters if p.kind == "scalar"}
    needed |= sizes_needed(tiled, list(others.values()))
    lines += [f"    {name} = {source}" for name, source in sources.items() if name in needed]
    lines += prepared(tiled)
    for k in program.kernels:
        lines += launched(k, others[k.name]) if k.name in others else _launched(kernel, main, host)
    return [x for line in lines for x in wrap(line)]


def _launched(kernel: AsyncKernel, main: KernelText, host: _Host) -> list[str]:
    """The asynchronous kernel: its descriptors, its grid, the table of tiles, the call."""
    lines = [f"    {p.name} = {host.descriptor(p)}" for p in main.parameters if p.kind == "descriptor"]
    lines += [f"    {line}" for line in host.grid()]
    table = [f"        {TABLE}, {FIRST},"] * (kernel.levers.persistent == "table")
    call = [*passed(main.parameters), *table, "        num_warps=4,", "    )"]
    return [*lines, f"    {LAUNCHER}({main.function})[grid](", *call]


class _Host:
    """Writes what the launch function computes; tile sizes are numbers there."""

    def __init__(self, program: TileProgram, kernel: AsyncKernel) -> None:
        self.program, self.kernel = program, kernel
        self.values: Mapping[str, int] = kernel.levers.tiles
        self.device = f"{(program.inputs or program.outputs)[0].name}.device"

    def fixed(self, e: Expr) -> Expr:
        def value(x: Expr) -> Expr | None:
            return Const(self.values[x.name], "int32") if isinstance(x, Var) and x.name in self.values else None

        return rewrite(e, value)

    def text(self, e: Expr) -> Text:
        return HOST(self.fixed(e))

    def names(self) -> frozenset[str]:
        """The sizes that the grid and the table mention."""
        exprs = [g.extent for g in self.kernel.grid]
        if self.kernel.levers.persistent == "table" and self.kernel.weight is not None:
            exprs.append(self.kernel.weight)
        return frozenset[str]().union(*(variables(self.fixed(e)) for e in exprs)) - {g.var for g in self.kernel.grid}

    def descriptor(self, p: Parameter) -> str:
        box = [extent_of(None if e is None else self.fixed(e)) for e in p.box]
        return f"described({p.of}, {box}, {TL_DTYPES[self.program.globals[p.of].dtype]})"

    def grid(self) -> list[str]:
        """The number of programs: one a group of rows, or no more than run at once."""
        sizes = [self.text(g.extent) for g in self.kernel.grid]
        count = " * ".join(str(s) if len(sizes) == 1 else s.at(MUL + 1) for s in sizes)
        match self.kernel.levers.persistent:
            case "once":
                return [f"grid = ({count},)"]
            case "stride":
                return [f"grid = ({self.programs(count)},)"]
            case "table":
                return [f"grid = ({self.programs(count)},)", *self.table()]
            case other:
                raise InternalError(f"tiles cannot come to programs by {other!r}")

    def programs(self, count: str) -> str:
        return f"min(torch.cuda.get_device_properties({self.device}).multi_processor_count, {count})"

    def table(self) -> list[str]:
        """The table of this shape, made at its first call."""
        weight = Text("1") if self.kernel.weight is None else self.text(self.kernel.weight)
        loops = " ".join(f"for {g.var} in range({self.text(g.extent)})" for g in reversed(grid_order(self.kernel.grid)))
        key = ", ".join([*sorted(self.names()), "grid", self.device])
        return [
            f"key = ({key})",
            "if key not in TABLES:",
            f"    if len(TABLES) == {MOST_TABLES}:",
            "        TABLES.clear()",
            f"    weights = [{weight} {loops}]",
            f"    TABLES[key] = balanced(weights, grid[0], {self.device})",
            f"{TABLE}, {FIRST} = TABLES[key]",
        ]
