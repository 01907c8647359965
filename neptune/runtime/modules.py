"""The forms of a kernel's Triton module, and which of them a call needs.

Descriptors want tensors on 16 bytes, int32 tile offsets want strides that are not huge; the module with
pointers and int64 offsets takes everything. Forms are generated when first needed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from neptune.codegen.llvm import evaluate_size
from neptune.codegen.triton import generate
from neptune.codegen.triton_limits import descriptor_alignment, int32_suffices, tile_spans
from neptune.ir.program import Buffer
from neptune.tile.ir import TileProgram

LOG = logging.getLogger("neptune.codegen")


@dataclass(frozen=True, slots=True)
class Form:
    """How a module addresses memory: `loads` "pointer" or "descriptor", and the width of tile offsets."""

    loads: str = "pointer"
    int64_offsets: bool = False

    def __str__(self) -> str:
        return f"the form with {self.loads} loads and {'int64' if self.int64_offsets else 'int32'} offsets"


@dataclass(frozen=True)
class Modules:
    """The Triton sources of one TileProgram, by form; `params` are the values of its free tunables."""

    tiles: TileProgram
    header: str
    params: Mapping[str, int]
    _sources: dict[Form, str] = field(default_factory=dict, init=False, repr=False)
    _chosen: dict[tuple[object, ...], Form] = field(default_factory=dict, init=False, repr=False)

    def source(self, form: Form) -> str:
        """The module's text."""
        if form not in self._sources:
            start = time.perf_counter()
            self._sources[form] = generate(
                self.tiles, header=self.header, loads=form.loads, int64_offsets=form.int64_offsets
            )
            LOG.info("%s of `%s` generated, %.1f ms", form, self.tiles.name, 1e3 * (time.perf_counter() - start))
            LOG.debug("%s", self._sources[form])
        return self._sources[form]

    def form(self, tensors: Sequence[torch.Tensor], sizes: Mapping[str, int | float], loads: str) -> Form:
        """The form for these tensors (inputs, then outputs), descriptors only where `loads` says so."""
        # Lengths alone change nothing, but for the strides of temporaries.
        lengths = tuple(sizes.values()) if self.tiles.temporaries else ()
        key = (loads, lengths, *((t.stride(), t.data_ptr() % 16) for t in tensors))
        if key not in self._chosen:
            if len(self._chosen) >= 256:
                self._chosen.clear()
            self._chosen[key] = self._form(tensors, sizes, loads)
        return self._chosen[key]

    def _form(self, tensors: Sequence[torch.Tensor], sizes: Mapping[str, int | float], loads: str) -> Form:
        named = dict(zip((b.name for b in (*self.tiles.inputs, *self.tiles.outputs)), tensors, strict=True))
        if loads == "descriptor" and not all(on_16_bytes(named[n]) for n in descriptor_alignment(self.tiles)):
            loads = "pointer"
        strides: dict[str, Sequence[int]] = {n: t.stride() for n, t in named.items()}
        strides |= {b.name: _dense(b, sizes) for b in self.tiles.temporaries}
        tunables = {**covers(self.tiles, sizes), **self.params}
        return Form(loads, not int32_suffices(tile_spans(self.tiles, loads=loads), strides, tunables))


def covers(tiles: TileProgram, sizes: Mapping[str, int | float]) -> dict[str, int]:
    """The values of tunables that cover a size: the smallest power of two that does."""
    found = {t.name: evaluate_size(t.covers, sizes) for t in tiles.tunables if t.covers is not None}
    return {name: 1 << max(0, size - 1).bit_length() for name, size in found.items()}


def _dense(b: Buffer, sizes: Mapping[str, int | float]) -> tuple[int, ...]:
    strides = [1]
    for d in reversed(b.shape[1:]):
        strides.insert(0, strides[0] * evaluate_size(d, sizes))
    return tuple(strides)


def on_16_bytes(x: torch.Tensor) -> bool:
    """True if the address of every row of `x` is a multiple of 16, which tensor descriptors need.

    >>> on_16_bytes(torch.zeros(4, 64, dtype=torch.float16)), on_16_bytes(torch.zeros(4, 63, dtype=torch.float16))
    (True, False)
    """
    size = x.element_size()
    return x.data_ptr() % 16 == 0 and all(s * size % 16 == 0 for s in x.stride()[:-1])
