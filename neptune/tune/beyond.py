"""What it costs that a tile reaches beyond the end of its tensor: zeros are copied where no elements are.

    x: f16[16, 4096], tiles of 64 × 128    →    48 × 128 zeros in every iteration

A loop with products copies its tiles to shared memory, and a masked element is a copy without a source. These are
slower than copies of elements, and all processors share how fast they are: found on measured products of 1 to 64 rows.
With tiles of 64 to 256 rows these take up to three times as long, the longer the narrower their columns are, since the
rows are copied once for each tile of columns; tiles of 16 rows do not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from neptune.tune.numbers import Array
from neptune.tune.work import Axes, Move, Section

Size = Callable[[Axes], Array]
"""The elements of a tile over some axes."""
Length = Callable[[str, int], Array]
"""The length of a buffer along a dimension."""


def zeros(s: Section, size: Size, length: Length) -> Array:
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
