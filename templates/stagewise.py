"""stagewise: a schedule for every program, one kernel a stage.

Maps are computed where they are read, or behind the reduction that they follow; what remains is tiled by
its kind: products for the matrix unit, rows or columns for other reductions, plain tiles for maps.
"""

from __future__ import annotations

from neptune.fusion.schedule import Schedule
from neptune.fusion.uncover import uncover
from neptune.schedule.checked import attempt
from neptune.schedule.stagewise import follow, inline_maps, tile_stage
from neptune.schedule.state import Loop
from neptune.schedule.template import template

TILES = {
    "BLOCK_M": (64, 32, 128, 16),
    "BLOCK_N": (64, 32, 128, 16, 256),
    "BLOCK_K": (32, 16, 64, 128),
    "MAP_M": (16, 8, 32, 1),
    "MAP_N": (64, 128, 32, 256),
    "ROW_M": (4, 1, 2, 8),
    "ROW_N": (256, 128, 512, 1024),
    "COLUMN_M": (8, 4, 16, 32),
    "COLUMN_N": (128, 64, 256, 32),
}
"""Tile sizes: of products, maps, reductions along a last dimension, and other reductions."""


@template()
def stagewise(sch: Schedule) -> None:
    """Inline maps, tile and bind what remains, and put maps behind the reductions that they follow."""
    # It serves every program, for all inputs.
    uncover(sch, assuming=False)
    inline_maps(sch)
    grid: list[Loop] = []
    cut: list[Loop] = []
    # Reductions first: the maps that follow them take over their tiles.
    folds = sch.reductions
    for stage in folds:
        bound, around = tile_stage(sch, stage, TILES)
        grid += bound
        # With no loop around them the pieces of one would be kernels of their own: there the tail is a mask.
        cut += [f for f in around if f != sch.loops(stage)[0]]
    for stage in sch.stages:
        if stage not in folds and not follow(sch, stage, grid):
            tile_stage(sch, stage, TILES)
    for loop in cut:
        attempt(sch.partition, loop)
