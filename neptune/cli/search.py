"""`neptune search`: a better algebra for an expression, found, verified and compiled."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import click
from rich.console import Console

from neptune.cli import options
from neptune.cli.inputs import expression
from neptune.cli.outputs import guarded, say, table
from neptune.driver.options import CompileOptions, SearchOptions, declared

if TYPE_CHECKING:
    from neptune.mirage.optimize import Lowering, Progress


@click.command("search", short_help="Search for a better algebra, and compile it.")
@options.reference
@options.options_of(SearchOptions)
@click.option("--unsafe", is_flag=True, help="Leave exponentials without a running maximum.")
@click.option("--top", default=1, show_default=True, metavar="N", help="Graphs to print, the fastest first.")
@options.save
@options.as_json
def search_command(reference: str, unsafe: bool, top: int, save: str | None, as_json: bool, **given: Any) -> None:
    """Search for graphs that compute an expression with less work, verify them, and compile the best.

    Ctrl-C ends the search with the best so far. What a search came to is kept: the same command then
    searches nothing. Where no graph is better, the kernel is the template's, and it is said why.

    \b
    Examples:
        neptune search norm.py:norm_linear --shape m=16 --shape k=4096 --shape n=4096
        neptune search norm.py --shape m=16 --budget 5m --top 5 --json --save kernel
    """

    def act() -> None:
        from neptune.search.superoptimize import optimized, options_of

        with _shown(as_json) as progress:
            values = options.values_of(SearchOptions, given) | {"safe": not unsafe, "progress": progress}
            how = options_of(cast("SearchOptions", values))
            result = optimized(expression(reference), how, **{n: values[n] for n in declared(CompileOptions)})
        if save is not None:
            result.kernel.save(save)
        graphs = [_said(way) for way in result.ways[:top]]
        fields: dict[str, Any] = {"name": result.kernel.name, "target": result.kernel.target, **result.report.json()}
        fields |= {"graphs": graphs} | ({} if save is None else {"saved": save})
        say(fields, as_json, lambda: _print(result.report, graphs))

    guarded(act, as_json)


def _print(report: Any, graphs: list[dict[str, Any]]) -> None:
    from neptune.report.search import lines

    click.echo("\n".join(lines(report.json())).strip())
    if len(graphs) > 1:
        table([{n: g[n] for n in ("predicted", "estimated", "kernels", "operators")} for g in graphs])
        for g in graphs[1:]:
            click.echo(g["graph"])


def _said(way: Lowering) -> dict[str, Any]:
    """One graph with its figures."""
    from neptune.mirage.printer import print_graph

    graph = way.candidate.graph
    kernels = [f"{', '.join(k.grid)}{f' loop {k.loop}' if k.loop else ''}" for k in graph.kernels]
    return {
        "predicted": f"{way.prediction.us:.1f} µs",
        "estimated": f"{way.candidate.cost.us:.1f} µs",
        "kernels": "; ".join(kernels),
        "operators": sum(k.size for k in graph.kernels),
        "graph": print_graph(graph),
    }


@contextmanager
def _shown(quiet: bool) -> Iterator[Callable[[Progress], None] | None]:
    """Progress: one line on a terminal that is drawn anew, else a line now and then."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with Console(stderr=True).status("searching") as line:
            yield lambda event: line.update(str(event))
    else:
        from neptune.search.superoptimize import printed

        yield printed()
