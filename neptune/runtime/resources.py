"""What a compiled kernel needs of the machine."""

from __future__ import annotations

from dataclasses import dataclass

from neptune.codegen.compile import Compiled


@dataclass(frozen=True, slots=True)
class Resources:
    """One kernel's use of a target. `matrix` is "wgmma", "mma", "mfma" or None; `spill_bytes` are per
    thread; `warnings` are compiler remarks that cost speed.

    >>> Resources("softmax_kernel", 32, 0, 0, None, ()).spill_bytes
    0
    """

    name: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    matrix: str | None
    warnings: tuple[str, ...]


def resources_of(c: Compiled) -> Resources:
    """The numbers of a compiled kernel without its assembly."""
    return Resources(c.name, c.registers, c.spill_bytes, c.shared_bytes, c.matrix, c.warnings)
