"""Reads the actions of all roles from the text: each role runs by itself, its waits pass, its tiles have no values.

Roles are deterministic: which actions they take depends on numbers and on tensors of integers, not on a tile of floats.
What a role does wrong by itself is found on the way: registers of a product in flight that are read, bound anew or
carried around a loop, and ends with work in flight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from neptune.errors import Unsupported
from neptune.hopper.emulate.launch import Dims, loaded
from neptune.hopper.emulate.machine import role_names
from neptune.hopper.emulate.memory import Buffer, Descriptor, SharedMemory, Slot
from neptune.hopper.emulate.roles import ProtocolError
from neptune.hopper.emulate.stub import Stub, touched
from neptune.hopper.emulate.text import line, scope
from neptune.hopper.protocol.actions import Action, Finding, Trace, number_cells
from neptune.hopper.protocol.local import rules


@dataclass(eq=False)
class _Product:
    """A product in flight: the names of its register operands, and the stubs that it owns."""

    machine: Recording
    line: int
    scope: int
    names: tuple[str, ...]
    in_registers: bool
    owns: list[Stub]
    over: bool = False

    def touched(self) -> None:
        text = "gives, which its wait has not among its deps" if self.over else "owns, before its wait"
        self.machine.find("registers in flight", f"reads what the product of line {self.line} {text}")

    def has(self, x: Any) -> bool:
        return any(x is stub for stub in self.owns)

    def end(self) -> None:
        """Its wait. The result is there for those who get it from a wait; others may read before."""
        self.over = True
        for stub in self.owns[1:]:
            if stub.held is self:
                stub.held = None


@dataclass(eq=False)
class Recording:
    """The machine of a trace, for one program of the grid."""

    program: tuple[int, ...]
    grid: tuple[int, ...]
    names: list[str] = field(default_factory=list)
    roles: list[list[Action]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    stub = True

    def __post_init__(self) -> None:
        self.barriers: list[tuple[str, int]] = []
        self._numbers: dict[int, int] = {}
        self._buffers: list[Buffer] = []
        self._flying: list[_Product] = []
        self._sending = 0
        self._fenced = True
        self._now: list[Action] | None = None

    @property
    def _role(self) -> str:
        return "main" if self._now is None else self.names[len(self.roles) - 1]

    def find(self, kind: str, text: str) -> None:
        finding = Finding(kind, self._role, line(), text)
        if finding not in self.findings:
            self.findings.append(finding)

    def _add(
        self, kind: str, *, barrier: int = -1, number: int = 0, bytes: int = 0, slots: tuple[Slot, ...] = ()
    ) -> None:
        if self._now is None:
            raise Unsupported(f"line {line()}: {kind} outside of every role")
        self._now.append(Action(kind, line(), barrier, number, bytes, slots))

    # Memory.

    def allocate(
        self, dtype: str, shape: Sequence[int], layout: object = None, value: Any = None, name: str = ""
    ) -> SharedMemory:
        buffer = Buffer(name or f"line {line()}", dtype, tuple(shape))
        self._buffers.append(buffer)
        return SharedMemory(self, buffer, buffer.data)

    def load_shared(self, view: SharedMemory, layout: object) -> Stub:
        self._add("load", slots=(view.slot,))
        return Stub()

    def store_shared(self, view: SharedMemory, value: Any) -> None:
        touched(value)
        self._add("store", slots=(view.slot,))

    # Barriers.

    def init(self, view: SharedMemory, count: int) -> None:
        self._numbers[view.barrier] = len(self.barriers)
        self.barriers.append((str(view.slot), count))
        self._fenced = False

    def invalidate(self, view: SharedMemory) -> None:
        self._barrier(view)

    def _barrier(self, view: SharedMemory) -> int:
        number = self._numbers.get(view.barrier)
        if number is None:
            raise ProtocolError(f"{self._role}, line {line()}: {view.slot} is no barrier: nothing has initialised it")
        return number

    def wait(self, view: SharedMemory, phase: Any, pred: Any = True, deps: Any = ()) -> None:
        if pred:
            self._add("wait", barrier=self._barrier(view), number=int(phase) & 1)

    def arrive(self, view: SharedMemory, *, count: int = 1, pred: Any = True) -> None:
        if pred:
            self._add("arrive", barrier=self._barrier(view), number=count)

    def expect(self, view: SharedMemory, bytes: int, pred: Any = True) -> None:
        if pred:
            self._add("arrive", barrier=self._barrier(view), number=1, bytes=bytes)

    # Copies.

    def copy_in(
        self, source: Descriptor, coord: Sequence[Any], barrier: SharedMemory, to: SharedMemory, pred: Any = True
    ) -> None:
        if pred:
            self._fits(source, to)
            self._add("copy", barrier=self._barrier(barrier), bytes=source.bytes, slots=(to.slot,))

    def _fits(self, box: Descriptor, slot: SharedMemory) -> None:
        if (math.prod(box.block), box.dtype) != (math.prod(slot.shape), slot.dtype):
            text = f"a box {box.block} of {box.dtype} is copied to or from {slot.slot}: {slot.shape} of {slot.dtype}"
            self.find("box", text)

    def copy_out(self, target: Descriptor, coord: Sequence[Any], source: SharedMemory) -> None:
        self._fits(target, source)
        self._sending += 1
        self._add("send", slots=(source.slot,))

    def copies_out_wait(self, pendings: int = 0) -> None:
        self._sending = min(self._sending, pendings)
        self._add("sent", number=pendings)

    # Products.

    def product(
        self, a: Any, b: SharedMemory, acc: Any, *, use_acc: Any = True, precision: Any = None,
        max_num_imprecise_acc: Any = None, is_async: bool = False, names: str = "",
    ) -> Stub:  # fmt: skip
        result = Stub()
        in_registers = isinstance(a, Stub)
        touched(a)
        slots = (b.slot,) if in_registers else (a.slot, b.slot)
        self._add("product", slots=slots)
        if not is_async:
            self.products_wait(0, [result])
            return result
        owned = [acc] if use_acc and isinstance(acc, Stub) else []
        known = tuple(names.split(",")) if in_registers or owned else ()
        for earlier in self._flying:
            if owned and earlier.has(acc):
                earlier.owns.append(result)  # a sum goes on in the same registers
        product = _Product(self, line(), scope(), known if in_registers else known[-1:], in_registers, [result, *owned])
        for stub in product.owns:
            stub.held = product
        self._flying.append(product)
        return result

    def products_wait(self, num_outstanding: int = 0, deps: Sequence[Any] | None = None) -> Any:
        if deps is None:
            raise ValueError("warpgroup_mma_wait deps must be given")
        self._add("finish", number=num_outstanding)
        while len(self._flying) > num_outstanding:
            self._flying.pop(0).end()
        for x in deps:
            if isinstance(x, Stub) and x.held is not None and x.held.over:
                x.held = None
        return deps[0] if len(deps) == 1 else tuple(deps)

    # The rest.

    def fence(self, cluster: bool = False) -> None:
        self._fenced = True
        if self._now is not None:
            self._add("fence")

    def sync(self) -> None:
        if self._now is not None:
            self._add("sync")

    def loop(self, iterable: Any) -> Iterator[Any]:
        unrolled = isinstance(iterable, list)
        for number, x in enumerate(iterable):
            if number and not unrolled:
                self.back_edge()
            yield x

    def back_edge(self) -> None:
        for product in self._flying:
            if product.in_registers:
                self.find(
                    "product around a loop",
                    f"the product of line {product.line}, whose left operand is in registers, is in flight at the end "
                    "of an iteration: the compiler overwrites them",
                )

    def bound(self, name: str, value: Any) -> None:
        """A name of the text has a new value (which may be the product itself, handed through a wait for others)."""
        for product in self._flying:
            if name in product.names and product.scope == scope() and not product.has(value):
                self.find("registers in flight", f"{name} is bound anew under the product of line {product.line}")

    def specialise(self, roles: Sequence[tuple[Any, tuple[Any, ...]]], warps: Any = (), registers: Any = ()) -> None:
        if not self._fenced:
            self.find("fence", "barriers are initialised, and no fence_async_shared follows")
        self.names = role_names([getattr(f, "__name__", "role") for f, _ in roles])
        for function, args in roles:
            self._now = []
            self.roles.append(self._now)
            self._flying, self._sending = [], 0
            function(*args)
            if self._flying:
                self.find("end", f"the product of line {self._flying[0].line} is in flight at the end")
            if self._sending:
                self.find("end", "a store through shared memory is in flight at the end")
        self._now = None


def traces(
    source: str,
    call: Callable[[dict[str, Any]], object],
    processors: int = 2,
    most: int | None = None,
    only: str = "",
) -> list[Trace]:
    """The actions of each role of every program that `call` launches, which gets the names of the module.

    It may launch a kernel, as `lambda m: m["kernel"][grid](*args)`, or call the module's launch function. Tensors of
    floats may hold anything, and are not written. `most`: so many programs of a launch, evenly from first to last.
    `only`: launches of other functions do nothing.
    Raises Unsupported where what a role does depends on floats.
    """
    programs: list[Trace] = []

    def over(machine: Recording) -> None:
        cells = number_cells(machine.roles)
        trace = Trace(machine.names, machine.roles, machine.barriers, machine.findings, cells)
        trace.findings.extend(dict.fromkeys(rules(trace)))
        programs.append(trace)

    def machine(program: Dims, grid: Dims, _: int) -> Recording:
        return Recording(program, grid)

    call(loaded(source, machine, over, stub=True, processors=processors, most=most, only=only))
    return programs


def trace(source: str, kernel: str, grid: Any, args: Sequence[Any], program: int = 0) -> Trace:
    """The actions of each role of one program of a launch; arguments are those of `neptune.hopper.emulate.run`."""
    return traces(source, lambda m: m[kernel][grid](*args))[program]
