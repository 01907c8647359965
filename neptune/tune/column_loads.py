"""What it costs that a loop reads columns: an element of each row of a tile an iteration (`neptune.tile.depths`).

    for d: far += (x[:, d] - y[:, d])²

Each element lies on a line of its own. While the lines of all rows stay in the nearest cache, the next column is there;
else each element is a sector of L2, whatever its width. Measured on an H200 (kernel density, distance attention and a
mixture's E-step of 4096 rows, 64 columns).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from neptune.tune.machine import Machine
from neptune.tune.numbers import Array
from neptune.tune.work import Axes, Section

SECTOR, LINE, NEAREST = 32, 128, 128 << 10
"""Bytes that L2 gives at once, and of a line of the nearest cache; bytes of its lines that stay in it."""
NEAR = 400
"""Cycles until an element of a near line is where all threads that need it have it."""
QUAD, EACH = 4, 8
"""Neighbours in a row of a tile that one thread holds; cycles of a load that a warp makes of a single element."""
Size = Callable[[Axes], Array]
"""The elements of a tile over some axes."""


def near(s: Section, size: Size) -> Array:
    """True where the lines that a section reads columns of stay in the nearest cache."""
    return np.less_equal(sum(size(m.axes) * LINE for m in s.columns), NEAREST)


def more(s: Section, size: Size) -> Array:
    """Bytes that L2 gives beside the elements: of each its sector, where lines are gone before the next column."""
    if not s.columns:
        return 0.0
    beside = sum(size(m.axes) * (SECTOR - m.bits / 8) for m in s.columns)
    return np.where(near(s, size), 0.0, beside)


def cycles(s: Section, size: Size, warps: Array, machine: Machine) -> Array:
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
