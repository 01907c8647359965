"""Mutants of fused Programs and TilePrograms: how many mistakes the exact checks reject, operator by operator.

    python -m bench.mutants [--operator NAME ...] [--level loops tiles] [--per-kind 4] [--seed 0] [--draws 8] [--all]

Every mutant has one mistake of `bench.mutate.KINDS`. The check of well-formedness sees it first, then the exact
check. One that both accept is run in float64 on many sizes, with ties, with -inf and with huge inputs:

- *equal*: no element differs in any of them; the mistake changes nothing (a guard that the loop's bounds imply).
- *numeric*: elements differ by overflow alone, with huge inputs, or to inf and NaN beside -inf: equal in the field
  pair, where a maximum that is not one cancels, and for the numeric tests to find.
- *missed*: an element differs: a weakness of the exact check. The exit status says whether there was one.

*undecided*: no model had a value for the results.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.mutants_cases import CASES, Case
from bench.mutate import NAMED, Change
from bench.mutate_loops import loop_mutants
from bench.mutate_tiles import tile_mutants
from neptune.config import DRAWS
from neptune.errors import InternalError
from neptune.ir.dtypes import is_float
from neptune.ir.program import Program
from neptune.ir.verify import verify
from neptune.tile.ir import TileProgram
from neptune.tile.verify import verify_tiles
from neptune.verify.domains import EvaluationError, TooLarge
from neptune.verify.evaluate import evaluate
from neptune.verify.draws import Shared
from neptune.verify.exact import check_exact
from neptune.verify.instances import number, structural_sizes
from neptune.verify.ranged import Ranged

LEVELS = ("loops", "tiles")
REJECTED = ("well-formedness", "field pair", "ordered rationals", Ranged.name)
OUTCOMES = (*REJECTED, "equal", "numeric", "undecided", "missed")
INSTANCES = 48
LONGEST = 9
STYLES = ("plain", "ties", "-inf", "huge")
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
    original = CASES[name].forms().original
    try:
        verify(mutant, lowered=True) if isinstance(mutant, Program) else verify_tiles(mutant)
    except InternalError as error:
        return "well-formedness", str(error)
    report = check_exact(original, mutant, draws=draws, shared=_shared(name, draws) if in_tiles(mutant) else None)
    if report.verdict == "rejected":
        return report.model, str(report.counterexample)
    if report.verdict == "undecided":
        return "undecided", "; ".join(report.notes)
    return in_numbers(name, mutant)


def in_tiles(program: AnyProgram) -> bool:
    return isinstance(program, TileProgram)


@cache
def _shared(name: str, draws: int) -> list[Shared]:
    """What the check of the fused program leaves for that of the tile program, as in a compilation."""
    shared: list[Shared] = []
    forms = CASES[name].forms()
    check_exact(forms.original, forms.fused, draws=draws, shared=shared)
    return shared


# --- float64 --------------------------------------------------------------------------------------


@cache
def instances(name: str) -> list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """(style, sizes, inputs, outputs of the original) on which mutants are compared in float64."""
    forms = CASES[name].forms()
    original, rng = forms.original, np.random.default_rng(0)
    structural = structural_sizes(original) | structural_sizes(forms.fused) | structural_sizes(forms.tiles)
    found: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = []
    while len(found) < INSTANCES:
        style = STYLES[len(found) % len(STYLES)]
        sizes: dict[str, Any] = {}
        for s in original.scalars:
            if is_float(s.dtype):
                sizes[s.name] = float(rng.standard_normal())
                continue
            low = (1 if s.lo is None else s.lo, LONGEST if s.name in structural else 2)
            sizes[s.name] = s.divisor * -(-int(rng.integers(low[0], max(low) + 1)) // s.divisor)
        for t in (*forms.fused.tunables, *forms.tiles.tunables):
            if t.covers is not None:
                sizes[t.name] = 1 << max(0, (number(t.covers, sizes) - 1).bit_length())
            elif t.name not in sizes:
                sizes[t.name] = int(rng.choice((1, 2, 2, 4)))
        # How many parts an axis has is for a launch to choose: one, some, or more than there are tiles.
        sizes |= {s.name: int(rng.integers(1, 5)) for s in forms.fused.scalars if s.upto is not None}
        inputs = {}
        for b in original.inputs:
            shape = tuple(number(d, sizes) for d in b.shape)
            inputs[b.name] = _drawn(rng, shape, style) if is_float(b.dtype) else rng.integers(0, 2, shape)
        if style == "-inf":
            _put_infinities(rng, [x for x in inputs.values() if x.dtype == np.float64])
        try:
            found.append((style, sizes, inputs, evaluate(original, inputs, sizes)))
        except EvaluationError:
            continue
    return found


def _drawn(rng: np.random.Generator, shape: tuple[int, ...], style: str) -> Any:
    if style == "ties":
        return rng.integers(-1, 2, shape).astype(np.float64)
    return rng.standard_normal(shape) * (300 if style == "huge" else 1)


def _put_infinities(rng: np.random.Generator, inputs: list[Any]) -> None:
    """-inf in one of the inputs: some elements, and now and then everything before a place."""
    x = inputs[int(rng.integers(len(inputs)))]
    x[rng.random(x.shape) < 0.3] = -np.inf
    if x.ndim and rng.random() < 0.5:
        x[..., : int(rng.integers(x.shape[-1] + 1))] = -np.inf


def in_numbers(name: str, mutant: AnyProgram) -> tuple[str, str]:
    """ "missed", "numeric" or "equal", and the instance that shows it."""
    numeric = ""
    forms = CASES[name].forms()
    for style, sizes, inputs, want in instances(name):
        at = f"{style} inputs at " + ", ".join(f"{k}={v}" for k, v in sizes.items())
        try:
            have = evaluate(mutant, inputs, sizes)
        except EvaluationError as error:
            return "missed", f"{error}, {at}"
        for b, mine in zip(forms.original.outputs, mutant.outputs, strict=True):
            expected, got = want[b.name], have[mine.name]
            same = np.isclose(got, expected, rtol=1e-6, atol=1e-9) | np.isnan(expected.astype(float))
            if not same.all():
                where = tuple(int(i) for i in np.argwhere(~same)[0])
                text = f"{b.name}{list(where)} is {got[where]}, not {expected[where]}, {at}"
                # exp(x - lowest): all others that a maximum was to be taken of are -inf.
                overflows = style == "-inf" and not np.isfinite(got[~same]).any()
                if style != "huge" and not overflows:
                    return "missed", text
                numeric = numeric or text
    return ("numeric", numeric) if numeric else ("equal", f"in float64 on {INSTANCES} instances")


# --- the table ------------------------------------------------------------------------------------


def run(
    names: Sequence[str],
    levels: Sequence[str],
    seed: int,
    per_kind: int | None,
    draws: int,
    kinds: Iterable[str] | None = None,
) -> Iterator[Outcome]:
    for name in names:
        for level in levels:
            for change in sample(mutants_of(CASES[name], level), seed, per_kind, kinds):
                try:
                    yield judge(name, level, change, draws)
                except TooLarge as error:
                    yield Outcome(name, level, change.kind, change.where, "undecided", str(error))


def table(outcomes: Sequence[Outcome], by: str = "operator") -> Table:
    shown = Table("mutants", "level", "all", *OUTCOMES, title="Mutants rejected, by checker")
    groups: Mapping[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for o in outcomes:
        groups[getattr(o, by), o.level][o.verdict] += 1
        groups["all", o.level][o.verdict] += 1
    for (title, level), counts in groups.items():
        shown.add_row(title, level, str(counts.total()), *(str(counts[x] or "") for x in OUTCOMES))
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operator", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--level", nargs="+", choices=LEVELS, default=list(LEVELS))
    parser.add_argument("--per-kind", type=int, default=4, help="mutants of every kind, operator and level")
    parser.add_argument("--all", action="store_true", help="every mutant")
    parser.add_argument("--named", action="store_true", help="only the kinds " + ", ".join(NAMED))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draws", type=int, default=DRAWS[1], help="instances that an exact check draws")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    console = Console()
    outcomes: list[Outcome] = []
    per_kind = None if args.all else args.per_kind
    for o in run(args.operator, args.level, args.seed, per_kind, args.draws, NAMED if args.named else None):
        outcomes.append(o)
        if o.verdict not in REJECTED:
            console.print(
                f"{o.verdict}: {o.operator} {o.level}: {o.kind}: {o.where}\n  {o.detail}", highlight=False, markup=False
            )
    console.print(table(outcomes))
    console.print(table(outcomes, by="kind"))
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(o) for o in outcomes], indent=1))
    return int(any(o.verdict in ("missed", "undecided") for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
