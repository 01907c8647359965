"""A timer for tests on a CPU: kernels run on target llvm, times and misfortunes are planted by template and values.

    Planted({"softmax_row num_warps=8": 5.0, "softmax_row num_warps=16": "hangs"}, log="…")

The first entry whose words all stand in a candidate's text, or are the shape of its first argument ("at 4×40"), counts;
what is in none takes OTHERS microseconds. A misfortune may be that of one shape ("wrong at 4×40"). Each candidate that
is run is a line of the log.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from neptune.kernel import Kernel

SPEC = "tests.unit.autotune.planted:Planted"
OTHERS = 100.0


def text_of(kernel: Kernel) -> str:
    """The template and the values of a kernel."""
    values = (f"{n}={v}" for n, v in sorted(kernel.params.items()))
    return " ".join((kernel.executable.artifact.template, *values))


def shape_of(x: torch.Tensor) -> str:
    """Its shape as plans have it, `4×40`."""
    return "×".join(str(n) for n in x.shape)


class Planted:
    device = "cpu"

    def __init__(
        self, plan: Mapping[str, Any], log: str, seconds_each: float = 0.0, room: int = 1 << 40, named: str = "H200"
    ) -> None:
        self.plan, self.log, self.seconds, self._room, self.named = plan, Path(log), seconds_each, room, named

    def planned(self, kernel: Kernel, args: Sequence[Any] = ()) -> Any:
        words = {"at", *text_of(kernel).split(), *(shape_of(x) for x in args[:1])}
        return next((v for k, v in self.plan.items() if words.issuperset(k.split())), OTHERS)

    def compile(self, kernel: Kernel, sizes: Mapping[str, int]) -> None:
        if self.planned(kernel) == "hangs to compile":
            time.sleep(1000)

    def run(self, kernel: Kernel, args: Sequence[Any], out: Sequence[torch.Tensor]) -> None:
        with self.log.open("a") as log:
            log.write(f"{text_of(kernel)} {shape_of(args[0])}\n")
        time.sleep(self.seconds)
        kernel(*args, out=tuple(out))
        planned, _, where = str(self.planned(kernel, args)).partition(" at ")
        if where not in ("", shape_of(args[0])):
            return
        if planned == "hangs":
            time.sleep(1000)
        if planned == "exits":
            os._exit(3)
        if planned == "segfaults":
            ctypes.string_at(0)
        if planned == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory")
        if planned == "raises":
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")
        if planned == "wrong":
            out[0][-1] = 0.0
        if planned == "unwritten":
            out[0].view(-1)[-1] = torch.nan

    def time(self, kernel: Kernel, args: Sequence[Any]) -> list[float]:
        return [float(self.planned(kernel, args))] * 3

    def clocks(self) -> Mapping[str, int]:
        return {"sm": 1980, "memory": 3201}

    def room(self) -> int:
        return self._room

    def name(self) -> str:
        return self.named
