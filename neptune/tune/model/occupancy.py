"""Registers and shared memory of a kernel by closed forms, and how many of its programs run on a processor at a time.

resources(work, {"BLOCK_M": 128, …, "num_warps": 8, "num_stages": 3}, machine)  →  Resources(registers=107, shared=…)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod

from neptune.ir.integers import known_size
from neptune.tile.ir import Loop
from neptune.tune.model.machine import Machine
from neptune.tune.model.work import Axes, KernelWork

MOST = 255
"""Registers of a thread."""
SQUEEZED = 1.25
"""How many times the registers there are a kernel of whole rows, one at a time, may want and not spill: its compiler
computes a row element by element where that takes fewer (38 kernels of up to 65536 columns, compiled for sm_90: those
that want 1.22 times as many, or less, spill nothing, those from 1.26 times on 156 bytes a thread or more). Those of
several rows do not spill, either, and are slower than predicted: there are smaller tiles."""
SYNCHRONOUS = 110
"""Registers of a kernel whose products' operands threads hold."""
SCRATCH = 4096
"""Bytes of shared memory that layouts are exchanged through."""


@dataclass(frozen=True)
class Resources:
    """Registers of a thread (more than there are: spilled), bytes of shared memory of a program."""

    registers: float
    shared: int

    def too_large(self, warps: int, machine: Machine) -> bool:
        """True where registers are spilled, or shared memory does not suffice."""
        return self.registers > most_registers(warps, machine) or self.shared > machine.shared_limit


def most_registers(warps: int, machine: Machine) -> int:
    """The registers that a thread may have, so that one program fits a processor.

    >>> from neptune.tune.model.machine import DEFAULT
    >>> most_registers(8, DEFAULT), most_registers(16, DEFAULT)
    (255, 128)
    """
    return min(MOST, machine.registers // (warps * machine.warp))


def resources(work: KernelWork, known: Mapping[str, int], machine: Machine) -> Resources:
    """The estimate for one kernel with a value for every tunable, num_warps and num_stages."""
    extents = {axis: known_size(e, known) for axis, e in work.kernel.axes}
    return Resources(_registers(work, known, extents, machine), _shared(work, known, extents, machine))


def resident(needs: Resources, warps: int, machine: Machine) -> int:
    """How many programs are on a processor at one time; 0 where not even one fits."""
    if needs.shared > machine.shared_limit:
        return 0
    threads = warps * machine.warp
    each = 8 * ceil(min(needs.registers, most_registers(warps, machine)) / 8)
    by = (
        machine.registers // (each * threads),
        machine.shared // (needs.shared + machine.shared_own)
        if needs.shared + machine.shared_own
        else machine.programs,
        machine.threads // threads,
        machine.programs,
    )
    return max(1, min(by))


def _registers(work: KernelWork, known: Mapping[str, int], extents: Mapping[str, int], machine: Machine) -> float:
    threads = known["num_warps"] * machine.warp
    products = [p for s in work.sections for p in s.products]
    if not products:
        wanted, most = 14 + 0.8 * work.estimate.registers(known), most_registers(known["num_warps"], machine)
        in_loops = any(s.loop is not None for s in work.sections)
        one_row = not in_loops and sum(n > 1 for n in extents.values()) == 1
        return most if one_row and most < wanted <= SQUEEZED * most else wanted

    def held(tiles: tuple[tuple[Axes, int], ...]) -> list[float]:
        return [prod(extents.get(a, 1) for a in axes) * bits / 32 / threads for axes, bits in tiles if len(axes) > 1]

    carried, others = sum(held(work.carried)), max(held(work.beside), default=0.0)
    count = 24 + 1.05 * carried + 1.5 * others
    if any(p.dtype not in machine.matrix for p in products):
        # Threads hold the operands of what no matrix unit takes.
        count = max(count, work.estimate.registers(known))
    asynchronous = machine.asynchronous and all(extents.get(p.rows, 1) >= 64 for p in products)
    return count if asynchronous else max(count, SYNCHRONOUS)


def _shared(work: KernelWork, known: Mapping[str, int], extents: Mapping[str, int], machine: Machine) -> int:
    """Operands that a pipeline holds, those loaded before it, and what layouts are exchanged through."""
    total, stages = 0.0, known["num_stages"]
    asynchronous = machine.asynchronous and all(extents.get(p.rows, 1) >= 64 for s in work.sections for p in s.products)
    depth = stages if asynchronous else max(1, stages - 1)
    by_loop: list[float] = []
    for s in work.sections:
        # A loop with products loads ahead whatever leads to one.
        ahead = bool(s.products) and isinstance(s.blocks[-1] if s.blocks else None, Loop)
        staged = [m for m in s.moves if m.operand or (ahead and not m.store and len(m.axes) > 1)]
        tiles = sum(prod(extents.get(a, 1) for a in m.axes) * m.bits / 8 for m in staged)
        if not s.blocks:
            total += tiles
        else:
            # What a loop leaves over takes the place of what the loop has loaded.
            by_loop.append(tiles * (depth if isinstance(s.blocks[-1], Loop) else 1))
    has_products = any(s.products for s in work.sections)
    return int(total + max(by_loop, default=0.0)) + (
        0 if asynchronous and has_products else SCRATCH if has_products else 1024
    )
