"""The process that measures: one subject at a time, as `pool` asks for."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from bench.comparison import tuning
from bench.comparison.columns import COLUMNS
from bench.comparison.measure import Bench, Lost, line, measured
from bench.comparison.subjects import subjects

GPU = "bench.comparison.measure:Gpu"
TUNER = "tuner"


def made(spec: str, options: Mapping[str, Any]) -> Bench:
    """The bench `module:Class`, with its options."""
    module, _, name = spec.partition(":")
    bench: Bench = getattr(importlib.import_module(module), name)(**options)
    return bench


def serve(pipe: Any, spec: str, options: Mapping[str, Any], budget: float, exhaustive: float) -> None:
    """Answer jobs until None comes."""
    bench, at = made(spec, options), ""
    bench.gate.beat = lambda: pipe.send(("waits",))

    def say(column: str) -> None:
        nonlocal at
        at = column
        pipe.send(("at", column))

    while (job := pipe.recv()) is not None:
        part, name, columns = job
        try:
            for column, row in _rows(part, name, columns, bench, say, (budget, exhaustive)):
                pipe.send(("row", column, row))
        except Lost as lost:
            # A context that has met an illegal access is of no use.
            pipe.send(("row", at, {"failed": f"cannot run: {lost}"}))
            os._exit(3)
        gc.collect()
        pipe.send(("done",))


def _rows(part: str, name: str, columns: Sequence[str], bench: Bench, say: Any, seconds: tuple[float, float]) -> Any:
    subject = subjects()[name]
    torch._dynamo.reset()  # one compilation a shape, with nothing before it that counts as a recompilation
    try:
        if part == TUNER:
            say(TUNER)
            return [(TUNER, tuning.compared(subject, bench, *seconds))]
        return list(measured(subject, [COLUMNS[c] for c in columns], bench, say))
    except Lost:
        raise
    except Exception as error:
        return [(c, {"failed": f"cannot run: {line(error)}"}) for c in columns]
