"""The kernels behind `neptune.functional`: one for each Program and device, kept for the life of the process.

A structure (an operator with its options, dtypes, depth, group) makes a Program; lengths are no part of it, so that new
ones compile nothing. First calls take what compiles fastest, and the fastest kernel takes over (`settle`).
NEPTUNE_LOGS=recompiles says of each structure what it differs in from those before.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from neptune import config
from neptune.base import logs
from neptune.base.boundary import frames_of_package
from neptune.base.locks import Lock
from neptune.errors import NeptunePerformanceWarning
from neptune.ir.program import Program
from neptune.ir.text.printer import print_program
from neptune.kernel import Kernel
from neptune.runtime.calls.arguments import Signature
from neptune.runtime.custom_op import fake_results
from neptune.runtime.launching.devices import chosen_on

LOG = logging.getLogger("neptune.recompiles")
Options = tuple[tuple[str, Any], ...]


class Structure(NamedTuple):
    """What a kernel is compiled for: the operator and its options, all of which compare and hash."""

    operator: str
    options: Options


TEMPLATES = {"linear_cross_entropy": "flash_decoding"}
"""For what is promised: the fastest kernel may store the logits, which are larger than all inputs."""
_PROGRAMS: dict[Structure, Program] = {}
_KERNELS: dict[tuple[Structure, str], Kernel] = {}
_BY_TEXT: dict[tuple[str, str], Kernel] = {}
_LOCK = Lock()
REMEMBERED = 512
"""Kernels of one process; the oldest goes where one more is made."""
MANY = 16
"""Kernels of one operator, after which the caller is told what makes them more."""


def structure(name: str, **options: Any) -> Structure:
    """A structure by the operator's name and its options."""
    return Structure(name, tuple(sorted(options.items())))


def program_of(kind: Structure, make: Callable[[], Program]) -> Program:
    """The Program of a structure, made once."""
    program = _PROGRAMS.get(kind)
    if program is None:
        if len(_PROGRAMS) >= REMEMBERED:
            _PROGRAMS.clear()
        program = _PROGRAMS[kind] = make()
    return program


def first(
    program: Program, template: str | None, target: str, args: Sequence[Any], takes_over: Callable[[Kernel], None]
) -> Kernel:
    """The kernel of first calls (`neptune.driver.tiers`), imported where the first one is made, of which these are the
    arguments."""
    from neptune.driver import tiers

    sizes = Signature(program, args[0].device.type).scalars(args)
    return tiers.first(program, template, target, sizes, takes_over)


def settle(seconds: float | None = None) -> bool:
    """Wait until the fastest kernel has taken over from that of the first calls, wherever one is compiled beside them,
    for so many seconds at most. Returns False where it has not yet.

        neptune.functional.attention(q, k, v)    # the first call takes what compiles fastest
        neptune.functional.settle()              # later calls take the fastest kernel: time those
    """
    from neptune.driver import tiers

    return tiers.settle(seconds)


def kernel_of(kind: Structure, make: Callable[[], Program], args: Sequence[Any]) -> Kernel:
    """The kernel of a structure for tensors of the device type of these, which are those of the first call; compiled
    once, by one thread."""
    device = args[0].device.type
    kernel = _KERNELS.get((kind, device))
    if kernel is not None:
        return kernel
    with _LOCK:
        if (kind, device) not in _KERNELS:
            program, target = program_of(kind, make), chosen_on(device)
            text = print_program(program), target
            if text not in _BY_TEXT:
                _forget()
                _tell(kind, device)
                takes_over = partial(_take_over, text)
                fresh = first(program, TEMPLATES.get(kind.operator), target, args, takes_over)
                # Variants are for sizes on a GPU; a CPU runs one of them, so that no length waits for another.
                _BY_TEXT[text] = fresh.with_params() if device == "cpu" else fresh
            _KERNELS[kind, device] = _BY_TEXT[text]
        return _KERNELS[kind, device]


def _forget() -> None:
    """Make room for one more kernel: the oldest goes. It comes back from the cache of compiled kernels."""
    while len(_BY_TEXT) >= REMEMBERED:
        oldest = _BY_TEXT.pop(next(iter(_BY_TEXT)))
        for key in [key for key, kernel in _KERNELS.items() if kernel is oldest]:
            del _KERNELS[key]


def _take_over(text: tuple[str, str], better: Kernel) -> None:
    """Have a better kernel serve all structures that make this program."""
    with _LOCK:
        before = _BY_TEXT.get(text)
        if before is None:
            return
        _BY_TEXT[text] = better
        for key in [key for key, kernel in _KERNELS.items() if kernel is before]:
            _KERNELS[key] = better


def run(kind: Structure, make: Callable[[], Program], *args: Any, out: Any = None) -> Any:
    """A call on tensors that fit the Program, then scalars, into `out`, new tensors by default. Of tensors without data
    it gives results without data."""
    if has_no_data(args[0]):
        if out is not None:
            return out
        fakes = fake_results(Signature(program_of(kind, make), args[0].device.type), args)
        return fakes[0] if len(fakes) == 1 else tuple(fakes)
    kernel = kernel_of(kind, make, args)
    return kernel(*args) if out is None else kernel(*args, out=out)


def has_no_data(t: torch.Tensor) -> bool:
    """True for torch's fake tensors, and for those on the device meta."""
    return t.device.type == "meta" or (type(t) is not torch.Tensor and hasattr(t, "fake_mode"))


def compiled() -> Mapping[tuple[Structure, str], Kernel]:
    """All kernels so far, by structure and device."""
    return dict(_KERNELS)


def _tell(kind: Structure, device: str) -> None:
    """Log that a structure is compiled, and what is new about it: the nearest one before differs in the least. Warn
    where there come many of one operator."""
    logs.configure(config.read().logs)
    others = [(s, d) for s, d in _KERNELS if s.operator == kind.operator]
    many = len(others) == MANY
    if not many and not LOG.isEnabledFor(logging.INFO):
        return
    if not others:
        LOG.info("%s on %s: compiled for the first time", kind.operator, device)
        return
    news = min((_news(kind, device, o) for o in others), key=len)
    LOG.info("%s on %s: compiled anew: %s", kind.operator, device, news)
    if many:
        wrong = f"neptune.functional.{kind.operator} is compiled for the {MANY + 1}th time: {news}"
        why = "each number that an option has, or that a mod captures, makes a kernel of its own"
        hint = "have a mod read a tensor, torch.tensor(n); NEPTUNE_LOGS=recompiles tells of each kernel"
        warnings.warn(NeptunePerformanceWarning(f"{wrong}: {why}; {hint}"), stacklevel=frames_of_package() + 1)


def _news(kind: Structure, device: str, other: tuple[Structure, str]) -> str:
    """What differs: `dtype is float16, was float32`."""
    now, before = ({**dict(s.options), "device": d} for s, d in ((kind, device), other))
    return "; ".join(
        f"{n} is {_shown(now.get(n))}, was {_shown(before.get(n))}"
        for n in sorted({*now, *before})
        if now.get(n) != before.get(n)
    )


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
