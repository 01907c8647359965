"""Plans: what the first call with some layouts worked out, replayed by later calls with the same layouts.

A first call checks its arguments, picks a form of the module, and goes through the generated launch function and
Triton's own dispatch (some 50 µs of Python). Where shapes, strides, dtypes, devices and alignments are the same, all
of that comes out the same: the checks pass, the grids and the strides are those numbers, and the compiled kernels are
those. So a plan keeps them, with holes where this call's tensors go:

    launch function:  kernel[(cdiv(s_q, 128) * heads,)](q_desc, out, out.stride(0), heads, s_q, BLOCK_M=128)
    plan:             run(64, 1, 1, stream, kernel, …, descriptor of tensor 0, tensor 3, 65536, 8, 1024, 128)

Everything that Triton specialises on (dtypes, alignment of addresses, divisibility of strides, constexprs) is part
of the key or constant in the plan. A plan keeps no tensor alive but tables of the launch function's (`recording.KEPT`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import Parameter

from neptune.base.locks import Lock
from neptune.runtime.calls.workspace import view
from neptune.runtime.transforms import takes_tangents

Key: TypeAlias = tuple[Any, ...]
Hole: TypeAlias = "tuple[int, int, tuple[type, dict[str, Any]] | None]"
PLAIN = (Tensor, Parameter)
"""Classes of tensors that are nothing but tensors; calls with others are checked in full, which may refuse them."""
REMEMBERED = 1024
"""How many plans a kernel keeps; beyond that the oldest goes."""


@dataclass(frozen=True, slots=True)
class Block:
    """Memory to allocate at each call: a result or a temporary."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def like(t: Tensor) -> Block:
        return Block(tuple(t.shape), t.stride(), t.dtype, t.device)

    def make(self) -> Tensor:
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)


@dataclass(frozen=True, slots=True)
class Special:
    """The options of a call beside its arguments: memory for temporaries, and numbers that launches choose."""

    workspace: Any = None
    params: Any = None

    def key(self) -> list[Any] | None:
        """Return the part of the options that a plan depends on; None if the call must be checked in full."""
        if self.workspace is None and self.params is None:
            return []
        own = [] if self.workspace is None else key_of((self.workspace,))
        values = {} if self.params is None else self.params
        if (
            own is None
            or not isinstance(values, dict)
            or any((type(n), type(v)) != (str, int) for n, v in values.items())
        ):
            return None
        return ["special", *own, *sorted(values.items())]


NOTHING = Special()


@dataclass(frozen=True, slots=True)
class Specialisation:
    """One binary of a kernel: the values it is compiled for (tile sizes, strides of 1), the parameters whose
    addresses or values are multiples of 16 in it, and those that are 64 bits wide."""

    kernel: str
    constants: tuple[tuple[str, int], ...]
    aligned: tuple[str, ...]
    wide: tuple[str, ...]

    def __str__(self) -> str:
        words = [f"{n}={v}" for n, v in self.constants]
        words += [f"{', '.join(self.aligned)} divisible by 16"] if self.aligned else []
        words += [f"{', '.join(self.wide)} of 64 bits"] if self.wide else []
        return f"{self.kernel}: {'; '.join(words) or 'general'}"


def _specialisation(compiled: Any) -> Specialisation:
    source = compiled.src
    names = source.fn.arg_names
    constants = tuple((names[k], v) for (k, *_), v in source.constants.items() if v is not None)
    aligned = tuple(names[k] for (k, *_), attrs in source.attrs.items() if ["tt.divisibility", 16] in map(list, attrs))
    return Specialisation(
        compiled.name, constants, aligned, tuple(n for n, t in source.signature.items() if t == "i64")
    )


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel of a plan. `values` are its arguments; `holes` say which of them are filled in at a call, with what:
    (position, number of the tensor or scalar, None or the descriptor's other fields)."""

    compiled: Any
    grid: tuple[int, int, int]
    values: tuple[Any, ...]
    holes: tuple[Hole, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Launches to repeat. Arguments are numbered: inputs, outputs, floating-point scalars, temporaries.

    `spans` are the bytes from the first to the last element of each input and output, `offsets` where each temporary
    lies in the caller's workspace, None where the plan allocates them.
    """

    steps: tuple[Step, ...]
    outputs: tuple[Block, ...]
    temporaries: tuple[Block, ...]
    spans: tuple[int, ...]
    device: int
    driver: Any
    knobs: Any
    offsets: tuple[int, ...] | None = None

    def run(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], scalars: Sequence[float], workspace: Any = None
    ) -> bool:
        """Launch everything on the current stream; False, with nothing done, where a profiler wants to see launches."""
        knobs = self.knobs
        enter_thread()
        # Hooks read what only Triton's own dispatch collects.
        if _listening(knobs.launch_enter_hook) or _listening(knobs.launch_exit_hook):
            return False
        if self.driver.get_current_device() != self.device:
            with torch.cuda.device(self.device):
                self._launch(inputs, outputs, scalars, workspace)
        else:
            self._launch(inputs, outputs, scalars, workspace)
        return True

    def _launch(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], scalars: Sequence[float], workspace: Any
    ) -> None:
        stream = self.driver.get_current_stream(self.device)
        arguments = [*inputs, *outputs, *scalars]
        if self.offsets is not None:
            arguments += [
                view(workspace, first, t.shape, t.dtype)
                for first, t in zip(self.offsets, self.temporaries, strict=True)
            ]
        elif self.temporaries:
            arguments += [t.make() for t in self.temporaries]
        for s in self.steps:
            values = list(s.values)
            for position, number, descriptor in s.holes:
                values[position] = (
                    arguments[number] if descriptor is None else _descriptor(descriptor, arguments[number])
                )
            c, (x, y, z) = s.compiled, s.grid
            c.run(x, y, z, stream, c.function, c.packed_metadata, None, None, None, *values)


_thread = threading.local()


def enter_thread() -> None:
    """Make the device's context current in a thread that has done nothing on it yet: the driver's calls, by which
    Triton launches, do not do that themselves as those of the runtime do."""
    if not getattr(_thread, "ready", False):
        # A thread that captures a graph has a context, and may not ask for anything now.
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.mem_get_info()
        _thread.ready = True


def _listening(hook: Any) -> bool:
    """Return True if a launch hook would do anything."""
    return hook is not None and bool(getattr(hook, "calls", True))


def _descriptor(like: tuple[type, dict[str, Any]], base: Any) -> Any:
    """A tensor descriptor like another one, of another tensor: what its constructor checks has been checked."""
    kind, fields = like
    descriptor: Any = object.__new__(kind)
    descriptor.__dict__.update(fields, base=base)
    return descriptor


def key_of(tensors: Sequence[Any]) -> list[Any] | None:
    """Return the properties of tensors that a plan depends on; None if the call must be checked in full."""
    if takes_tangents():
        return None
    key: list[Any] = []
    grad = torch.is_grad_enabled()
    try:
        for t in tensors:
            if type(t) not in PLAIN or (grad and t.requires_grad) or t.is_neg():
                return None
            key += (t.shape, t.stride(), t.dtype, t.device, t.data_ptr() & 15)
    except RuntimeError:  # sparse tensors have no strides
        return None
    return key


class Plans:
    """The plans of one kernel by what they depend on: the `count` tensors of a call, and its scalars, of which
    `floats` says which are floating-point. Safe in threads."""

    def __init__(self, count: int, floats: Sequence[bool]) -> None:
        self._count = count
        self._types = tuple(float if f else int for f in floats)
        self._plans: dict[Key, Plan] = {}
        self._compiled: dict[str, Specialisation] = {}
        self._lock = Lock()

    def replay(self, args: Sequence[Any], out: Any, special: Special = NOTHING) -> Tensor | tuple[Tensor, ...] | None:
        """Call by a plan; None, with nothing done, where there is none for these arguments."""
        if not self._plans:  # a target without plans, or the first call
            return None
        results = _given(out)
        inputs = args[: self._count]
        key = None if results is None else self._key(args, results, special)
        plan = None if key is None else self._plans.get(key)
        if results is None or plan is None:
            return None
        own = () if special.workspace is None else (special.workspace,)
        if (results or own) and not self._separate(plan, (*inputs, *results), own):
            return None
        outputs = tuple(results) or tuple([b.make() for b in plan.outputs])
        floats = [s for s in args[self._count :] if type(s) is float]
        if not plan.run(inputs, outputs, floats, special.workspace):
            return None
        return outputs[0] if len(outputs) == 1 else outputs

    def _separate(self, plan: Plan, tensors: Sequence[Tensor], own: Sequence[Tensor]) -> bool:
        """Return True if no tensor that is written overlaps another one."""
        spans = (*plan.spans[: len(tensors)], *(t.numel() for t in own))
        return _apart((*tensors, *own), spans, self._count)

    @property
    def specialisations(self) -> tuple[Specialisation, ...]:
        """The specialisations that Triton compiled for the calls so far, in order."""
        return tuple(self._compiled.values())

    def learn(self, args: Sequence[Any], out: Any, plan: Plan, special: Special = NOTHING) -> None:
        """Keep the plan of a call that was checked in full and carried out."""
        outputs = _given(out)
        key = None if outputs is None else self._key(args, outputs, special)
        with self._lock:
            for step in plan.steps:
                if step.compiled.hash not in self._compiled:
                    self._compiled[step.compiled.hash] = _specialisation(step.compiled)
            if key is not None:
                while len(self._plans) >= REMEMBERED:
                    self._plans.pop(next(iter(self._plans)))
                self._plans[key] = plan

    def _key(self, args: Sequence[Any], out: Sequence[Any], special: Special) -> Key | None:
        """None where only the full check can tell."""
        if len(args) != self._count + len(self._types):
            return None
        key = key_of((*args[: self._count], *out))
        extra = None if key is None else special.key()
        if key is None or extra is None:
            return None
        key += extra
        for s, kind in zip(args[self._count :], self._types, strict=True):
            if type(s) is not kind:
                return None
            # Any float will do where one did; integers may be lengths.
            key.append(None if kind is float else s)
        return tuple(key)


def _given(out: Any) -> tuple[Any, ...] | None:
    """Return the tensors of `out=` as a tuple; None for a value that the full check refuses."""
    if out is None:
        return ()
    return (out,) if isinstance(out, Tensor) else tuple(out) if isinstance(out, list | tuple) else None


def _apart(tensors: Sequence[Tensor], spans: Sequence[int], outputs: int) -> bool:
    """True if no output lies in the memory between the first and the last element of any other tensor."""
    ends = [(p := t.data_ptr(), p + n) for t, n in zip(tensors, spans, strict=True)]
    return all(ends[k][1] <= start or end <= ends[k][0] for k in range(outputs, len(ends)) for start, end in ends[:k])
