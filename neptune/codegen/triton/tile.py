"""Tile expressions as Triton text; see `neptune.tile.ir` for what each node means."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import cast

from neptune.codegen.triton import access
from neptune.codegen.triton.access import descriptor_load, place
from neptune.codegen.triton.expr import DOTS, PREFIX, arithmetic, cast8, floored, lifted, operator, signs
from neptune.codegen.triton.scope import Context
from neptune.codegen.triton.text import ATOM, TL_DTYPES, UNARY, Text, call, constant, fold_name, infix, literal
from neptune.errors import InternalError
from neptune.ir.dtypes import DTYPES, FLOAT8
from neptune.ir.expr import Cast, Const, Expr, Op, Select, children, rewrite, walk
from neptune.tile.address import Part, Pointers, Sum
from neptune.tile.boxes import Box
from neptune.tile.index import along
from neptune.tile.ir import Dot, Full, Iota, LoadTile, Local, Rearrange, Reduce, Scalar, TExpr
from neptune.tile.ranges import Elements

REDUCTIONS = {"sum": "tl.sum", "max": "tl.max", "min": "tl.min"}


class TileWriter:
    """Writes the tile expressions of one kernel. A load inside an expression gets a line of its own."""

    def __init__(self, ctx: Context, locals_: dict[str, str]) -> None:
        self.ctx, self.locals = ctx, locals_
        self.pending: dict[Hashable, str] = {}
        self.elements = Elements(ctx.extents, signs(ctx.is_nonnegative))

    def statement_done(self) -> None:
        """Loads are shared within one statement only: another may store in between."""
        self.pending.clear()

    def __call__(self, e: TExpr) -> Text:
        """The text of a tile whose dims are `e.dims`."""
        if (folded := self.fold(e)) is not None:
            return folded
        match e:
            case Scalar(expr):
                return self.ctx.scalar(expr)
            case Full():
                return self.full(e)
            case Iota(axis):
                return Text(access.iota(self.ctx, axis))
            case Local(name, _, _):
                return Text(self.locals.get(name, name))
            case LoadTile():
                return self.named_load(e)
            case Op():
                return self.map(e)
            case Cast():
                return self.cast(e)
            case Select():
                return call("tl.where", *(self.placed(x, e.dims) for x in (e.pred, e.then, e.other)))
            case Reduce():
                return self.reduce(e)
            case Dot():
                return self.dot(e)
            case Rearrange():
                return self.rearrange(e)

    def placed(self, e: TExpr, dims: tuple[str, ...]) -> Text:
        """`e` as it broadcasts to `dims`."""
        text = self(e)
        moved = place(text.at(ATOM), e.dims, dims)
        return text if moved == text.at(ATOM) else Text(moved)

    def fold(self, e: TExpr) -> Text | None:
        """Arithmetic of literals with log2(e), as one literal."""
        expr = as_scalar(e) if isinstance(e, Op) else None
        return None if expr is None else constant(expr)

    def full(self, e: Full) -> Text:
        dims, dtype = access.shape(self.ctx, e.dims), TL_DTYPES[e.dtype]
        layout = self.ctx.layout(e.dims)
        if isinstance(e.value.expr, Const) and e.value.expr.value == 0:
            return call("tl.zeros", dims, dtype, *layout)
        value = (
            literal(e.value.expr.value, e.dtype) if isinstance(e.value.expr, Const) else self.ctx.scalar(e.value.expr)
        )
        return call("tl.full", dims, value, dtype, *layout)

    # --- memory --------------------------------------------------------------------------------

    def named_load(self, e: LoadTile) -> Text:
        key = (e, self.ctx.layout(e.dims))
        if key not in self.pending:
            text = self.load(e)
            name = self.ctx.fresh(e.buffer, self.ctx.depth)
            self.ctx.scopes[-1].names[("load", name)] = name
            self.ctx.emit(f"{name} = {text}")
            self.pending[key] = name
        return Text(self.pending[key])

    def load(self, e: LoadTile) -> Text:
        """`tl.load` of a tile, or a read through a host tensor descriptor."""
        if isinstance(e.at, Box):
            return descriptor_load(self.ctx, e.buffer, e.at, e.dims)
        pointer = self.pointer(e.buffer, e.at, e.dims)
        if e.at is not None and not e.at.covers(e.dims):
            pointer = call("tl.broadcast_to", pointer, access.shape(self.ctx, e.dims))
        if e.mask is None:
            return call("tl.load", pointer)
        other = literal(e.other, "float32" if e.dtype in FLOAT8 and not e.other else e.dtype)
        return call("tl.load", pointer, f"mask={self.placed(e.mask, e.dims)}", f"other={other}")

    def pointer(self, buffer: str, pointers: Pointers | None, dims: tuple[str, ...]) -> Text:
        """The tile of pointers of an access."""
        if pointers is None:
            raise InternalError(f"an access to {buffer} has no address")
        pointer = access.base(self.ctx, buffer, pointers)
        for p in pointers.gathers:
            pointer = access.add(pointer, self.gathered(buffer, p, dims), p.terms[0].negative)
        for axis, rows in pointers.rows:
            pointer = infix("add", pointer, self.rows(buffer, axis, rows, dims))
        if pointers.offsets is None:
            return pointer
        return infix("add", pointer, access.offsets(self.ctx, buffer, pointers.offsets, dims))

    def gathered(self, buffer: str, p: Part, dims: tuple[str, ...]) -> Text:
        """The offsets that an index tile adds, which may be anywhere in the buffer."""
        (t,) = p.terms
        assert t.tile is not None
        text = self.placed(t.tile, dims)
        return access.scaled(self.ctx, buffer, p, Text(f"{text.at(ATOM)}.to(tl.int64)") if p.cast else text)

    def rows(self, buffer: str, axis: str, rows: Sum, dims: tuple[str, ...]) -> Text:
        """Offsets that positions along one axis give by division, such as those of packed rows: `<buffer>_rows`."""
        total: Text | None = None
        for p in rows.parts:
            total = access.add(total, self.gathered(buffer, p, (axis,)), p.terms[0].negative)
        assert total is not None
        if total.level == ATOM:
            return Text(place(str(total), (axis,), dims))
        name = self.ctx.define(("rows", str(total)), f"{buffer}_rows", total, rows.scope)
        return Text(place(name, (axis,), dims))

    # --- arithmetic ----------------------------------------------------------------------------

    def map(self, e: Op[TExpr]) -> Text:
        if (position := self.position(e)) is not None:
            return position
        if e.name in ("floordiv", "mod"):
            return self.division(e)
        args = [self.placed(a, e.dims) for a in e.args]
        if e.name in PREFIX:
            return Text(f"{'-' if e.name == 'neg' else '~'}{args[0].at(UNARY)}", UNARY)
        return operator(e, args, as_scalar(e.args[-1]) if e.args else None, self.ctx.helpers.add)

    def division(self, e: Op[TExpr]) -> Text:
        """A quotient or remainder; of positions along one axis by a scalar it gets a name, `idx_<axis>_div_4`."""
        axis_of, divisor = along(e), e.args[1]
        if axis_of is None or not isinstance(divisor, Scalar) or children(divisor.expr):
            return self.divided(e)
        axis, tile = axis_of
        assert isinstance(tile, Op)
        kind = "div" if e.name == "floordiv" else "mod"
        by = re.sub(r"\W", "_", str(self.ctx.scalar(divisor.expr)).replace("-", "minus_"))
        name, text = f"idx_{self.ctx.labels[axis]}_{kind}_{by}", self.divided(tile)
        level = self.ctx.level(x.expr for x in walk(tile) if isinstance(x, Scalar))
        return Text(place(self.ctx.define((kind, str(text)), name, text, level), (axis,), e.dims))

    def divided(self, e: Op[TExpr]) -> Text:
        args = [self.placed(a, e.dims) for a in e.args]
        if not all(self.elements.of(a).lo >= 0 for a in e.args):
            return floored(e.name, args[0], args[1], self.ctx.helpers.add)
        return arithmetic(e.name, args[0], args[1], e.args[0].dtype, e.dtype)

    def position(self, e: Op[TExpr]) -> Text | None:
        """`scalar + iota`, the positions of a tile along an axis, as a name of its own: `idx_<axis>`."""
        scalars = [a.expr for a in e.args if isinstance(a, Scalar)]
        axes = [x for a in e.args if isinstance(x := a.arg if isinstance(a, Rearrange) else a, Iota)]
        if e.name != "add" or len(scalars) != 1 or len(axes) != 1:
            return None
        axis = axes[0].axis
        text = infix("add", self.ctx.scalar(scalars[0]), Text(access.iota(self.ctx, axis)))
        name = self.ctx.define(("position", str(text)), f"idx_{self.ctx.labels[axis]}", text, self.ctx.level(scalars))
        return Text(place(name, (axis,), e.dims))

    def cast(self, e: Cast[TExpr]) -> Text:
        if e.arg.dtype == e.dtype:
            return self(e.arg)
        arg = lifted(self(e.arg), e.arg.dtype)
        if (text := cast8(arg, e.arg.dtype, e.dtype, self.ctx.helpers.add)) is not None:
            return text
        if not e.arg.dims:
            return call("tl.cast", self(e.arg), TL_DTYPES[e.dtype])
        return Text(f"{self(e.arg).at(ATOM)}.to({TL_DTYPES[e.dtype]})")

    def reduce(self, e: Reduce) -> Text:
        """A reduction. Triton widens most of them to 32 bits; the IR keeps the dtype."""
        axis = e.arg.dims.index(e.axis)
        arg = self(e.arg)
        if e.reducer not in REDUCTIONS:
            self.ctx.helpers.add(name := fold_name(e.reducer))
            return call("tl.reduce", arg, str(axis), name)
        text = call(REDUCTIONS[e.reducer], arg, f"axis={axis}")
        if DTYPES[e.dtype].bits < 32:
            return Text(f"{text}.to({TL_DTYPES[e.dtype]})")
        return text

    def dot(self, e: Dot) -> Text:
        args = [self(e.a), self(e.b)]
        if e.acc is not None and not _is_zero(e.acc):
            args.append(self.placed(e.acc, e.dims))
        if (helper := DOTS.get(e.a.dtype)) is not None:
            self.ctx.helpers.add(helper)
            start = call("tl.zeros", access.shape(self.ctx, e.dims), TL_DTYPES[e.dtype])
            return call(helper, *args, *([start] if len(args) == 2 else []))
        if e.a.dtype == "float32":
            args.append(Text(f'input_precision="{"tf32" if e.allow_tf32 else "ieee"}"'))
        return call("tl.dot", *args)

    def rearrange(self, e: Rearrange) -> Text:
        """A permutation, and unit dims, in registers."""
        source = tuple(e.pattern.split("->")[0].split())
        if source.count("1") > e.dims.count("1"):
            return call("tl.reshape", self(e.arg), access.shape(self.ctx, e.dims))
        return Text(place(self(e.arg).at(ATOM), source, e.dims))


def _is_zero(e: TExpr) -> bool:
    return isinstance(e, Full) and isinstance(e.value.expr, Const) and e.value.expr.value == 0


def as_scalar(e: TExpr) -> Expr | None:
    """Operators on scalars only, as a scalar expression; None where a tile is in it."""
    if not all(isinstance(x, Op | Scalar) for x in walk(e)):
        return None
    return cast("Expr", rewrite(e, lambda x: cast("TExpr", x.expr) if isinstance(x, Scalar) else None))
