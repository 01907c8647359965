"""What a plain call takes: `neptune.functional.…` and `neptune.compile(expr)`, nothing told, beside torch's libraries.

    python -m bench.default --prepare 14 --json FILE          # compile all in 14 processes, then measure one by one
    python -m bench.default --only decode --seconds 300
    python -m bench.default --cold 4 --only prefill           # every 4th row's first call, with an empty cache
    python -m bench.default --dry-run                         # the rows; no GPU is needed
    python -m bench.default_tables                            # what the pages say of them

Each row has a process of its own. Its columns (`bench.default_rows`) are captured as CUDA graphs (but for a BlockMask,
which is looked up there) and timed in interleaved rounds with a cold L2 cache; every sample is kept. Preparing compiles
kernels side by side; what forms took there is thrown away, as others ran meanwhile, and is found anew where a row is
measured. "first" is the first call; times are of later ones, by the kernel that has taken over.
Rows that the file has are not measured anew. Losses are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import partial
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

from bench import record

ROUNDS, SAMPLES = 7, 9
ENDLESS = 240
"""Seconds that a row's process may take."""
CACHES = {"NEPTUNE_CACHE_DIR": "neptune", "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
OURS, COMPILE = "functional", "compile"
LOST = 0.97
"""Of the fastest other's speed: below this a row is a loss."""


def main(argv: Sequence[str]) -> int:
    """Run the command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m bench.default", description=__doc__, formatter_class=raw)
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="rows whose names contain one of these")
    parser.add_argument("--prepare", type=int, default=0, metavar="N", help="compile first, in so many processes")
    parser.add_argument("--cold", type=int, default=0, metavar="N", help="only first calls, of every Nth row")
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin nothing after so long")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where samples go, and what is done already")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--first", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.row is not None:
        print(json.dumps(measured(options.row, options.first)))
        return 0
    from bench.default_rows import ROWS

    names = [n for n in ROWS if any(text in n for text in options.only)]
    if options.dry_run:
        print("\n".join(names))
        return 0
    return run(names[:: options.cold or 1], options)


def run(names: Sequence[str], options: argparse.Namespace) -> int:
    """Measure what the file does not have."""
    from bench.cases import environment

    file: Path | None = options.json
    kept = json.loads(file.read_text()) if file is not None and file.exists() else {}
    done: dict[str, Any] = {r["name"]: r for r in kept.get("rows", [])}
    todo, end = [n for n in names if n not in done], time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as folder:
        if options.prepare:
            with ThreadPoolExecutor(options.prepare) as pool:
                list(pool.map(partial(_child, Path(folder), first=True, tiered="wait"), todo))
            # Forms were compared while other processes used the GPU.
            shutil.rmtree(Path(folder, "neptune", "accepted"), ignore_errors=True)
        for k, name in enumerate(todo):
            if time.monotonic() > end:
                print(f"{len(todo) - k} rows are not measured: the time is over")
                break
            own = Path(folder, str(k)) if options.cold else Path(folder)
            done[name] = _child(own, name, first=bool(options.cold)) | {"date": date.today().isoformat()}
            print(line(done[name]), flush=True)
            if file is not None:
                file.write_text(
                    record.as_json({"environment": environment(), "unit": "us", "rows": list(done.values())})
                )
    print("\n".join(summary([r for r in done.values() if "us" in r])))
    return 0


def _child(folder: Path, name: str, first: bool, tiered: str = "beside") -> dict[str, Any]:
    """A row in a process of its own, where first calls wait for the fastest kernel or not."""
    command = [sys.executable, "-W", "ignore", "-m", "bench.default", "--row", name, *(["--first"] if first else [])]
    env = os.environ | {key: str(folder / part) for key, part in CACHES.items()} | {"NEPTUNE_TIERED": tiered}
    try:
        made = subprocess.run(command, env=env, capture_output=True, text=True, timeout=ENDLESS)
        found: dict[str, Any] = json.loads(made.stdout.splitlines()[-1])
        return found
    except subprocess.TimeoutExpired:
        return {"name": name, "failed": {"process": f"no end in {ENDLESS} s"}}
    except (IndexError, ValueError):
        return {"name": name, "failed": {"process": made.stderr.strip()[-300:]}}


# --- in a row's process ----------------------------------------------------------------------------------------------


def measured(name: str, only_first: bool) -> dict[str, Any]:
    """All samples of a row's columns; what cannot run says why."""
    import torch

    from bench.default_rows import ROWS
    from bench.mirage_speed import Gpu

    row, gpu = ROWS[name], Gpu()
    torch.manual_seed(0)
    found: dict[str, Any] = {"name": name, "work": row.work, "unit": row.unit, "first": {}, "failed": {}, "us": {}}
    graphs = {}
    with torch.no_grad():
        for column, call in row.calls().items():
            try:
                begin = time.perf_counter()
                call()
                torch.cuda.synchronize()
                found["first"][column] = round(time.perf_counter() - begin, 3)
                if not only_first:
                    _settled(call)
                graphs[column] = gpu.graph(call) if row.captured and not only_first else call
            except Exception as error:
                found["failed"][column] = f"{type(error).__name__}: {str(error)[:200]}"
        names = list(graphs)
        found["us"] = {n: [] for n in names}
        for k in range(0 if only_first else ROUNDS):
            # Behind a call that heats the GPU clocks are lower: who comes behind whom changes from round to round.
            for n in random.Random(k).sample(names, len(names)):
                found["us"][n] += [round(us, 2) for us in gpu.times(graphs[n], SAMPLES)]
    return found


def _settled(call: Callable[[], Any]) -> None:
    """Have what is compiled beside the first calls take over: the kernel, then its variant for these sizes."""
    import neptune

    for _ in range(2):
        neptune.functional.settle()
        call()


# --- for people ------------------------------------------------------------------------------------------------------


def rates(row: Mapping[str, Any]) -> dict[str, float]:
    """TFLOP/s or GB/s by column."""
    scale = 1e6 if row["unit"] == "TFLOP/s" else 1e3
    return {n: row["work"] / median(us) / scale for n, us in row["us"].items() if us}


def line(row: Mapping[str, Any]) -> str:
    cells = [f"{n} {rate:.0f}" for n, rate in rates(row).items()] if "us" in row else []
    cells += [f"{n}: {why.splitlines()[-1] if why else why}" for n, why in row["failed"].items()]
    cells += [f"first {n} {s:.1f} s" for n, s in row.get("first", {}).items()]
    return f"{row['name']:50} {row.get('unit', '')} {' | '.join(cells)}"


def summary(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """By group, geometric means of our calls over the fastest of the others, and every loss."""
    for group in dict.fromkeys(r["name"].split(": ")[0] for r in rows):
        for mine in (OURS, COMPILE):
            ratios = dict(beside(mine, [r for r in rows if r["name"].startswith(f"{group}: ")]))
            if not ratios:
                continue
            mean = exp(sum(map(log, ratios.values())) / len(ratios))
            least = min(ratios.values())
            yield f"{group}, {mine}: {mean:.2f} of the fastest other, least {least:.2f}; {len(ratios)} rows"
            yield from (f"  loss: {n} {r:.2f}" for n, r in ratios.items() if r < LOST)


def beside(mine: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    """Rows with the speed of one of our columns over that of the fastest of the others."""
    for row in rows:
        if found := speeds(mine, row):
            yield row["name"], min(found.values())


def speeds(mine: str, row: Mapping[str, Any]) -> dict[str, float]:
    """By column of the others, the speed of one of ours over its: the median of the ratios of rounds, since a clock
    that moves is much the same for all columns of a round."""
    of = {name: rounds(us) for name, us in row["us"].items() if us}
    others = of.keys() - {OURS, COMPILE} if mine in of else ()
    return {n: median(b / a for a, b in zip(of[mine], of[n], strict=True)) for n in of if n in others}


def rounds(us: Sequence[float]) -> list[float]:
    """The median of each round of a column."""
    return [median(us[k : k + SAMPLES]) for k in range(0, len(us), SAMPLES)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
