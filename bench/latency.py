"""How long a compilation takes up to its Triton source: each time in a fresh process, as a first use would have it.

    python -m bench.latency [--repeats 5] [--json latency.json]

The first table counts importing what the compiler uses (SymPy among it), the expression, the schedule with its proofs,
the tile passes and the text. `cpu` is the processor's time of the whole, which other work on the machine does not
lengthen.

A second table is of `neptune.compile(expr)` with nothing else and its cache: cold, from an empty one; from the cache
in a process that has compiled nothing before, and in one that has. It is the processor's time until the first variant's
source is there, without imports (SymPy's among them), the least of all runs, since other work on a machine can only
lengthen it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from neptune.versions import versions

PROGRAM = """
import json, time
import torch
start, busy = time.perf_counter(), time.process_time()
from neptune.ops.attention import {build}
from neptune.fusion.schedule import Schedule
from neptune.tile.pipeline import lower
from neptune.codegen.triton.module import generate
from neptune.tune.defaults import defaults
from neptune.templates.flash_attention import flash_attention
program = {build}(lse=True)
imported = time.perf_counter()
sch = Schedule(program)
flash_attention(sch)
scheduled = time.perf_counter()
tiles = lower(sch.program)
lowered = time.perf_counter()
generate(tiles, defaults(tiles), loads="descriptor")
end = time.perf_counter()
marks = dict(begin=imported - start, schedule=scheduled - imported, lower=lowered - scheduled, text=end - lowered)
print(json.dumps(marks | dict(total=end - start, cpu=time.process_time() - busy)))
"""
CASES = {
    "program global": PROGRAM.replace("{build}", "prefill_global"),
    "program causal": PROGRAM.replace("{build}", "prefill_causal"),
}
STEPS = ("begin", "schedule", "lower", "text", "total", "cpu")

AUTOMATIC = """
import json, time
import torch, sympy
import neptune
import neptune.driver.pipeline
from neptune.ops.attention import operator
from neptune.ops.linear import matmul
from neptune.ops.softmax import softmax
program = {program}
def seconds():
    start = time.process_time()
    neptune.compile(program, target="interpret").source
    return time.process_time() - start
first = seconds()
print(json.dumps(dict(first=first, again=min(seconds() for _ in range(9)))))
"""
AUTOMATIC_CASES = {
    "attention, global": 'operator("prefill_global", heads=None, depth=128)',
    "attention, causal": 'operator("prefill_causal", heads=None, depth=128)',
    "decode": 'operator("decode_gqa", heads=32, kv_heads=8)',
    "matmul": "matmul()",
    "softmax": "softmax()",
}
AUTOMATIC_STEPS = ("cold", "fresh", "warm")


def run(script: str, cache: str = "0") -> dict[str, float]:
    """Seconds of each step, in a process of its own, with a folder of compiled kernels or none."""
    root = Path(__file__).resolve().parent.parent
    environment = {**os.environ, "NEPTUNE_CACHE_DIR": cache}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "the process died")
    times: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return times


def measure(name: str, repeats: int) -> dict[str, Any]:
    """Median seconds by step, and the slowest total."""
    try:
        runs = [run(CASES[name]) for _ in range(repeats)]
    except RuntimeError as error:
        return {"case": name, "error": str(error)}
    return {
        "case": name,
        "median": {k: statistics.median(r[k] for r in runs) for k in STEPS},
        "worst": max(r["total"] for r in runs),
        "runs": runs,
    }


def measure_automatic(name: str, repeats: int) -> dict[str, Any]:
    """Least seconds of the processor for `neptune.compile(expr)`: cold, and from the cache."""
    script, runs = AUTOMATIC.format(program=AUTOMATIC_CASES[name]), []
    try:
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                cold, fresh = (run(script, folder) for _ in range(2))
            runs.append(dict(zip(AUTOMATIC_STEPS, (cold["first"], fresh["first"], fresh["again"]), strict=True)))
    except RuntimeError as error:
        return {"case": name, "error": str(error)}
    return {"case": name, "least": {k: min(r[k] for r in runs) for k in AUTOMATIC_STEPS}, "runs": runs}


def line(row: dict[str, Any]) -> str:
    """A row of a table, in milliseconds."""
    if "error" in row:
        return f"| {row['case']} | {row['error']} |"
    seconds = row["least"] if "least" in row else {**row["median"], "worst": row["worst"]}
    return f"| {row['case']} | {' | '.join(f'{s * 1000:.1f}' for s in seconds.values())} |"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.latency", description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all times")
    options = parser.parse_args(argv)
    content: dict[str, Any] = {"environment": versions("sympy")}
    print(json.dumps(content["environment"]))
    for part, cases, made, head in (
        (
            "cases",
            CASES,
            measure,
            "ms, median | imports and expression | schedule | lower | text | total | cpu | slowest",
        ),
        ("automatic", AUTOMATIC_CASES, measure_automatic, "ms of the processor, least | cold | first call | later"),
    ):
        print(f"\n| {head} |\n{'|---' * (head.count('|') + 1)}|")
        content[part] = []
        for name in cases:
            content[part].append(made(name, options.repeats))
            print(line(content[part][-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
