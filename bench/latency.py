"""How long a compilation takes up to its Triton source: each time in a fresh process, as a first use would have it.

    python -m bench.latency [--repeats 5] [--json latency.json]

`program` starts from a Program, `te` from a TVM tensor expression; `import tvm` is not counted, everything else is:
importing what the compiler uses (SymPy among it), the schedule with its proofs, the tile passes, the text. `cpu` is
the processor's time of the whole, which other work on the machine does not lengthen.

A second table is of `neptune.compile(expr)` with nothing else and its cache: cold, from an empty one; from the cache
in a process that has compiled nothing before, and in one that has. It is the processor's time until the first variant's
source is there, without imports (SymPy's among them), the least of all runs, since other work on a machine can only
lengthen it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

PROGRAM = """
import json, time
import torch
start, busy = time.perf_counter(), time.process_time()
from neptune.ops.attention import {build}
from neptune.fusion.schedule import Schedule
from neptune.tile.pipeline import lower
from neptune.codegen.triton import generate
from neptune.tune.defaults import defaults
from neptune.templates.flash_attention import flash_attention
program = {build}(lse=True)
imported = time.perf_counter()
"""
TE = """
import json, math, time
import torch, tvm
from tvm import te
start, busy = time.perf_counter(), time.process_time()
from neptune.frontend.te import from_te
from neptune.fusion.schedule import Schedule
from neptune.tile.pipeline import lower
from neptune.codegen.triton import generate
from neptune.tune.defaults import defaults
from neptune.templates.flash_attention import flash_attention
imported = time.perf_counter()
{expression}
program = from_te(o, [q, k, v], "attention")
"""
EXPRESSION = """
b, h, s_q, s_kv = (te.var(x) for x in ("b", "h", "s_q", "s_kv"))
q = te.placeholder((b, h, s_q, 128), "float16", name="q")
k = te.placeholder((b, h, s_kv, 128), "float16", name="k")
v = te.placeholder((b, h, s_kv, 128), "float16", name="v")
d, j = te.reduce_axis((0, 128), "d"), te.reduce_axis((0, s_kv), "j")
f32, f16 = (lambda x: x.astype("float32")), (lambda x: x.astype("float16"))
s = te.compute((b, h, s_q, s_kv), lambda b, h, i, j: te.sum(f32(q[b, h, i, d]) * f32(k[b, h, j, d]), axis=d), name="s")
def masked(b, h, i, j):
    scaled = s[b, h, i, j] * tvm.tirx.const(1 / math.sqrt(128), "float32")
    return te.if_then_else(j <= i + s_kv - s_q, scaled, te.min_value("float32")) if {causal} else scaled
score = te.compute((b, h, s_q, s_kv), masked, name="score")
m = te.compute((b, h, s_q), lambda b, h, i: te.max(score[b, h, i, j], axis=j), name="m")
p = te.compute((b, h, s_q, s_kv), lambda b, h, i, j: te.exp(score[b, h, i, j] - m[b, h, i]), name="p")
j2, j3 = te.reduce_axis((0, s_kv), "j2"), te.reduce_axis((0, s_kv), "j3")
l = te.compute((b, h, s_q), lambda b, h, i: te.sum(p[b, h, i, j2], axis=j2), name="l")
w = te.compute((b, h, s_q, s_kv), lambda b, h, i, j: f16(p[b, h, i, j]), name="w")
weighed = lambda b, h, i, e: te.sum(f32(w[b, h, i, j3]) * f32(v[b, h, j3, e]), axis=j3)
acc = te.compute((b, h, s_q, 128), weighed, name="acc")
o = te.compute((b, h, s_q, 128), lambda b, h, i, e: f16(acc[b, h, i, e] / l[b, h, i]), name="o")
"""
REST = """
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
    "program global": PROGRAM.format(build="prefill_global") + REST,
    "program causal": PROGRAM.format(build="prefill_causal") + REST,
    "te global": TE.format(expression=EXPRESSION.format(causal=False)) + REST,
    "te causal": TE.format(expression=EXPRESSION.format(causal=True)) + REST,
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


def short_line(row: dict[str, Any]) -> str:
    """A row of the second table, in milliseconds."""
    if "error" in row:
        return line(row)
    words = [f"{seconds * 1000:.1f}" for seconds in row["least"].values()]
    return f"| {row['case']} | {' | '.join(words)} |"


def line(row: dict[str, Any]) -> str:
    """A row of the table, in milliseconds."""
    if "error" in row:
        return f"| {row['case']} | {row['error']} |"
    words = [f"{row['median'][k] * 1000:.0f}" for k in STEPS]
    return f"| {row['case']} | {' | '.join(words)} | {row['worst'] * 1000:.0f} |"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.latency", description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all times")
    options = parser.parse_args(argv)
    environment = {"machine": platform.machine(), "python": platform.python_version(), "sympy": version("sympy")}
    print(json.dumps(environment))
    print(
        "\n| ms, median | imports and expression | schedule | lower | text | total | cpu | slowest |\n"
        + "|---" * 8
        + "|"
    )
    rows = []
    for name in CASES:
        rows.append(measure(name, options.repeats))
        print(line(rows[-1]), flush=True)
    print("\n| ms of the processor, least | cold | cached, first call | cached, later |\n" + "|---" * 4 + "|")
    automatic = []
    for name in AUTOMATIC_CASES:
        automatic.append(measure_automatic(name, options.repeats))
        print(short_line(automatic[-1]), flush=True)
    if options.json:
        record = {"environment": environment, "cases": rows, "automatic": automatic}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
