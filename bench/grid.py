"""How fast is what a user gets, beside everything else that there is? The whole comparison, resumable.

    python -m bench.grid [--part first grid …] [--seconds 550] [--workers 14] [--json bench/results/h200-grid.json]
    python -m bench.grid --dry-run      # no GPU needed: builds every subject, checks masks and references, lists all

Parts, each complete in itself, the most telling subjects first:

    first      a dozen setups: `neptune.compile(expr)` with nothing given, and tuned
    grid       the default beside cuDNN, FlashAttention-2, FlexAttention, torch and torch.compile, both in their default
               modes: ten operators × 2⁷ … 2¹⁵ × batch 1 and 8; products, rows, chains of reductions
    best       the dozen beside modes that measure forms, cuBLAS, Triton by hand, Helion tuned
    ablation   the model, fusion, all tile passes, and each of them, off one at a time
    tuner      the tuner beside an exhaustive search: regret, and the time until within 3 %

Every call is captured as a CUDA graph, and the L2 cache is cleared before each; below 1024 keys the host's time of a
call is told as well. All columns of a subject are compared with exact rows first, then timed in interleaved rounds; a
median of medians counts, and every sample is kept. Processes prepare (compile) at the same time, one for each shape and
nothing before it, and take turns at the GPU. What was not reached is listed as not measured. A run that is cut off goes
on by the same command. The column "tuned" is the fastest record of these very sizes, and not measured where there is
none; with `--budget 20s` the tuner searches first.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from bench.cases import environment
from bench.comparison import worker
from bench.comparison.columns import BUDGET, recorded
from bench.comparison.parts import parts
from bench.comparison.pool import HUNG, Job, pooled
from bench.comparison.results import Key, Results
from bench.comparison.subjects import subjects

OWN, TUNED = "default", "tuned"
AT_ONCE = {"best": 3, worker.TUNER: 1}
"""Processes of a part, where not all that there are: what holds the gate while it prepares would only wait for others,
and be lost with them at the end of the time; the tuner compiles by processes of its own."""


def plan() -> list[Key]:
    """All that is to be measured, in its order."""
    return [key for part in parts().values() for key in part.measurements()]


def jobs(
    missing: Sequence[Key],
    chosen: Sequence[str],
    columns: Sequence[str],
    only: Sequence[str],
    tunable: Callable[[str], bool] = lambda subject: True,
) -> Iterator[Job]:
    """What is missing of some parts, a job for each subject; `tuned` only where there is something."""
    asked = [
        k
        for k in missing
        if k.part in chosen
        and (not columns or k.column in columns)
        and any(text in k.subject for text in only)
        and (k.column != TUNED or tunable(k.subject))
    ]
    for (part, subject), keys in groupby(asked, key=lambda k: (k.part, k.subject)):
        yield Job(part, subject, [k.column for k in keys])


def told(key: Key, row: Mapping[str, Any], rows: Mapping[Key, Mapping[str, Any]]) -> str:
    """One row for people: beside the default, where that is known."""
    if "failed" in row:
        return f"{key.subject:<34} {key.column:<28} {row['failed']}"
    own = rows.get(key._replace(column=OWN), {}).get("us")
    beside = f" {row['us'] / own:5.2f} ×" if own and key.column != OWN else "        "
    host = f", by the host {row['host us']:.1f}" if "host us" in row else ""
    return f"{key.subject:<34} {key.column:<28} {row['us']:9.1f} µs{beside}{host}  {row.get('form', '')}"


def measure(options: argparse.Namespace, bench: str, given: Mapping[str, Any], target: str = "cuda") -> int:
    """Measure what is missing until the time is over."""
    begin, results = time.monotonic(), Results(options.json, plan(), environment())
    tunable = cache(lambda name: bool(options.budget or recorded(subjects()[name], target)))
    missing = results.missing(options.again)
    asked = list(jobs(missing, options.part, options.columns, options.only, tunable))
    print(f"{sum(len(j.columns) for j in asked)} measurements of {len(asked)} subjects are missing", flush=True)
    results.write()
    args = (bench, given, options.search, options.exhaustive)
    for part, own in groupby(asked, key=lambda j: j.part):
        workers = min(options.workers, AT_ONCE.get(part, options.workers))
        # Where each process compiles one thing after the other, they are as many as there are cores; torch's modes that
        # measure forms compile many at once, while they hold the gate.
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(options.workers if part == "best" else 1)
        hung = HUNG + (options.search + options.exhaustive if part == worker.TUNER else 0.0)
        seconds = options.seconds - (time.monotonic() - begin)
        for job, column, row in pooled(list(own), workers, worker.serve, args, max(0.0, seconds), hung):
            key = Key(job.part, job.subject, column)
            results.add(key, row)
            print(told(key, row, results.rows), flush=True)
    left = Counter(k.part for k in results.missing())
    words = ", ".join(f"{n} of {part}" for part, n in left.items()) or "nothing"
    print(f"{time.monotonic() - begin:.0f} s; {len(results.rows)} rows; not measured: {words}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    names = list(parts())
    parser = argparse.ArgumentParser(prog="python -m bench.grid", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="read, and written after each row")
    parser.add_argument("--part", nargs="+", choices=names, default=names, help="parts, all by default")
    parser.add_argument("--columns", nargs="+", default=[], help="these columns alone")
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="subjects whose name has one of these")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long, whatever is left")
    parser.add_argument("--workers", type=int, default=max(1, len(os.sched_getaffinity(0)) - 2), metavar="N")
    parser.add_argument("--again", action="store_true", help="measure what failed once more")
    parser.add_argument("--budget", default="", metavar="20s", help="of the tuner, for each subject of `tuned`")
    parser.add_argument("--search", type=float, default=60.0, metavar="S", help="seconds of a search in `tuner`")
    parser.add_argument("--exhaustive", type=float, default=120.0, metavar="S", help="and of the exhaustive one")
    parser.add_argument("--dry-run", action="store_true", help="build and check everything without a GPU, list all")
    options = parser.parse_args(argv)
    if options.dry_run:
        from bench.comparison.dry import dry

        return dry([parts()[n] for n in options.part], options.only)
    if not torch.cuda.is_available():
        print("torch sees no GPU here; --dry-run needs none")
        return 2
    os.environ[BUDGET] = options.budget
    with tempfile.TemporaryDirectory(prefix="neptune-grid-") as folder:
        return measure(options, worker.GPU, {"lock": str(Path(folder) / "gate")})


if __name__ == "__main__":
    sys.exit(main())
