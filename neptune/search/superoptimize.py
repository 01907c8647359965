"""A program as the best graph that a search finds for it, or as the template's kernel where none is better.

    compile by template ──▶ its prediction ────────────────────┐
    the program's graph ──▶ search, verify, rank, predict ─────┴▶ the better one, checked as every kernel is
    else its parts' graphs (`in_parts`)

Where the target's GPU is at hand, the best graphs and the template are compiled and timed, and their times decide.
What a search came to is a record, so that a second call searches nothing. A graph from a record is verified and checked
like one that was just found.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from neptune import config
from neptune.base.boundary import public
from neptune.driver import loud
from neptune.driver.device import machine_for
from neptune.driver.imports import imported
from neptune.driver.options import CompileOptions, SearchOptions, declared, takes
from neptune.driver.pipeline import compile, target_for
from neptune.errors import ExpressionError, NeptunePerformanceWarning
from neptune.ir.program import Program
from neptune.kernel import Kernel
from neptune.mirage.enumeration.problems import Bounds
from neptune.mirage.optimize import Goal, Progress
from neptune.mirage.reference import graph_or_why
from neptune.records.store import Store
from neptune.report.search import ENTRY, Way
from neptune.search import in_parts
from neptune.search.case import Case, OnProgress, Optimized, Options, first_lines, predicted_us
from neptune.search.whole import Whole
from neptune.tune.budget import Worked, checked_count, seconds_of
from neptune.tune.params import checked_sizes
from neptune.tune.points import reference as usual_sizes

if TYPE_CHECKING:
    from typing_extensions import Unpack

BY_TEMPLATE = "10s"
"""The budget of `compile(expr, template="mirage")`."""
LARGE = 24
"""Operators of a program beyond which its parts are searched, and not the whole."""
EVERY = 1.0
"""Seconds between lines of progress."""


@public
@takes(SearchOptions)
def superoptimize(expr: Any, **options: Unpack[SearchOptions]) -> Kernel:
    """Compile an expression to the best graph that a search finds for it: its algebra may change, too.

    `shapes`: typical sizes, by which graphs are compared. `budget`: "60s", "5m" or "1h" of the processor for the search
    and for what comes of it, compiled best first; what is best by then is taken, as it is at Ctrl-C. The call takes as
    long as `neptune.compile(expr)`, the budget, and one more graph that is verified and compiled when it is over;
    explain() says what each step took. `max_block_ops`, `max_kernels`: how large a kernel of a graph may be (its loads
    are counted), and how many there may be. `workers`: processes that search, by default this one alone; a script that
    asks for more needs `if __name__ == "__main__":`. `safe=False` leaves exponentials as the graph has them, without a
    running maximum. `records`: False reads and keeps nothing of what searches came to. `progress`: called with a
    `neptune.mirage.optimize.Progress` now and then. Other `options` and `target` are as in `neptune.compile`.

    The kernel is called like any other; `kernel.graph` is the graph, and explain() says what it changes, how it was
    verified, and what it is predicted to take beside the template's kernel. Where no graph is predicted to be faster,
    the program is one that the search does not serve, or the budget is too short, the kernel is the template's, and
    explain() says why. Raises what `neptune.compile` raises.

        kernel = neptune.superoptimize(expr, shapes={"m": 16, "k": 4096, "n": 6144}, budget="30s")
        y = kernel(x, w)
    """
    beside = {name: options[name] for name in declared(CompileOptions)}  # type: ignore[literal-required]
    return optimized(expr, options_of(options), **beside).kernel


def options_of(options: SearchOptions) -> Options:
    """How to search, from the options of a caller, checked. NeptuneError for a budget or a number that is none."""
    request, workers = "superoptimize", options["workers"]
    bounds = Bounds(
        checked_count("max_block_ops", "operators", options["max_block_ops"], request) or Bounds.max_block_ops,
        checked_count("max_kernels", "kernels", options["max_kernels"], request) or Bounds.max_kernels,
    )
    return Options(
        seconds_of(options["budget"], request, least=0),
        bounds,
        checked_count("seed", "a generator", options["seed"], request, least=0) or 0,
        checked_count("workers", "processes", 1 if workers is None else workers, request) or 1,
        bool(options["safe"]),
        kept_records() if options["records"] else None,
        options["progress"],
    )


def kept_records() -> Store:
    """The user's records of searches, beside those that ship."""
    return Store(config.read().cache_dir)


def by_template(expr: Any, **options: Any) -> Kernel:
    """`compile(expr, template="mirage", …)`: a short search, printed while it runs, or what a record has of it."""
    store = kept_records() if options["records"] else None
    how = Options(seconds_of(BY_TEMPLATE), Bounds(), records=store, progress=printed())
    return optimized(expr, how, **options).kernel


def printed() -> OnProgress:
    """Progress as lines on the standard error, one now and then."""
    last = 0.0

    def show(progress: Progress) -> None:
        nonlocal last
        if progress.seconds >= last + EVERY:
            last = progress.seconds
            print(f"mirage: {progress}", file=sys.stderr, flush=True)

    return show


def optimized(expr: Any, how: Options, **options: Any) -> Optimized:
    """The kernel of an expression with these options of a search and of `compile`."""
    options.pop("records", None)
    loops = imported(expr, options.pop("inputs", None), options.pop("name", None))
    with warnings.catch_warnings():
        # What makes a kernel slow is said of the one that is returned.
        warnings.simplefilter("ignore", NeptunePerformanceWarning)
        result = _optimized(loops, how, options)
    loud.warn(result.kernel)
    return replace(result, kernel=result.kernel.saying(ENTRY, result.report.json()))


def _optimized(loops: Program, how: Options, options: Mapping[str, Any]) -> Optimized:
    begin = time.monotonic()
    base = compile(loops, **options)
    took = [("template, compiled", time.monotonic() - begin)]
    template = Way(f"template {base.executable.artifact.template}", predicted_us(base))
    machine = machine_for(target_for(options.get("target"), config.read()))
    typical = checked_sizes("shapes", loops, options.get("shapes"))
    sizes = usual_sizes(loops, typical, checked_sizes("bounds", loops, options.get("bounds")))
    # The budget is that of the search: the template's kernel is the fallback, whatever it takes.
    case = Case(loops, how, base, template, dict(options), sizes, machine, Worked(how.seconds), took)
    result = _of_case(case)
    return replace(result, report=replace(result.report, took=tuple(case.took)))


def _of_case(case: Case) -> Optimized:
    graph = graph_or_why(case.loops)
    if isinstance(graph, ExpressionError):
        return in_parts.kernel_of_parts(case, first_lines(graph))
    if len(graph.steps) > LARGE:
        return in_parts.kernel_of_parts(case, f"since it has {len(graph.steps)} operators")
    return Whole(case, Goal(graph, case.sizes, case.machine, case.how.bounds, case.how.seed)).made()
