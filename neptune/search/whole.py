"""A program as the best graph that a search finds for the whole of it, or as the template's kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property

from neptune.errors import NeptuneError
from neptune.ir.program import stages
from neptune.ir.text.printer import print_stage
from neptune.kernel import Kernel
from neptune.mirage.discoveries import graph_of
from neptune.mirage.ir import Graph
from neptune.mirage.lowering.roundings import STAYS
from neptune.mirage.optimize import BEST, Goal, Lowering, Optimizer, candidate_of, predicted, tidied
from neptune.mirage.parser import parse_graph
from neptune.mirage.printer import print_graph
from neptune.mirage.threads import with_threads, without_threads
from neptune.mirage.types import fault
from neptune.mirage.verifier.candidates import Candidates
from neptune.mirage.verifier.verdict import Tier as Verified
from neptune.mirage.verifier.verdict import Verifier
from neptune.records.record import Discovery
from neptune.report.search import Report, Tier, Way
from neptune.runtime.launching.launch import parse_target
from neptune.search.case import NO_BETTER, NO_TIME, SEARCHED, Case, Optimized, compiled_tiers, first_lines, predicted_us
from neptune.search.timed import Stopwatch
from neptune.tune.budget import Worked
from neptune.tune.rank import CLOSE

NO_FASTER = "none that is measured to be faster than the template"
NOT_FOUND = "none, since an earlier search of as much time came to none"


class Whole:
    """One program: its graph, what records know, and what a search finds."""

    def __init__(self, case: Case, goal: Goal) -> None:
        self.case, self.goal, self.how = case, goal, case.how

    def made(self) -> Optimized:
        """The best kernel, and how it was found."""
        case = self.case
        known = case.discoveries.known(case.loops, case.sizes, self.how.seconds, case.at_hand)
        if known is not None:
            return self._from_record(known)
        if not self.how.seconds:
            return case.template_kernel(NO_TIME)
        deadline = case.clock.begin + SEARCHED * case.clock.seconds
        search = Optimizer(self.goal, deadline, self.how.workers, self.how.progress)
        with closing(search), case.timing("search"):
            try:
                for _ in search:
                    pass
            except KeyboardInterrupt:
                search.search.interrupted = True
        given = self.how.seconds
        if search.search.interrupted:
            given -= case.clock.left
            case.clock = Worked((1 - SEARCHED) * given)
        result = self._best(search)
        exhausted = search.search.exhausted
        numbers = {**counts_of(search), **result.report.numbers}
        report = replace(result.report, numbers=numbers, bounds=self.how.numbers, exhausted=exhausted)
        self._keep(report, given)
        return replace(result, report=report)

    def _best(self, search: Optimizer) -> Optimized:
        """The kernel of the graph that the model predicts to be fastest and every check accepts."""
        refused: list[str] = []
        if not search.candidates:
            return self.case.template_kernel(f"none, {why_nothing(search)}")
        with self.case.timing("lowering"):
            ways = self._ways(search, refused)
        if self.case.at_hand:
            return replace(self._measured(ways, refused), ways=tuple(ways))
        least = self.case.template.us
        # Where a template makes the same kernel, it is no better, and differences of predictions say little.
        better = [way for way in ways if least is None or CLOSE * way.prediction.us < least]
        for k, way in enumerate(better):
            if k and not self.case.clock.left:
                refused.append(f"{counted(len(better) - k, 'further graph')}: not compiled, since the time was over")
                break
            result = self._compiled(way, refused)
            if isinstance(result, Optimized):
                return replace(result, ways=tuple(ways))
            refused.append(result)
        refused = [*off_unit(ways, self.case.template), *refused]
        return replace(self.case.template_kernel(NO_BETTER, refused=refused), ways=tuple(ways))

    def _ways(self, search: Optimizer, refused: list[str]) -> list[Lowering]:
        """The best candidates as the compiler takes them, the fastest first, as far as the time allows."""
        lowerings: list[Lowering] = []
        for candidate in search.ranking():
            if len(lowerings) == BEST or (lowerings and not self.case.clock.left):
                break
            try:
                lowering = predicted(candidate, self.case.loops, self.goal, self.how.safe)
            except KeyboardInterrupt:
                break
            if isinstance(lowering, Lowering):
                lowerings.append(lowering)
            else:
                refused.append(f"{candidate.cost.us:.1f} µs: {lowering}")
        return sorted(lowerings, key=lambda way: way.prediction.us)

    def _measured(self, ways: list[Lowering], refused: list[str]) -> Optimized:
        """The kernel of the graph that is measured to be fastest, of those that compile in the time that is left."""
        case, device = self.case, self.case.machine.device
        watch = Stopwatch(case.loops, case.sizes, parse_target(case.base.target), device, self.how.records)
        with case.timing("template, timed"):
            least = watch.template(case.base)
        case.template = replace(case.template, measured=least)
        with case.timing("graphs, compiled and timed"):
            took, wrong = watch.ways(ways, self._kernel, case.clock)
        refused += map(first_lines, wrong)
        timed = {"timed": 1 + len(took)}
        for us, way, kernel in took:
            if CLOSE * us >= least:
                break
            result = self._compiled(way, refused, kernel)
            if isinstance(result, Optimized):
                graph = Way("graph", predicted_us(kernel), us)
                return replace(result, report=replace(result.report, found=graph, numbers=timed))
            refused.append(result)
        return case.template_kernel(NO_FASTER, refused=refused, numbers=timed)

    def _kernel(self, way: Lowering) -> Kernel | NeptuneError:
        return self.case.kernel(way.lowered.template)

    def _compiled(self, way: Lowering, refused: list[str], kernel: Kernel | None = None) -> Optimized | str:
        """The kernel of a graph that every tier of the verifier accepts; else why it is refused."""
        with self.case.timing(f"graph of {way.prediction.us:.1f} µs, verified"):
            verdict = self._verifier.verdict(way.candidate.graph)
        # What overflows as the graph says it does not where its exponentials are repaired.
        repaired = any(d.kind == "safe softmax" and d.verdict == "shifted" for d in way.lowered.decisions)
        if not (verdict.accepted or (verdict.equal and (repaired or not self.how.safe))):
            return first_lines(f"graph `{way.candidate.graph.name}`\n{verdict.why}")
        if kernel is None:
            with self.case.timing(f"graph of {way.prediction.us:.1f} µs, compiled"):
                compiled = self._kernel(way)
            if isinstance(compiled, NeptuneError):
                return first_lines(compiled)
            kernel = compiled
        graph = Way("graph", predicted_us(kernel))
        tiers = [
            Tier(f"{t.name} before the repair" if repaired and t.name == "gate" else t.name, verdict_text(t))
            for t in verdict.tiers
        ]
        tiers += compiled_tiers(kernel)
        text = print_graph(with_threads(way.candidate.graph))
        algebra = [print_stage(s) for s in stages(way.lowered.definitions.body)]
        report = Report(text, "found by search", self.case.template, graph, algebra, tiers, refused)
        return Optimized(kernel, report, (way,))

    @cached_property
    def _verifier(self) -> Verifier:
        return Verifier(self.goal.reference, seed=self.how.seed, safe=self.how.safe)

    # --- records ---

    def _from_record(self, known: Discovery) -> Optimized:
        case = self.case
        case.template = replace(case.template, measured=recorded_us(known, "template"))
        if not known.graph:
            why = f"{NO_FASTER}, as a record says" if known.numbers.get("timed") else NOT_FOUND
            return case.template_kernel(why, recorded=True)
        kept = graph_of(known, case.loops)
        result = "it cannot be read" if kept is None else self._again(kept, known)
        if isinstance(result, Optimized):
            return result
        return case.template_kernel(f"none, since that of a record is refused: {result}", recorded=True)

    def _again(self, kept: Graph, known: Discovery) -> Optimized | str:
        """The kernel of a graph that a record has; else why it is refused."""
        plain = without_threads(kept)
        wrong = fault(plain)
        if wrong is not None:
            return first_lines(wrong)
        graph = tidied(plain)
        outcome = Candidates(self.goal.reference, seed=self.how.seed).outcome(graph)
        if not outcome.accepted:
            return str(outcome)
        way = predicted(candidate_of(graph, outcome, self.goal), self.case.loops, self.goal, self.how.safe)
        if isinstance(way, str):
            return way
        result = self._compiled(way, [])
        if isinstance(result, str):
            return result
        graph_way = replace(result.report.found or Way("graph", None), measured=recorded_us(known, "graph"))
        return replace(result, report=replace(result.report, found=graph_way, recorded=True))

    def _keep(self, report: Report, given: float) -> None:
        """Keep what a search came to in the seconds that it was given: fewer where it was interrupted."""
        graph = without_threads(parse_graph(report.graph)) if report.graph else None
        numbers = {**report.numbers, **nanoseconds(report)}
        self.case.discoveries.keep(self.case.loops, self.case.sizes, graph, given, report.exhausted, numbers)


# --- what a search, a record of one, and a verdict come to, for reports and records ---


def nanoseconds(report: Report) -> dict[str, int]:
    """What was measured, as numbers of a record."""
    sides = (("graph", report.found), ("template", report.template))
    return {f"{n}_nanoseconds": int(1e3 * w.measured) for n, w in sides if w is not None and w.measured is not None}


def recorded_us(known: Discovery, side: str) -> float | None:
    """Microseconds that a record has of the "graph" or the "template"."""
    ns = known.numbers.get(f"{side}_nanoseconds")
    return None if ns is None else ns / 1e3


def verdict_text(tier: Verified) -> str:
    """A tier of a verdict, with its draws and seeds. A bound is in its text."""
    draws = f"{tier.draws} draws" if tier.draws else ""
    seeds = f"seeds {', '.join(map(str, tier.seeds))}" if tier.seeds else ""
    return "; ".join(filter(None, (f"{tier.outcome}: {tier.text}", draws, seeds)))


def counts_of(search: Optimizer) -> dict[str, int]:
    """What a search did, as whole numbers."""
    counts = search.search.counts
    pruned = {f"pruned_by_{kind}": n for kind, n in sorted(counts.prunes.items())}
    counted = {"states": counts.states, "tries": counts.tries, "verified": search.search.found, **pruned}
    return {**counted, "refuted_by_draws": search.search.rejected, "milliseconds": int(1e3 * search.search.seconds)}


def why_nothing(search: Optimizer) -> str:
    """Why a search has no candidate."""
    if search.search.interrupted:
        return "since it was interrupted before the first one"
    if search.search.exhausted:
        return "since no graph within the bounds computes the program"
    return "since the time was over before the first one"


def counted(n: int, what: str) -> str:
    """A number of things: "1 graph", "3 graphs"."""
    return f"{n} {what}{'' if n == 1 else 's'}"


def off_unit(ways: Sequence[Lowering], template: Way) -> Iterator[str]:
    """Graphs that were estimated to be faster than the template, and leave the matrix unit: which operand, and why."""
    for way in ways:
        wide = [d for d in way.lowered.decisions if (d.kind, d.verdict) == ("rounding", STAYS)]
        if wide and template.us is not None and way.candidate.cost.us < template.us:
            took = f"{way.candidate.cost.us:.1f} µs: predicted to take {way.prediction.us:.1f} off the matrix unit"
            yield f"{took}: `{wide[0].subject}` {STAYS}, {wide[0].reason}"
