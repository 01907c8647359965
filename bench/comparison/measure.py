"""One subject: prepare all columns, compare each with the exact result, then time them in turns.

    {"us": 41.2, "form": "flash_attention BLOCK_M=128 …", "samples": {form: [[41.3, 41.2, …], …]}, "error": 3e-4,
     "allowed": 1e-3, "clocks": {"sm": 1980}, "host us": 63.0}
    {"failed": "wrong: off by 0.7, 0.01 is allowed"}

Preparing (compiling) goes on beside other processes; all that follows holds the gate. A wrong form is not timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import torch

from bench.comparison.columns import Call, Column, Unfit
from bench.comparison.gate import Gate
from bench.comparison.subjects import Subject, as_tuple
from neptune.autotune.reference import errors
from neptune.autotune.timer import GpuTimer
from neptune.runtime.bench import captured
from neptune.verify.numerics import allowance

ROUNDS = 3
LEAST, MOST = 3, 12
"""Calls that are timed in each round, at least and at most."""
HOST = 30
"""Calls of which the host's time is the median."""
OURS, PEERS = 2.0, 10.0
"""What an error may be of the project's own allowance (`neptune.verify.numerics`): a peer may round what the expression
does not, and is not judged here beyond that it computes the same thing."""
STICKY = ("CUDA error", "Triton Error [CUDA]", "illegal memory access")
"""Words of errors that every later call on the GPU would meet, too."""
Say = Callable[[str], None]


class Bench(Protocol):
    """What measuring needs; tests plant times with one of their own."""

    device: str
    target: str
    gate: Gate

    def captured(self, call: Call) -> Call:
        """The call as a replay of a graph; one that cannot be captured, itself."""

    def samples(self, call: Call) -> list[float]:
        """Microseconds of some calls."""

    def host(self, call: Call) -> float:
        """Microseconds from a call to its end, the host's part included."""

    def clocks(self) -> Mapping[str, int]:
        """MHz by name."""


class Gpu:
    """The GPU here."""

    device, target = "cuda", "cuda"

    def __init__(self, lock: str) -> None:
        self.gate, self._timer = Gate(Path(lock)), GpuTimer()

    def captured(self, call: Call) -> Call:
        return captured(call)

    def samples(self, call: Call) -> list[float]:
        return self._timer.samples(call, LEAST, MOST)

    def host(self, call: Call) -> float:
        found = []
        for _ in range(HOST):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            call()
            torch.cuda.synchronize()
            found.append(1e6 * (time.perf_counter() - begin))
        return median(found)

    def clocks(self) -> Mapping[str, int]:
        return self._timer.clocks()


def measured(subject: Subject, columns: Sequence[Column], bench: Bench, say: Say) -> Iterator[tuple[str, Any]]:
    """A row for each column. `say` is told what comes next, so that what dies or hangs can be named."""
    rows: dict[str, dict[str, Any]] = {}
    with bench.gate:
        args = subject.inputs(bench.device)
    forms: dict[str, dict[str, Call]] = {}
    for c in columns:
        say(c.name)
        try:
            forms[c.name] = dict(c.forms(subject, args, bench))
        except Unfit as why:
            rows[c.name] = {"failed": str(why)}
        except Exception as error:
            rows[c.name] = {"failed": f"cannot run: {survived(error)}"}
    say("")
    with bench.gate:
        blocks = list(_blocks(subject, args)) if forms else []
        for c in columns:
            if c.name in forms:
                say(c.name)
                _check(rows.setdefault(c.name, {}), forms[c.name], blocks, OURS if c.ours else PEERS)
        say("")
        _time(rows, forms, bench, subject.short, say)
    yield from rows.items()


class Lost(Exception):
    """The GPU's context of this process is of no use any more."""


def survived(error: Exception) -> str:
    """The line of an error after which the process may go on; Lost where it may not."""
    text = line(error)
    if any(word in str(error) for word in STICKY):
        raise Lost(text) from error
    return text


def line(error: BaseException) -> str:
    """The first line of an error."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]:.200}"


def _blocks(subject: Subject, args: Sequence[torch.Tensor]) -> Iterator[tuple[Any, list[torch.Tensor], list[float]]]:
    """Where in each result, what is exact, and what the error of a row may be."""
    for at, exact, plain in subject.blocks(args):
        found = (errors(p, e).row for p, e in zip(plain, exact, strict=True))
        names = (str(p.dtype).removeprefix("torch.") for p in plain)
        yield at, list(exact), [allowance(n, e) for n, e in zip(names, found, strict=True)]


def _check(row: dict[str, Any], forms: dict[str, Call], blocks: Sequence[Any], slack: float) -> None:
    """Compare every form with the exact rows, and drop those that are wrong or do not run, saying why."""
    why: dict[str, str] = {}
    for name, call in list(forms.items()):
        try:
            error, allowed, share = _error(as_tuple(call()), blocks, slack)
        except Exception as e:  # one that needs too much shared memory, say
            why[name] = f"cannot run: {survived(e)}"
            del forms[name]
            continue
        row |= {"error": max(row.get("error", 0.0), error), "allowed": allowed}
        if not share <= 1:
            why[name] = f"wrong: a row is off by {error:.2g}, {allowed:.2g} is allowed"
            del forms[name]
    if not forms:
        row["failed"] = "; ".join(f"{n}: {w}" if n else w for n, w in why.items()) or "it has no form that runs"
    elif why:
        row["dropped"] = why


def _error(out: Sequence[torch.Tensor], blocks: Sequence[Any], slack: float) -> tuple[float, float, float]:
    """The error of the row that is the worst beside what is allowed: itself, what is allowed, and their ratio."""
    found = []
    for at, exact, allowances in blocks:
        for o, e, a in zip(out, exact, allowances, strict=False):  # a top-k has indices behind its values
            off = errors(o[at], e).row
            found.append((off / (slack * a), off, slack * a))
    # NaN counts as the worst.
    share, off, allowed = max(found, key=lambda x: (x[0] != x[0], x[0]))
    return off, allowed, share


def _time(
    rows: dict[str, dict[str, Any]], forms: Mapping[str, Mapping[str, Call]], bench: Bench, short: bool, say: Say
) -> None:
    """Samples of all forms in interleaved rounds, so that a clock that moves is the same for all."""
    replays: dict[tuple[str, str], Call] = {}
    for column, own in forms.items():
        for name, call in own.items():
            say(column)
            try:
                replays[column, name] = bench.captured(call)
            except Exception as error:
                rows[column].setdefault("dropped", {})[name] = f"cannot run: {survived(error)}"
    samples: dict[str, dict[str, list[list[float]]]] = {}
    # Asked for meanwhile: that is when they matter.
    with ThreadPoolExecutor(1) as other:
        asked = other.submit(bench.clocks)
        for _ in range(ROUNDS):
            for (column, name), replay in replays.items():
                say(column)
                us = [round(t, 2) for t in bench.samples(replay)]
                samples.setdefault(column, {}).setdefault(name, []).append(us)
        clocks = dict(asked.result())
    for column, found in samples.items():
        medians = {name: median(median(us) for us in rounds) for name, rounds in found.items()}
        fastest = min(medians, key=lambda n: medians[n])
        call = forms[column][fastest]
        rows[column] |= {"us": medians[fastest], "form": fastest, "samples": found, "clocks": clocks}
        if replays[column, fastest] is call:
            rows[column]["captured"] = False
        if short:
            say(column)
            rows[column]["host us"] = round(bench.host(call), 2)
    for column in forms:
        if column not in samples and "failed" not in rows[column]:
            rows[column]["failed"] = "; ".join(rows[column].pop("dropped", {"": "it has no form"}).values())
