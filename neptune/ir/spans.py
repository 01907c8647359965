"""What the offsets of a tile add up to: a launch tells from it whether 32 bits do."""

from __future__ import annotations

from dataclasses import dataclass

from neptune.ir.expr import Expr


@dataclass(frozen=True, slots=True)
class Span:
    """The sum that a tile of int32 offsets into a buffer is: (dimension, extent, factor) of each axis."""

    buffer: str
    axes: tuple[tuple[int, Expr, int], ...]
