"""What generated modules ask of the tensors they are called with, and how to tell.

A program has up to four modules: loads through pointers or through descriptors, each with int32 or int64 tile
offsets. The module with pointers and int64 offsets takes any tensors whose last dimension is dense. Of the
others, descriptors want alignment (`descriptor_alignment`), int32 offsets want strides that are not huge
(`tile_spans`, `int32_suffices`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from neptune.codegen.triton import kernel_texts
from neptune.codegen.triton_scope import Span
from neptune.errors import InternalError
from neptune.ir.expr import Const, Expr, Var
from neptune.tile.ir import TileProgram

LIMIT = 2**31


def descriptor_alignment(program: TileProgram) -> list[str]:
    """The inputs and outputs that the module with `loads="descriptor"` reads or writes through descriptors.

    Their addresses, and their strides in bytes but for the last, must be multiples of 16. (Temporaries are
    dense, and so always aligned.)
    """
    used = {p.of for k in kernel_texts(program, loads="descriptor") for p in k.parameters if p.kind == "descriptor"}
    return [b.name for b in (*program.inputs, *program.outputs) if b.name in used]


def tile_spans(program: TileProgram, *, loads: str = "pointer") -> tuple[Span, ...]:
    """What the tile offsets of the module with int32 offsets add up."""
    return tuple(dict.fromkeys(s for k in kernel_texts(program, loads=loads) for s in k.spans))


def int32_suffices(spans: Iterable[Span], strides: Mapping[str, Sequence[int]], tunables: Mapping[str, int]) -> bool:
    """True where no offset within a tile reaches 2**31 elements.

    `strides` has those of each tensor by name; a temporary that is not in it is checked as if it were dense
    and small. False asks for the module with `int64_offsets`.

    >>> int32_suffices([Span("x", ((0, Var("BLOCK"), 1),))], {"x": (1 << 24, 1)}, {"BLOCK": 128})
    True
    >>> int32_suffices([Span("x", ((0, Var("BLOCK"), 1),))], {"x": (1 << 25, 1)}, {"BLOCK": 128})
    False
    """
    for span in spans:
        steps = strides.get(span.buffer)
        if steps is not None:
            reach = sum((_value(extent, tunables) - 1) * factor * abs(steps[d]) for d, extent, factor in span.axes)
            if reach >= LIMIT:
                return False
    return True


def extent_of(e: Expr | None) -> int | str:
    """The extent of a tile axis as a number, or the name of a tunable; an axis that is none has one element."""
    match e:
        case None:
            return 1
        case Const(value, _):
            return int(value)
        case Var(name, _):
            return name
        case _:
            raise InternalError(f"the extent of a tile axis is neither a constant nor a tunable: {e}")


def _value(extent: Expr, tunables: Mapping[str, int]) -> int:
    found = extent_of(extent)
    return tunables[found] if isinstance(found, str) else found
