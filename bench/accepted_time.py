"""What the asynchronous form adds to a first compilation: `python -m bench.accepted --time`.

Each kernel is compiled without the form and with it, nothing being kept from before; the processes that compile are
there already. Steps are in seconds of the clock: `compiler` runs in a process of its own beside `expression` and
`protocol`, so that what is waited for in the end is `wait`, the linter with it.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest import mock

import neptune
from neptune.errors import NeptunePerformanceWarning, TargetError
from neptune.ir.program import Program
from neptune.ops.linear import matmul

STEPS = {
    "walk": "neptune.hopper.derive:walk",
    "draft": "neptune.hopper.derive:_drafted",
    "expression": "neptune.hopper.derive:with_walk",
    "protocol": "neptune.hopper.derive:check",
    "compiler": "neptune.hopper.accept:gluon_or_why",
    "linter": "neptune.hopper.compile:lint",
    "wait": "neptune.hopper.form:broken",
}
"""A step, and the function whose calls it is."""
ENVIRONMENT = ("NEPTUNE_CACHE_DIR", "TRITON_CACHE_DIR")


@contextmanager
def nothing_kept() -> Iterator[None]:
    """A process that compiles and keeps nothing that was compiled before this opens; it is there, and has compiled."""
    from neptune.codegen.compile import WORKER

    with tempfile.TemporaryDirectory() as folder:
        values = dict(zip(ENVIRONMENT, ("0", folder), strict=True))
        with mock.patch.dict(os.environ, values), warnings.catch_warnings():
            warnings.simplefilter("ignore", NeptunePerformanceWarning)
            # The next one has this environment.
            WORKER.close()
            neptune.compile(matmul("bfloat16"), "matmul", target="cuda:90", form="auto")
            yield
            WORKER.close()


def added(make: Callable[[], Program], template: str | None) -> dict[str, Any]:
    """Seconds without the form and with it, and of each step; `refused` with the reason where there is no form."""
    program, spent = make(), dict.fromkeys(STEPS, 0.0)
    start = time.perf_counter()
    neptune.compile(program, template, target="cuda:90")
    middle = time.perf_counter()
    with ExitStack() as stack:
        for name, where in STEPS.items():
            module, _, function = where.partition(":")
            of = import_module(module)
            stack.enter_context(mock.patch.object(of, function, _clocked(getattr(of, function), name, spent)))
        begin = time.perf_counter()
        try:
            neptune.compile(program, template, target="cuda:90", form="asynchronous")
        except TargetError as error:
            return {"refused": error.wrong}
        whole = time.perf_counter() - begin
    return {"without": middle - start, "with": whole, "added": whole - (middle - start), "steps": spent}


def _clocked(call: Callable[..., Any], name: str, spent: dict[str, float]) -> Callable[..., Any]:
    def clocked(*args: Any, **named: Any) -> Any:
        start = time.perf_counter()
        try:
            return call(*args, **named)
        finally:
            spent[name] += time.perf_counter() - start

    return clocked


def said(row: Mapping[str, Any]) -> str:
    """A row as text."""
    if "refused" in row:
        return f"no form: {row['refused']}"
    steps = ", ".join(f"{name} {seconds:.2f}" for name, seconds in row["steps"].items())
    return f"{row['without']:.2f} s without, {row['with']:.2f} s with, {row['added']:.2f} s added: {steps}"
