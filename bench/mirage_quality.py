"""How good the kernels of graphs are, without a GPU: each beside the template's.

    python -m bench.mirage quality [--only RMSNorm …] [--batch 8] [--dtype float16] [--budget 60s] [--no-errors]
                                   [--resources cuda:80 cuda:90 hip:gfx942] [--json FILE]

Kernels; predicted times; bytes through memory of the graph beside the compulsory ones (each input and result once);
registers and spills; what each step of the optimizer brings (`bench.mirage_ablation`: the figure with it, and without);
errors against float64 beside eager torch's, at small, ordinary and large inputs and with -inf, at
sizes that no tile divides.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

import neptune
from bench import record
from bench.cases import environment
from bench.chains import OFFLINE, resources
from bench.mirage_ablation import ablated
from bench.mirage_eager import EAGER
from bench.mirage_programs import BENCHMARKS, Benchmark
from bench.operators import INFINITE, hard
from neptune.driver.device import machine_for
from neptune.ir.dtypes import DTYPES
from neptune.ir.integers import evaluate_size
from neptune.mirage.cost import estimate
from neptune.runtime.launch import parse_target
from neptune.tune.budget import seconds_of
from neptune.verify.numerics import rel_error

ODD = {"m": 19, "k": 150, "n": 70, "r": 9, "rows": 5, "cols": 100, "heads": 2, "queries": 19, "keys": 70, "depth": 16}
"""Sizes at which errors are measured: no multiples of tiles."""
SCALES = {"small": 1e-2, "plain": 1.0, "large": 10.0, INFINITE: 1.0}


def side(kernel: neptune.Kernel, targets: Sequence[str]) -> dict[str, Any]:
    """What a kernel is, what is predicted of it, and what it needs of GPUs."""
    said = kernel.explain(json=True)
    us = (said.get("prediction") or {}).get("us")
    of = {t: resources(kernel, t) for t in targets}
    return {"template": said["template"], "kernels": len(said["kernels"]), "us": us, "resources": of}


def compulsory(of: Benchmark, dtype: str, sizes: dict[str, int]) -> int:
    """Bytes of all inputs and results."""
    program = of.program(dtype)
    each = ((prod(evaluate_size(d, sizes) for d in b.shape), b.dtype) for b in (*program.inputs, *program.outputs))
    return sum(n * DTYPES[d].bits // 8 for n, d in each)


def errors(of: Benchmark, dtype: str, kernel: neptune.Kernel) -> dict[str, dict[str, float]]:
    """Relative errors against float64 by kind of input, ours and eager torch's, where the dtype has the true result."""
    small, found = kernel.for_target("interpret"), {}
    for kind, scale in SCALES.items():
        shapes = [tuple(evaluate_size(d, ODD) for d in b.shape) for b in of.program(dtype).inputs]
        drawn = [hard(kind if kind == INFINITE and not k else "random", *s, seed=k) for k, s in enumerate(shapes)]
        given = [torch.from_numpy(np.asarray(x) * scale).to(getattr(torch, dtype)) for x in drawn]
        with np.errstate(all="ignore"):
            exact = torch.from_numpy(of.reference(*(x.double().numpy() for x in given)))
        keep = exact.to(getattr(torch, dtype)).isfinite()
        if keep.any():
            both: dict[str, Any] = {"ours": small(*given), "eager": EAGER[of.name](*given)}
            found[kind] = {n: float(rel_error(y.double()[keep], exact[keep]).total) for n, y in both.items()}
    return found


def measured(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The row of a benchmark."""
    of = BENCHMARKS[name]
    program, sizes = of.program(options.dtype), of.sizes(options.batch)
    asked: dict[str, Any] = {"target": options.target, "shapes": sizes}
    template = neptune.compile(program, **asked)
    ours = neptune.superoptimize(program, budget=options.budget, **asked)
    row: dict[str, Any] = {"benchmark": name, "batch": options.batch, "dtype": options.dtype}
    row |= {"graph": side(ours, options.resources), "template": side(template, options.resources)}
    row |= {"why": ours.explain(json=True)["search"]["why"], "compulsory": compulsory(of, options.dtype, sizes)}
    if ours.graph is not None:
        machine = machine_for(parse_target(options.target))
        row["bytes"] = estimate(ours.graph, sizes, machine).bytes
    row["ablation"] = ablated(program, sizes, machine_for(parse_target(options.target)), seconds_of(options.budget))
    if options.errors:
        row["errors"] = errors(of, options.dtype, ours)
    return row


def line(row: dict[str, Any]) -> str:
    """A row for people."""
    sides = [f"{n} {row[n]['kernels']} kernels, {row[n]['us']} µs" for n in ("graph", "template")]
    read = f"{row.get('bytes', 0) / row['compulsory']:.2f} of the compulsory {row['compulsory'] / 1e6:.1f} MB"
    worst = [f"{k} {e['ours']:.1e} (eager {e['eager']:.1e})" for k, e in row.get("errors", {}).items()]
    spills = [f"{t}: {of}" for t, of in row["graph"]["resources"].items()]
    return "\n  ".join([f"{row['benchmark']}: {row['why']}; {'; '.join(sides)}", read, ", ".join(worst), *spills])


def main(argv: Sequence[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.mirage quality", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=list(BENCHMARKS), default=list(BENCHMARKS), metavar="NAME")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--target", default="cuda:90")
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--resources", nargs="*", default=list(OFFLINE), metavar="TARGET")
    parser.add_argument("--no-errors", dest="errors", action="store_false")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    rows = []
    for name in options.only:
        rows.append(measured(name, options))
        print(line(rows[-1]), flush=True)
        if options.json:
            options.json.write_text(record.as_json({"environment": environment(), "rows": rows}))
    return 0
