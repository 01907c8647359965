"""Every form of a kernel's Triton module, with what it asks of tensors."""

from __future__ import annotations

from collections.abc import Mapping

from neptune.codegen.compile import parameters_of
from neptune.codegen.triton import kernel_texts, module_text
from neptune.codegen.triton_kernel import KernelText
from neptune.ir.spans import Span
from neptune.runtime.addressing import LOADS, Addressing
from neptune.tile.ir import TileProgram


def addressing(
    tiles: TileProgram, wider: TileProgram, defaults: Mapping[str, int], header: str, loads: str
) -> Addressing:
    """The modules of a TileProgram that load through "pointer" or "descriptor"; `wider` is the one for int64."""
    narrow = kernel_texts(tiles, loads=loads)
    wide = kernel_texts(wider, loads=loads, int64_offsets=True)
    return Addressing(
        texts=(module_text(tiles, narrow, defaults, header), module_text(tiles, wide, defaults, header)),
        aligned=tuple(_described(tiles, [*narrow, *wide])),
        spans=tile_spans(tiles, loads=loads),
        kernels=tuple(parameters_of(tiles, k) for k in narrow),
    )


def all_modules(
    tiles: TileProgram, wider: TileProgram, defaults: Mapping[str, int], header: str
) -> dict[str, Addressing]:
    """Every form of a TileProgram's module; `wider` is what modules with int64 offsets are of."""
    return {loads: addressing(tiles, wider, defaults, header, loads) for loads in LOADS}


def descriptor_alignment(program: TileProgram) -> list[str]:
    """The inputs and outputs that the module with `loads="descriptor"` reads or writes through descriptors.

    Their addresses, and their strides in bytes but for the last, must be multiples of 16. (Temporaries are
    dense, and so always aligned.)
    """
    return _described(program, kernel_texts(program, loads="descriptor"))


def _described(program: TileProgram, kernels: list[KernelText]) -> list[str]:
    """The inputs and outputs for which kernels take descriptors."""
    used = {p.of for k in kernels for p in k.parameters if p.kind == "descriptor"}
    return [b.name for b in (*program.inputs, *program.outputs) if b.name in used]


def tile_spans(program: TileProgram, *, loads: str = "pointer") -> tuple[Span, ...]:
    """Return the sums that are the tile offsets of the module with int32 offsets, each once."""
    return tuple(dict.fromkeys(s for k in kernel_texts(program, loads=loads) for s in k.spans))
