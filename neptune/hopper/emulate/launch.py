"""Whole launches: every program of the grid, one after another, on numpy arrays."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton

from neptune.hopper.emulate.language import language, of_tiles
from neptune.hopper.emulate.machine import Running
from neptune.hopper.emulate.memory import Descriptor, Pointer, Tensor, tensor_of
from neptune.hopper.emulate.text import compiled, execute
from neptune.hopper.emulate.values import round_float32


class Jit:
    """A function under `gluon.jit`: called by others, or launched over a grid."""

    def __init__(self, function: Callable[..., Any], launch: Callable[..., None]) -> None:
        functools.update_wrapper(self, function)
        self.function, self.launch = function, launch

    @functools.cached_property
    def arg_names(self) -> list[str]:
        return list(inspect.signature(self.function).parameters)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.function(*args, **named)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args, **named: self.launch(self, grid, args, named)


def stand_in(machine: Any, launch: Callable[..., None]) -> SimpleNamespace:
    """`triton.experimental.gluon`, for one machine."""

    hopper = SimpleNamespace(TensorDescriptor=Descriptor)
    return SimpleNamespace(jit=_jit(launch), language=language(machine), nvidia=SimpleNamespace(hopper=hopper))


def of_triton(machine: Any, launch: Callable[..., None]) -> SimpleNamespace:
    """`triton`, for the kernels on tiles of the same module."""
    return SimpleNamespace(
        jit=_jit(launch), language=of_tiles(machine), cdiv=triton.cdiv, next_power_of_2=triton.next_power_of_2
    )


def skipped(*_: Any) -> None:
    """A launch that does nothing."""


def _jit(launch: Callable[..., None]) -> Callable[..., Any]:
    def jit_of(function: Any) -> Jit:
        return Jit(function, launch)

    def jit(function: Any = None, **_: Any) -> Any:
        return jit_of if function is None else jit_of(function)

    return jit


class _Proxy:
    """The machine of the program that runs: a module is executed once for all of them."""

    def __init__(self, stub: bool) -> None:
        self.stub = stub
        self.now: Any = None

    def __getattr__(self, name: str) -> Any:
        if name in ("program", "grid"):
            return getattr(self.now, name)
        return lambda *args, **named: getattr(self.now, name)(*args, **named)


Dims = tuple[int, ...]


def loaded(
    source: str,
    machine: Callable[[Dims, Dims, int], Any],
    over: Callable[[Any], None],
    *,
    stub: bool,
    processors: int,
    most: int | None = None,
    only: str = "",
) -> dict[str, Any]:
    """The names of a Gluon module each of whose programs runs on `machine(program, grid, number)`.

    `over` is told of a machine when its program has ended. `stub`: tiles have no values. `most`: of a larger grid only
    so many programs run, evenly from the first to the last. `only`: launches of other functions do nothing; without
    values, those of kernels of Triton do nothing either.
    """
    proxy = _Proxy(stub)

    def launch(kernel: Jit, grid: Any, args: Sequence[Any], named: dict[str, Any]) -> None:
        if only not in ("", kernel.function.__name__):
            return
        dims = ((grid,) if isinstance(grid, int) else tuple(grid)) + (1, 1)
        given = [argument(x) for x in args]
        taken = {k: argument(v) for k, v in named.items() if k in kernel.arg_names}
        programs = list(itertools.product(*(range(n) for n in reversed(dims[:3]))))
        if most is not None and len(programs) > most:
            programs = [programs[i * (len(programs) - 1) // max(most - 1, 1)] for i in range(most)]
        for number, program in enumerate(programs):
            proxy.now = machine(program[::-1], dims[:3], number)
            kernel.function(*given, **taken)
            over(proxy.now)

    plain = of_triton(proxy, skipped if stub else launch)
    return execute(compiled(source), stand_in(proxy, launch), plain, proxy, processors)


def load(
    source: str, *, seed: int = 0, order: str = "late", float32: bool = False, processors: int = 2
) -> dict[str, Any]:
    """The names of a Gluon module whose kernels run here: `load(text)["kernel"][grid](*args, num_warps=4)`.

    The module's own launch function works as well, on CPU tensors of torch; it sees a GPU of that many `processors`.
    See `run` for the rest.
    """

    def machine(program: Dims, grid: Dims, number: int) -> Running:
        round_float32(float32)
        return Running(program, grid, seed + number, order)

    return loaded(source, machine, lambda _: round_float32(False), stub=False, processors=processors)


def argument(x: Any) -> Any:
    """An argument of a launch as a kernel sees it: tensors are pointers."""
    return Pointer(tensor_of(x)) if isinstance(x, Tensor | np.ndarray) or hasattr(x, "detach") else x


def run(
    source: str,
    kernel: str,
    grid: Any,
    args: Sequence[Any],
    *,
    seed: int = 0,
    order: str = "late",
    float32: bool = False,
) -> None:
    """Runs one launch of `kernel` of the module text `source`; results are written into the arrays among `args`.

    `args`: numbers and constexprs as they are; global memory as numpy arrays, CPU tensors of torch or `Tensor`s (those
    numpy has no dtype for); descriptors as `Descriptor(tensor, block)`. `grid`: programs, a number or a tuple.
    `seed`: which roles run ahead, and which copies land first. `order`: "late": copies land only when no role can go
    on; "random"; "eager": at once. `float32`: results of float32 are rounded to it; else they are float64.
    Raises ProtocolError for a deadlock, a barrier or a copy that is used wrongly, a product that is read too early.
    """
    load(source, seed=seed, order=order, float32=float32)[kernel][grid](*args)
