"""Requirements of generated modules on the tensors they are called with, as plain data, and their tests.

A program has up to four modules: loads through pointers or through descriptors, each with int32 or int64 tile
offsets. The module with pointers and int64 offsets takes any tensors whose last dimension is dense. Of the
others, descriptors want alignment (`Addressing.aligned`), int32 offsets want strides that are not huge
(`Addressing.spans`, `int32_suffices`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from neptune.errors import InternalError
from neptune.ir.expr import Const, Expr, Var
from neptune.ir.integers import Span

if TYPE_CHECKING:
    import torch

Json: TypeAlias = "dict[str, Any]"
LOADS = ("pointer", "descriptor")
"""The ways in which a module may address memory."""
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
class Tensors:
    """What a call brings: tensors of any layout by name, the `strides` of all, temporaries included, and the bytes of
    an element of each temporary. Sizes are `wide` where index arithmetic needs more than 32 bits."""

    named: Mapping[str, torch.Tensor]
    strides: Mapping[str, Sequence[int]]
    bytes: Mapping[str, int]
    wide: bool = False

    def on_16_bytes(self, names: Iterable[str]) -> bool:
        """True if the rows of tensors start at multiples of 16 bytes; memory for temporaries does."""
        return all(
            on_16_bytes(self.named[n])
            if n in self.named
            else all(s * self.bytes[n] % 16 == 0 for s in self.strides[n][:-1])
            for n in names
        )


def on_16_bytes(x: torch.Tensor) -> bool:
    """True if the address of every row of `x` is a multiple of 16, which tensor descriptors need.

    >>> on_16_bytes(torch.zeros(4, 64, dtype=torch.float16)), on_16_bytes(torch.zeros(4, 63, dtype=torch.float16))
    (True, False)
    """
    size = x.element_size()
    return x.data_ptr() % 16 == 0 and all(s * size % 16 == 0 for s in x.stride()[:-1])


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


# --- as plain data ---------------------------------------------------------------------------------


def span_json(s: Span) -> Json:
    """A span as plain data."""
    return {"buffer": s.buffer, "axes": [[dim, extent_of(e), factor] for dim, e, factor in s.axes]}


def read_span(j: Mapping[str, Any]) -> Span:
    """The span that `span_json` gives."""
    return Span(j["buffer"], tuple((dim, _axis_extent(e), factor) for dim, e, factor in j["axes"]))


def kernel_json(k: KernelParameters) -> Json:
    """The parameters of a kernel as plain data."""
    boxes = {name: list(box) for name, box in k.boxes.items()}
    return {"function": k.function, "types": dict(k.types), "boxes": boxes, "aligned": list(k.aligned)}


def read_kernel(j: Mapping[str, Any]) -> KernelParameters:
    """The parameters that `kernel_json` gives."""
    boxes: dict[str, Sequence[int | str]] = {name: tuple(box) for name, box in j["boxes"].items()}
    return KernelParameters(j["function"], dict(j["types"]), boxes, tuple(j["aligned"]))


def _axis_extent(j: int | str) -> Expr:
    return Var(j) if isinstance(j, str) else Const(j, "int32")
