"""The blocks of a PrimFunc in the order in which they run, each with the loops around it.

How the loops run over a block's axes is a schedule: it is checked to visit every instance of the block exactly once,
and dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, sym, tirx

from neptune.errors import ExpressionError
from neptune.frontend.tvm_expr import Names

TAKEN = (
    "a loop nest around each block of spatial and reduce axes",
    "one store per block at its own axes (or two: argmax and argmin)",
    "y[i] = y[i] ⊕ e with T.init() for + * T.max T.min",
)
SPATIAL, REDUCE = 0, 2


@dataclass(frozen=True)
class Level:
    """A block and the loops around it, outermost first, up to the block that it is nested in."""

    realize: Any
    loops: tuple[Any, ...]

    @property
    def bound(self) -> list[tuple[Any, Any]]:
        """The axes of the block, each with the expression that it is bound to."""
        return list(zip(self.realize.block.iter_vars, self.realize.iter_values, strict=True))


@dataclass(frozen=True)
class Nest:
    """A block that stores, and the blocks that it is nested in (TVM does so where a range depends on an axis)."""

    outer: tuple[Level, ...]
    level: Level

    @property
    def block(self) -> Any:
        return self.level.realize.block

    @property
    def name(self) -> str:
        return str(self.block.name_hint)


class Blocks(Names):
    """The function, and its parameters that are buffers."""

    def __init__(self, function: Any, request: str) -> None:
        super().__init__()
        self.function, self.asked = function, request
        self.parameters = [p for p in function.params if isinstance(p.ty, tirx.BufferType)]
        for p in self.parameters:
            self.name(p, p.name)

    def nests(self) -> Iterator[Nest]:
        """The blocks in the order in which they run."""
        root = self.function.body
        if isinstance(root, s_tir.SBlockRealize) and not root.block.iter_vars:
            self.declared(root.block)
            yield from self.statements(root.block.body, ())
        else:
            yield from self.statements(root, ())

    def declared(self, block: Any) -> None:
        """Name the buffers that a block without axes allocates."""
        if block.match_buffers:
            raise self.refuse(block.name_hint, "it gives a region of a buffer another name (match_buffer)")
        if block.init is not None:
            raise self.refuse(block.name_hint, "it has T.init() and no axes")
        for b in block.alloc_buffers:
            self.name(b, b.name)

    def statements(self, s: Any, loops: tuple[Any, ...], outer: tuple[Level, ...] = ()) -> Iterator[Nest]:
        match s:
            case tirx.For():
                if s.step is not None and not is_one(s.step):
                    raise self.refuse(_first_block(s), f"the loop `{s.loop_var.name}` runs in steps of {s.step}")
                yield from self.statements(s.body, (*loops, s), outer)
            case s_tir.SBlockRealize():
                yield from self.block(Level(s, loops), outer)
            case tirx.SeqStmt() if not loops and not outer:
                for part in s.seq:
                    yield from self.statements(part, loops)
            case tirx.SeqStmt():
                what = f"the loop `{loops[-1].loop_var.name}`" if loops else "a block"
                raise self.refuse(_first_block(s), f"it shares {what} with other statements")
            case tirx.AllocBuffer() if not loops:
                self.name(s.buffer, s.buffer.name)
            case _:
                raise self.refuse(_first_block(s), f"the statement {type(s).__name__} is not supported")

    def block(self, level: Level, outer: tuple[Level, ...]) -> Iterator[Nest]:
        """A block that stores, or one around others."""
        block = level.realize.block
        if block.alloc_buffers:
            raise self.refuse(block.name_hint, "it allocates buffers of its own")
        if block.match_buffers:
            raise self.refuse(block.name_hint, "it gives a region of a buffer another name (match_buffer)")
        for iv in block.iter_vars:
            if iv.iter_type not in (SPATIAL, REDUCE):
                raise self.refuse(block.name_hint, f"its axis `{iv.var.name}` is neither spatial nor reduce")
        self.check_coverage(level, outer)
        if not isinstance(block.body, tirx.For | s_tir.SBlockRealize):
            yield Nest(outer, level)
        elif block.init is None and all(iv.iter_type == SPATIAL for iv in block.iter_vars):
            yield from self.statements(block.body, (), (*outer, level))
        else:
            raise self.refuse(block.name_hint, "a block around others has spatial axes only")

    def check_coverage(self, level: Level, outer: tuple[Level, ...]) -> None:
        """The loops must run every instance of the block exactly once."""
        axes = [(iv, v) for iv, v in level.bound if not _is_alias(iv, v, outer)]
        loops, predicate = level.loops, level.realize.predicate
        direct = len(loops) == len(axes) and all(
            v.same_as(f.loop_var) and same(f.min, iv.dom.min) and same(f.extent, iv.dom.extent)
            for (iv, v), f in zip(axes, loops, strict=True)
        )
        if direct and is_one(predicate):
            return
        ranges = {f.loop_var: tvm.ir.Range.from_min_extent(f.min, f.extent) for f in loops}
        indices = sym.detect_iter_map([v for _, v in axes], ranges, predicate, "bijective", False).indices
        if len(indices) != len(axes) or not all(_spans(x, iv.dom) for x, (iv, _) in zip(indices, axes, strict=True)):
            where = "" if is_one(predicate) else f" (where {predicate})"
            raise self.refuse(
                level.realize.block.name_hint,
                f"its loops cannot be shown to run every instance of it exactly once{where}",
                "say what is left out in the value: T.if_then_else(condition, e, neutral)",
            )

    def refuse(self, block: str, why: str, hint: str | None = None) -> ExpressionError:
        return ExpressionError(self.asked, f"block `{block}`: {why}", legal=TAKEN, hint=hint)


def same(a: Any, b: Any) -> bool:
    """True where two integer expressions are provably equal."""
    return bool(sym.Analyzer().can_prove_equal(a, b))


def is_one(e: Any) -> bool:
    """True for the integer constant 1."""
    return isinstance(e, tirx.IntImm) and int(e.value) == 1


def _is_alias(iv: Any, value: Any, outer: tuple[Level, ...]) -> bool:
    """True for an axis [v, v + 1) that stands for the spatial axis v of a block further out."""
    around = [x.var for level in outer for x in level.realize.block.iter_vars]
    aliases = any(value.same_as(v) for v in around) and same(iv.dom.min, value) and same(iv.dom.extent, 1)
    return aliases and bool(iv.iter_type == SPATIAL)


def _spans(index: Any, dom: Any) -> bool:
    """True where one result of detect_iter_map runs over exactly `dom`."""
    if not same(index.base, dom.min):
        return False
    if not len(index.args):
        return same(dom.extent, 1)
    (part, *more) = index.args
    whole = is_one(part.lower_factor) and is_one(part.scale) and same(part.extent, part.source.extent)
    return not more and whole and same(part.extent, dom.extent)


def _first_block(s: Any) -> str:
    """The name of the first block in a statement, for errors."""
    if isinstance(s, s_tir.SBlockRealize):
        return str(s.block.name_hint)
    parts = s.seq if isinstance(s, tirx.SeqStmt) else [s.body] if isinstance(s, tirx.For) else []
    return next((name for name in map(_first_block, parts) if name != "root"), "root")
