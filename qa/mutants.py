"""Mutants of fused Programs and TilePrograms: how many mistakes the checks reject, operator by operator.

    python -m qa.mutants [--named] [--operator NAME ...] [--level loops tiles] [--per-kind 4 | --all] [--json FILE]

Every mutant has one mistake of `qa.mutate.KINDS`. The check of well-formedness sees it first, then the exact
check, as a compilation would run it; the program without the mistake is accepted by both. Rejected by

- *both models*: the field pair accuses, and the ordered rationals confirm it with the true maximum;
- *field pair*, *ordered rationals* alone, or the *range of float32*, which sees what overflows;
- *dtypes of the program, at all magnitudes*: only inputs of some magnitude show it;
- *more draws*: accepted by the draws of a compilation, rejected by those of NEPTUNE_VERIFY=2;
- *rounding errors*: equal in every exact model, and beyond the numeric criterion on hostile inputs.

What none rejects is compared in float64 on many sizes (`qa.mutants_numbers`): *equal* where no element differs,
*missed* where one does. *undecided*: no model had a value for the results. The exit status is 1 if any mutant was
missed or undecided.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bench import record
from neptune.config import DRAWS
from neptune.errors import InternalError
from neptune.ir.evaluate.domains import TooLarge
from neptune.ir.program import Program
from neptune.ir.verify import verify
from neptune.tile.ir import TileProgram
from neptune.tile.verify import verify_tiles
from neptune.verify.draws import Shared
from neptune.verify.exact import MAGNITUDES, ExactReport, check_exact
from neptune.verify.ranged import Ranged
from neptune.versions import versions
from qa.mutants_cases import CASES, Case
from qa.mutants_numbers import in_numbers
from qa.mutate import KINDS, NAMED, Change
from qa.mutate_loops import loop_mutants
from qa.mutate_tiles import tile_mutants

LEVELS = ("loops", "tiles")
ROUNDED = (Ranged.name, MAGNITUDES)
EXACTLY = ("both models", "field pair", "ordered rationals", *ROUNDED)
REJECTED = ("well-formedness", *EXACTLY, "more draws", "rounding errors")
OUTCOMES = (*REJECTED, "equal", "undecided", "missed")
MORE_DRAWS = DRAWS[2]
WIDTH = 180
AnyProgram = Program | TileProgram


@dataclass(frozen=True)
class Outcome:
    """What became of one mutant."""

    operator: str
    level: str
    kind: str
    where: str
    verdict: str
    detail: str = ""
    seconds: float = 0.0


def mutants_of(case: Case, level: str) -> list[Change]:
    forms = case.forms()
    return list(loop_mutants(forms.fused) if level == "loops" else tile_mutants(forms.tiles))


def sample(
    mutants: Sequence[Change], seed: int, per_kind: int | None, kinds: Iterable[str] | None = None
) -> list[Change]:
    """At most `per_kind` mutants of every kind, drawn by `seed`."""
    groups: dict[str, list[Change]] = defaultdict(list)
    for m in mutants:
        groups[m.kind].append(m)
    rng = np.random.default_rng(seed)
    chosen: list[Change] = []
    for kind, group in groups.items():
        if kinds is not None and kind not in kinds:
            continue
        n = len(group) if per_kind is None else min(per_kind, len(group))
        chosen += [group[int(k)] for k in sorted(rng.choice(len(group), n, replace=False))]
    return chosen


def judge(name: str, level: str, change: Change, draws: int) -> Outcome:
    """Show a mutant to every check, in the order in which a compilation would."""
    started = time.perf_counter()
    verdict, detail = _verdict(name, change.made, draws)
    return Outcome(name, level, change.kind, change.where, verdict, detail, time.perf_counter() - started)


def _verdict(name: str, mutant: AnyProgram, draws: int) -> tuple[str, str]:
    try:
        verify(mutant, lowered=True) if isinstance(mutant, Program) else verify_tiles(mutant)
    except InternalError as error:
        return "well-formedness", str(error)
    shared = _accepted(name, draws)
    report = _checked(name, mutant, draws, list(shared) if in_tiles(mutant) else None)
    if report.verdict == "rejected":
        both = report.model not in ROUNDED and "field pair: rejected" in report.notes
        return "both models" if both else report.model, str(report.counterexample)
    if report.verdict == "undecided":
        return "undecided", "; ".join(report.notes)
    verdict, detail = in_numbers(name, mutant)
    if verdict == "missed" and _checked(name, mutant, MORE_DRAWS, None).verdict == "rejected":
        return "more draws", detail
    return verdict, detail


def _checked(name: str, program: AnyProgram, draws: int, shared: list[Shared] | None) -> ExactReport:
    forms = CASES[name].forms()
    return check_exact(
        forms.original,
        program,
        draws=draws,
        finite=forms.finite,
        ranges=forms.ranges,
        magnitudes=True,
        shared=shared,
    )


def in_tiles(program: AnyProgram) -> bool:
    return isinstance(program, TileProgram)


@cache
def _accepted(name: str, draws: int) -> tuple[Shared, ...]:
    """What the checks of the programs without a mistake, which must accept, leave for those of tile programs."""
    shared: list[Shared] = []
    forms = CASES[name].forms()
    for program in (forms.fused, forms.tiles):
        report = _checked(name, program, draws, shared)
        if not report.accepted:
            raise AssertionError(f"{name} is not accepted as it is: {report}")
    return tuple(shared)


# --- the tables ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """Which mutants are made, and how they are checked. `per_kind` None: all; `kinds` None: of every kind."""

    levels: tuple[str, ...] = LEVELS
    seed: int = 0
    per_kind: int | None = 4
    draws: int = DRAWS[1]
    kinds: tuple[str, ...] | None = None


def outcomes_of(settings: Settings, name: str) -> list[Outcome]:
    """What became of the mutants of one operator."""
    found: list[Outcome] = []
    for level in settings.levels:
        for change in sample(mutants_of(CASES[name], level), settings.seed, settings.per_kind, settings.kinds):
            try:
                found.append(judge(name, level, change, settings.draws))
            except TooLarge as error:
                found.append(Outcome(name, level, change.kind, change.where, "undecided", str(error)))
    return found


def run(names: Sequence[str], settings: Settings, jobs: int = 1) -> Iterator[Outcome]:
    """The mutants of many operators, by as many processes as are wanted."""
    if jobs == 1:
        for name in names:
            yield from outcomes_of(settings, name)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for found in pool.map(partial(outcomes_of, settings), names):
            yield from found


def matrix(outcomes: Sequence[Outcome]) -> Table:
    """Operators by kinds: rejected / made; what is equal was no mistake, and is counted apart."""
    kinds = [k for k in KINDS if any(o.kind == k for o in outcomes)]
    shown = Table("operator", *kinds, "all", "equal", title="Mutants rejected / mistakes")
    for name in [*dict.fromkeys(o.operator for o in outcomes), "all"]:
        mine = [o for o in outcomes if name in (o.operator, "all")]
        cells = [_ratio([o for o in mine if o.kind == k]) for k in kinds]
        shown.add_row(name, *cells, _ratio(mine), str(sum(o.verdict == "equal" for o in mine)))
    return shown


def _ratio(outcomes: Sequence[Outcome]) -> str:
    mistakes = [o for o in outcomes if o.verdict != "equal"]
    return f"{sum(o.verdict in REJECTED for o in mistakes)}/{len(mistakes)}" if mistakes else ""


def as_json(outcomes: Sequence[Outcome], settings: Settings) -> dict[str, Any]:
    """Counts by operator, level, kind and verdict, and every mutant that was not rejected."""
    counts: dict[str, Any] = {}
    for o in outcomes:
        row = counts.setdefault(o.operator, {}).setdefault(o.level, {}).setdefault(o.kind, {})
        row[o.verdict] = row.get(o.verdict, 0) + 1
    return {
        "versions": versions("numpy"),
        **asdict(settings),
        "mutants": len(outcomes),
        "by checker": {v: n for v in OUTCOMES if (n := sum(o.verdict == v for o in outcomes))},
        "seconds": round(sum(o.seconds for o in outcomes), 1),
        "counts": counts,
        "not rejected": [asdict(o) | {"seconds": round(o.seconds, 2)} for o in outcomes if o.verdict not in REJECTED],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operator", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--level", nargs="+", choices=LEVELS, default=list(LEVELS))
    parser.add_argument("--per-kind", type=int, default=4, help="mutants of every kind, operator and level")
    parser.add_argument("--all", action="store_true", help="every mutant")
    parser.add_argument("--named", action="store_true", help="only the kinds " + ", ".join(NAMED))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draws", type=int, default=DRAWS[1], help="instances that an exact check draws")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    console = Console(width=WIDTH)
    outcomes: list[Outcome] = []
    kinds = NAMED if args.named else None
    settings = Settings(tuple(args.level), args.seed, None if args.all else args.per_kind, args.draws, kinds)
    for o in run(args.operator, settings, args.jobs):
        outcomes.append(o)
        if o.verdict not in REJECTED:
            console.print(
                f"{o.verdict}: {o.operator} {o.level}: {o.kind}: {o.where}\n  {o.detail}", highlight=False, markup=False
            )
    said = as_json(outcomes, settings)
    console.print(matrix(outcomes))
    console.print(", ".join(f"{n} {verdict}" for verdict, n in said["by checker"].items()))
    if args.json is not None:
        args.json.write_text(record.as_json(said))
    return int(any(o.verdict in ("missed", "undecided") for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
