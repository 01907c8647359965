"""The forms of a kernel's Triton module, and which of them a call needs.

Descriptors want tensors on 16 bytes, int32 tile offsets want strides that are not huge; the module with
pointers and int64 offsets takes everything. Some kernels have another form beside tiles, which says itself what it
serves (`neptune.runtime.forms`), and runs where what was compiled of it is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch

from neptune.ir.dtypes import DTYPES
from neptune.ir.integers import evaluate_size
from neptune.ir.program import Buffer, Program, Tunable
from neptune.ir.text.parser import parse_program
from neptune.runtime.calls.addressing import LOADS, Addressing, Tensors, int32_suffices, on_16_bytes
from neptune.runtime.forms import FormData


@dataclass(frozen=True, slots=True)
class Form:
    """A module's way to address memory: `loads` "pointer" or "descriptor", and the width of tile offsets; or the name
    of another form than tiles."""

    loads: str = "pointer"
    int64_offsets: bool = False

    def __str__(self) -> str:
        if self.loads not in LOADS:
            return f"the {self.loads} form"
        return f"the form with {self.loads} loads and {'int64' if self.int64_offsets else 'int32'} offsets"


@dataclass(frozen=True)
class Modules:
    """The modules of one kernel; `declarations` is the text of its parameters, `params` the values of its free
    tunables, num_warps and num_stages, and `of_one` those of single launches, by the function's name. `has_room` says
    of sizes whether index arithmetic stays in int32, `runs` by the compiler's settings whether the record of the
    `other` form is accepted."""

    by_loads: Mapping[str, Addressing]
    declarations: str
    params: Mapping[str, int]
    of_one: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    other: FormData | None = None
    has_room: Callable[[Mapping[str, int | float]], bool] = lambda sizes: True
    runs: dict[tuple[str | None, ...], bool] = field(default_factory=dict, init=False, repr=False)
    _chosen: dict[tuple[object, ...], Form] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def declared(self) -> Program:
        """The parameters: a Program without a body."""
        return parse_program(self.declarations)

    def source(self, form: Form) -> str:
        """The module's text."""
        other = self._other(form)
        return self.by_loads[form.loads].texts[form.int64_offsets] if other is None else other.text

    def values(self, form: Form) -> dict[str, int]:
        """The tunables, warps and stages that the module's launch function takes."""
        other = self._other(form)
        return dict(self.params) if other is None else other.values(self.params)

    def values_of_one(self, form: Form) -> Mapping[str, Mapping[str, int]]:
        """Those of single launches."""
        other = self._other(form)
        return self.of_one if other is None else other.values_of_one(self.of_one)

    def _other(self, form: Form) -> FormData | None:
        """The data of a form that is none of tiles."""
        if form.loads in LOADS:
            return None
        assert self.other is not None and self.other.name == form.loads, "a form that this kernel does not have"
        return self.other

    def form(
        self, tensors: Sequence[torch.Tensor], sizes: Mapping[str, int | float], loads: str, other: bool = False
    ) -> Form:
        """The form for these tensors (inputs, then outputs): descriptors only where `loads` says so, and the `other`
        form, if asked for, where it serves them."""
        # Lengths alone change nothing, but for the strides of temporaries.
        lengths, wide = tuple(sizes.values()) if self.declared.temporaries else (), not self.has_room(sizes)
        key = (loads, other, wide, lengths, *((t.stride(), t.data_ptr() % 16) for t in tensors))
        if key not in self._chosen:
            if len(self._chosen) >= 256:
                self._chosen.clear()
            brought = self._brought(tensors, sizes, wide)
            if other and self.other is not None and self.other.serves(brought):
                self._chosen[key] = Form(self.other.name)
            else:
                self._chosen[key] = self._on_tiles(brought, sizes, loads)
        return self._chosen[key]

    def _brought(self, tensors: Sequence[torch.Tensor], sizes: Mapping[str, int | float], wide: bool) -> Tensors:
        p = self.declared
        named = dict(zip((b.name for b in (*p.inputs, *p.outputs)), tensors, strict=True))
        strides: dict[str, Sequence[int]] = {n: t.stride() for n, t in named.items()}
        strides |= {b.name: _dense(b, sizes) for b in p.temporaries}
        return Tensors(named, strides, {b.name: DTYPES[b.dtype].bits // 8 for b in p.temporaries}, wide)

    def _on_tiles(self, tensors: Tensors, sizes: Mapping[str, int | float], loads: str) -> Form:
        if loads == "descriptor" and not all(on_16_bytes(tensors.named[n]) for n in self.by_loads[loads].aligned):
            loads = "pointer"
        tunables = {**covers(self.declared, sizes), **self.params}
        return Form(loads, tensors.wide or not int32_suffices(self.by_loads[loads].spans, tensors.strides, tunables))


class Declares(Protocol):
    """A program of either kind, as far as its tunables matter."""

    @property
    def tunables(self) -> tuple[Tunable, ...]: ...


def covers(program: Declares, sizes: Mapping[str, int | float]) -> dict[str, int]:
    """The values of tunables that cover a size: the smallest power of two that does."""
    values = {t.name: evaluate_size(t.covers, sizes) for t in program.tunables if t.covers is not None}
    return {name: 1 << max(0, size - 1).bit_length() for name, size in values.items()}


def _dense(b: Buffer, sizes: Mapping[str, int | float]) -> tuple[int, ...]:
    strides = [1]
    for d in reversed(b.shape[1:]):
        strides.insert(0, strides[0] * evaluate_size(d, sizes))
    return tuple(strides)
