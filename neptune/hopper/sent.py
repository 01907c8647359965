"""sent: the results that leave as boxes, through shared memory, where a mask says no more than "inside of the tensor".

What is stored twice, in one dimension, or under a mask that says more keeps its pointers.
"""

from __future__ import annotations

from neptune.hopper.scalars import Block
from neptune.tile.boxes import Shapes, box_of, inside
from neptune.tile.ir import StoreTile, walk_stmts


def sent(body: Block, numbers: Shapes) -> list[StoreTile]:
    """The stores of a body that are boxes; `numbers` has the extents of axes."""
    stores = [s for s in walk_stmts(body) if isinstance(s, StoreTile)]
    once = [s for s in stores if [x.buffer for x in stores].count(s.buffer) == 1]
    return [s for s in once if _is_box(s, numbers)]


def _is_box(s: StoreTile, numbers: Shapes) -> bool:
    box = box_of(numbers, s.buffer, s.index, s.dims, temporaries=True)
    if box is None or len(s.dims) != 2 or not inside(numbers, s.buffer, s.index, s.mask):
        return False
    return s.value.dims == s.dims and tuple(a for a in box.axes if a is not None) == s.dims
