"""The roles of an asynchronous kernel as Gluon functions: a producer warp, and consumers of one warpgroup each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from neptune.codegen.triton import access
from neptune.codegen.triton.access import coordinates, descriptor_name
from neptune.codegen.triton.kernel import Writer, grid_order
from neptune.codegen.triton.text import ADD, ATOM, MUL, TL_DTYPES, Text, call, infix
from neptune.errors import InternalError
from neptune.hopper.gluon.carried import Collected, paired, step_of, with_collected
from neptune.hopper.gluon.expr import GluonContext, GluonTile
from neptune.hopper.gluon.layouts import LANES, Layout
from neptune.hopper.gluon.shared import BAND, CONSUMER, CONSUMERS
from neptune.hopper.group_order import across_of
from neptune.hopper.hardware import ROWS
from neptune.hopper.ir import (
    AsyncKernel,
    Await,
    Drain,
    Fill,
    Finish,
    Issue,
    Release,
    Ring,
    Send,
    exprs_of,
    scalars_of,
    walk_async,
)
from neptune.hopper.ir import inside as body_of
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Expr, children, loads, variables, walk
from neptune.tile.boxes import Box
from neptune.tile.ir import (
    Assign,
    Branch,
    GridAxis,
    LoadTile,
    Local,
    Loop,
    Scalar,
    StoreTile,
    TExpr,
)

TABLE, FIRST = "tile_table", "tile_first"
INIT = "warpgroup_mma_init"
"""The function that makes of a tile the sum that products in flight add to: no instruction."""
PIN, LANE_SUMS, PAIRS, HALVES = "_pin", "_lane_sums", "_pairs", "_halves"


def _scalars(s: Any) -> Iterator[Expr]:
    """The scalar expressions of a statement, those in its tiles among them."""
    yield from scalars_of(s)
    for e in exprs_of(s):
        yield from (x.expr for x in walk(e) if isinstance(x, Scalar))


def _unread(s: Any) -> bool:
    """True for what is done with a tile that is not read: waits, releases, counters."""
    return isinstance(s, Await | Release) or (isinstance(s, Assign) and not s.value.dims)


class RoleWriter(Writer):
    """Writes one role. `rows` is the text of the consumer's variable, for a role that has one of its own."""

    ctx: GluonContext
    tile: GluonTile

    def __init__(self, ctx: GluonContext, kernel: AsyncKernel) -> None:
        super().__init__(ctx)
        self.kernel, self.shared = kernel, ctx.shared
        self.grid_axes = grid_order(kernel.grid)
        self.flying: set[str] = set()
        self.sizes = frozenset(s.name for s in ctx.program.scalars)
        self.number: str | None = None
        self.next: list[str] = []
        self.tile = GluonTile(ctx, self.locals)

    def role(self, body: tuple[Any, ...], consumer: bool) -> list[str]:
        """The lines of a role: its body for each group of rows that the program has."""
        self.paired = paired(body)
        body, self.lanes = with_collected(body)
        once = self.kernel.levers.once
        self.sent = set() if once else {s.out for s in walk_async(body) if isinstance(s, Send)}
        head = self.ctx.unbind()
        tile = self.ctx.fresh("tile", 1)
        self.number = tile if consumer and not once else None
        bound = [g.var for g in self.kernel.grid] + [self.kernel.rows] * consumer
        for name in self.kernel.counters:
            if any(isinstance(s, Assign) and s.name == name for s in walk_async(body)):
                head.first.append(f"{self.locals.get(name, name)} = 0")
        if once:
            head.vars = frozenset(bound)
            if len(self.grid_axes) > 1:
                head.first.append(f"{tile} = gl.program_id(0)")
            self.group(Text(tile if len(self.grid_axes) > 1 else "gl.program_id(0)"), consumer)
            self.name_bounds(body)
            self.statements(body)
        else:
            with self.ctx.scope(*bound) as inner:
                loop = self.programs(tile)
                self.group(Text(tile), consumer)
                self.name_bounds(body)
                looped = 1 + max((k for k, s in enumerate(body) if isinstance(s, Loop | Branch)), default=-1)
                self.statements(body[:looped])
                self.ctx.emit(*self.next)
                self.statements(body[looped:])
            self.ctx.emit(loop, *(f"    {line}" for line in inner.lines))
        if self.sent and not isinstance(body[-1], Drain):
            # Memory that is still read must not go.
            self.ctx.emit("tma.store_wait(0)")
        return self.ctx.scopes[0].lines

    def name_bounds(self, body: tuple[Any, ...]) -> None:
        """Give bounds of loops that occur elsewhere too a name, before anything that reads them."""
        every = Counter(x for s in walk_async(body) for e in _scalars(s) for x in walk(e))
        for s in walk_async(body):
            if isinstance(s, Loop) and children(s.hi) and every[s.hi] > 1 and not loads(s.hi):
                self.ctx.name_scalar(s.hi, f"{s.var}_end")

    # --- groups --------------------------------------------------------------------------------

    def programs(self, tile: str) -> str:
        """The head of the loop over a program's groups."""
        if self.kernel.levers.persistent == "stride":
            count = " * ".join(self.size(g).at(MUL + 1) for g in self.grid_axes)
            return f"for {tile} in range(gl.program_id(0), {count}, gl.num_programs(0)):"
        self.ctx.used |= {TABLE, FIRST}
        define = partial(self.ctx.define, level=0, first=True)
        program = define("program", "program", "gl.program_id(0)")
        begin = define(FIRST, f"{tile}_begin", f"gl.load({FIRST} + {program})")
        following = define(TABLE, f"next_{tile}", f"gl.load({TABLE} + {begin})")
        turn = self.ctx.fresh("turn", 1)
        self.ctx.scopes[-1].first.append(f"{tile} = {following}")
        # The next group's number comes under what is left of this one.
        self.next.append(f"{following} = gl.load({TABLE} + {turn} + 1)")
        return f"for {turn} in range({begin}, gl.load({FIRST} + {program} + 1)):"

    def group(self, source: Text, consumer: bool) -> None:
        """Grid variables from the number of a group, the first running fastest, or bands of it."""
        lines = self.ctx.scopes[-1].first
        axes = list(self.grid_axes)
        if self.kernel.levers.band:
            source, axes = self.banded(source)
        for k, g in enumerate(axes):
            text = source
            if k + 1 < len(axes):
                size = self.size(g).at(MUL + 1)
                text = Text(f"{source.at(MUL)} % {size}", MUL)
                source = Text(f"{source.at(MUL)} // {size}", MUL)
            lines.append(f"{g.var} = {self.begun(g, text)}")
        if consumer and self.kernel.rows != self.kernel.group:
            lines.append(f"{self.kernel.rows} = {self.kernel.group} * {CONSUMERS} + {CONSUMER}")

    def begun(self, g: GridAxis, number: Text) -> Text:
        """The value of a grid variable that comes at a number: groups of rows may begin with the last one."""
        if g.var != self.kernel.group or self.kernel.levers.persistent != "reverse":
            return number
        return Text(f"{self.size(g).at(ADD)} - 1 - {number.at(MUL)}", ADD)

    def banded(self, source: Text) -> tuple[Text, list[GridAxis]]:
        """The group and the variable across of the number of a tile; the number of the other grid variables, and these.
        The last band may have fewer groups."""
        lines, other = self.ctx.scopes[-1].first, across_of(self.kernel)
        axes = {g.var: g for g in self.grid_axes}
        group, column = axes.pop(self.kernel.group), axes.pop(other or "")
        groups, columns = self.size(group), self.size(column).at(MUL + 1)
        if axes:
            pair = self.ctx.fresh("pair", 1)
            lines.append(f"{pair} = {source.at(MUL)} % ({groups.at(MUL)} * {columns})")
        else:
            pair = source.at(MUL)
        tiles = self.ctx.define("band_tiles", "band_tiles", f"{BAND} * {columns}", 0, first=True)
        begin, rows = self.ctx.fresh("band_begin", 1), self.ctx.fresh("band_rows", 1)
        lines += [
            f"{begin} = {pair} // {tiles} * {BAND}",
            f"{rows} = gl.minimum({groups} - {begin}, {BAND})",
            f"{group.var} = {self.begun(group, Text(f'{begin} + {pair} % {tiles} % {rows}', ADD))}",
            f"{column.var} = {pair} % {tiles} // {rows}",
        ]
        return Text(f"{source.at(MUL)} // ({groups.at(MUL)} * {columns})", MUL), list(axes.values())

    def size(self, g: GridAxis) -> Text:
        """The extent of a grid axis, named at the head of the function where it is computed."""
        if not children(g.extent):
            return self.ctx.scalar(g.extent)
        return Text(self.ctx.define(g.extent, f"{g.var}_count", self.ctx.scalar(g.extent), 0, first=True))

    # --- statements ----------------------------------------------------------------------------

    def assign(self, s: Assign) -> None:
        if s.name in self.lanes:
            self.lane_sum(s)
            return
        dims = self.types[s.name].dims if s.name in self.types else s.value.dims
        layout = None if s.name in self.paired else self.ctx.layouts.operands.get(s.name)
        with self.ctx.framed(dims, layout):
            if self.number is not None and self.same_for_all(s):
                self.set(s.name, Text(f"{self.tile(s.value).at(ADD)} + ({self.number} >> 31)", ADD))
            else:
                super().assign(s)

    def same_for_all(self, s: Assign) -> bool:
        """True for a bound that all groups of a program share.

        It must not look so: what is made of it, such as a mask of the last keys, the compiler would keep in registers
        through all groups. The number of a group is never negative, which the compiler does not know.
        """
        names = variables(s.value.expr) if isinstance(s.value, Scalar) and s.value.dtype == "int32" else frozenset()
        return bool(names) and names <= self.sizes

    def set(self, name: str, value: Text) -> None:
        if name in self.paired:
            self.ctx.helpers.add(PAIRS)
            value = call(PAIRS, value)
        super().set(name, value)

    def lane_sum(self, s: Assign) -> None:
        """A sum of rows of which each lane holds its part."""
        step = step_of(s)
        if step is None:
            self.set(s.name, Text(f"gl.zeros([{ROWS}, 4], {TL_DTYPES[s.value.dtype]}, {LANES})"))
            return
        total = Text(self.locals[s.name])
        if step.factor is not None:
            with self.ctx.framed(step.factor.dims, Layout(LANES, kept=0)):
                factor = self.tile(step.factor).at(ATOM)
            total = infix("mul", total, Text(f"{factor}[:, None]" if step.factor.dims else factor))
        if step.terms is not None:
            self.ctx.helpers.add(LANE_SUMS)
            with self.ctx.framed(step.terms.dims):
                total = infix("add", total, call(LANE_SUMS, self.tile(step.terms)), "float32")
        self.set(s.name, total)

    def collect(self, name: str) -> None:
        """The rows' sums, of the parts that lanes hold."""
        layout = self.ctx.layouts.of(self.types[name].dims)
        total = f"gl.convert_layout(gl.sum({self.locals[name]}, axis=1), {layout})"
        self.ctx.emit(f"{self.locals[name]} = {total}")

    def store(self, s: StoreTile) -> None:
        with self.ctx.framed(s.dims, self.tile.natural(s.value) if s.value.dims == s.dims else None):
            super().store(s)

    def other(self, s: Any) -> None:
        match s:
            case Fill():
                self.fill(s)
            case Await(ring, turn):
                r, number = self.shared.rings[ring], self.ctx.scalar(turn)
                if ring == self.shared.members(r)[0]:
                    self.ctx.used.add(self.shared.barrier(r, "full"))
                    self.ctx.emit(f"mbarrier.wait({self.shared.full(r, number)}, {self.shared.phase(r, number)})")
            case Release(ring, turn):
                r, number = self.shared.rings[ring], self.ctx.scalar(turn)
                if ring == self.shared.members(r)[-1]:
                    self.ctx.used.add(self.shared.barrier(r, "empty"))
                    self.ctx.emit(f"mbarrier.arrive({self.shared.empty(r, number)}, count=1)")
            case Issue():
                self.issue(s)
            case Finish():
                self.finish(s)
            case Collected(name):
                self.collect(name)
            case Send():
                self.send(s)
            case Drain(out):
                # The thread that stored waits, and all of the warpgroup for it.
                if out in self.sent or self.ctx.depth:
                    self.ctx.emit("tma.store_wait(0)", "barrier()")
            case _:
                super().other(s)

    def fill(self, s: Fill) -> None:
        """Wait for the stage, say how many bytes come, and copy them: of an own ring a tile for each consumer. Rings
        that share barriers do the first two once."""
        ctx, ring, turn = self.ctx, self.shared.rings[s.ring], self.ctx.scalar(s.turn)
        ctx.used |= {f"{s.ring}_tiles", *(self.shared.barrier(ring, kind) for kind in ("full", "empty"))}
        full, empty = self.shared.full(ring, turn), self.shared.empty(ring, turn)
        members = self.shared.members(ring)
        if s.ring == members[0]:
            ctx.emit(f"mbarrier.wait({empty}, ({self.shared.phase(ring, turn)}) ^ 1)")
            ctx.emit(f"mbarrier.expect({full}, {' + '.join(self.bytes(self.shared.rings[n]) for n in members)})")
        if not ring.own:
            self.copy(s.load, full, self.shared.tile(ring, turn), ring.dims)
            return
        with ctx.scope(self.kernel.rows) as inner:
            w = ctx.fresh("w", ctx.depth)
            ctx.emit(f"{self.kernel.rows} = {self.kernel.group} * {CONSUMERS} + {w}")
            self.copy(s.load, full, self.shared.tile(ring, turn, w), ring.dims)
        ctx.emit(f"for {w} in gl.static_range({CONSUMERS}):", *(f"    {line}" for line in inner.lines))

    def bytes(self, ring: Ring) -> str:
        """The bytes that are copied in one turn."""
        sizes = (self.ctx.scalar(self.ctx.extents[d]) for d in ring.dims)
        return " * ".join([*[CONSUMERS] * ring.own, *map(str, sizes), str(DTYPES[ring.dtype].bits // 8)])

    def copy(self, load: LoadTile, full: str, tile: str, dims: tuple[str, ...]) -> None:
        box = self.box(load)
        if tuple(a for a in box.axes if a is not None) != dims:
            raise InternalError(f"the tiles of {load.buffer} are not in the order of its dimensions: {dims}")
        name = self.descriptor(load.buffer, box)
        tile = self.boxed(tile, box)
        self.ctx.emit(f"async_load({name}, {coordinates(self.ctx, box)}, {full}, {tile})")

    def box(self, s: LoadTile | Send) -> Box:
        """The box of a copy in bulk."""
        if not isinstance(s.at, Box):
            raise InternalError(f"a copy of {s.buffer} is of no box")
        return s.at

    def descriptor(self, buffer: str, box: Box) -> str:
        name = descriptor_name(self.ctx, buffer, box)
        self.ctx.used.add(name)
        return name

    def boxed(self, tile: str, box: Box) -> str:
        """A tile in shared memory with the rank of the tensor that it is a box of."""
        if None not in box.axes:
            return tile
        sizes = ("1" if a is None else str(self.ctx.scalar(self.ctx.extents[a])) for a in box.axes)
        return f"{tile}.reshape([{', '.join(sizes)}])"

    def issue(self, s: Issue) -> None:
        """A product that is not waited for. One from zero names an accumulator that is never read."""
        self.comment(s.stage, s.name)
        dims, layout = s.dot.dims, self.ctx.layouts.of(s.dot.dims)
        if s.dot.a.dtype == "float32" or s.dot.dtype != "float32":
            raise InternalError(f"no product of a warpgroup has operands of {s.dot.a.dtype}")
        b = self.tile.memory(s.dot.b)
        a = self.operand(s.dot.a)
        if s.dot.acc is None:
            shape = access.shape(self.ctx, dims)
            zeros = f"gl.zeros({shape}, {TL_DTYPES[s.dot.dtype]}, {layout})"
            start = self.ctx.define(("zeros", zeros), f"{s.name}_zeros", zeros, 0, first=True)
            line = f"warpgroup_mma({a}, {b}, {start}, use_acc=False, is_async=True)"
        elif isinstance(s.dot.acc, Local) and s.dot.acc.name == s.name:
            line = f"warpgroup_mma({a}, {b}, {self.locals[s.name]}, is_async=True)"
        else:
            raise InternalError(f"the product {s.name} starts from another tile than itself")
        self.set(s.name, Text(line))
        self.flying.add(s.name)

    def operand(self, a: TExpr) -> str:
        """The left operand: a tile in shared memory, or a local in the layout of operands."""
        if not isinstance(a, Local):
            return self.tile.memory(a)
        if a.name not in self.paired:
            return self.locals[a.name]
        self.ctx.helpers.add(HALVES)
        layout = str(self.ctx.layouts.operands[a.name])
        return str(call(HALVES, self.locals[a.name], TL_DTYPES[a.dtype], layout))

    def finish(self, s: Finish) -> None:
        """Wait for products. What is named comes out of the wait, so that nothing that reads it moves before; sums
        that others still add to stay in flight."""
        names = [self.locals[n] for n in (*s.names, *s.also)]
        if self.kernel.levers.pin and (name := self.pinned(s)) is not None:
            self.ctx.helpers.add(PIN)
            self.ctx.emit(f"{self.locals[name]} = {PIN}({self.locals[name]})")
        self.ctx.emit(f"{', '.join(names)} = warpgroup_mma_wait({s.pending}, deps=[{', '.join(names)}])")
        self.flying -= {*s.names}
        on = [self.locals[n] for n in s.also if n in self.flying]
        self.ctx.emit(*(f"{name} = {INIT}({name})" for name in on))

    def pinned(self, s: Finish) -> str | None:
        """The local that is to be there when a wait begins: the last tile of rows, for which the others were made."""
        kinds = {n: self.types[n] for n in s.also if n in self.types}
        rows = [n for n, x in kinds.items() if len(x.dims) == 1 and x.dtype == "float32"]
        return rows[-1] if rows else None

    def send(self, s: Send) -> None:
        """A result through shared memory: every thread its part, then one copy for all."""
        self.comment(s.stage, s.buffer)
        out = self.shared.outs[s.out]
        self.sent.add(s.out)
        box = self.box(s)
        self.ctx.used.add(self.shared.memory(out))
        tile = self.shared.result(out)
        with self.ctx.framed(s.dims):
            value = self.tile.placed(s.value, s.dims)
        name = self.descriptor(s.buffer, box)
        self.ctx.emit(
            *(["barrier()"] if out.over is not None else []),
            f"{tile}.store({value})",
            "fence_async_shared()",
            "barrier()",
            f"async_store({name}, {coordinates(self.ctx, box)}, {self.boxed(tile, box)})",
        )

    def loop(self, s: Loop, piece: Any, later: Any) -> None:
        if any(isinstance(x, Await) for x in body_of(s)) and all(map(_unread, body_of(s))):
            self.ctx.emit("# Not for these rows: released unread.")
        super().loop(s, piece, later)
