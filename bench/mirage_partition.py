"""A block of a Llama, which no graph is as a whole, as parts: which, how many kernels, how exact, how long it takes.

    python -m bench.mirage partition [--layers 1 2] [--each 0.5] [--unshared] [--target interpret] [--json FILE]

The program (`bench.mirage_llama`) is cut at the sizes of a model of 10⁹ weights, with so many seconds for each search,
equal parts once (and with `--unshared` once more, each by itself). The kernel of all parts is compared with float64 at
small sizes, beside the kernel of the same program without graphs (a stage a kernel) and eager torch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import neptune
from bench import record
from bench.cases import environment
from bench.mirage_eager import llama_blocks as eager
from bench.mirage_llama import SIZES, SMALL, llama64, llama_blocks, tables
from neptune.ir.integers import evaluate_size
from neptune.ir.program import Program, stages
from neptune.mirage.lower import Lowered
from neptune.mirage.partition import Partition, partitioned
from neptune.tune.machine import DEFAULT
from neptune.verify.numerics import rel_error


def inputs(program: Program, sizes: dict[str, int], dtype: str) -> list[torch.Tensor]:
    """Arguments of a call: normal values, weights divided by the root of what they are summed over."""
    rng = np.random.default_rng(0)
    made = []
    for b in program.inputs:
        shape = tuple(evaluate_size(d, sizes) for d in b.shape)
        scale = 1.0 if b.name == "x" else float(np.prod(shape[:-1]) ** -0.5)
        made.append(torch.from_numpy(rng.standard_normal(shape) * scale).to(getattr(torch, dtype)))
    made[1:3] = map(torch.from_numpy, tables(sizes["tokens"]))
    return made


def error(call: Callable[..., Any], program: Program, dtype: str) -> float:
    """The relative error of a kernel, or of eager torch, against float64 at small sizes."""
    given = inputs(program, SMALL, dtype)
    exact = llama64(*(x.double().numpy() for x in given))
    return float(rel_error(call(*given).double(), torch.from_numpy(exact)).total)


def parts_of(found: Partition) -> list[dict[str, Any]]:
    """The parts, for people and for diffs."""
    of = [([s.name for s in stages(p.program.body)], p) for p in found.parts]
    return [{"stages": names, "graph": p.graph is not None, "us": p.us} for names, p in of]


def searched(program: Program, each: float, share: bool) -> tuple[Partition, dict[str, Any]]:
    """The parts of a program, and what it took to find them."""
    begin, used = time.monotonic(), time.process_time()
    found = partitioned(program, SIZES, DEFAULT, each, share=share, of_each=True)
    seconds = {"seconds": time.monotonic() - begin, "processor seconds": time.process_time() - used}
    return found, seconds | {"searches": found.searches, "like others": found.shared, "us": found.us}


def measured(layers: int, each: float, dtype: str, target: str, unshared: bool) -> dict[str, Any]:
    """The row of so many blocks."""
    program = llama_blocks(layers, dtype)
    row: dict[str, Any] = {"layers": layers, "stages": len(stages(program.body)), "sizes": SIZES, "dtype": dtype}
    found, row["shared"] = searched(program, each, share=True)
    row["parts"] = parts_of(found)
    if unshared:
        _, row["not shared"] = searched(program, each, share=False)
    print("\n".join(times(row)), flush=True)
    lowered = found.lowered()
    assert isinstance(lowered, Lowered), lowered
    ways: dict[str, Any] = {"in parts": lowered.template, "stage by stage": "stagewise"}
    for name, template in ways.items():
        begin = time.monotonic()
        kernel = neptune.compile(program, template, target=target)
        took = time.monotonic() - begin
        made = {"kernels": len(kernel.facts.kernels), "error": error(kernel, program, dtype)}
        row[name] = {**made, "seconds to compile": took}
    row["eager"] = {"error": error(eager, program, dtype)}
    return row


def times(row: dict[str, Any]) -> list[str]:
    """What searches took, and the parts, for people."""
    of = {n: row[n] for n in ("shared", "not shared") if n in row}
    took = [f"{n}: {w['searches']} searches, {w['processor seconds']:.0f} processor seconds" for n, w in of.items()]
    parts = [(p["us"], "graph" if p["graph"] else "kernel", " ".join(p["stages"])) for p in row["parts"]]
    head = f"{row['layers']} blocks, {row['stages']} stages: {len(row['parts'])} parts; {'; '.join(took)}"
    return [head, *(f"  {us:7.1f} µs {kind} {names}" for us, kind, names in parts)]


def results(row: dict[str, Any]) -> list[str]:
    """The kernels of a program and their errors, for people."""
    of = {n: row[n] for n in ("in parts", "stage by stage")}
    said = [
        f"{n}: {w['kernels']} kernels, error {w['error']:.1e}, compiled in {w['seconds to compile']:.0f} s"
        for n, w in of.items()
    ]
    return [f"  {line}" for line in (*said, f"eager: error {row['eager']['error']:.1e}")]


def main(argv: Sequence[str]) -> int:
    """Run the command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m bench.mirage partition", description=__doc__, formatter_class=raw)
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--each", type=float, default=0.5, help="seconds of each search")
    parser.add_argument("--unshared", action="store_true", help="search once more, each part by itself")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--target", default="interpret", help="what errors are measured on")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    rows = []
    for layers in options.layers:
        rows.append(measured(layers, options.each, options.dtype, options.target, options.unshared))
        print("\n".join(results(rows[-1])), flush=True)
        if options.json:
            options.json.write_text(record.as_json({"environment": environment(), "rows": rows}))
    return 0
