"""Is the default as fast as what a search would find? `compile(expr)` beside many candidates and torch on a GPU.

    python -m bench.choice [--json choice.json] [--candidates 200] [--workers 15] [--only decode] [--seconds 500]
    python -m bench.choice --among choice.json --candidates 6

Each row is one of `bench.setups`: the default (nothing given: one kernel of an operator for all its sizes, whose
variant the launch picks), the same with the sizes given as `shapes=`, the candidates, and torch. Candidates are shared
by all sizes of an operator: of every template that applies, each combination of tiles, warps and stages is predicted at
each size; half of the candidates are what is best anywhere, the others are drawn (always the same) from those that
nowhere come nearer than that, but somewhere within WITHIN of the best. With `--among` they are the fastest of an
earlier run's row.

They are compiled first, by processes at the same time, then measured one at a time: every call is captured as a CUDA
graph, and the L2 cache is cleared before each replay. All candidates are screened by a few replays; the FINAL fastest,
both defaults and torch are measured again in interleaved rounds, of which the medians count. Rows are written as they
come; where the seconds are over, the rest is left out, and said.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np
import torch
import triton.testing

import neptune
from bench import record
from bench.cases import environment
from bench.setups import Setup, setups
from bench.speed_operators import graphed
from neptune.autotune.timer import GpuTimer
from neptune.driver.device import machine_for
from neptune.errors import NeptuneError
from neptune.kernel import Kernel
from neptune.runtime.bench import captured
from neptune.runtime.launch import parse_target
from neptune.tune.choose import AUTOMATIC, lowered
from neptune.tune.columns import Points
from neptune.tune.rank import model_of, predictions, worth_trying
from neptune.variants import Variant

WITHIN = 3.0
"""Candidates that are predicted to be slower than that, relative to the best, at every size, are not measured."""
SCREENED, FINAL, ROUNDS = 7, 6, 3
"""Replays of a candidate; candidates that are measured again; and how often."""
HOPELESS = 10.0
"""A candidate that is predicted to be slower than that at one size is not measured there."""
Call = Callable[[], Any]


@dataclass
class Tried:
    """One template with values for its parameters, for all sizes of an operator."""

    template: str
    params: Mapping[str, int]
    predicted: dict[str, float] = field(default_factory=dict)
    """Microseconds, by the name of the setup."""

    @property
    def name(self) -> str:
        return shown(self.template, self.params)


Built: TypeAlias = "tuple[Tried, Kernel | str]"
"""A candidate, compiled; or why it is not."""


def shown(template: str, params: Mapping[str, int]) -> str:
    """The template and the values."""
    return " ".join((template, *(f"{n}={value}" for n, value in params.items())))


def variant(v: Variant) -> str:
    """The template and the values of a variant."""
    return shown(v.template, v.params)


# --- candidates ------------------------------------------------------------------------------------


def candidates(of: Sequence[Setup], count: int) -> list[Tried]:
    """So many of one operator, for these sizes of it."""
    machine = machine_for(parse_target("cuda"))
    found: list[Tried] = []
    for template in AUTOMATIC:
        with suppress(NeptuneError):
            tiles = lowered(template, of[0].program(), strict=template != AUTOMATIC[-1]).tiles
            every = worth_trying(tiles, [s.sizes for s in of], machine, {})
            asked = Points.product(every, [s.sizes for s in of])
            us = np.asarray(predictions(model_of(tiles), asked, machine).us).reshape(len(every), len(of))
            names = [s.name for s in of]
            found += [
                Tried(template, p, dict(zip(names, row, strict=True)))
                for p, row in zip(every, us.tolist(), strict=True)
            ]
    best = {s.name: min(t.predicted[s.name] for t in found) for s in of}

    def nearest(t: Tried) -> float:
        return min(us / best[name] for name, us in t.predicted.items())

    order = sorted((t for t in found if nearest(t) <= WITHIN), key=nearest)
    front, rest = order[: count // 2], order[count // 2 :]
    return front + random.Random(0).sample(rest, min(len(rest), count - len(front)))


def among(row: Mapping[str, Any], count: int) -> list[Tried]:
    """The fastest of an earlier row."""
    ran = sorted((c for c in row["candidates"] if isinstance(c["us"], float)), key=lambda c: float(c["us"]))
    found = []
    for c in ran[:count]:
        template, *values = c["variant"].split()
        params = {n: int(v) for n, v in (value.split("=") for value in values)}
        found.append(Tried(template, params, {row["setup"]: c["predicted"]}))
    return found


def kernel_of(setup: Setup, tried: Tried) -> Kernel:
    return neptune.compile(setup.program(), tried.template, target="cuda", params=dict(tried.params))


def inputs_of(setup: Setup) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(s, device="cuda").to(setup.dtype) for s in setup.shapes]


def build(name: str, tried: Sequence[Tried]) -> None:
    """Compile candidates of a setup down to machine code, and run each once: what is found on disk from then on. Runs
    in a process of its own."""
    setup = next(s for s in setups() if s.name == name)
    inputs = inputs_of(setup)
    for t in tried:
        with suppress(Exception):  # the row says what is wrong with it
            kernel_of(setup, t)(*inputs)
            torch.cuda.synchronize()


def built(work: Sequence[tuple[Setup, Sequence[Tried]]], workers: int) -> None:
    """All candidates compiled, in so many processes; one that dies takes its own share along, and no more."""
    shares = [(s.name, list(tried[k::workers])) for s, tried in work for k in range(workers) if tried[k::workers]]
    # One pool a process, so that what breaks one leaves the others.
    pools = [ProcessPoolExecutor(1, mp_context=get_context("spawn")) for _ in range(workers)]
    made = [pools[k % workers].submit(build, *share) for k, share in enumerate(shares)]
    for one in made:
        with suppress(Exception):
            one.result()
    for pool in pools:
        pool.shutdown()


# --- measurements ----------------------------------------------------------------------------------


def near(setup: str, kernels: Mapping[str, Built]) -> dict[str, Kernel | str]:
    """Those that are not predicted to be hopeless at this size, as one that covers long rows by a single tile, which
    takes minutes to compile."""
    best = min((t.predicted[setup] for t, _ in kernels.values()), default=0.0)
    return {name: kernel for name, (t, kernel) in kernels.items() if t.predicted[setup] <= HOPELESS * best}


def screened(kernel: Kernel | str, inputs: Sequence[torch.Tensor], timer: GpuTimer) -> float | str:
    """Microseconds of a call: the median of a few replays."""
    if isinstance(kernel, str):
        return kernel
    try:
        return median(timer.samples(captured(partial(kernel, *inputs)), SCREENED, SCREENED))
    except Exception as error:  # one that needs too much shared memory, say
        return f"{type(error).__name__}: {str(error)[:120]}"


def rounds(calls: Mapping[str, Call]) -> dict[str, list[float] | str]:
    """Microseconds of each call, one figure a round; or what went wrong."""
    replays: dict[str, Call] = {}
    times: dict[str, list[float] | str] = {}
    for name, call in calls.items():
        ((said, replay),) = graphed(iter([("", call)]))
        if said:
            times[name] = said
        else:
            replays[name] = replay
    for _ in range(ROUNDS):
        for name, replay in replays.items():
            us = float(triton.testing.do_bench(replay, warmup=8, rep=25, return_mode="median")) * 1e3
            of = times.setdefault(name, [])
            assert isinstance(of, list)
            of.append(us)
    return times


def middle(us: list[float] | str) -> float | str:
    return us if isinstance(us, str) else median(us)


def measured(setup: Setup, kernels: Mapping[str, Built], but: Sequence[str]) -> dict[str, Any]:
    """One row: microseconds of the default, of torch (`but` for some peers), and of each candidate, with what was
    predicted."""
    inputs = inputs_of(setup)
    timer = GpuTimer()
    default = neptune.compile(setup.program(), target="cuda")
    known = neptune.compile(setup.program(), target="cuda", shapes=setup.sizes)
    first = {name: screened(of, inputs, timer) for name, of in near(setup.name, kernels).items()}
    ran = sorted((us, name) for name, us in first.items() if isinstance(us, float))
    calls: dict[str, Call] = {"default": partial(default, *inputs), "sizes given": partial(known, *inputs)}
    peers = {peer: partial(call, *inputs) for peer, call in setup.peers.items() if peer not in but}
    calls |= peers
    for _, name in ran[:FINAL]:
        kernel = kernels[name][1]
        assert not isinstance(kernel, str)
        calls[name] = partial(kernel, *inputs)
    samples = rounds(calls)
    again = {name: middle(us) for name, us in samples.items()}
    row: dict[str, Any] = {"setup": setup.name, "sizes": dict(setup.sizes)}
    row["default"] = {"us": again["default"], "variant": variant(default.chosen(**setup.sizes))}
    row["sizes given"] = {"us": again["sizes given"], "variant": variant(known.variants[0])}
    row |= {peer: again[peer] for peer in peers}
    row["candidates"] = [
        {"variant": name, "us": again.get(name, us), "predicted": kernels[name][0].predicted[setup.name]}
        for name, us in first.items()
    ]
    times = [us for name, us in again.items() if name not in peers and isinstance(us, float)]
    row["best"] = min(times, default=None)
    row["samples"] = samples
    return row


def line(row: Mapping[str, Any]) -> str:
    """One row for people."""
    default, known, best, peer = row["default"]["us"], row["sizes given"]["us"], row["best"], row["torch"]
    if not all(isinstance(x, float) for x in (default, known, best, peer)):
        return f"{row['setup']:<32} {default} | {known} | best {best} | torch {peer}"
    compiled = row.get("torch.compile", "")
    also = f", compiled {compiled / default:.2f}" if isinstance(compiled, float) else f" {compiled}"
    tried = sum(isinstance(c["us"], float) for c in row["candidates"])
    return (
        f"{row['setup']:<32} default {default:8.1f} µs | sizes given {known:8.1f} ({best / known:.2f}) | "
        f"best of {tried} {best:8.1f} ({best / default:.2f}) | torch {peer:8.1f} ({peer / default:.2f}){also} | "
        f"{row['default']['variant']}"
    )


def kernels_of(setup: Setup, tried: Sequence[Tried]) -> dict[str, Built]:
    """The candidates by name, compiled; or why one is not."""
    made: dict[str, Built] = {}
    for t in tried:
        try:
            made[t.name] = t, kernel_of(setup, t)
        except NeptuneError as error:
            made[t.name] = t, f"{type(error).__name__}: {str(error)[:120]}"
    return made


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.choice", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the environment and every figure")
    parser.add_argument("--candidates", type=int, default=16, metavar="N", help="candidates of each operator")
    parser.add_argument("--among", type=Path, metavar="FILE", help="the fastest N of each row of an earlier run")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes that compile")
    parser.add_argument("--only", default=[""], nargs="+", metavar="TEXT", help="setups whose name has one of these")
    parser.add_argument("--without", default=[], nargs="+", metavar="PEER", help="peers that are not measured")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no row after so long")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("torch sees no GPU here")
        return 2
    begin, rows = time.monotonic(), []
    asked = [s for s in setups() if any(text in s.name for text in options.only)]
    work: list[tuple[list[Setup], list[Tried]]] = []
    if options.among:
        earlier = {row["setup"]: row for row in json.loads(options.among.read_text())["us"]}
        work = [([s], among(earlier[s.name], options.candidates)) for s in asked if s.name in earlier]
    else:
        asked.sort(key=lambda s: s.operator)
        groups = (list(of) for _, of in groupby(asked, key=lambda s: s.operator))
        work = [(of, candidates(of, options.candidates)) for of in groups]
    built([(of[0], tried) for of, tried in work], options.workers)
    print(f"{sum(len(t) for _, t in work)} candidates compiled in {time.monotonic() - begin:.0f} s", flush=True)
    for of, tried in work:
        kernels = kernels_of(of[0], tried) if time.monotonic() - begin < options.seconds else {}
        for setup in of:
            if time.monotonic() - begin > options.seconds:
                print(f"{setup.name:<24} left out: no time")
                continue
            rows.append(measured(setup, kernels, options.without))
            print(line(rows[-1]), flush=True)
            if options.json:
                options.json.write_text(record.as_json({"environment": environment(), "us": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
