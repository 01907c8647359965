"""The forms of a kernel's Triton module, and which of them a call needs.

Descriptors want tensors on 16 bytes, int32 tile offsets want strides that are not huge; the module with
pointers and int64 offsets takes everything. On sm_90 some kernels have an asynchronous form, which wants what
descriptors want, and a verdict on what was compiled (`neptune.hopper.accept`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch

from neptune.ir.dtypes import DTYPES
from neptune.ir.integers import evaluate_size
from neptune.ir.parser import parse_program
from neptune.ir.program import Buffer, Program, Tunable
from neptune.runtime.addressing import ASYNCHRONOUS, Addressing, Asynchronous, int32_suffices


@dataclass(frozen=True, slots=True)
class Form:
    """A module's way to address memory: `loads` "pointer" or "descriptor", and the width of tile offsets."""

    loads: str = "pointer"
    int64_offsets: bool = False

    def __str__(self) -> str:
        if self.loads == ASYNCHRONOUS:
            return "the asynchronous form"
        return f"the form with {self.loads} loads and {'int64' if self.int64_offsets else 'int32'} offsets"


@dataclass(frozen=True)
class Modules:
    """The modules of one kernel; `declarations` is the text of its parameters, `params` the values of its free
    tunables, num_warps and num_stages, and `of_one` those of single launches, by the function's name. `has_room` says
    of sizes whether index arithmetic stays in int32, `runs` by the compiler's settings whether a record is accepted."""

    by_loads: Mapping[str, Addressing]
    declarations: str
    params: Mapping[str, int]
    of_one: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    asynchronous: Asynchronous | None = None
    has_room: Callable[[Mapping[str, int | float]], bool] = lambda sizes: True
    runs: dict[tuple[str | None, ...], bool] = field(default_factory=dict, init=False, repr=False)
    _chosen: dict[tuple[object, ...], Form] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def declared(self) -> Program:
        """The parameters: a Program without a body."""
        return parse_program(self.declarations)

    def source(self, form: Form) -> str:
        """The module's text."""
        if form.loads == ASYNCHRONOUS:
            assert self.asynchronous is not None, "a form that this kernel does not have"
            return self.asynchronous.text
        return self.by_loads[form.loads].texts[form.int64_offsets]

    def values(self, form: Form) -> dict[str, int]:
        """The tunables, warps and stages that the module's launch function takes: tile sizes of asynchronous kernels
        are in their text."""
        if form.loads != ASYNCHRONOUS:
            return dict(self.params)
        assert self.asynchronous is not None
        return {n: v for n, v in self.params.items() if n in self.asynchronous.takes}

    def values_of_one(self, form: Form) -> Mapping[str, Mapping[str, int]]:
        """Those of single launches."""
        if form.loads != ASYNCHRONOUS:
            return self.of_one
        assert self.asynchronous is not None
        return {f: values for f, values in self.of_one.items() if f not in self.asynchronous.functions}

    def form(self, tensors: Sequence[torch.Tensor], sizes: Mapping[str, int | float], loads: str) -> Form:
        """The form for these tensors (inputs, then outputs): descriptors only where `loads` says so, and where it says
        "asynchronous", that form for tensors that it takes, else descriptors."""
        # Lengths alone change nothing, but for the strides of temporaries.
        lengths, wide = tuple(sizes.values()) if self.declared.temporaries else (), not self.has_room(sizes)
        key = (loads, wide, lengths, *((t.stride(), t.data_ptr() % 16) for t in tensors))
        if key not in self._chosen:
            if len(self._chosen) >= 256:
                self._chosen.clear()
            self._chosen[key] = self._form(tensors, sizes, loads, wide)
        return self._chosen[key]

    def _form(self, tensors: Sequence[torch.Tensor], sizes: Mapping[str, int | float], loads: str, wide: bool) -> Form:
        p = self.declared
        named = dict(zip((b.name for b in (*p.inputs, *p.outputs)), tensors, strict=True))
        strides: dict[str, Sequence[int]] = {n: t.stride() for n, t in named.items()}
        strides |= {b.name: _dense(b, sizes) for b in p.temporaries}
        if loads == ASYNCHRONOUS:
            of = self.asynchronous
            if (
                of is not None
                and not wide
                and self._on_16_bytes(of.aligned, named, strides)
                and int32_suffices(of.spans, strides, {})
            ):
                return Form(ASYNCHRONOUS)
            loads = "descriptor"
        if loads == "descriptor" and not all(on_16_bytes(named[n]) for n in self.by_loads[loads].aligned):
            loads = "pointer"
        tunables = {**covers(p, sizes), **self.params}
        return Form(loads, wide or not int32_suffices(self.by_loads[loads].spans, strides, tunables))

    def _on_16_bytes(
        self, of: Sequence[str], named: Mapping[str, torch.Tensor], strides: Mapping[str, Sequence[int]]
    ) -> bool:
        """True if the rows of tensors start at multiples of 16 bytes; memory for temporaries does."""
        sizes = {b.name: DTYPES[b.dtype].bits // 8 for b in self.declared.temporaries}
        return all(
            on_16_bytes(named[n]) if n in named else all(s * sizes[n] % 16 == 0 for s in strides[n][:-1]) for n in of
        )


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


def on_16_bytes(x: torch.Tensor) -> bool:
    """True if the address of every row of `x` is a multiple of 16, which tensor descriptors need.

    >>> on_16_bytes(torch.zeros(4, 64, dtype=torch.float16)), on_16_bytes(torch.zeros(4, 63, dtype=torch.float16))
    (True, False)
    """
    size = x.element_size()
    return x.data_ptr() % 16 == 0 and all(s * size % 16 == 0 for s in x.stride()[:-1])
