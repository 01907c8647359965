"""What a search, a record of one, and a verdict come to, as reports and records have it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from neptune.driver.searched import Report, Way
from neptune.mirage.lowering.roundings import STAYS
from neptune.mirage.optimize import Lowering, Optimizer
from neptune.mirage.verifier.verdict import Tier as Verified
from neptune.records.record import Discovery


def nanoseconds(report: Report) -> dict[str, int]:
    """What was measured, as numbers of a record."""
    sides = (("graph", report.found), ("template", report.template))
    return {f"{n}_nanoseconds": int(1e3 * w.measured) for n, w in sides if w is not None and w.measured is not None}


def measured(known: Discovery, side: str) -> float | None:
    """Microseconds that a record has of the "graph" or the "template"."""
    ns = known.numbers.get(f"{side}_nanoseconds")
    return None if ns is None else ns / 1e3


def tier(of: Verified) -> str:
    """A tier of a verdict, with its draws and seeds. A bound is in its text."""
    draws = f"{of.draws} draws" if of.draws else ""
    seeds = f"seeds {', '.join(map(str, of.seeds))}" if of.seeds else ""
    return "; ".join(filter(None, (f"{of.outcome}: {of.text}", draws, seeds)))


def numbers(search: Optimizer) -> dict[str, int]:
    """What a search did, as whole numbers."""
    counts = search.search.counts
    pruned = {f"pruned_by_{kind}": n for kind, n in sorted(counts.prunes.items())}
    of = {"states": counts.states, "tries": counts.tries, "verified": search.search.found, **pruned}
    return {**of, "refuted_by_draws": search.search.rejected, "milliseconds": int(1e3 * search.search.seconds)}


def nothing(search: Optimizer) -> str:
    """Why a search has no candidate."""
    if search.search.interrupted:
        return "since it was interrupted before the first one"
    if search.search.exhausted:
        return "since no graph within the bounds computes the program"
    return "since the time was over before the first one"


def count(n: int, what: str) -> str:
    """A number of things: "1 graph", "3 graphs"."""
    return f"{n} {what}{'' if n == 1 else 's'}"


def off_unit(ways: Sequence[Lowering], template: Way) -> Iterator[str]:
    """Graphs that were estimated to be faster than the template, and leave the matrix unit: which operand, and why."""
    for way in ways:
        wide = [d for d in way.lowered.decisions if (d.kind, d.verdict) == ("rounding", STAYS)]
        if wide and template.us is not None and way.candidate.cost.us < template.us:
            took = f"{way.candidate.cost.us:.1f} µs: predicted to take {way.prediction.us:.1f} off the matrix unit"
            yield f"{took}: `{wide[0].subject}` {STAYS}, {wide[0].reason}"
