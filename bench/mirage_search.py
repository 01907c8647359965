"""How searches go: states, tries, times, with one and with two processes.

    python -m bench.mirage_search [--only RMSNorm …] [--budget 60s] [--workers 1 2] [--hash-seeds 1 2]
                                  [--exhaustive 180s] [--json FILE]

A row is a search of a benchmark with default bounds: its states, tries and tries a second (of the clock, and of the
processors), the seconds to the first verified graph, to the one with the least estimate, and to the end, a digest of
all graphs in the order in which they came, and how many programs with a placement these are (`definitions`). Each
search is a process of its own. With another number of workers, and with another seed of hashing, the graphs have to be
the same, as far as both searches came.

`--exhaustive`: one kernel of the operators that the program has, by their number, without the prunes that lose nothing
(`expression`, `unused`), until a size does not end in this time: nothing may be found that the pruned search does not
find. The exit status is 1 where graphs differ.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import record
from bench.cases import environment
from bench.mirage_programs import BENCHMARKS
from neptune.errors import NeptuneError
from neptune.ir.program import Program
from neptune.mirage.cost import estimate
from neptune.mirage.enumeration.operators import PRUNES
from neptune.mirage.enumeration.problems import Bounds
from neptune.mirage.ir import Graph, Node
from neptune.mirage.lowering.definitions import definitions
from neptune.mirage.printer import print_graph
from neptune.mirage.reference import reference
from neptune.mirage.search import search
from neptune.mirage.verifier.candidates import Candidates
from neptune.tune.budget import seconds_of
from neptune.tune.model.machine import DEFAULT

LOSSLESS = frozenset({"expression", "unused"})
"""Prunes of which it is proved that nothing is lost."""
FOLDS = {"sum": ("acc", "acc_sum"), "matmul": ("acc",), "max": ("acc_max",)}
"""The accumulators that a fold of the reference may become."""


@dataclass(frozen=True)
class Way:
    """How a benchmark is searched."""

    workers: int = 1
    hash_seed: int = 0

    def __str__(self) -> str:
        return f"{self.workers} processes, hash seed {self.hash_seed}"


@dataclass(frozen=True)
class Searched:
    """A row, and by how many operators (of the largest kernel) each graph came, with a digest of all up to it."""

    row: dict[str, Any]
    chain: tuple[tuple[int, str], ...]

    def sure(self) -> int:
        """The graphs that do not depend on when the search was ended: those in front of the last size, or all."""
        if self.row["exhausted"]:
            return len(self.chain)
        last = max((size for size, _ in self.chain), default=0)
        return next((k for k, (size, _) in enumerate(self.chain) if size == last), 0)


def measured(name: str, batch: int, seconds: float, way: Way) -> Searched:
    """One search."""
    of = BENCHMARKS[name]
    graph = reference(of.program())
    draws = Candidates(graph)
    used = _processors()
    found = search(graph, Bounds(), workers=way.workers, deadline=time.process_time() + seconds, accept=draws.accept)
    digest, times, best, chain = hashlib.sha256(), [], (float("inf"), 0.0, 0), []
    programs: set[str] = set()
    for x in found:
        programs.add(placed(x.graph, of.program()))
        digest.update(print_graph(x.graph).encode())
        chain.append((x.operators, digest.hexdigest()[:16]))
        times.append(x.seconds)
        us = estimate(x.graph, of.sizes(batch), DEFAULT).us
        if us < best[0]:
            best = us, x.seconds, len(x.graph.steps)
    took, counts, used = found.seconds, found.counts, _processors() - used
    row = {
        "benchmark": name, "workers": way.workers, "hash seed": way.hash_seed,
        "seconds": took, "processor seconds": used, "exhausted": found.exhausted,
        "states": counts.states, "tries": counts.tries,
        "tries a second": counts.tries / took, "tries a processor second": counts.tries / max(used, 1e-3),
        "graphs": found.found, "programs": len(programs - {NONE}), "without a program": int(NONE in programs),
        "refuted": found.rejected, "first": times[0] if times else None,
        "best us": best[0] if times else None, "best after": best[1], "best kernels": best[2],
        "prunes": dict(counts.prunes), "digest": digest.hexdigest()[:16],
    }  # fmt: skip
    return Searched(row, tuple(chain))


NONE = "none"


def placed(graph: Graph, program: Program) -> str:
    """The definitions of a graph with the kernel and loop of each, or NONE where its tiles are no parts of a whole."""
    defined = definitions(graph, program)
    if isinstance(defined, NeptuneError):
        return NONE
    grids = [(k.grid, k.loop) for k in graph.kernels]
    return f"{defined.program}\n{sorted(defined.placement.items())}\n{sorted(defined.split.items())}\n{grids}"


def exhausted(name: str, seconds: float) -> list[dict[str, Any]]:
    """One kernel of a benchmark by number of operators, pruned and not, up to the last size that ends in this time."""
    graph = reference(BENCHMARKS[name].program())
    has = {n.op for n in graph.steps if isinstance(n, Node)}
    operators = frozenset(has.union(*(FOLDS.get(op, ()) for op in has)))
    rows = []
    for size in range(len(graph.inputs) + 1, Bounds.max_block_ops + 1):
        end = time.process_time() + seconds
        begin = time.process_time()
        bounds = Bounds(size, 1, operators=operators)
        whole = search(graph, bounds, deadline=end, prune=PRUNES - LOSSLESS)
        every = {f.key for f in whole}
        took = time.process_time() - begin
        if not whole.exhausted:
            break
        pruned = search(graph, bounds)
        kept = {f.key for f in pruned}
        rows.append({
            "benchmark": name, "operators": size, "of": sorted(operators),
            "processor seconds": took, "graphs": len(kept),
            "states": pruned.counts.states, "states of all": whole.counts.states,
            "missed": sorted(every - kept), "more": sorted(kept - every),
        })  # fmt: skip
    return rows


def _processors() -> float:
    """Seconds of processors of this process and of those that it has waited for."""
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system


def alone(call: Callable[..., Any], *args: Any, hash_seed: int = 0) -> Any:
    """What a call gives in a process of its own, with a seed of hashing."""
    before = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = str(hash_seed)
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            return pool.submit(call, *args).result()
    finally:
        if before is None:
            del os.environ["PYTHONHASHSEED"]
        else:
            os.environ["PYTHONHASHSEED"] = before


def differing(made: Sequence[Searched]) -> list[str]:
    """What is the matter where searches gave other graphs than the first, as far as both are sure of theirs."""
    said = []
    first, *others = made
    for other in others:
        upto = min(first.sure(), other.sure())
        if first.chain[:upto] != other.chain[:upto]:
            how = f"{other.row['workers']} processes and hash seed {other.row['hash seed']}"
            said.append(f"{other.row['benchmark']} has other graphs with {how}")
        other.row["compared"] = upto
    return said


def line(row: dict[str, Any]) -> str:
    """A row for people."""
    way = Way(row["workers"], row["hash seed"])
    first = "nothing" if row["first"] is None else f"first after {row['first']:.1f} s"
    end = "all" if row["exhausted"] else "not all"
    rates = f"{row['tries a second']:,.0f}/s, {row['tries a processor second']:,.0f} a processor second"
    best = f"best {row['best us'] or 0:.1f} µs in {row['best kernels']} kernels after {row['best after']:.1f} s"
    graphs = f"{row['graphs']} graphs ({row['digest']}) of {row['programs']} programs"
    text = f"{graphs}, {first}, {best}; {end} in {row['seconds']:.1f} s"
    return f"{row['benchmark']:<13} {way}: {row['states']} states, {row['tries']} tries, {rates}; {text}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    warnings.simplefilter("ignore")
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m bench.mirage_search", description=__doc__, formatter_class=raw)
    parser.add_argument("--only", nargs="+", choices=list(BENCHMARKS), default=list(BENCHMARKS), metavar="NAME")
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--hash-seeds", type=int, nargs="*", default=[1, 2], metavar="SEED")
    parser.add_argument("--batch", type=int, default=1, help="of the sizes that estimates are for")
    parser.add_argument("--exhaustive", metavar="TIME", help="compare with what is found without prunes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    seconds = seconds_of(options.budget)
    ways = [Way(n) for n in options.workers] + [Way(hash_seed=s) for s in options.hash_seeds]
    rows: list[dict[str, Any]] = []
    compared: list[dict[str, Any]] = []
    wrong: list[str] = []
    for name in options.only:
        made = [alone(measured, name, options.batch, seconds, w, hash_seed=w.hash_seed) for w in ways]
        wrong += differing(made)
        rows += [s.row for s in made]
        print("\n".join(line(s.row) for s in made), flush=True)
        if options.exhaustive:
            sizes = alone(exhausted, name, seconds_of(options.exhaustive))
            compared += sizes
            wrong += [f"{name}, {r['operators']} operators: not found: {r['missed']}" for r in sizes if r["missed"]]
            for r in sizes[-1:]:
                states = f"{r['states']} states, {r['states of all']} without prunes"
                print(f"{name:<13} up to {r['operators']} operators: {r['graphs']} graphs, {states}", flush=True)
        if options.json:
            options.json.write_text(
                record.as_json({"environment": environment(), "rows": rows, "exhaustive": compared, "wrong": wrong})
            )
    print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
