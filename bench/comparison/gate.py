"""One measurement at a time: many processes prepare at once, and take turns at the GPU.

A Gate is a lock on a file, which its process loses with its life; `beat` is called while it waits. `inductor(gate)` is
torch.compile's own back end, whose compilations run beside others' and whose results wait for their turn.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import torch

PAUSE, BEAT = 0.003, 5.0
"""Seconds between two attempts, and between two signs of life."""


class Gate:
    """Held by one process at a time; it may be entered again inside."""

    def __init__(self, file: Path) -> None:
        self._file, self._depth = file, 0
        self.beat: Callable[[], None] = lambda: None
        self._open: TextIO | None = None

    def __enter__(self) -> Gate:
        if self._depth == 0:
            self._open = self._file.open("w")
            self._wait(self._open)
        self._depth += 1
        return self

    def _wait(self, file: TextIO) -> None:
        said = time.monotonic()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(PAUSE)
            if time.monotonic() - said > BEAT:
                said = time.monotonic()
                self.beat()

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self._open is not None:
            try:
                if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                    torch.cuda.synchronize()
                    torch.cuda.empty_cache()
            finally:
                self._open.close()


def inductor(gate: Gate, mode: str | None = None) -> Callable[[Any, Any], Callable[..., Any]]:
    """A back end for `torch.compile(…, backend=…)`; one of the modes that measure forms holds the gate meanwhile."""

    def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
        from torch._inductor import list_mode_options
        from torch._inductor.compile_fx import compile_fx

        if mode is None:
            made = compile_fx(graph, inputs)
        else:
            with gate:
                made = compile_fx(graph, inputs, config_patches=list_mode_options(mode))
        call: Any = made

        def run(*args: Any) -> Any:
            with gate:
                return call(*args)

        return run

    return backend
