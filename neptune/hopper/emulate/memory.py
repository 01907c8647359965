"""Global and shared memory: tensors, pointers, descriptors and their boxes, buffers and views of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from neptune.hopper.emulate.roles import ProtocolError
from neptune.hopper.emulate.values import Array, Tile, is_float, rounded
from neptune.ir.dtypes import DTYPES
from neptune.ir.evaluate.floats import decode, encode


class Tensor:
    """Global memory: a numpy array and the dtype of its elements.

    numpy has no bfloat16 and no float8: such a tensor is an array of float32 (or float64) that holds their values, or
    one of integers that holds their bits (as torch's `view(torch.int16)`).

    >>> Tensor(np.zeros((2, 3), np.float16)).dtype, Tensor(np.zeros((2, 3), np.float32), "bfloat16").dtype
    ('float16', 'bfloat16')
    """

    def __init__(self, array: Array, dtype: str | None = None) -> None:
        self.array, self.dtype = array, dtype or str(array.dtype)
        if self.dtype not in DTYPES:
            raise TypeError(f"a tensor of {self.dtype}")
        self.coded = is_float(self.dtype) and array.dtype.kind in "iu"

    @cached_property
    def flat(self) -> Tensor:
        """The elements between the first and the last one, gaps of strides included."""
        array = self.array
        extent = 1 + sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)) // array.itemsize
        return Tensor(np.lib.stride_tricks.as_strided(array, (extent,), (array.itemsize,)), self.dtype)

    def read(self, index: Any) -> Array:
        raw = self.array[index]
        if not self.coded:
            return np.asarray(raw, np.float64 if is_float(self.dtype) else np.int64)
        if self.dtype == "bfloat16":
            bits = raw.astype(np.uint16).astype(np.uint32) << 16
            return np.asarray(bits.view(np.float32), np.float64)
        return decode(raw.astype(np.uint8), self.dtype).astype(np.float64)

    def write(self, index: Any, values: Array) -> None:
        values = rounded(values, self.dtype)
        if not self.coded:
            with np.errstate(over="ignore", invalid="ignore"):
                self.array[index] = values
        elif self.dtype == "bfloat16":
            bits = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
            self.array[index] = bits.view(np.int16) if self.array.dtype.kind == "i" else bits
        else:
            self.array[index] = encode(values, self.dtype)


def tensor_of(x: Any) -> Tensor:
    """A tensor from a numpy array, a CPU tensor of torch (which it shares memory with), or one itself."""
    if isinstance(x, Tensor):
        return x
    if isinstance(x, np.ndarray):
        return Tensor(x)
    import torch

    x = x.detach()
    dtype = str(x.dtype).removeprefix("torch.")
    bits = {"bfloat16": torch.int16, "float8_e4m3fn": torch.uint8, "float8_e5m2": torch.uint8}.get(dtype)
    return Tensor((x.view(bits) if bits else x).numpy(), dtype)


class Pointer:
    """Addresses of elements: a tensor's storage and a number, or a tile of numbers, of elements from its first one."""

    def __init__(self, tensor: Tensor, offset: Any = 0) -> None:
        self.tensor, self.offset = tensor, offset

    @property
    def flat(self) -> Tensor:
        return self.tensor.flat

    @property
    def dtype(self) -> Any:
        return self.tensor.dtype

    def __add__(self, more: Any) -> Pointer:
        return Pointer(self.tensor, self.offset + more)

    __radd__ = __add__

    def to(self, *_: Any, **__: Any) -> Pointer:
        return self

    def _positions(self, mask: Any) -> tuple[Array, Array]:
        positions = np.asarray(self.offset.data if isinstance(self.offset, Tile) else self.offset)
        on = np.asarray(True if mask is None else mask.data if isinstance(mask, Tile) else mask)
        positions, on = np.broadcast_arrays(positions, on)
        outside = on & ((positions < 0) | (positions >= len(self.flat.array)))
        if outside.any():
            raise IndexError(f"element {int(positions[outside][0])} of a tensor of {len(self.flat.array)}")
        return positions, on

    def load(self, mask: Any = None, other: Any = None) -> Any:
        positions, on = self._positions(mask)
        known = self.flat.read(np.where(on, positions, 0))
        missing: Any = (math.nan if is_float(self.dtype) else 0) if other is None else other
        data = np.where(on, known, missing.data if isinstance(missing, Tile) else missing)
        if data.ndim:
            return Tile(data, self.dtype)
        return float(data) if is_float(self.dtype) else int(data)

    def store(self, value: Any, mask: Any = None) -> None:
        positions, on = self._positions(mask)
        data = np.broadcast_to(value.data if isinstance(value, Tile) else np.asarray(value), positions.shape)
        self.flat.write(positions[on], data[on])


@dataclass
class Descriptor:
    """A tensor of a TMA unit: boxes of `block` elements, of which those outside read as zero and are not written."""

    tensor: Tensor
    block: tuple[int, ...]
    layout: object = None

    @staticmethod
    def from_tensor(x: Any, block_shape: Sequence[int], layout: object = None, padding: str = "zero") -> Descriptor:
        if padding != "zero":
            raise NotImplementedError(f"boxes padded with {padding}")
        return Descriptor(tensor_of(x), tuple(block_shape), layout)

    def __post_init__(self) -> None:
        if len(self.block) != self.tensor.array.ndim:
            raise ValueError(f"a box of {len(self.block)} dims over a tensor of {self.tensor.array.ndim}")

    @property
    def dtype(self) -> str:
        return self.tensor.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.array.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(s // self.tensor.array.itemsize for s in self.tensor.array.strides)

    @property
    def block_shape(self) -> tuple[int, ...]:
        return self.block

    @property
    def bytes(self) -> int:
        return math.prod(self.block) * DTYPES[self.dtype].bits // 8

    def _inside(self, coord: Sequence[int]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Where the box lies in the tensor, and which part of the box that is."""
        there, here = [], []
        for start, extent, length in zip(coord, self.block, self.shape, strict=True):
            low, high = max(start, 0), max(min(start + extent, length), max(start, 0))
            there.append(slice(low, high))
            here.append(slice(low - start, high - start))
        return tuple(there), tuple(here)

    def read(self, coord: Sequence[int]) -> Array:
        there, here = self._inside(coord)
        box = np.zeros(self.block)
        box[here] = self.tensor.read(there)
        return box

    def write(self, coord: Sequence[int], box: Array) -> None:
        there, here = self._inside(coord)
        self.tensor.write(there, box[here])


_SERIAL = itertools.count()


@dataclass(eq=False)
class Buffer:
    """One allocation of shared memory, named as the text names it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Array = field(init=False)
    serial: int = field(default_factory=lambda: next(_SERIAL))

    def __post_init__(self) -> None:
        if not all(n > 0 for n in self.shape):
            raise ProtocolError(f"{self.name}: an allocation of {list(self.shape)} elements, which is no memory")
        self.data = np.full(self.shape, np.nan if is_float(self.dtype) else 0)


@dataclass(frozen=True)
class Slot:
    """The part of a buffer that an access touches: some of its first indices, known."""

    buffer: str
    serial: int
    index: tuple[int, ...]

    def __str__(self) -> str:
        return self.buffer + "".join(f"[{i}]" for i in self.index)

    def meets(self, other: Slot) -> bool:
        """Whether the two have memory in common."""
        return self.serial == other.serial and all(a == b for a, b in zip(self.index, other.index, strict=False))


class SharedMemory:
    """A view of a buffer: `gl.shared_memory_descriptor`. The machine is told of every load and store."""

    def __init__(
        self, machine: Any, buffer: Buffer, data: Array, index: tuple[int, ...] = (), exact: bool = True
    ) -> None:
        self.machine, self.buffer, self.data = machine, buffer, data
        self._index, self._whole = index, exact
        self._parts: dict[int, SharedMemory] = {}

    @cached_property
    def barrier(self) -> int:
        """The address of what is a barrier, one int64; others may lie at that of what has no elements."""
        if self.shape != (1,) or self.dtype != "int64":
            raise ProtocolError(f"{self.slot} is no barrier: {list(self.shape)} of {self.dtype}, and not one int64")
        return int(self.data.__array_interface__["data"][0])

    @cached_property
    def slot(self) -> Slot:
        return Slot(self.buffer.name, self.buffer.serial, self._index)

    @property
    def dtype(self) -> str:
        return self.buffer.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    @property
    def bytes(self) -> int:
        return self.data.size * DTYPES[self.dtype].bits // 8

    def index(self, i: Any) -> SharedMemory:
        i = int(i)
        if i in self._parts:
            return self._parts[i]
        if not 0 <= i < len(self.data):
            raise IndexError(f"{self.slot}[{i}] of {len(self.data)}")
        # Once a view is reshaped its indices no longer say which part of the buffer it is: the whole is taken for it.
        part = self._parts[i] = self._view(self.data[i], (*self._index, i) if self._whole else self._index)
        return part

    def slice(self, start: int, length: int, dim: int = 0) -> SharedMemory:
        where = [slice(None)] * self.data.ndim
        where[dim] = slice(start, start + length)
        return self._view(self.data[tuple(where)], self._index, False)

    def permute(self, order: Sequence[int]) -> SharedMemory:
        return self._view(self.data.transpose(tuple(order)), self._index, False)

    def reshape(self, shape: Sequence[int]) -> SharedMemory:
        view = self.data.view()
        view.shape = tuple(shape)  # raises where that takes a copy
        return self._view(view, self._index, False)

    def _view(self, data: Array, index: tuple[int, ...], exact: bool = True) -> SharedMemory:
        return SharedMemory(self.machine, self.buffer, data, index, exact and self._whole)

    def load(self, layout: object = None) -> Any:
        return self.machine.load_shared(self, layout)

    def store(self, value: Any) -> None:
        self.machine.store_shared(self, value)

    def _keep_alive(self) -> None:
        """Gluon does not give the buffer to another one before here; buffers are never shared in this machine."""
