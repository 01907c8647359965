"""A program as the best graph that a search finds for the whole of it, or as the template's kernel."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import cached_property

from neptune.driver import said
from neptune.driver.asked import NO_BETTER, NO_TIME, SEARCHED, Case, Made, first_lines, predicted_us
from neptune.driver.searched import Report, Tier, Way, compiled_tiers
from neptune.driver.timed import Stopwatch
from neptune.errors import NeptuneError
from neptune.ir.printer import print_stage
from neptune.ir.program import stages
from neptune.kernel import Kernel
from neptune.mirage.discoveries import graph_of
from neptune.mirage.ir import Graph
from neptune.mirage.optimize import BEST, Goal, Lowering, Optimizer, candidate_of, predicted, tidied
from neptune.mirage.parser import parse_graph
from neptune.mirage.printer import print_graph
from neptune.mirage.threads import with_threads, without_threads
from neptune.mirage.types import fault
from neptune.mirage.verifier.candidates import Candidates
from neptune.mirage.verifier.verdict import Verifier
from neptune.records.record import Discovery
from neptune.runtime.launch import parse_target
from neptune.tune.budget import Worked
from neptune.tune.rank import CLOSE

NO_FASTER = "none that is measured to be faster than the template"
NOT_FOUND = "none, since an earlier search of as much time came to none"


class Whole:
    """One program: its graph, what records know, and what a search finds."""

    def __init__(self, case: Case, goal: Goal) -> None:
        self.case, self.goal, self.how = case, goal, case.how

    def made(self) -> Made:
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
        made = self._best(search)
        exhausted = search.search.exhausted
        numbers = {**said.numbers(search), **made.report.numbers}
        report = replace(made.report, numbers=numbers, bounds=self.how.numbers, exhausted=exhausted)
        self._keep(report, given)
        return replace(made, report=report)

    def _best(self, search: Optimizer) -> Made:
        """The kernel of the graph that the model predicts to be fastest and every check accepts."""
        refused: list[str] = []
        if not search.candidates:
            return self.case.template_kernel(f"none, {said.nothing(search)}")
        with self.case.timing("lowering"):
            ways = self._ways(search, refused)
        if self.case.at_hand:
            return replace(self._measured(ways, refused), ways=tuple(ways))
        least = self.case.template.us
        # Where a template makes the same kernel, it is no better, and differences of predictions say little.
        better = [way for way in ways if least is None or CLOSE * way.prediction.us < least]
        for k, way in enumerate(better):
            if k and not self.case.clock.left:
                refused.append(f"{said.count(len(better) - k, 'further graph')}: not compiled, since the time was over")
                break
            made = self._compiled(way, refused)
            if isinstance(made, Made):
                return replace(made, ways=tuple(ways))
            refused.append(made)
        refused = [*said.off_unit(ways, self.case.template), *refused]
        return replace(self.case.template_kernel(NO_BETTER, refused=refused), ways=tuple(ways))

    def _ways(self, search: Optimizer, refused: list[str]) -> list[Lowering]:
        """The best candidates as the compiler takes them, the fastest first, as far as the time allows."""
        found: list[Lowering] = []
        for candidate in search.ranking():
            if len(found) == BEST or (found and not self.case.clock.left):
                break
            try:
                made = predicted(candidate, self.case.loops, self.goal, self.how.safe)
            except KeyboardInterrupt:
                break
            if isinstance(made, Lowering):
                found.append(made)
            else:
                refused.append(f"{candidate.cost.us:.1f} µs: {made}")
        return sorted(found, key=lambda way: way.prediction.us)

    def _measured(self, ways: list[Lowering], refused: list[str]) -> Made:
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
            made = self._compiled(way, refused, kernel)
            if isinstance(made, Made):
                found = Way("graph", predicted_us(kernel), us)
                return replace(made, report=replace(made.report, found=found, numbers=timed))
            refused.append(made)
        return case.template_kernel(NO_FASTER, refused=refused, numbers=timed)

    def _kernel(self, way: Lowering) -> Kernel | NeptuneError:
        return self.case.kernel(way.lowered.template)

    def _compiled(self, way: Lowering, refused: list[str], kernel: Kernel | None = None) -> Made | str:
        """The kernel of a graph that every tier of the verifier accepts; else why it is refused."""
        with self.case.timing(f"graph of {way.prediction.us:.1f} µs, verified"):
            verdict = self._verifier.verdict(way.candidate.graph)
        # What overflows as the graph says it does not where its exponentials are repaired.
        repaired = any(d.kind == "safe softmax" and d.verdict == "shifted" for d in way.lowered.decisions)
        if not (verdict.accepted or (verdict.equal and (repaired or not self.how.safe))):
            return first_lines(f"graph `{way.candidate.graph.name}`\n{verdict.why}")
        if kernel is None:
            with self.case.timing(f"graph of {way.prediction.us:.1f} µs, compiled"):
                made = self._kernel(way)
            if isinstance(made, NeptuneError):
                return first_lines(made)
            kernel = made
        found = Way("graph", predicted_us(kernel))
        tiers = [
            Tier(f"{t.name} before the repair" if repaired and t.name == "gate" else t.name, said.tier(t))
            for t in verdict.tiers
        ]
        tiers += compiled_tiers(kernel)
        text = print_graph(with_threads(way.candidate.graph))
        algebra = [print_stage(s) for s in stages(way.lowered.definitions.body)]
        report = Report(text, "found by search", self.case.template, found, algebra, tiers, refused)
        return Made(kernel, report, (way,))

    @cached_property
    def _verifier(self) -> Verifier:
        return Verifier(self.goal.reference, seed=self.how.seed, safe=self.how.safe)

    # --- records ---

    def _from_record(self, known: Discovery) -> Made:
        case = self.case
        case.template = replace(case.template, measured=said.measured(known, "template"))
        if not known.graph:
            why = f"{NO_FASTER}, as a record says" if known.numbers.get("timed") else NOT_FOUND
            return case.template_kernel(why, recorded=True)
        kept = graph_of(known, case.loops)
        made = "it cannot be read" if kept is None else self._again(kept, known)
        if isinstance(made, Made):
            return made
        return case.template_kernel(f"none, since that of a record is refused: {made}", recorded=True)

    def _again(self, kept: Graph, known: Discovery) -> Made | str:
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
        made = self._compiled(way, [])
        if isinstance(made, str):
            return made
        found = replace(made.report.found or Way("graph", None), measured=said.measured(known, "graph"))
        return replace(made, report=replace(made.report, found=found, recorded=True))

    def _keep(self, report: Report, given: float) -> None:
        """Keep what a search came to in the seconds that it was given: fewer where it was interrupted."""
        graph = without_threads(parse_graph(report.graph)) if report.graph else None
        numbers = {**report.numbers, **said.nanoseconds(report)}
        self.case.discoveries.keep(self.case.loops, self.case.sizes, graph, given, report.exhausted, numbers)
