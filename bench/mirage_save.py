"""Kernels of the benchmarks for `bench.mirage speed`: the graph's and the template's, with values worth a trial."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import neptune
from bench.mirage_programs import BENCHMARKS
from bench.mirage_speed import Row, rows_of, save
from bench.mirage_wild import WILD
from neptune.driver.device import machine_for
from neptune.ir.integers import evaluate_size
from neptune.runtime.launch import parse_target
from neptune.tune.rank import ranked

VALUES = 12
"""Values that the model ranks first, of which a run takes the fastest."""


def save_all(
    folder: Path, names: Sequence[str], batches: Sequence[int], dtypes: Sequence[str], target: str, budget: str
) -> int:
    """Search, compile and save every row that the folder does not have."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, batch, dtype in [(n, b, d) for d in dtypes for n in names for b in batches]:
        have = {r.key for r in rows_of(folder)} if (folder / "rows.json").exists() else set()
        begin = time.monotonic()
        if Row(name, batch, dtype, ()).key not in have:
            said = save_row(folder, name, batch, dtype, target, budget)
            print(f"{name} b={batch} {dtype}: {said} ({time.monotonic() - begin:.0f} s)", file=sys.stderr, flush=True)
    return 0


def save_row(folder: Path, name: str, batch: int, dtype: str, target: str, budget: str) -> str:
    """Save one row; what its kernel is, for people."""
    of = BENCHMARKS[name]
    program = of.program(dtype, **of.sizes(batch))
    template = neptune.compile(program, target=target)
    ours = neptune.superoptimize(program, target=target, budget=budget)
    return _saved(folder, (name, batch, dtype), {}, ours, template)


def save_wild(folder: Path, name: str, target: str, budget: str) -> str:
    """Save a program as users bring them, at its typical sizes."""
    of = WILD[name]
    program = of.build()
    template = neptune.compile(program, target=target, shapes=of.sizes)
    bounds: dict[str, Any] = {"max_block_ops": of.operators, "max_kernels": of.kernels}
    ours = neptune.superoptimize(program, target=target, budget=budget, shapes=of.sizes, **bounds)
    return _saved(folder, (name, 1, "float16"), of.sizes, ours, template)


def _saved(
    folder: Path, of: tuple[str, int, str], sizes: Mapping[str, int], ours: neptune.Kernel, template: neptune.Kernel
) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    inputs = template.program.inputs
    shapes = tuple(tuple(evaluate_size(d, sizes) for d in b.shape) for b in inputs)
    machine = machine_for(parse_target(ours.target))
    values = tuple(dict(r.params) for r in ranked(ours.build.tiles, sizes, machine)[:VALUES])
    save(folder, Row(*of, shapes, values), ours, template)
    said = ours.explain(json=True)["search"]
    return f"{said['why']}; {(said['found'] or {}).get('us')} µs, {said['template']}"
