"""One program of the grid: its shared memory, barriers, copies and products in flight, its roles.

Everything asynchronous happens as late as the waits of the text allow, or at random before. Buffers hold NaN until a
copy lands in them, from when the last consumer releases them, and while a copy into them is in flight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neptune.hopper.emulate.memory import Buffer, Descriptor, SharedMemory
from neptune.hopper.emulate.roles import ProtocolError, Role, Scheduler
from neptune.hopper.emulate.text import line
from neptune.hopper.emulate.values import Tile, is_float

ORDERS = ("late", "random", "eager")
"""When a copy lands: only when no role can go on, at random, at once."""


class Barrier:
    """An mbarrier, as PTX has it: `done` phases are complete, `pending` arrivals and `bytes` are missing in this one.

    `guards`: what was copied in this phase behind a wait for it, and is free again when it completes.
    """

    def __init__(self, name: str, count: int) -> None:
        self.name, self.count, self.pending, self.bytes, self.done = name, count, count, 0, 0
        self.guards: list[SharedMemory] = []

    def passes(self, parity: int) -> bool:
        """Whether the phase before this one has that parity (a fresh barrier's has 1)."""
        return (self.done - 1) & 1 == parity

    def changed(self) -> bool:
        """After an arrival or a copy: whether that has completed the phase."""
        if self.pending or self.bytes:
            return False
        self.done, self.pending = self.done + 1, self.count
        return True

    def __str__(self) -> str:
        missing = [f"{self.pending} arrivals"] if self.pending else []
        missing += [f"{self.bytes} bytes"] if self.bytes else []
        return f"{self.name} ({self.done} phases complete, missing {' and '.join(missing)})"


@dataclass(eq=False)
class Product:
    """`result = a @ b + c`, in flight until `result` is there."""

    line: int
    a: Any
    b: SharedMemory
    c: Any
    dtype: str
    layout: object
    result: Tile | None = None

    def run(self) -> None:
        with np.errstate(all="ignore"):
            total = self.a.data @ self.b.data
            if self.c is not None:
                c: Any = self.c.product.result if isinstance(self.c, InFlight) else self.c
                total = total + c.data
        self.result = Tile(total, self.dtype, self.layout)


class InFlight:
    """The result of an asynchronous product: nothing may be done with it but to wait."""

    def __init__(self, product: Product) -> None:
        self.product = product

    @property
    def dtype(self) -> str:
        return self.product.dtype

    def __getattr__(self, name: str) -> Any:
        raise ProtocolError(f"line {line()} reads the product of line {self.product.line} before its wait")

    def __getitem__(self, index: Any) -> Any:
        return self.__getattr__("[]")


_OPERATORS = "add radd sub rsub mul rmul truediv rtruediv neg lt le gt ge"
for _name in _OPERATORS.split():
    setattr(InFlight, f"__{_name}__", lambda self, *_: self.__getattr__("data"))


@dataclass(eq=False)
class CopyIn:
    """A copy from device memory into a stage, under way until it lands on its barrier."""

    line: int
    role: str
    source: Descriptor
    coord: tuple[int, ...]
    barrier: Barrier
    to: SharedMemory


@dataclass(eq=False)
class CopyOut:
    """A copy from shared memory to device memory, under way until its source has been read."""

    line: int
    target: Descriptor
    coord: tuple[int, ...]
    source: SharedMemory


class Running:
    """The machine that computes. `order` is one of ORDERS."""

    stub = False

    def __init__(self, program: tuple[int, ...], grid: tuple[int, ...], seed: int, order: str) -> None:
        if order not in ORDERS:
            raise ValueError(f"order {order!r}: one of {', '.join(ORDERS)}")
        self.program, self.grid, self.order = program, grid, order
        self.scheduler = Scheduler(seed, self._land_one)
        self.barriers: dict[int, Barrier] = {}
        self.in_flight: list[CopyIn] = []
        self.main = Role("main", lambda: None)

    @property
    def role(self) -> Role:
        return self.scheduler.role or self.main

    def _error(self, text: str) -> ProtocolError:
        return ProtocolError(f"{self.role.name}, line {line()}: {text}")

    # Memory.

    def allocate(
        self, dtype: str, shape: Sequence[int], layout: object = None, value: Any = None, name: str = ""
    ) -> Any:
        buffer = Buffer(name or f"line {line()}", dtype, tuple(shape))
        view = SharedMemory(self, buffer, buffer.data)
        if value is not None:
            self.store_shared(view, value)
        return view

    def load_shared(self, view: SharedMemory, layout: object) -> Tile:
        self._point()
        return Tile(view.data.copy(), view.dtype, layout)

    def store_shared(self, view: SharedMemory, value: Tile) -> None:
        self._point()
        if tuple(value.shape) != view.shape:
            raise self._error(f"a tile of {value.shape} is stored to {view.slot} of {view.shape}")
        view.data[...] = value.to(view.dtype).data

    # Barriers.

    def init(self, view: SharedMemory, count: int) -> None:
        self.barriers[view.barrier] = Barrier(str(view.slot), count)

    def invalidate(self, view: SharedMemory) -> None:
        self.barriers.pop(view.barrier)

    def _barrier(self, view: SharedMemory) -> Barrier:
        barrier = self.barriers.get(view.barrier)
        if barrier is None:
            raise self._error(f"{view.slot} is no barrier: nothing has initialised it")
        return barrier

    def wait(self, view: SharedMemory, phase: int, pred: Any = True, deps: Any = ()) -> None:
        if not pred:
            return
        barrier, parity = self._barrier(view), int(phase)
        self.scheduler.wait(lambda: barrier.passes(parity), f"line {line()} for parity {parity} of {barrier}")
        if self.role.copied:
            self.role.waits, self.role.copied = [], False
        self.role.waits.append(barrier)

    def arrive(self, view: SharedMemory, *, count: int = 1, pred: Any = True) -> None:
        self._point()
        if pred:
            self._arrive(self._barrier(view), count)

    def expect(self, view: SharedMemory, bytes: int, pred: Any = True) -> None:
        self._point()
        if pred:
            barrier = self._barrier(view)
            barrier.bytes += bytes
            self._arrive(barrier, 1)

    def _arrive(self, barrier: Barrier, count: int) -> None:
        if count > barrier.pending:
            raise self._error(f"{count} arrivals on {barrier}")
        barrier.pending -= count
        self._changed(barrier)

    def _changed(self, barrier: Barrier) -> None:
        if barrier.changed():
            for view in barrier.guards:
                _poison(view)
            barrier.guards = []

    # Copies.

    def copy_in(
        self, source: Descriptor, coord: Sequence[Any], barrier: SharedMemory, to: SharedMemory, pred: Any = True
    ) -> None:
        self._point()
        if not pred:
            return
        if math.prod(to.shape) != math.prod(source.block) or to.dtype != source.dtype:
            raise self._error(
                f"a box {source.block} of {source.dtype} is copied to {to.slot}: {to.shape} of {to.dtype}"
            )
        awaited, role = self._barrier(barrier), self.role
        _poison(to)
        role.copied = True
        if len(role.waits) == 1:  # with more of them nobody knows which one was for this slot
            role.waits[0].guards.append(to)
        self.in_flight.append(CopyIn(line(), role.name, source, tuple(int(i) for i in coord), awaited, to))
        if self.order == "eager":
            self._land()

    def _land(self) -> None:
        """One copy lands while a role has its turn."""
        landed = self._land_one()
        if isinstance(landed, ProtocolError):
            raise landed

    def _land_one(self) -> bool | ProtocolError:
        """One copy lands, any of those in flight; ProtocolError where it brings more than its barrier expects."""
        if not self.in_flight:
            return False
        copy = self.in_flight.pop(self.scheduler.random.randrange(len(self.in_flight)))
        copy.to.data[...] = copy.source.read(copy.coord).reshape(copy.to.shape)
        copy.barrier.bytes -= copy.source.bytes
        # Bytes may land before they are expected, as long as an arrival is missing that can expect them.
        if copy.barrier.bytes < 0 and not copy.barrier.pending:
            more = f"{-copy.barrier.bytes} bytes more are copied than {copy.barrier.name} expects"
            return ProtocolError(f"{copy.role}, line {copy.line}: {more}")
        self._changed(copy.barrier)
        return True

    def copy_out(self, target: Descriptor, coord: Sequence[Any], source: SharedMemory) -> None:
        self._point()
        if math.prod(source.shape) != math.prod(target.block):
            raise self._error(f"{source.slot}: {source.shape} is copied to a box {target.block}")
        self.role.copies_out.append(CopyOut(line(), target, tuple(int(i) for i in coord), source))

    def copies_out_wait(self, pendings: int = 0) -> None:
        self._point()
        self._send(self.role, pendings)

    def _send(self, role: Role, pendings: int) -> None:
        while len(role.copies_out) > pendings:
            copy = role.copies_out.pop(0)
            copy.target.write(copy.coord, copy.source.data.reshape(copy.target.block))

    # Products.

    def product(
        self, a: Any, b: SharedMemory, acc: Any, *, use_acc: Any = True, precision: Any = None,
        max_num_imprecise_acc: Any = None, is_async: bool = False, names: str = "",
    ) -> Any:  # fmt: skip
        self._point()
        if isinstance(acc, InFlight):
            shape, dtype, layout = None, acc.product.dtype, acc.product.layout
        else:
            shape, dtype, layout = acc.shape, acc.dtype, acc.layout
        if isinstance(a, InFlight):
            a.__getattr__("data")
        if a.shape[-1] != b.shape[-2] or (shape and shape != (a.shape[-2], b.shape[-1])):
            raise self._error(f"a product of {a.shape} and {b.shape} into {shape}")
        product = Product(line(), a, b, acc if use_acc else None, dtype, layout)
        self.role.products.append(product)
        if is_async:
            return InFlight(product)
        self._finish(0)
        return product.result

    def products_wait(self, num_outstanding: int = 0, deps: Sequence[Any] | None = None) -> Any:
        if deps is None:
            raise ValueError("warpgroup_mma_wait deps must be given")
        self._point()
        self._finish(num_outstanding)
        known = [x if not isinstance(x, InFlight) or x.product.result is None else x.product.result for x in deps]
        return known[0] if len(known) == 1 else tuple(known)

    def _finish(self, outstanding: int) -> None:
        queue = self.role.products
        while len(queue) > outstanding:
            queue.pop(0).run()

    # The rest.

    def fence(self, cluster: bool = False) -> None:
        self._point()

    def sync(self) -> None:
        self._point()

    def loop(self, iterable: Any) -> Any:
        return iterable

    def bound(self, name: str, value: Any) -> None:
        """A name of the text has a new value: a trace asks, and this machine has no use for it."""

    def specialise(self, roles: Sequence[tuple[Any, tuple[Any, ...]]], warps: Any = (), registers: Any = ()) -> None:
        names = role_names([getattr(f, "__name__", "role") for f, _ in roles])
        self.scheduler.run([Role(name, _bind(f, args, self)) for name, (f, args) in zip(names, roles, strict=True)])

    def _point(self) -> None:
        if self.order == "random" and self.scheduler.random.random() < 0.3:
            self._land()
        self.scheduler.point()

    def over(self, role: Role) -> None:
        """A role has come to its end."""
        if role.products:
            raise self._error(f"the product of line {role.products[0].line} is in flight at the end")
        if role.copies_out:
            raise self._error(f"the store of line {role.copies_out[0].line} is in flight at the end")


def _bind(function: Callable[..., Any], args: tuple[Any, ...], machine: Running) -> Callable[[], None]:
    def work() -> None:
        function(*args)
        machine.over(machine.role)

    return work


def role_names(functions: Sequence[str]) -> list[str]:
    """The roles as errors call them: by function, and those of one function by number."""
    plain = [f.strip("_") for f in functions]
    return [f if plain.count(f) == 1 else f"{f} {plain[:i].count(f)}" for i, f in enumerate(plain)]


def _poison(view: SharedMemory) -> None:
    view.data[...] = math.nan if is_float(view.dtype) else 0
