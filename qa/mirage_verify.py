"""Whether the verifier verifies: winners of searches by tier, mutants of them against float64, and the axioms.

    python -m qa.mirage_verify [--only RMSNorm …] [--budget 60] [--mutants 12000] [--seed 0] [--compile]

A winner is the graph of the fewest kernels that a search finds. A mutant of it has one operator, operand, axis, map,
part or constant changed, or two. What differs from the expression in float64 on some instance has to be rejected by
the first tier, and not to be proved; the others are listed with why they are the same. The exit status is 1 where a
wrong graph was accepted or a right one not.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import neptune
from bench.mirage_programs import BENCHMARKS
from neptune.errors import ExpressionError, Unsupported
from neptune.ir.program import Program
from neptune.mirage.ir import Graph
from neptune.mirage.lower import lowered
from neptune.mirage.reference import reference
from neptune.mirage.renamed import aligned
from neptune.mirage.search import search
from neptune.mirage.types import fault
from neptune.mirage.verifier.indexed import prove_equal
from neptune.mirage.verifier.verdict import (
    INSTANCES,
    LENGTHS,
    Counterexample,
    ExactChecks,
    Verdict,
    Verifier,
    counterexample,
)
from neptune.verify.exact import ExactReport
from qa.mirage_axioms import FALSE, IDENTITIES
from qa.mirage_axioms import graph as axiom
from qa.mirage_mutants import mutants

SEEDS = 3
"""How many times as many instances a mutant is compared on in float64 as a verdict takes."""


@dataclass
class Mutants:
    """What became of the mutants of a winner. `same` and `escaped` list changes, with why they are the same."""

    count: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)
    escaped: list[str] = field(default_factory=list)
    milliseconds: float = 0.0

    def reject(self, tier: str) -> None:
        self.rejected[tier] = self.rejected.get(tier, 0) + 1


def winner(verifier: Verifier, budget: float) -> Graph | None:
    """The graph of the fewest kernels that a search finds in so many seconds; it ends at the first of one kernel."""
    best: Graph | None = None
    for found in search(verifier.expression, deadline=time.process_time() + budget, accept=verifier.candidates.accept):
        if best is None or len(found.graph.steps) < len(best.steps):
            best = found.graph
        if len(best.steps) == 1:
            break
    return best


def tried(verifier: Verifier, graph: Graph, count: int, seed: int) -> Mutants:
    """Mutants of a graph, each classified."""
    made = Mutants()
    spent = drawn = 0.0
    for m in mutants(graph, count, seed):
        made.count += 1
        fitted = fault(m.graph) or aligned(m.graph, verifier.expression)
        if isinstance(fitted, ExpressionError | Unsupported):
            made.reject("no valid graph")
            continue
        start = time.process_time()
        outcome = verifier.candidates.outcome(fitted)
        spent, drawn = spent + time.process_time() - start, drawn + 1
        differs = _differs(fitted, verifier.expression)
        if differs is None:
            made.reject("no value")
            continue
        proof = prove_equal(fitted, verifier.expression)
        if differs:
            if outcome.accepted or proof.proved:
                made.escaped.append(f"{m.change} ({'the fields' if outcome.accepted else 'a proof'})")
            else:
                made.reject("fields")
            continue
        agreed = f"float64 agrees on {SEEDS * INSTANCES * len(LENGTHS)} instances; {outcome}"
        made.same[m.change] = "the same normal form" if proof.proved else f"{agreed}; {proof}"
    made.milliseconds = 1e3 * spent / max(drawn, 1)
    return made


def compiled(program: Program) -> ExactChecks:
    """The exact checks of a graph that is compiled: of its fused Program and its TileProgram."""
    # Imports, of torch above all, are no part of a winner's time.
    compile = neptune.compile

    def checks(graph: Graph) -> Mapping[str, ExactReport]:
        return compile(program, template=lowered(graph, program).template, target="interpret").build.checks

    return checks


def _differs(graph: Graph, expression: Graph) -> bool | None:
    """Return True for graphs that differ in float64, None where one has no value there."""
    for seed in range(1, SEEDS + 1):
        found = counterexample(graph, expression, seed)
        if found is not None:
            return True if isinstance(found, Counterexample) else None
    return False


def axioms() -> dict[str, str]:
    """What the verifier says of each identity and of each false neighbour; a wrong answer begins with "WRONG"."""
    said = {}
    for pairs, right in ((IDENTITIES, True), (FALSE, False)):
        for name, (a, b) in pairs.items():
            found = Verifier(axiom(a)).verdict(axiom(b))
            tiers = ", ".join(f"{t.name} {t.outcome}" for t in found.tiers if t.name != "gate")
            said[name] = f"{'' if found.equal is right else 'WRONG: '}{'equal' if found.equal else 'rejected'}: {tiers}"
    return said


def _print_winner(name: str, found: Verdict, seconds: float, used: float) -> None:
    print(f"\n{name}: {seconds:.2f} s, {used:.2f} of a processor")
    print("\n".join(f"  {line}" for line in str(found).splitlines()), flush=True)


def _print_mutants(name: str, made: Mutants) -> None:
    rejected = ", ".join(f"{n} by {tier}" for tier, n in made.rejected.items())
    proved = sum(why == "the same normal form" for why in made.same.values())
    print(f"  {made.count} mutants: {rejected}; {len(made.same)} are the same, {proved} of them proved")
    print(f"  a candidate takes {made.milliseconds:.2f} ms of a processor")
    for change in made.escaped:
        print(f"  ESCAPED: {change}")
    for change, why in made.same.items():
        if why != "the same normal form":
            print(f"  same: {change}: {why}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m qa.mirage_verify", description=__doc__, formatter_class=raw)
    parser.add_argument("--only", nargs="+", choices=list(BENCHMARKS), default=list(BENCHMARKS), metavar="NAME")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of each search")
    parser.add_argument("--mutants", type=int, default=12000, help="in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="compile winners: their exact checks are tiers, too")
    options = parser.parse_args(argv)
    of: list[Mutants] = []
    wrong = False
    for name in options.only:
        program = BENCHMARKS[name].program()
        verifier = Verifier(reference(program), seed=options.seed)
        graph = winner(verifier, options.budget)
        if graph is None:
            print(f"\n{name}: no graph in {options.budget:.0f} s")
            continue
        exact = compiled(program) if options.compile else None
        start, used = time.perf_counter(), time.process_time()
        found = Verifier(verifier.expression, seed=options.seed, program=program, exact=exact).verdict(graph)
        seconds, used = time.perf_counter() - start, time.process_time() - used
        _print_winner(name, found, seconds, used)
        made = tried(verifier, graph, options.mutants // len(options.only), options.seed)
        _print_mutants(name, made)
        wrong |= bool(made.escaped) or not found.equal
        of.append(made)
    said = axioms()
    wrong |= any(text.startswith("WRONG") for text in said.values())
    print(f"\n{len(IDENTITIES)} identities and {len(FALSE)} false neighbours:")
    print("\n".join(f"  {name}: {text}" for name, text in said.items()))
    total, escaped = sum(m.count for m in of), sum(len(m.escaped) for m in of)
    invalid = sum(n for m in of for why, n in m.rejected.items() if why.startswith("no "))
    print(f"\n{total} mutants in all, {total - invalid} of them graphs with values, {escaped} wrong ones accepted")
    return int(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
