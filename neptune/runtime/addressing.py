"""Requirements of generated modules on the tensors they are called with, as plain data, and their tests.

A program has up to four modules: loads through pointers or through descriptors, each with int32 or int64 tile
offsets. The module with pointers and int64 offsets takes any tensors whose last dimension is dense. Of the
others, descriptors want alignment (`Addressing.aligned`), int32 offsets want strides that are not huge
(`Addressing.spans`, `int32_suffices`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neptune.errors import InternalError
from neptune.ir.expr import Const, Expr, Var
from neptune.ir.spans import Span
from neptune.runtime.parts import Parts

LOADS = ("pointer", "descriptor")
"""The ways in which a module may address memory."""
ASYNCHRONOUS = "asynchronous"
"""The form of `Asynchronous`, beside the ways in which a module of tiles may address memory."""
LIMIT = 2**31


@dataclass(frozen=True, slots=True)
class KernelParameters:
    """The types that a real launch finds for a kernel's parameters, whatever the values of tunables: by name
    ("constexpr" for a tunable), and the names of those that are divisible by 16. The type of a descriptor is that of
    its elements, and `boxes` has its extents: numbers, or names of tunables."""

    function: str
    types: Mapping[str, str]
    boxes: Mapping[str, Sequence[int | str]]
    aligned: tuple[str, ...]


@dataclass(frozen=True)
class Addressing:
    """The modules that load in one way: their texts, with int32 and with int64 tile offsets, and what they ask.

    `aligned` are the inputs and outputs that go through descriptors, `spans` what int32 offsets add up
    (see `int32_suffices`), `kernels` the parameters that offline compilation wants.
    """

    texts: tuple[str, str]
    aligned: tuple[str, ...]
    spans: tuple[Span, ...]
    kernels: tuple[KernelParameters, ...]


@dataclass(frozen=True)
class Roles:
    """One asynchronous kernel: the parameters that offline compilation wants, its `levers` as plain numbers and words,
    tile sizes among them, and the registers of a consumer's thread and of the producer's that it asks for."""

    kernel: KernelParameters
    levers: Mapping[str, int | str]
    registers: tuple[int, int]


@dataclass(frozen=True)
class Asynchronous:
    """The module of the form in which a producer warp loads for warpgroups that compute (sm_90), and what it asks.

    `text` is the module, of tile sizes of its own, which `levers` names with the other choices, as plain numbers and
    words; it runs on `architecture`, "cuda:90". `aligned` are the inputs and outputs that go through descriptors,
    `kernel` the parameters that offline compilation wants, `spans` what its int32 offsets add up. `record` is the
    verdict on what was compiled, None where there is none yet: it runs where it is accepted, and the other forms run
    everywhere. One that is `forced` runs though the Triton form is faster. `others` are further asynchronous kernels of
    the module, behind `kernel`; of kernels that stay on tiles it `takes` the values of these parameters. `parts` is how
    its launches choose numbers, by groups and tiles of its own.
    """

    text: str
    aligned: tuple[str, ...]
    kernel: KernelParameters
    levers: Mapping[str, int | str]
    architecture: str
    record: Mapping[str, Any] | None = None
    spans: tuple[Span, ...] = ()
    forced: bool = False
    others: tuple[Roles, ...] = ()
    takes: tuple[str, ...] = ()
    parts: tuple[Parts, ...] = ()

    @property
    def functions(self) -> tuple[str, ...]:
        """The names of its asynchronous kernels."""
        return (self.kernel.function, *(x.kernel.function for x in self.others))


def int32_suffices(spans: Iterable[Span], strides: Mapping[str, Sequence[int]], tunables: Mapping[str, int]) -> bool:
    """True where no offset within a tile reaches 2**31 elements.

    `strides` has those of each tensor by name; a temporary that is not in it is checked as if it were dense
    and small. False asks for the module with `int64_offsets`.

    >>> int32_suffices([Span("x", ((0, Var("BLOCK"), 1),))], {"x": (1 << 24, 1)}, {"BLOCK": 128})
    True
    >>> int32_suffices([Span("x", ((0, Var("BLOCK"), 1),))], {"x": (1 << 25, 1)}, {"BLOCK": 128})
    False
    """
    for span in spans:
        steps = strides.get(span.buffer)
        if steps is not None:
            reach = sum((_value(extent, tunables) - 1) * factor * abs(steps[d]) for d, extent, factor in span.axes)
            if reach >= LIMIT:
                return False
    return True


def extent_of(e: Expr | None) -> int | str:
    """The extent of a tile axis as a number, or the name of a tunable; an axis that is none has one element."""
    match e:
        case None:
            return 1
        case Const(value, _):
            return int(value)
        case Var(name, _):
            return name
        case _:
            raise InternalError(f"the extent of a tile axis is neither a constant nor a tunable: {e}")


def _value(extent: Expr, tunables: Mapping[str, int]) -> int:
    value = extent_of(extent)
    return tunables[value] if isinstance(value, str) else value
