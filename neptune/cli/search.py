"""`neptune search`: a better algebra for an expression, found, verified and compiled."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from neptune.cli.inputs import checked_target, expression, named_numbers
from neptune.cli.outputs import guarded, say, table

if TYPE_CHECKING:
    from neptune.mirage.optimize import Lowering, Progress


@click.command("search", short_help="Search for a better algebra, and compile it.")
@click.argument("reference", metavar="FILE[:FUNCTION]|OPERATOR")
@click.option("--target", metavar="TARGET", help="cuda:90 and the like; by default what runs here.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=N", help="A typical size; repeatable.")
@click.option("--budget", default="60s", show_default=True, metavar="TIME", help="How long: 60s, 5m or 1h.")
@click.option("--max-block-ops", default=11, show_default=True, metavar="N", help="Operators of a kernel at most.")
@click.option("--max-kernels", default=3, show_default=True, metavar="N", help="Kernels at most.")
@click.option("--seed", default=0, show_default=True, metavar="N", help="Of the draws that verify graphs.")
@click.option("--workers", type=int, metavar="N", help="Processes that search.")
@click.option("--unsafe", is_flag=True, help="Leave exponentials without a running maximum.")
@click.option("--top", default=1, show_default=True, metavar="N", help="Graphs to print, the fastest first.")
@click.option("--save", metavar="DIR", help="Write the kernel to a folder for neptune.load.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, also for errors.")
def search_command(
    reference: str,
    target: str | None,
    shapes: tuple[str, ...],
    budget: str,
    max_block_ops: int,
    max_kernels: int,
    seed: int,
    workers: int | None,
    unsafe: bool,
    top: int,
    save: str | None,
    as_json: bool,
) -> None:
    """Search for graphs that compute an expression with less work, verify them, and compile the best.

    Ctrl-C ends the search with the best so far. What a search came to is kept: the same command then
    searches nothing. Where no graph is better, the kernel is the template's, and it is said why.

    \b
    Examples:
        neptune search norm.py:norm_linear --shape m=16 --shape k=4096 --shape n=4096
        neptune search norm.py --shape m=16 --budget 5m --top 5 --json --save kernel
    """

    def act() -> None:
        from neptune.mirage.enumeration.problems import Bounds
        from neptune.search.case import Options
        from neptune.search.superoptimize import kept_records, optimized, options_of

        with _shown(as_json) as progress:
            bounds, processes = Bounds(max_block_ops, max_kernels), 1 if workers is None else workers
            options = Options(0.0, bounds, seed, processes, not unsafe, kept_records(), progress)
            how = options_of(budget, options)
            sizes = named_numbers(shapes, "--shape")
            result = optimized(expression(reference), how, target=checked_target(target), shapes=sizes)
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
