"""Recording: the launches that a generated launch function makes, and the plan of a call from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MappingProxyType
from typing import Any, TypeAlias

from torch import Tensor

from neptune.runtime.launching.plans import Block, Hole, Plan, Step
from neptune.runtime.machine_code.descriptors import sound_options

NO_VALUES: Mapping[str, Mapping[str, int]] = MappingProxyType({})
Launcher: TypeAlias = Callable[[Any], Any]
"""A kernel → what is launched in its place, by `[grid](*arguments)`: torch.library.wrap_triton is one."""
LAUNCHER = "launcher"
"""The argument of a generated launch function by which its caller sees every kernel before its launch."""
KEPT = "kept"
"""An attribute that a launch function gives a tensor that is the same for all calls of its key, such as a table of the
order of tiles: a plan keeps it."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One launch as the launch function made it."""

    compiled: Any
    grid: tuple[int, ...]
    values: tuple[Any, ...]


class _Recorder:
    """Stands for a kernel in the launch function: launches it and notes the call."""

    def __init__(self, kernel: Any, log: list[Recorded], own: Mapping[str, int]) -> None:
        self._kernel, self._log, self._own = kernel, log, own

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **keywords: Any) -> None:
            keywords |= self._own
            # Compiled first: wrong code is not run, as it might end the process.
            options = sound_options(partial(self._kernel.warmup, *args, grid=grid, **keywords))
            compiled = self._kernel[grid](*args, **keywords, **options)
            names = self._kernel.arg_names[len(args) :]
            self._log.append(Recorded(compiled, grid, (*args, *(keywords[n] for n in names))))

        return launch


def recording(
    launch: Callable[..., None], kind: type, own: Mapping[str, Mapping[str, int]] = NO_VALUES
) -> tuple[Callable[..., None], list[Recorded]]:
    """A generated launch function that notes each launch of a kernel (an instance of `kind`); `own` are values of
    single kernels, by name."""
    log: list[Recorded] = []
    return launching(launch, kind, lambda kernel: _Recorder(kernel, log, own.get(kernel.__name__, {}))), log


def launching(launch: Callable[..., None], kind: type, launcher: Launcher) -> Callable[..., None]:
    """A generated launch function whose kernels (instances of `kind`) are launched as `launcher` says."""
    if LAUNCHER in (getattr(launch, "__kwdefaults__", None) or {}):
        return partial(launch, **{LAUNCHER: launcher})
    # Saved before launch functions took it: a copy, with its kernels replaced.
    assert isinstance(launch, FunctionType)
    kernels = {n: launcher(k) for n, k in launch.__globals__.items() if isinstance(k, kind)}
    copy = FunctionType(launch.__code__, {**launch.__globals__, **kernels}, launch.__name__, launch.__defaults__)
    copy.__kwdefaults__ = launch.__kwdefaults__
    return copy


def with_values(launcher: Launcher, own: Mapping[str, Mapping[str, int]]) -> Launcher:
    """The launcher, for whose launches values of single kernels, by name, replace those of all."""

    def other(kernel: Any) -> Any:
        values = own.get(kernel.__name__)
        return launcher(kernel) if values is None else _WithValues(launcher(kernel), values)

    return other if own else launcher


class _WithValues:
    """Stands for a kernel in the launch function: launches it with some values replaced."""

    def __init__(self, kernel: Any, values: Mapping[str, int]) -> None:
        self._kernel, self._values = kernel, values

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        return lambda *args, **keywords: self._kernel[grid](*args, **{**keywords, **self._values})


def make_plan(
    recorded: Sequence[Recorded],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    scalars: Sequence[float],
    start: int | None = None,
) -> Plan | None:
    """The plan of a call's launches; None where a launch has an argument that this does not understand.

    The scalars must be distinct objects: they are recognised by identity. `start` is the address of the caller's
    workspace, where the temporaries lie in one.
    """
    from triton import knobs
    from triton.runtime.driver import driver

    known = [*inputs, *outputs, *scalars]
    temporaries: list[Tensor] = []
    steps = []
    for r in recorded:
        step = _step(r, known, temporaries)
        if step is None:
            return None
        steps.append(step)
    blocks = tuple(Block.like(t) for t in outputs)
    active = driver.active
    temporary_blocks = tuple(Block.like(t) for t in temporaries)
    spans = tuple(_span(t) for t in (*inputs, *outputs))
    offsets = None if start is None else tuple(t.data_ptr() - start for t in temporaries)
    return Plan(
        tuple(steps), blocks, temporary_blocks, spans, active.get_current_device(), active, knobs.runtime, offsets
    )


def _step(r: Recorded, known: Sequence[Any], temporaries: list[Tensor]) -> Step | None:
    if r.compiled is None or not 1 <= len(r.grid) <= 3:
        return None

    def number(x: Any) -> int:
        """The place of an argument among all; a tensor that nobody gave is a temporary."""
        for k, other in enumerate((*known, *temporaries)):
            if x is other:
                return k
        temporaries.append(x)
        return len(known) + len(temporaries) - 1

    values: list[Any] = list(r.values)
    holes: list[Hole] = []
    for k, value in enumerate(r.values):
        if isinstance(value, Tensor) and getattr(value, KEPT, False):
            continue
        if isinstance(value, Tensor):
            holes.append((k, number(value), None))
        elif isinstance(getattr(value, "base", None), Tensor):
            fields = {n: v for n, v in vars(value).items() if n != "base"}
            holes.append((k, number(value.base), (type(value), fields)))
        elif isinstance(value, float) and any(value is x for x in known):
            holes.append((k, number(value), None))
        elif value is None or isinstance(value, int | float | str):
            continue
        else:
            return None
        values[k] = None
    x, y, z = (*map(int, r.grid), 1, 1)[:3]
    return Step(r.compiled, (x, y, z), tuple(values), tuple(holes))


def distinct_floats(values: Sequence[int | float]) -> list[int | float]:
    """The same numbers; floats as objects of their own."""
    # x * 1.0 is a new object with the same bits, of -0.0 and NaN too.
    return [v * 1.0 if isinstance(v, float) else v for v in values]


def _span(t: Tensor) -> int:
    reach = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) + 1
    return int(reach * t.element_size()) if t.numel() else 0
