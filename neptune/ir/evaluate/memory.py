"""Buffers of an evaluation: bounds-checked gathers and scatters on index arrays.

An index is a Python int or an int64 array; the arrays of one access broadcast together.  `mask` says
which lanes an access is for (None: all): the other lanes may be out of bounds, and read as anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from neptune.ir.dtypes import is_float
from neptune.ir.evaluate.domains import Array, Domain, EvaluationError, TooLarge, Value, some

Index: TypeAlias = "int | Array"
Mask: TypeAlias = "Array | None"
# What a statement costs beside its elements, in elements.
STATEMENT = 200


@dataclass
class Work:
    """The work that may still be done, in elements: by an evaluation, and with it by all evaluations of a check, to
    which each element counts `times`."""

    left: int
    whole: Work | None = None
    times: int = 1

    def spend(self, elements: int) -> None:
        """Account for some of it; TooLarge where there is no more."""
        self.left -= elements
        if self.left < 0:
            raise TooLarge("the instance takes too much work")
        if self.whole is not None:
            self.whole.spend(self.times * elements)


@dataclass
class Cell:
    """A buffer's storage. `data` is of the domain for floats, else int64 or bool with a `defined` mask.

    `lanes` names the loop variables under whose iterations the buffer is private: its leading dimensions.
    """

    dtype: str
    shape: tuple[int, ...]
    data: Value
    defined: Array | None = None
    lanes: tuple[str, ...] = ()


def spread(x: Array, shape: tuple[int, ...]) -> Array:
    """`x` with this shape. NumPy's own view of it takes longer to make than a copy of what is small."""
    if x.shape == shape:
        return x
    whole = np.empty(shape, x.dtype)
    whole[...] = x
    return whole


def joint_shape(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that arrays of these shapes broadcast to; most often they have one."""
    different = {s for s in shapes if s}
    return different.pop() if len(different) == 1 else np.broadcast_shapes(*different)


def _shape_of(index: Sequence[Index]) -> tuple[int, ...]:
    return joint_shape(map(np.shape, index))


def _any(x: Any) -> bool:
    return some(x) if isinstance(x, np.ndarray) else bool(x)


def _inside(i: Index, n: int) -> bool:
    """Return True if every index lies on an axis of n elements."""
    if isinstance(i, np.ndarray):
        # What is negative is very large without a sign.
        return not i.size or bool(np.maximum.reduce(i.astype(np.int64, copy=False).view(np.uint64), axis=None) < n)
    return bool(0 <= i < n)


class Memory:
    """Named cells over one domain. `budget` is the work that an evaluation may still do (None: any)."""

    def __init__(self, domain: Domain, budget: Work | None = None) -> None:
        self.domain = domain
        self.budget = budget
        self.cells: dict[str, Cell] = {}

    def spend(self, elements: int) -> None:
        """Account for one statement on so many elements; TooLarge where there is no budget left."""
        if self.budget is not None:
            self.budget.spend(STATEMENT + elements)

    def allocate(self, name: str, shape: tuple[int, ...], dtype: str, lanes: tuple[str, ...] = ()) -> None:
        """An undefined buffer."""
        if is_float(dtype):
            self.cells[name] = Cell(dtype, shape, self.domain.undefined(shape), None, lanes)
            return
        data: Array = np.zeros(shape, bool if dtype == "bool" else np.int64)
        self.cells[name] = Cell(dtype, shape, data, np.zeros(shape, bool), lanes)

    def assign(self, name: str, shape: tuple[int, ...], dtype: str, value: Any) -> None:
        """An input."""
        if is_float(dtype):
            data = self.domain.lift(value, dtype)
            given = tuple(self.domain.parts(data)[0].shape)
            cell = Cell(dtype, shape, data)
        else:
            array = np.array(value, bool if dtype == "bool" else np.int64)
            given = array.shape
            cell = Cell(dtype, shape, array)
        if given != shape:
            raise EvaluationError(f"input {name} has shape {given}, not {shape}")
        self.cells[name] = cell

    def _bounded(self, name: str, index: Sequence[Index], mask: Mask, word: str) -> tuple[Index, ...]:
        """The index with inactive lanes clipped; EvaluationError where an active one is out of bounds."""
        cell = self.cells[name]
        if len(index) != len(cell.shape):
            raise EvaluationError(f"{word} of {name} with {len(index)} indices; it has rank {len(cell.shape)}")
        safe: list[Index] = []
        for axis, (i, n) in enumerate(zip(index, cell.shape, strict=True)):
            # The lanes under which a buffer is private are places in it, of which it has one for each.
            if axis >= len(cell.lanes) and not _inside(i, n):
                bad = (i < 0) | (i >= n)
                if mask is None or _any(bad & mask):
                    lanes = bad if mask is None else bad & mask
                    seen = np.broadcast_to(np.asarray(i), np.shape(lanes))[lanes] if np.ndim(lanes) else i
                    first = int(np.ravel(seen)[0])
                    raise EvaluationError(f"{word} of {name} out of bounds: index {first} of axis {axis}, extent {n}")
                i = np.where(bad, 0, i)
            safe.append(i)
        return tuple(safe)

    def load(self, name: str, index: Sequence[Index], mask: Mask) -> Value:
        """The elements at `index`; an array of the domain, or integers."""
        cell = self.cells.get(name)
        if cell is None:
            raise EvaluationError(f"read of {name}, which is not allocated here")
        places = self._bounded(name, index, mask, "read")
        if 0 in cell.shape:  # nothing can be read, so no lane is active
            shape = _shape_of(index)
            return self.domain.undefined(shape) if is_float(cell.dtype) else np.zeros(shape, cell.data.dtype)
        if is_float(cell.dtype):
            return self.domain.make([part[places] for part in self.domain.parts(cell.data)])
        if cell.defined is not None:
            missing = ~cell.defined[places]
            if _any(missing if mask is None else missing & mask):
                raise EvaluationError(f"read of {name} before it is written")
        return cell.data[places]

    def store(self, name: str, index: Sequence[Index], value: Value, mask: Mask) -> None:
        """Write `value` at `index` in the active lanes."""
        cell = self.cells.get(name)
        if cell is None:
            raise EvaluationError(f"write of {name}, which is not allocated here")
        if mask is not None and not _any(mask):
            return
        places = self._bounded(name, index, mask, "write")
        parts = self.domain.parts(value) if is_float(cell.dtype) else (np.asarray(value),)
        targets = self.domain.parts(cell.data) if is_float(cell.dtype) else (cell.data,)
        shape = joint_shape(map(np.shape, (*places, parts[0], *(() if mask is None else (mask,)))))
        where: tuple[Any, ...] = places
        if mask is not None:
            lanes = spread(np.asarray(mask), shape)
            where = tuple(spread(np.asarray(i), shape)[lanes] for i in places)
            parts = tuple(spread(np.asarray(p), shape)[lanes] for p in parts)
            if not places:  # rank 0: one element, the last active lane writes it
                parts = tuple(p[-1] for p in parts)
        elif not places:  # every lane was folded away
            parts = tuple(np.reshape(p, ()) for p in parts)
        elif _shape_of(places) != shape:
            where = tuple(spread(np.asarray(i), shape) for i in places)
        for target, part in zip(targets, parts, strict=True):
            # An array of rank 0 would itself become an element of one that holds objects.
            target[where] = part[()] if isinstance(part, np.ndarray) and part.ndim == 0 else part
        if cell.defined is not None:
            cell.defined[where] = True
