"""The launch function of a Gluon module: sizes, descriptors, the table of tiles, and the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from neptune.codegen.triton.kernel import KernelText, Parameter, grid_order
from neptune.codegen.triton.launch import (
    HOST,
    describe,
    launch_signature,
    launched,
    passed,
    prepared,
    shape_sources,
    sizes_needed,
)
from neptune.codegen.triton.text import MUL, TL_DTYPES, Text, wrap
from neptune.errors import InternalError
from neptune.hopper.gluon.roles import FIRST, TABLE
from neptune.hopper.hardware import WARPS
from neptune.hopper.ir import AsyncKernel, Fill, inside, walk_async
from neptune.ir.expr import Const, Expr, Var, rewrite, variables
from neptune.runtime.calls.addressing import extent_of
from neptune.runtime.launching.recording import KEPT, LAUNCHER
from neptune.tile.ir import Loop, TileProgram

DESCRIBED = """\
def described(tensor, box, dtype):
    return TensorDescriptor.from_tensor(tensor, box, gl.NVMMASharedLayout.get_default_for(box, dtype))
"""
NEAR = 1 << 25
"""Bytes that programs read again from L2, of its 50 MB: as many as FlashAttention-3 takes (its tile_scheduler.hpp)."""
BALANCED = f'''\
TABLES, MADE = {{}}, {{}}


def balanced(weights, programs, row, read, device):
    """The numbers of the tiles, program after program, and where those of each program begin.

    The heaviest tile that is left goes to the program that is free first. So many rows of tiles are given before others
    as read no more together than L2 keeps, of the bytes that all of them `read`. One table serves all shapes with these
    weights, and is never freed: graphs that were captured, and launches on other streams, read it. Programs read the
    number of their next tile ahead, also behind the last one.
    """
    rows = len(weights) // max(1, row)  # no rows: no tiles
    band = min(len(weights), row * max(1, rows * {NEAR} // max(1, read)))
    key = (tuple(weights), programs, band, device)
    if key in MADE:
        return MADE[key]
    free = [(0, p) for p in range(programs)]
    given = [[] for _ in range(programs)]
    for tile in sorted(range(len(weights)), key=lambda t: (t // band, -weights[t])):
        busy, p = heapq.heappop(free)
        given[p].append(tile)
        heapq.heappush(free, (busy + weights[tile], p))
    first = [0]
    for tiles in given:
        first.append(first[-1] + len(tiles))
    made = [torch.tensor(x, dtype=torch.int32, device=device) for x in ([*sum(given, []), 0], first)]
    for table in made:
        table.{KEPT} = True
    return MADE.setdefault(key, made)
'''
"""A table is made at the first call of a shape, which is never captured (`neptune.runtime.launching.launch`)."""
NUMBERS = ("num_warps", "num_stages")
Params: TypeAlias = Mapping[str, int]
"""Tile sizes, warps and stages of the kernels on tiles."""


class Launch:
    """Writes the launch function: `kernels` has the asynchronous kernels with their texts, `others` those on tiles, by
    name; `params` are the default values of what the function takes for these."""

    def __init__(
        self,
        program: TileProgram,
        kernels: Mapping[str, tuple[AsyncKernel, KernelText]],
        others: Mapping[str, KernelText],
        params: Params,
    ) -> None:
        self.program, self.kernels, self.others, self.params = program, kernels, others, params
        self.hosts = {name: _Host(program, kernel) for name, (kernel, _) in kernels.items()}
        known = {p.name for text in others.values() for p in text.parameters if p.kind == "tunable"}
        self.tiled = replace(
            program,
            tunables=tuple(t for t in program.tunables if t.name in known),
            kernels=tuple(k for k in program.kernels if k.name in others),
        )
        self.tables = sum(k.levers.persistent == "table" for k, _ in kernels.values())

    @property
    def takes(self) -> tuple[str, ...]:
        """The tile sizes, warps and stages that the function takes."""
        return (*(t.name for t in self.tiled.tunables), *(NUMBERS if self.others else ()))

    def lines(self) -> list[str]:
        """The launch function's lines."""
        program, sources = self.program, shape_sources(self.program)
        lines = [f"def {program.name}({launch_signature(self.tiled, self.params, numbers=bool(self.others))}):"]
        texts = [text for _, text in self.kernels.values()]
        lines += describe(program, frozenset(p.of for t in texts for p in t.parameters if p.kind == "descriptor"))
        needed = frozenset[str]().union(*(host.names() for host in self.hosts.values()))
        needed |= {p.name for t in texts for p in t.parameters if p.kind == "scalar"}
        needed |= sizes_needed(self.tiled, list(self.others.values()))
        lines += [f"    {name} = {source}" for name, source in sources.items() if name in needed]
        lines += prepared(self.tiled)
        for k in program.kernels:
            lines += self._launched(k.name) if k.name in self.kernels else launched(k, self.others[k.name])
        return [x for line in lines for x in wrap(line)]

    def _launched(self, name: str) -> list[str]:
        """An asynchronous kernel: its descriptors, its grid, the table of tiles, the call."""
        (kernel, text), host = self.kernels[name], self.hosts[name]
        lines = [f"    {p.name} = {host.descriptor(p)}" for p in text.parameters if p.kind == "descriptor"]
        # Tables of several kernels lie in one dict.
        lines += [f"    {line}" for line in host.grid([f'"{text.function}"'] if self.tables > 1 else [])]
        table = [f"        {TABLE}, {FIRST},"] * (kernel.levers.persistent == "table")
        call = [*passed(text.parameters), *table, f"        num_warps={WARPS},", "    )"]
        return [*lines, f"    {LAUNCHER}({text.function})[grid](", *call]


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

    def grid(self, key: list[str]) -> list[str]:
        """The number of programs: one a group of rows, or no more than run at once."""
        sizes = [self.text(g.extent) for g in self.kernel.grid]
        count = " * ".join(str(s) if len(sizes) == 1 else s.at(MUL + 1) for s in sizes)
        match self.kernel.levers.persistent:
            case "once" | "reverse":
                return [f"grid = ({count},)"]
            case "stride":
                return [f"grid = ({self.programs(count)},)"]
            case "table":
                return [f"grid = ({self.programs(count)},)", *self.table(key)]
            case other:
                raise InternalError(f"tiles cannot come to programs by {other!r}")

    def programs(self, count: str) -> str:
        # Of the present device, on which kernels run: `warm` has tensors of none.
        return f"min(torch.cuda.get_device_properties(None).multi_processor_count, {count})"

    def table(self, key: list[str]) -> list[str]:
        """The table of this shape, made at its first call; `key` is what it depends on beside the shape."""
        weight = Text("1") if self.kernel.weight is None else self.text(self.kernel.weight)
        loops = " ".join(f"for {g.var} in range({self.text(g.extent)})" for g in reversed(grid_order(self.kernel.grid)))
        shape = ", ".join([*key, *sorted(self.names()), "grid", self.device])
        return [
            f"key = ({shape})",
            "if key not in TABLES:",
            f"    weights = [{weight} {loops}]",
            f"    TABLES[key] = balanced(weights, grid[0], {self.row()}, {self.device})",
            f"{TABLE}, {FIRST} = TABLES[key]",
        ]

    def row(self) -> str:
        """The tiles of a row, whose loops read the same tiles of tensors, and the bytes of these tensors."""
        first = grid_order(self.kernel.grid)[0]
        if first.var != self.kernel.group or self.kernel.levers.band:
            return "len(weights), 0"
        loops = (s for s in walk_async(self.kernel.producer) if isinstance(s, Loop))
        filled = {s.ring for loop in loops for s in walk_async(inside(loop)) if isinstance(s, Fill)}
        read = dict.fromkeys(r.tensor for r in self.kernel.rings if r.name in filled and not r.own)
        bytes_ = " + ".join(f"{name}.numel() * {name}.element_size()" for name in read)
        return f"{self.text(first.extent)}, {bytes_ or 0}"
