"""What closed forms say of registers, shared memory and spills, beside what the compiler makes of the kernels.

    python -m bench.registers [--count 60] [--target cuda:90] [--json registers.json]

Kernels are drawn (always the same) from the candidates of a search (`results/h200-choice-search.json`), which were
measured there, and compiled for the target; no GPU is needed. A kernel spills where it keeps values of threads in
memory: by the closed form, where a thread would need more registers than it may have.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import neptune
from bench import record
from bench.cases import environment
from bench.cost import RESULTS
from bench.records import read
from bench.setups import Setup, setups
from neptune.choice import Choice
from neptune.driver.device import machine_for
from neptune.runtime.launch import parse_target
from neptune.tune.choose import lowered
from neptune.tune.columns import Points
from neptune.tune.occupancy import most_registers
from neptune.tune.rank import model_of, predictions

SPILLED = 1024
"""Bytes of each thread from which a kernel is slow by its spills."""


def drawn(count: int) -> Iterator[tuple[Setup, Choice]]:
    """Candidates of a search, so many in all, of all operators alike."""
    rows = json.loads((RESULTS / "h200-choice-search.json").read_text())["us"]
    by_name = {s.name: s for s in setups()}
    draw = random.Random(0)
    for k in range(count):
        row = rows[k % len(rows)]
        ran = sorted((c for c in row["candidates"] if isinstance(c["us"], float)), key=lambda c: float(c["us"]))
        yield by_name[row["setup"]], draw.choice([Choice(*read(c["variant"])) for c in ran])


def compared(setup: Setup, tried: Choice, target: str) -> list[dict[str, Any]]:
    """A row for each kernel of a candidate."""
    program = setup.program()
    machine = machine_for(parse_target(target))
    tiles = lowered(tried.template, program, strict=False).tiles
    found = predictions(model_of(tiles), Points.at([tried.params], setup.sizes), machine).at(0)
    shapes = dict(setup.sizes)
    kernel = neptune.compile(program, tried.template, target=target, params=tried.params, shapes=shapes)
    rows = []
    for said, made in zip(found.kernels, kernel.resources(target), strict=True):
        most = most_registers(tried.params["num_warps"], machine)
        rows.append(
            {
                "setup": setup.name,
                "variant": str(tried),
                "kernel": made.name,
                "registers": [round(said.needs.registers, 1), made.registers],
                "shared": [said.needs.shared, made.shared_bytes],
                "spills": [said.needs.registers > most, made.spill_bytes],
            }
        )
    return rows


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """What is off by how much, and spills that are not foreseen or do not come."""
    registers = [abs(min(said, 255) - made) for said, made in (r["registers"] for r in rows)]
    shared = [abs(said - made) / max(made, 1024) for said, made in (r["shared"] for r in rows)]
    spills = [(said, made) for said, made in (r["spills"] for r in rows)]
    missed = sum(not said and made > SPILLED for said, made in spills)
    needless = sum(said and made <= SPILLED for said, made in spills)
    return (
        f"{len(rows)} kernels: registers off by {median(registers):.0f} (median), "
        f"{sorted(registers)[int(0.9 * len(registers))]:.0f} (nine of ten); shared memory by {median(shared):.0%}, "
        f"{sorted(shared)[int(0.9 * len(shared))]:.0%}; spills above {SPILLED} bytes: "
        f"{sum(made > SPILLED for _, made in spills)}, of which {missed} not foreseen; {needless} foreseen for nothing"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.registers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=60, metavar="N", help="candidates that are compiled")
    parser.add_argument("--target", default="cuda:90")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the environment and every figure")
    options = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    for setup, tried in drawn(options.count):
        rows += compared(setup, tried, options.target)
        r = rows[-1]
        print(
            f"{r['setup']:<32} registers {r['registers']} shared {r['shared']} spills {r['spills']} {r['variant']}",
            flush=True,
        )
    print(summary(rows))
    if options.json:
        options.json.write_text(record.as_json({"environment": environment(), "kernels": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
