"""Tile expressions of a consumer as Gluon text: those of Triton's printer, each written for the layout it is used in.

`acc * rescale[:, None]` wants `rescale` as a slice of the accumulator's layout; where it was made in a slice of the
scores' layout, `gl.convert_layout` stands before it. A conversion stands as far out as it can, so that what is computed
is computed once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from neptune.codegen.triton.scope import Context, Scope
from neptune.codegen.triton.text import Text, call
from neptune.codegen.triton.tile import TileWriter
from neptune.errors import InternalError, Unsupported
from neptune.hopper.gluon.layouts import Layout, Layouts
from neptune.hopper.gluon.shared import Shared
from neptune.hopper.ir import Staged, tile_of
from neptune.ir.expr import Cast, Const, Op, Select
from neptune.tile.address import Addressed
from neptune.tile.ir import Dot, LoadTile, Local, Rearrange, Reduce, Scalar, TExpr
from neptune.tile.passes.columns import limits

UPTO, FROM, WITHIN = "_upto", "_from", "_within"
NOWHERE = Scalar(Const(float("-inf"), "float32"))
Boxes: TypeAlias = dict[tuple[str, tuple[str | None, ...]], str]
"""The parameter of each box of a buffer, by the axes of its dimensions."""


class GluonContext(Context):
    """The state of writing one role. `frame` is the tile that is being written: its dims, and the layout it gets."""

    def __init__(
        self,
        addressed: Addressed,
        layouts: Layouts,
        shared: Shared,
        boxes: Boxes,
        reserved: frozenset[str],
    ) -> None:
        super().__init__(addressed, reserved)
        # In the emulator grid variables are plain numbers.
        self.ids = frozenset()
        # Both roles name the kernel's descriptors.
        self.boxes = boxes
        self.layouts, self.shared = layouts, shared
        self.frame: tuple[tuple[str, ...], Layout] | None = None

    def at(self, dims: tuple[str, ...]) -> Layout:
        """The layout that a part over `dims` of the tile that is being written gets."""
        if self.frame is None:
            return self.layouts.of(dims)
        around, layout = self.frame
        return self.layouts.within(layout, around, dims)

    def layout(self, dims: tuple[str, ...]) -> tuple[str, ...]:
        return (str(self.at(dims)),) if dims else ()

    @contextmanager
    def framed(self, dims: tuple[str, ...], layout: Layout | None = None) -> Iterator[None]:
        """Write a tile over `dims` in a layout, by default that of a tile of its own."""
        before = self.frame
        self.frame = (dims, layout or self.layouts.of(dims)) if dims else None
        try:
            yield
        finally:
            self.frame = before

    def unbind(self) -> Scope:
        """The scope of the function alone: grid variables are bound further in."""
        self.scopes = [Scope(frozenset())]
        return self.scopes[0]


class GluonTile(TileWriter):
    """Writes tile expressions, each in the layout of its place."""

    ctx: GluonContext

    def __call__(self, e: TExpr) -> Text:
        if not e.dims:
            with self.ctx.framed(()):
                return super().__call__(e)
        want = self.ctx.at(e.dims)
        own = self.natural(e) or want
        with self.ctx.framed(e.dims, own):
            text = self.staged(e) if isinstance(e, Staged) else self.hidden(e) or super().__call__(e)
        return text if own == want else call("gl.convert_layout", text, str(want))

    def hidden(self, e: TExpr) -> Text | None:
        """A tile of float32 that is -inf outside of some columns: comparison and choice in one piece, since the
        compiler packs all comparisons into bits of integers before it chooses. None for what is something else."""
        if not isinstance(e, Select) or e.other != NOWHERE or e.then.dtype != "float32" or len(e.pred.dims) != 2:
            return None
        if (columns := limits(e.pred)) is None:
            return None
        inner = e.then
        for pred in columns.others:
            inner = Select(pred, inner, e.other)
        name = UPTO if columns.first is None else FROM if columns.last is None else WITHIN
        self.ctx.helpers.add(name)
        sides = (x for x in (columns.first, columns.last) if x is not None)
        return call(name, *(self.placed(x, e.dims) for x in (inner, columns.column, *sides)))

    def natural(self, e: TExpr) -> Layout | None:
        """The layout in which a tile comes about; None where it can be made in any."""
        match e:
            case Local(name, dims, _):
                return self.ctx.layouts.operands.get(name) or self.ctx.layouts.of(dims)
            case Reduce(_, axis, arg):
                if len(arg.dims) < 2:
                    return None
                return Layout(self.ctx.layouts.of(arg.dims).matrix, kept=1 - arg.dims.index(axis))
            case Op() | Select() | Cast() | Rearrange() if len(e.dims) == 1:
                return next((n for p in e.parts if len(p.dims) == 1 and (n := self.natural(p)) is not None), None)
            case Op() | Select() | Cast() | LoadTile():
                return self.ctx.layouts.of(e.dims) if len(e.dims) == 2 else None
            case _:
                return None

    def staged(self, e: Staged) -> Text:
        """The tile of a turn, read into registers."""
        return Text(f"{self.memory(tile_of(e))}.load({self.ctx.at(e.dims)})")

    def memory(self, e: TExpr) -> str:
        """A tile as it lies in shared memory, an operand of a product: `k_tiles.index(0).permute((1, 0))`."""
        if isinstance(e, Rearrange):
            source = tuple(e.pattern.split("->")[0].split())
            order = tuple(source.index(d) for d in e.dims)
            inner = self.memory(e.arg)
            return inner if order == tuple(range(len(order))) else f"{inner}.permute({order})"
        if not isinstance(e, Staged):
            raise InternalError(f"an operand of a product is not in shared memory: {e}")
        ring = self.ctx.shared.rings[e.ring]
        self.ctx.used.add(f"{e.ring}_tiles")
        text = self.ctx.shared.tile(ring, self.ctx.scalar(e.turn))
        return text if e.dims == ring.dims else f"{text}.permute({tuple(ring.dims.index(d) for d in e.dims)})"

    def rearrange(self, e: Rearrange) -> Text:
        """Axes keep their order: threads hold rows of a product, and turning them goes through shared memory."""
        source = [d for d in e.pattern.split("->")[0].split() if d != "1"]
        target = [d for d in e.dims if d != "1"]
        if source != target:
            raise Unsupported(
                f"a tile over {' and '.join(source)} is turned in registers", fits=f"one over {' and '.join(source)}"
            )
        return super().rearrange(e)

    def dot(self, e: Dot) -> Text:
        raise InternalError("a product of a consumer is issued, and no part of an expression")
