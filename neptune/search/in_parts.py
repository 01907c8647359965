"""A program that has no graph, or too large a one for one search, by the graphs of its parts."""

from __future__ import annotations

from dataclasses import replace
from math import inf, isfinite

from neptune.errors import NeptuneError
from neptune.ir.program import stages
from neptune.mirage.discoveries import Discoveries
from neptune.mirage.partition import Part, Partition, partitioned
from neptune.mirage.printer import print_graph
from neptune.mirage.reference import reference
from neptune.mirage.renamed import placed
from neptune.mirage.verifier.verdict import Verdict, Verifier
from neptune.records.record import structure_of
from neptune.report.search import Report, Tier, Way
from neptune.search.case import NO_BETTER, NO_TIME, SEARCHED, Case, Optimized, compiled_tiers, first_lines, predicted_us
from neptune.tune.rank import CLOSE

NO_TIME_LEFT = "not verified, since the time was over: a kernel a stage"


def kernel_of_parts(case: Case, why: str) -> Optimized:
    """The kernel of a program by the graphs of its parts; `why` says why it has no graph as a whole."""
    if not case.how.seconds:
        return case.template_kernel(NO_TIME)
    how = case.how
    # A part has one kernel, and its record is none of a program, which would have a template to compare with.
    kept = Discoveries(how.records, case.machine.device, {**how.numbers, "max_kernels": 1, "part": 1})
    with case.timing("parts, searched"):
        seconds, bounds = SEARCHED * case.clock.seconds, replace(how.bounds, max_kernels=1)
        partition = partitioned(case.loops, case.sizes, case.machine, seconds, how.safe, kept, how.progress, bounds)
    with case.timing("parts, verified"):
        partition, tiers, refused = _verified(partition, case)
    if not served(partition):
        return case.template_kernel(f"none, {why}; nor has any part of it", refused=refused)
    lowered = partition.lowered(how.safe)
    with case.timing("parts, compiled"):
        kernel = lowered if isinstance(lowered, NeptuneError) else case.kernel(lowered.template)
    if isinstance(kernel, NeptuneError):
        return case.template_kernel(f"none, {first_lines(kernel)}")
    us = predicted_us(kernel)
    if us is None or (case.template.us is not None and CLOSE * us >= case.template.us):
        why = f"{NO_BETTER}, neither as a whole ({why}) nor in parts"
        return case.template_kernel(why, refused=refused)
    return Optimized(kernel, _report(partition, [*tiers, *compiled_tiers(kernel)], refused, case, us))


def _verified(partition: Partition, case: Case) -> tuple[Partition, list[Tier], list[str]]:
    """The parts with the graphs that every tier accepts, the longest parts first, as far as the time allows and one at
    least; a part whose graph is not is a kernel a stage. What was said of each, and why others are refused."""
    known: dict[tuple[str, str], Verdict] = {}
    parts, tiers, refused = list(partition.parts), list[Tier](), list[str]()
    for k in sorted(range(len(parts)), key=lambda k: -len(stages(parts[k].program.body))):
        part = parts[k]
        if part.graph is None:
            continue
        key = structure_of(part.program), print_graph(placed(part.graph, part.program))
        if key not in known and known and not case.clock.left:
            why = NO_TIME_LEFT
        else:
            if key not in known:
                known[key] = Verifier(reference(part.program), safe=case.how.safe).verdict(part.graph)
            verdict = known[key]
            if verdict.equal:
                tiers.append(Tier(_named(part), ", ".join(f"{t.name} {t.outcome}" for t in verdict.tiers)))
                continue
            why = verdict.why
        refused.append(f"{_named(part)}: {why}")
        parts[k] = replace(part, graph=None, us=inf)
    return replace(partition, parts=tuple(parts)), tiers, refused


def _report(partition: Partition, tiers: list[Tier], refused: list[str], case: Case, us: float) -> Report:
    """What explain() says of a kernel that was made of parts."""
    graphs = sum(p.graph is not None for p in partition.parts)
    why = f"of {graphs} of {len(partition.parts)} parts, found by search; the others are kernels of their own"
    parts = [
        f"{_named(p)}: {'a graph' if p.graph is not None else 'a kernel a stage'}"
        + (f", {p.us:.1f} µs" if isfinite(p.us) else "")
        for p in partition.parts
    ]
    numbers = {"parts_searched": partition.searches, "parts_like_others": partition.shared}
    numbers |= {"parts_of_records": partition.recorded, "parts_without_time": partition.skipped}
    way, recorded = Way("parts", us), not partition.searches and bool(partition.recorded)
    return Report("", why, case.template, way, parts, tiers, refused, numbers, case.how.numbers, recorded=recorded)


def _named(part: Part) -> str:
    names = [s.name for s in stages(part.program.body)]
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"


def served(partition: Partition) -> bool:
    """True where a part of several stages has a graph."""
    return any(p.graph is not None and len(stages(p.program.body)) > 1 for p in partition.parts)
