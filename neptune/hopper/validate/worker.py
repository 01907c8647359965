"""The child that runs both forms of a kernel: `python -m neptune.hopper.validate.worker`, one request at a time.

    {"do": "ready",   "device": 0}                                         → {"name": "NVIDIA H200"}
    {"do": "compare", "asynchronous": PACKED, "triton": PACKED, "at": […]} → {"draws": 15, "error": 1e-4, "limit": 8e-3}
    {"do": "time",    "asynchronous": PACKED, "triton": PACKED, "at": {…}} → {"asynchronous": [37.9, 38.0, 38.2], …}

`at` are sizes, several for "compare"; among them may be numbers of parts, which launches choose else. What else comes
of a request is {"failed": KIND, "why": …}: "memory" was short, the GPU ("device") reports a fault, or something else.
It may hang or die at any request, and ends with its parent.

Both forms are right within rounding, or one of them is not: a register that is overwritten under a product, or a tile
that is read too early, gives numbers that are far off, NaN, or another result the next time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from statistics import median, quantiles
from typing import Any, TypeAlias

import torch

from neptune.ir.dtypes import is_float
from neptune.ir.program import Program
from neptune.runtime.artifact import Packed, unpack
from neptune.runtime.bench import Call, GpuCalls, captured, drawn, poisoned
from neptune.runtime.executable import Executable
from neptune.runtime.hopper.accepted import Compared, Quartiles
from neptune.runtime.processes.worker import Json, first_line, serve_alone

DRAWS = 3
REPEATS = 4
"""Launches of the asynchronous form on the same inputs, whose results are the same bit for bit."""
ROUNDINGS = 8.0
"""The number of roundings of the narrowest dtype that results may differ by, relative to the largest element."""
Run: TypeAlias = Callable[[Sequence[Any], Sequence[torch.Tensor], Mapping[str, Any]], None]
"""Inputs as a call takes them, outputs that it fills, and sizes; among these may be numbers of parts, which the launch
chooses else."""


def compared(
    program: Program, asynchronous: Run, plain: Run, sizes: Sequence[Mapping[str, Any]], device: str
) -> Compared:
    """Run both forms on DRAWS inputs of each of `sizes`, which should have odd lengths among them.

    The error is infinite where an element is not written, is NaN in one form alone, or changes between launches.
    """
    worst, draws = 0.0, 0
    for given in sizes:
        for seed in range(DRAWS):
            args = drawn(program, given, device, seed)
            wanted = _results(plain, program, args, given, device)
            first = _results(asynchronous, program, args, given, device)
            worst = max(worst, *(_error(a, b) for a, b in zip(first, wanted, strict=True)))
            for _ in range(REPEATS - 1):
                again = _results(asynchronous, program, args, given, device)
                if not all(map(_same, first, again)):
                    worst = math.inf
            draws += 1
    return Compared(draws, worst, limit(program))


def limit(program: Program) -> float:
    """The largest error that may be, by the narrowest dtype of inputs and outputs."""
    floats = [b.dtype for b in (*program.inputs, *program.outputs) if is_float(b.dtype)]
    return ROUNDINGS * max((float(torch.finfo(getattr(torch, d)).eps) for d in floats), default=0.0)


def _results(
    run: Run, program: Program, args: Sequence[Any], sizes: Mapping[str, Any], device: str
) -> list[torch.Tensor]:
    outputs = poisoned(program, sizes, device)
    run(args, outputs, sizes)
    return outputs


def _error(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference relative to the largest element of `b`."""
    x, y = a.double(), b.double()
    if not torch.equal(x.isnan(), y.isnan()) or (y.numel() and bool(y.isnan().all())):
        return math.inf
    if not torch.equal(x.isinf(), y.isinf()) or not torch.equal(x[y.isinf()], y[y.isinf()]):
        return math.inf
    finite = y.isfinite()
    if not finite.any():
        return 0.0
    largest = float(y[finite].abs().max())
    off = float((x[finite] - y[finite]).abs().max())
    return off if largest == 0 else off / largest


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


FORMS = ("asynchronous", "triton")
ROUNDS, CALLS = 9, 3
"""Rounds in which the forms take turns, and the calls of one, whose median is the round's figure."""


def rounds(calls: Sequence[Call], sampled: Callable[[Call], Sequence[float]]) -> list[Quartiles]:
    """Quartiles over rounds in which calls take turns, each round in the other order than the one before."""
    figures: list[list[float]] = [[] for _ in calls]
    order = list(range(len(calls)))
    for _ in range(ROUNDS):
        for k in order:
            figures[k].append(median(sampled(calls[k])))
        order.reverse()
    ranges = [quantiles(us, n=4, method="inclusive") for us in figures]
    return [(lower, middle, upper) for lower, middle, upper in ranges]


class Session:
    """The state of this process: both forms of the last request."""

    def __init__(self) -> None:
        self._of: list[Any] = []
        self._forms: tuple[Executable, Executable] | None = None

    def handle(self, header: Json, _body: bytes) -> tuple[Json, bytes]:
        try:
            answer = self._answer(header)
            # It may wait for the next kernel: memory is its user's.
            torch.cuda.empty_cache()
            return answer, b""
        except (torch.OutOfMemoryError, MemoryError) as error:
            return {"failed": "memory", "why": first_line(error)}, b""
        except Exception as error:
            why = first_line(error)
            kind = "memory" if "out of memory" in why else "device" if "CUDA" in why else "error"
            return {"failed": kind, "why": why}, b""

    def _answer(self, header: Json) -> Json:
        if header["do"] == "ready":
            torch.cuda.set_device(header["device"])
            torch.zeros(1, device="cuda")
            return {"name": torch.cuda.get_device_name()}
        asynchronous, plain = self._both(header)
        if header["do"] == "time":
            return _timed(asynchronous, plain, header["at"])
        device = plain.target.device
        return asdict(compared(plain.loops, _run(asynchronous), _run(plain), header["at"], device))

    def _both(self, header: Json) -> tuple[Executable, Executable]:
        """The forms of a request; those of the one before have been compiled already."""
        packed = [header[form] for form in FORMS]
        if self._forms is None or packed != self._of:
            first, second = (Executable(unpack(Packed(p["manifest"], p["files"]))) for p in packed)
            self._of, self._forms = packed, (first, second)
        return self._forms


def _timed(asynchronous: Executable, plain: Executable, sizes: Mapping[str, int]) -> Json:
    device, timer = plain.target.device, GpuCalls()
    args = drawn(plain.loops, sizes, device)
    calls = []
    for form in (asynchronous, plain):
        run, out = _run(form), poisoned(plain.loops, sizes, device)
        calls.append(captured(lambda run=run, out=out: run(args, out, sizes)))  # type: ignore[misc]
    ranges = rounds(calls, lambda call: timer.samples(call, CALLS, CALLS))
    return dict(zip(FORMS, map(list, ranges), strict=True))


def _run(form: Executable) -> Run:
    chosen = form.artifact.chosen

    def run(args: Sequence[Any], outputs: Sequence[torch.Tensor], sizes: Mapping[str, Any]) -> None:
        given = {n: sizes[n] for n in chosen if n in sizes}
        form.call(tuple(args), tuple(outputs) if len(outputs) > 1 else outputs[0], None, given or None)

    return run


if __name__ == "__main__":
    serve_alone(Session().handle)
