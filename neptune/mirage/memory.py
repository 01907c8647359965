"""What one program of a kernel holds on chip, and where: tiles with lifetimes, and a plan of their offsets.

    on_chip(rms_norm_linear, …, {"i": 64, "k": 64, "j": 64})  →  Plan(offsets=(…), size=…, bound=…)

Triton places tiles itself; the plan is what a kernel needs at least, by which graphs are compared before anything is
compiled, and by which tiles are seen to be too large. Temporaries in device memory are dealt out by the same planner
(`neptune.runtime.workspace`).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from neptune.ir.dtypes import DTYPES
from neptune.mirage.ir import TILE, Kernel, Type
from neptune.mirage.order import lives
from neptune.mirage.types import kernel_types
from neptune.runtime.offsets import Block, Plan, plan

ALIGNMENT = 128
"""Bytes: of a tile that a product or a copy of a whole tile reads."""
COMPUTED = 4
"""Bytes of an element that a kernel computes: float32."""


def on_chip(
    kernel: Kernel, tensors: Mapping[str, Type], dtypes: Mapping[str, str], tiles: Mapping[str, int], stages: int = 1
) -> Plan:
    """The plan of a program's tiles, in the order of `order.lives`.

    `tensors` and `dtypes`: the types and dtypes of tensors in device memory. `tiles`: the extent of each axis' tile.
    `stages`: how often what the loop loads is there, as a pipeline loads ahead.
    """
    return plan(blocks(kernel, tensors, dtypes, tiles, stages), ALIGNMENT)


def blocks(
    kernel: Kernel, tensors: Mapping[str, Type], dtypes: Mapping[str, str], tiles: Mapping[str, int], stages: int = 1
) -> list[Block]:
    """The tiles of a program with their lives; arguments as of `on_chip`."""
    typed = kernel_types(kernel, tensors)
    loaded = {x.name: DTYPES[dtypes[x.tensor]].bits // 8 for x in kernel.loads}

    def size(name: str) -> int:
        of = typed[name]
        copies = stages if name in loaded and of.body else 1
        elements = prod(tiles[a] for a, parts in of.type.items() if TILE in parts)
        return copies * elements * loaded.get(name, COMPUTED)

    return [Block(size(x.name), x.first, x.last) for x in lives(kernel)]
