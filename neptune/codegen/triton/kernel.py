"""Write the body of one kernel: statements, grid variables, and the parameters they turned out to need."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neptune.codegen.triton import access
from neptune.codegen.triton.access import descriptor_store, place
from neptune.codegen.triton.notes import Piece, accumulators, pieces
from neptune.codegen.triton.scope import Context, stride_name
from neptune.codegen.triton.text import ATOM, MUL, TL_DTYPES, WIDTH, Text, call, wrap
from neptune.codegen.triton.tile import TileWriter
from neptune.errors import InternalError
from neptune.ir.expr import Const, Expr, Var, children, walk
from neptune.ir.integers import Span
from neptune.tile.boxes import Box
from neptune.tile.ir import (
    Assign,
    Branch,
    Full,
    GridAxis,
    LoadTile,
    Local,
    Loop,
    Scalar,
    StoreTile,
    TileKernel,
    TileProgram,
    TStmt,
    is_rest,
    stmt_exprs,
    walk_stmts,
)
from neptune.tile.passes.addresses import addressed

AXES = "xyz"
MAX_Y = 65535


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel. `kind` is pointer, descriptor, stride, scalar or tunable; `of` the buffer
    or the scalar; `dim` a stride's dimension; `box` a descriptor's block shape."""

    name: str
    kind: str
    of: str
    dim: int = 0
    box: tuple[Expr | None, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelText:
    """A kernel as text, with what the launch function and the compiler must know of it: `general` are the
    parameters whose values Triton does not specialise on."""

    function: str
    lines: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    helpers: frozenset[str]
    spans: tuple[Span, ...]
    general: tuple[str, ...] = ()


def function_name(program: TileProgram, kernel: TileKernel) -> str:
    """The name of a kernel's `@triton.jit` function, never that of the launch function."""
    return kernel.name if kernel.name.endswith("kernel") and kernel.name != program.name else f"{kernel.name}_kernel"


def write_kernel(
    program: TileProgram, kernel: TileKernel, *, descriptors: bool = False, int64_offsets: bool = False
) -> KernelText:
    """One kernel."""
    addressed_kernel = addressed(program, kernel, boxes=descriptors, int64=int64_offsets)
    writer = Writer(Context(addressed_kernel))
    writer.grid()
    writer.statements(addressed_kernel.kernel.body)
    ctx = writer.ctx
    parameters = parameters_used(ctx)
    name = function_name(program, kernel)
    signature = ", ".join(f"{p.name}: tl.constexpr" if p.kind == "tunable" else p.name for p in parameters)
    general = _general(program, kernel, parameters)
    decorator = f"@triton.jit(do_not_specialize={_names(general)})" if general else "@triton.jit"
    # A kernel that only starts what no one folds into has nothing to do.
    body = [f"    {line}" for line in ctx.scopes[0].lines or ["pass"]]
    lines = [x for line in (decorator, f"def {name}({signature}):", *body) for x in wrap(line)]
    return KernelText(name, tuple(lines), parameters, frozenset(ctx.helpers), addressed_kernel.spans, tuple(general))


def _general(program: TileProgram, kernel: TileKernel, parameters: tuple[Parameter, ...]) -> list[str]:
    """Parameters on whose values Triton must not compile anew: lengths and strides, but for those that matter.

    Strides between rows decide whether a tile of rows is loaded asynchronously, in 16 bytes at a time, and so does the
    length of a row where it is in the mask. A tensor that is accessed in tiles of fewer dimensions than others, as a
    log-sum-exp beside tiles of queries, gains next to nothing from either; its strides are lengths, so that there
    would be a kernel for those divisible by 16 and another.
    """
    most: dict[str, int] = {}
    for s in walk_stmts(kernel.body):
        nodes = [x for e in stmt_exprs(s) for x in walk(e) if isinstance(x, LoadTile)]
        for buffer, dims in [*((x.buffer, x.dims) for x in nodes), *_stored(s)]:
            most[buffer] = max(most.get(buffer, 0), len(dims))
    largest = max(most.values(), default=0)
    strides = [p.name for p in parameters if p.kind == "stride" and most.get(p.of, 0) < largest]
    bulk = [program.globals[p.of] for p in parameters if p.kind == "pointer" and most.get(p.of, 0) == largest > 0]
    rows = {b.shape[-1].name for b in bulk if b.shape and isinstance(b.shape[-1], Var)}
    return [*strides, *(p.name for p in parameters if p.kind == "scalar" and p.name not in rows)]


def _stored(s: TStmt) -> list[tuple[str, tuple[str, ...]]]:
    return [(s.buffer, s.dims)] if isinstance(s, StoreTile) else []


def _names(names: list[str]) -> str:
    return "[" + ", ".join(f'"{n}"' for n in names) + "]"


def parameters_used(ctx: Context) -> tuple[Parameter, ...]:
    """The parameters that the body uses, in a fixed order: pointers, strides, scalars, tunables."""
    parameters: list[Parameter] = []
    for b in ctx.program.globals.values():
        if f"{b.name}_ptr" in ctx.used:
            parameters.append(Parameter(f"{b.name}_ptr", "pointer", b.name))
        for (buffer, axes), name in ctx.boxes.items():
            if buffer == b.name:
                box = tuple(None if a is None else ctx.extents[a] for a in axes)
                parameters.append(Parameter(name, "descriptor", b.name, box=box))
    for b in ctx.program.globals.values():
        names = [(stride_name(b, k), k) for k in range(len(b.shape) - 1)]
        parameters += [Parameter(n, "stride", b.name, dim=k) for n, k in names if n in ctx.used]
    parameters += [Parameter(s.name, "scalar", s.name) for s in ctx.program.scalars if s.name in ctx.used]
    parameters += [Parameter(t.name, "tunable", t.name) for t in ctx.program.tunables if t.name in ctx.used]
    return tuple(parameters)


def grid_order(grid: tuple[GridAxis, ...]) -> tuple[GridAxis, ...]:
    """The grid axes on one launch dimension, the fastest first."""
    return tuple(g for a in AXES for g in grid if g.axis == a)


def grid_letters(grid: tuple[GridAxis, ...]) -> dict[str, tuple[GridAxis, ...]]:
    """Launch dimensions in order, each with the grid axes that share it, the fastest first.

    A launch holds at most 65535 programs along y and along z: all axes go onto x, in the order in which a
    GPU starts programs, unless constant sizes show that they fit.
    """
    unknown = [g.axis for g in grid if g.axis not in AXES]
    if unknown:
        raise InternalError(f"no such launch dimension: {unknown[0]}")
    groups = {a: group for a in AXES if (group := tuple(g for g in grid if g.axis == a))}
    if all(_fits(group) for a, group in groups.items() if a != "x"):
        return groups
    return {"x": grid_order(grid)}


def _fits(group: tuple[GridAxis, ...]) -> bool:
    sizes = [int(g.extent.value) for g in group if isinstance(g.extent, Const)]
    return len(sizes) == len(group) and math.prod(sizes) <= MAX_Y


class Writer:
    """Writes the statements of one kernel; `tile` writes its expressions."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.locals = ctx.tiles
        self.notes = accumulators(ctx.kernel)
        self.tile = TileWriter(ctx, self.locals)
        self.stage = ""
        self.types: dict[str, Local] = {}
        for s in walk_stmts(ctx.kernel.body):
            for root in stmt_exprs(s):
                self.types |= {x.name: x for x in walk(root) if isinstance(x, Local)}

    # --- grid ----------------------------------------------------------------------------------

    def grid(self) -> None:
        """Program ids. Axes that share a launch dimension are taken apart, the first being the fastest."""
        head = self.ctx.scopes[0].first
        for letter, group in grid_letters(self.ctx.kernel.grid).items():
            source = Text(f"tl.program_id({AXES.index(letter)})")
            if len(group) > 1:
                source = Text(self.ctx.define(("pid", letter), f"pid_{letter}", source, 0, first=True))
            for k, g in enumerate(group):
                text = source
                if k + 1 < len(group):
                    size = self.count(g)
                    text = Text(f"{source.at(MUL)} % {size}", MUL)
                    source = Text(f"{source.at(MUL)} // {size}", MUL)
                wide = g.var in self.ctx.addressed.wide
                head.append(f"{g.var} = {text.at(ATOM)}.to(tl.int64)" if wide else f"{g.var} = {text}")

    def count(self, g: GridAxis) -> str:
        """The extent of a grid axis, named where it is computed."""
        text = self.ctx.scalar(g.extent)
        return self.ctx.define(g.extent, f"{g.var}_count", text, 0, first=True) if children(g.extent) else str(text)

    # --- statements ----------------------------------------------------------------------------

    def statements(self, body: tuple[TStmt, ...]) -> None:
        cut = pieces(body)
        for k, s in enumerate(body):
            match s:
                case Assign():
                    self.comment(s.stage, s.name)
                    self.assign(s)
                case StoreTile():
                    self.comment(s.stage, s.buffer)
                    self.store(s)
                case Loop():
                    self.loop(
                        s, cut[k], {x.hi: cut[n].end for n, x in enumerate(body) if n > k and isinstance(x, Loop)}
                    )
                case Branch():
                    self.branch(s, "What is left." if is_rest(body[k - 1] if k else None, s) else "")
                case _:
                    self.other(s)
            self.tile.statement_done()

    def other(self, s: Any) -> None:
        """A statement of a form of kernels that has more of them."""
        raise InternalError(f"a kernel of Triton has no statement {type(s).__name__}")

    def comment(self, stage: str, name: str) -> None:
        """Name the stage that the next lines compute, where the name that they assign does not."""
        if stage not in ("", self.stage, name, f"{name}_init"):
            self.ctx.emit(f"# {stage}")
        self.stage = stage

    def set(self, name: str, value: Text) -> None:
        """Assign a tile variable; the first time, with what it accumulates."""
        line = f"{self.locals[name]} = {value}"
        note = self.notes.pop(name, "")
        if note and 4 * len(self.ctx.scopes) + len(f"{line}  # {note}") <= WIDTH:
            line = f"{line}  # {note}"
        elif note:
            self.ctx.emit(f"# {note}")
        self.ctx.emit(line)
        self.ctx.forget(self.locals[name])

    def assign(self, s: Assign) -> None:
        """A local. Its dims and dtype are those that its readers expect, so that a loop can carry it."""
        expected = self.types.get(s.name)
        value = s.value
        if expected is not None and expected.dims and isinstance(value, Scalar):
            value = Full(value, expected.dims, expected.dtype)
        elif isinstance(value, Scalar) and value.dtype not in ("float32", "int32"):
            # A bare literal would be carried as 32 bits.
            self.set(s.name, call("tl.cast", self.tile(value), TL_DTYPES[value.dtype]))
            return
        text = self.tile.load(value) if isinstance(value, LoadTile) else self.tile(value)
        if expected is not None and expected.dims != value.dims and expected.dims:
            text = call("tl.broadcast_to", place(text.at(ATOM), value.dims, expected.dims), self.shape(expected.dims))
        if expected is not None and expected.dtype != value.dtype:
            text = call("tl.cast", text, TL_DTYPES[expected.dtype])
        self.set(s.name, text)

    def shape(self, dims: tuple[str, ...]) -> str:
        return access.shape(self.ctx, dims)

    def store(self, s: StoreTile) -> None:
        value = self.tile.placed(s.value, s.dims)
        if isinstance(s.at, Box):
            self.ctx.emit(descriptor_store(self.ctx, s.buffer, s.at, value))
            return
        pointer = self.tile.pointer(s.buffer, s.at, s.dims)
        mask = [] if s.mask is None else [f"mask={self.tile.placed(s.mask, s.dims)}"]
        store = str(call("tl.store", pointer, value, *mask))
        # What the program reads back itself, other threads of it have written.
        fence = ["tl.debug_barrier()"] if s.at is not None and s.at.fenced else []
        self.ctx.emit(*fence, store, *fence)

    def loop(self, s: Loop, piece: Piece, later: Mapping[Expr, str]) -> None:
        lo = self.bound(s.lo, piece.begin)
        for e in walk(s.hi):
            # Where the bound of a later loop is part of this one, it is written once.
            if e in later and e != s.hi:
                self.bound(e, later[e])
        hi = self.bound(s.hi, piece.end)
        self.ctx.bind_loop(s)
        for x in walk_stmts(s.body):
            if isinstance(x, Assign):
                self.ctx.forget(self.locals[x.name])
        head = f"for {s.var} in range({hi}):" if lo == "0" else f"for {s.var} in range({lo}, {hi}):"
        comment = [f"# {piece.comment}"] if piece.comment else []
        self.nested([*comment, head], s.body, s.var)

    def bound(self, e: Expr, name: str) -> str:
        return self.ctx.name_scalar(e, name) if children(e) else str(self.ctx.scalar(e))

    def branch(self, s: Branch, comment: str) -> None:
        head = f"if {self.ctx.scalar(s.pred)}:"
        self.nested([*([f"# {comment}"] if comment else []), head], s.body)

    def nested(self, head: list[str], body: tuple[TStmt, ...], *names: str) -> None:
        """A body one level further in."""
        with self.ctx.scope(*names) as inner:
            self.stage = ""
            self.statements(body)
        self.stage = ""
        self.ctx.emit(*head, *(f"    {line}" for line in inner.lines or ["pass"]))
