"""What accesses cost beside the bytes of their elements: tiles beyond the end of a tensor, and columns of rows.

    x: f16[16, 4096], tiles of 64 × 128    →    48 × 128 zeros in every iteration
    for d: far += (x[:, d] - y[:, d])²     →    an element of each row an iteration (`neptune.tile.depths`)

A loop with products copies its tiles to shared memory, and a masked element is a copy without a source. These are
slower than copies of elements, and all processors share how fast they are: found on measured products of 1 to 64 rows.
With tiles of 64 to 256 rows these take up to three times as long, the longer the narrower their columns are, since the
rows are copied once for each tile of columns; tiles of 16 rows do not.

Each element of a column lies on a line of its own. While the lines of all rows stay in the nearest cache, the next
column is there; else each element is a sector of L2, whatever its width. Measured on an H200 (kernel density, distance
attention and a mixture's E-step of 4096 rows, 64 columns).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from neptune.tune.machine import Machine
from neptune.tune.numbers import Array
from neptune.tune.work import Axes, Move, Section

SECTOR, LINE, NEAREST = 32, 128, 128 << 10
"""Bytes that L2 gives at once, and of a line of the nearest cache; bytes of its lines that stay in it."""
NEAR = 400
"""Cycles until an element of a near line is where all threads that need it have it."""
QUAD, EACH = 4, 8
"""Neighbours in a row of a tile that one thread holds; cycles of a load that a warp makes of a single element."""
Size = Callable[[Axes], Array]
"""The elements of a tile over some axes."""
Length = Callable[[str, int], Array]
"""The length of a buffer along a dimension."""


def zeros_beyond(s: Section, size: Size, length: Length) -> Array:
    """Bytes of zeros that one run of a section copies."""
    if not s.products:
        return 0.0
    return sum((size(m.axes) * m.bits / 8 * (1 - _within(m, size, length)) for m in s.moves if not m.store), start=0.0)


def _within(m: Move, size: Size, length: Length) -> Array:
    """The share of a tile that a buffer has at most, wherever the tile lies."""
    share: Array = 1.0
    for axis, dimension in zip(m.axes, m.along, strict=True):
        if dimension is not None:
            share = share * np.minimum(1.0, length(m.buffer, dimension) / size((axis,)))
    return share


def columns_stay_near(s: Section, size: Size) -> Array:
    """True where the lines that a section reads columns of stay in the nearest cache."""
    return np.less_equal(sum(size(m.axes) * LINE for m in s.columns), NEAREST)


def sector_bytes(s: Section, size: Size) -> Array:
    """Bytes that L2 gives beside the elements: of each its sector, where lines are gone before the next column."""
    if not s.columns:
        return 0.0
    beside = sum(size(m.axes) * (SECTOR - m.bits / 8) for m in s.columns)
    return np.where(columns_stay_near(s, size), 0.0, beside)


def column_cycles(s: Section, size: Size, warps: Array, machine: Machine) -> Array:
    """Cycles of the nearest cache in one run of a section: it looks up a line each.

    Of a column of rows that has fewer elements than there are threads, Triton lets each thread load all that it needs;
    of a longer one each element is loaded once, and threads exchange them.
    """
    if not s.columns:
        return 0.0
    tile = max(s.work, key=len, default=())
    threads = machine.warp * warps
    loads = size(tile) / (QUAD * threads)
    rows = [size(m.axes) for m in s.columns if len(tile) > 1 and m.axes[:1] == tile[:1]]
    own = (np.where(n < threads, EACH * warps * np.minimum(loads, n), 0.0) for n in rows)
    return sum(size(m.axes) for m in s.columns) + sum(own, start=0.0)
