"""Layouts in registers: how the threads of a warpgroup hold the tiles of a consumer.

Every tile of two dims lies as the result of a product of its columns does. A tile of one dim is a slice of such a
layout: what is known of rows keeps rows, what is known of columns keeps columns. So a product's result, its row maxima
and what is broadcast over it meet without a conversion, and the slices of two layouts hold the same rows in the same
threads, so that a conversion between these moves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from neptune.errors import InternalError
from neptune.hopper.hardware import COLUMNS, ROWS, WARP
from neptune.hopper.ir import Issue
from neptune.ir.dtypes import DTYPES
from neptune.tile.ir import Local

LANES = "LANES"
_LANES = (
    "gl.DistributedLinearLayout([[8, 0]], [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [64, 4])"
)
"""The layout of one number for each of the four lanes that hold a row of a product's result."""
OPERAND_BITS = 256
"""Bits along the summed axis that one instruction takes of a row."""


@dataclass(frozen=True, slots=True)
class Layout:
    """`matrix` names a layout of two dims. `kept` is the dim that a slice of it keeps, `operand` that of an operand.

    >>> str(Layout("S_LAYOUT")), str(Layout("S_LAYOUT", kept=0))
    ('S_LAYOUT', 'gl.SliceLayout(1, S_LAYOUT)')
    """

    matrix: str
    kept: int | None = None

    def __str__(self) -> str:
        return self.matrix if self.kept is None else f"gl.SliceLayout({1 - self.kept}, {self.matrix})"


class Layouts:
    """The layouts of one kernel's tiles, named after the products that gave them.

    `constants` has the text of each by its name; `operands` the layout of each local that is an operand of a product.
    """

    def __init__(self, products: list[Issue], extents: Mapping[str, int], labels: Mapping[str, str]) -> None:
        self.extents, self.labels = extents, labels
        self.constants: dict[str, str] = {LANES: _LANES}
        self.operands: dict[str, Layout] = {}
        self._columns: dict[str, Layout] = {}
        self._named: dict[tuple[int, int], Layout] = {}
        self._rows: Layout | None = None
        for s in products:
            bits = DTYPES[s.dot.a.dtype].bits
            layout = self._matrix(s.dot.dims[1], bits, s.name.upper())
            self._rows = self._rows or layout
            if isinstance(s.dot.a, Local):
                name = f"{s.dot.a.name.upper()}_OPERAND"
                self.constants[name] = f"gl.DotOperandLayout(0, {layout}, {32 // bits})"
                if self.operands.setdefault(s.dot.a.name, Layout(name)) != Layout(name):
                    raise InternalError(f"{s.dot.a.name} is an operand of products of two forms")

    def _matrix(self, axis: str, bits: int, name: str) -> Layout:
        """The layout of tiles whose columns are `axis`, made with this name where there is none of its form."""
        if axis in self._columns:
            return self._columns[axis]
        columns = min(self.extents.get(axis, 1), COLUMNS)
        form = (max(columns, 8), OPERAND_BITS // bits)
        if form not in self._named:
            self._named[form] = Layout(f"{name}_LAYOUT")
            self.constants[f"{name}_LAYOUT"] = f"gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {form[0]}, {form[1]}])"
        self._columns[axis] = self._named[form]
        return self._columns[axis]

    def of(self, dims: tuple[str, ...]) -> Layout:
        """The layout of a tile of its own."""
        match dims:
            case (_, columns):
                return self._matrix(columns, 16, self.labels.get(columns, "UNIT").upper())
            case (axis,):
                if axis in self._columns:
                    return Layout(self._columns[axis].matrix, kept=1)
                if self.extents.get(axis, ROWS) > ROWS:
                    return self._every_warp(axis)
                if self._rows is None:
                    raise InternalError(f"there is no product by whose rows a tile along {axis} could lie")
                return Layout(self._rows.matrix, kept=0)
            case _:
                raise InternalError(f"a consumer holds no tile of {len(dims)} dims")

    def _every_warp(self, axis: str) -> Layout:
        """The layout of rows of a whole group, which give numbers for all threads: each warp holds all of them, as a
        producer's does, so that none waits for another."""
        extent = self.extents[axis]
        each = max(1, min(4, extent // WARP))
        first, lanes = (1 << k for k in range(each.bit_length() - 1)), (each << k for k in range(5))
        again = (each * WARP << k for k in range((extent // (each * WARP)).bit_length() - 1))
        bases = ([[n] for n in numbers] for numbers in ((*first, *again), lanes))
        name = f"EVERY_WARP_{extent}"
        self.constants[name] = f"gl.DistributedLinearLayout({', '.join(map(str, bases))}, [[0], [0]], [], [{extent}])"
        return Layout(name)

    def within(self, layout: Layout, around: tuple[str, ...], dims: tuple[str, ...]) -> Layout:
        """The layout of a part over `dims` of a tile over `around`: what broadcasts lies as it will be used."""
        if len(dims) == len(around):
            return layout
        if len(dims) == 1 and len(around) == 2 and dims[0] in around:
            return Layout(layout.matrix, kept=around.index(dims[0]))
        return self.of(dims)


class WarpLayouts(Layouts):
    """The layouts of a producer's tiles, which are rows of integers: neighbours in a thread, 16 bytes at most."""

    def __init__(self, extents: Mapping[str, int], labels: Mapping[str, str]) -> None:
        super().__init__([], extents, labels)
        self.constants = {f"WARP_{n}": f"gl.BlockedLayout([{n}], [{WARP}], [1], [0])" for n in (1, 2, 4)}

    def of(self, dims: tuple[str, ...]) -> Layout:
        """The layout of a tile of its own."""
        if len(dims) != 1:
            raise InternalError(f"a producer holds no tile of {len(dims)} dims")
        return Layout(f"WARP_{max(1, min(4, self.extents[dims[0]] // WARP))}")
