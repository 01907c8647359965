"""Records that ship, made of what a search measured; what a choice by them is worth.

    python -m bench.records --ship bench/results/h200-choice-search.json --when 2026-11-21 [--keep 12] \
        --tuned bench/results/h200-tuned.jsonl
    python -m bench.records --judge bench/results/h200-choice-search.json

`--ship` writes `neptune/records/shipped/<device>.jsonl`: of each setup the fastest candidates, and those that the model
had put first (what it overrates must be known as well), as measured there, with the versions that the results name.
`--tuned` adds what `bench.tune_operators` left in its store: of each program and sizes, again, the fastest candidates
and the first that were measured.

`--judge` compares what `compile(expr)` takes at each setup with the best measured there, on paper: chosen by the model
alone, with the records that ship, and with those of other sizes alone (each setup's own left out). What the search did
not measure has no time, and is counted.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from bench.setups import OTHERWISE, setups
from bench.tune_operators import CALLS, program
from neptune.base.choice import Choice
from neptune.driver.known import samples
from neptune.ir.analysis.forms import cheaper
from neptune.ir.program import Program
from neptune.ops.attention import OPERATORS
from neptune.records.record import Record, parse
from neptune.records.store import SHIPPED, Key, key_of, replace
from neptune.records.structure import kin_of, structure_of
from neptune.tune.choose import candidates
from neptune.tune.chooser import Chooser
from neptune.tune.family import Wishes
from neptune.tune.measured import Sample
from neptune.tune.model.machine import machine_of

# --- what ships ----------------------------------------------------------------------------------


def shipped(results: Mapping[str, Any], when: str, keep: int) -> Iterator[Record]:
    """Of each setup so many of the fastest candidates, and as many of those that the model had put first; a setup that
    `bench.setups` does not have any more is left out."""
    made = results["environment"]
    versions = {"python": made["python"], "neptune": None, "torch": made["torch"], "triton": made["triton"]}
    device = machine_of("90", made["gpu"]).name
    programs = {s.name: s for s in setups()}
    for row in results["us"]:
        if row["setup"] not in programs or programs[row["setup"]].sizes != row["sizes"]:
            print(f"{row['setup']}: no such setup, left out")
            continue
        program = programs[row["setup"]].program()
        ran = [c for c in row["candidates"] if isinstance(c["us"], float) and read(c["variant"])[0] not in OTHERWISE]
        fast, first = (sorted(ran, key=lambda c: float(c[by]))[:keep] for by in ("us", "predicted"))
        for c in (*fast, *(c for c in first if c not in fast)):
            template, params = read(c["variant"])
            yield Record(
                structure=_kin(program),
                device=device,
                template=template,
                name=program.name,
                sizes=row["sizes"],
                params=params,
                us=[c["us"]],
                versions=versions,
                when=f"{when}T00:00:00Z",
            )


def tuned(store: Path, keep: int) -> Iterator[Record]:
    """Of each program and sizes in a file of records so many of the fastest candidates, and as many of the first that
    were measured, which are those that the model had put first; a candidate's last record counts."""
    of: dict[tuple[str, str], dict[Key, Record]] = defaultdict(dict)
    # The tuner kept records by the structure before it did by the kin.
    kin = {structure_of(p): kin_of(p) for p in map(program, (*OPERATORS, *CALLS))}
    for line in store.read_bytes().splitlines(keepends=True):
        found = parse(line)
        if isinstance(found, Record):
            found = dataclasses.replace(found, structure=kin.get(found.structure, found.structure))
            of[found.structure, str(sorted(found.sizes.items()))][key_of(found)] = found
    for measured in of.values():
        first = list(measured.values())[:keep]
        fast = sorted(measured.values(), key=lambda r: median(r.us))[:keep]
        yield from (*fast, *(r for r in first if r not in fast))


def read(variant: str) -> tuple[str, dict[str, int]]:
    """The template and the values of "matmul BLOCK_M=64 num_warps=4"."""
    template, *values = variant.split()
    return template, {n: int(v) for n, v in (value.split("=") for value in values)}


@cache
def _kin(program: Program) -> str:
    return kin_of(program)


# --- what they are worth ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Taken:
    """What was chosen at a setup and how fast it is, 1 for the best measured; None where it was not measured."""

    setup: str
    variant: str
    speed: float | None


@dataclass(frozen=True)
class Case:
    """One row of the results: a program at some sizes, with the microseconds of each candidate that ran."""

    setup: str
    program: Program
    sizes: dict[str, int]
    times: Mapping[Choice, float]

    def taken(self, samples: Sequence[Sample]) -> Taken:
        """What a kernel for all sizes takes here."""
        family = next(candidates(cheaper(self.program)[0], None, Wishes(samples=tuple(samples)))).family
        assert family is not None
        number = Chooser(family.choices, family.rows, self.program).number(self.sizes)
        choice = family.choices[number or 0]
        us = self.times.get(choice)
        return Taken(self.setup, str(choice), None if us is None else min(self.times.values()) / us)


def cases(results: Mapping[str, Any]) -> list[Case]:
    """The rows of a search whose setups there still are."""
    programs = {s.name: s for s in setups()}
    found = []
    for row in results["us"]:
        rows = [*row["candidates"], row["default"], row["sizes given"]]
        ran = [(c["variant"], float(c["us"])) for c in rows if isinstance(c["us"], float)]
        # What was measured twice is as fast as its later rounds say, which come last.
        of = [(*read(variant), us) for variant, us in ran]
        times = {Choice(template, params): us for template, params, us in of if template not in OTHERWISE}
        if row["setup"] in programs and programs[row["setup"]].sizes == row["sizes"]:
            found.append(Case(row["setup"], programs[row["setup"]].program(), row["sizes"], times))
    return found


WAYS: Mapping[str, Callable[[Sample, Case], bool]] = {
    "the model alone": lambda s, case: False,
    "records that ship": lambda s, case: True,
    "those of other sizes": lambda s, case: dict(s.sizes) != case.sizes,
}
"""Which records of its program a choice may read."""


def judged(results: Mapping[str, Any], keep: int) -> dict[str, list[Taken]]:
    """What is taken at each setup, by each of the ways."""
    known: dict[str, list[Record]] = defaultdict(list)
    for r in shipped(results, "2026-01-01", keep):
        known[r.structure].append(r)
    every = {structure: samples(records) for structure, records in known.items()}
    rows = [(case, every.get(_kin(case.program), ())) for case in cases(results)]
    return {way: [c.taken([s for s in of if may(s, c)]) for c, of in rows] for way, may in WAYS.items()}


def summary(of: Sequence[Taken]) -> str:
    """The geometric mean and the worst of the speeds."""
    speeds = [t.speed for t in of if t.speed is not None]
    worst = min((t for t in of if t.speed is not None), key=lambda t: t.speed or 0.0)
    mean, missing = geometric_mean(speeds), len(of) - len(speeds)
    lost = f"; {missing} not measured" if missing else ""
    return f"{mean:.4f} of the best measured, worst {worst.speed:.3f} ({worst.setup}), {len(speeds)} setups{lost}"


# --- the command ---------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.records", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ship", type=Path, metavar="FILE", help="results of a search to make records of")
    parser.add_argument("--judge", type=Path, metavar="FILE", help="results of a search to judge a choice by")
    parser.add_argument("--tuned", type=Path, metavar="FILE", help="records of bench.tune_operators that ship as well")
    parser.add_argument("--when", metavar="DATE", help="the day on which they were measured, 2026-11-21")
    parser.add_argument("--keep", type=int, default=12, metavar="N", help="candidates of each setup")
    options = parser.parse_args(argv)
    if options.ship:
        if not options.when:
            parser.error("--ship needs --when")
        records = list(shipped(json.loads(options.ship.read_text()), options.when, options.keep))
        records += tuned(options.tuned, options.keep) if options.tuned else ()
        path = SHIPPED / f"{records[0].device.lower().replace(' ', '-')}.jsonl"
        SHIPPED.mkdir(exist_ok=True)
        replace(path, (r.line()[:-1] for r in records))
        path.chmod(0o644)
        print(f"{len(records)} records in {path}, {path.stat().st_size / 1e3:.0f} kB")
    if options.judge:
        found = judged(json.loads(options.judge.read_text()), options.keep)
        for way, of in found.items():
            print(f"{way:22} {summary(of)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
