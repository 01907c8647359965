"""`neptune autotune`: measure candidates on the GPU at hand, and say which is the fastest."""

from __future__ import annotations

import sys
from typing import Any

import click

from neptune.cli.inputs import checked_target, expression, named_numbers, named_values, shapes_of, template
from neptune.cli.outputs import guarded, say

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


@click.command("autotune", short_help="Measure candidates, and keep what they took.")
@click.argument("reference", metavar="FILE[:FUNCTION]|OPERATOR")
@click.option("--template", "-t", "schedule", metavar="NAME", help="This template alone, shipped or FILE:FUNCTION.")
@click.option("--target", metavar="TARGET", help="cuda or hip; by default the GPU here.")
@click.option("--param", "-p", "params", multiple=True, metavar="NAME=VALUE", help="A value that stays; repeatable.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=N", help="A size; each one is needed.")
@click.option("--at", "at", multiple=True, metavar="NAME=N,…", help="One of several shapes; repeatable.")
@click.option("--bound", "bounds", multiple=True, metavar="NAME=N", help="A largest size; repeatable.")
@click.option("--budget", default="60s", show_default=True, metavar="TIME", help="How long: 60s, 5m or 1h.")
@click.option("--trials", type=int, metavar="N", help="Candidates to measure at most.")
@click.option("--executor", default="local", show_default=True, metavar="NAME", help="Where to measure.")
@click.option("--workers", type=int, metavar="N", help="Processes that compile.")
@click.option("--form", metavar="NAME", help="auto: candidates in other forms than tiles, too, which sm_90 has.")
@click.option("--save", metavar="DIR", help="Write the kernel to a folder for neptune.load.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, also for errors.")
def autotune_command(
    reference: str,
    schedule: str | None,
    target: str | None,
    params: tuple[str, ...],
    shapes: tuple[str, ...],
    at: tuple[str, ...],
    bounds: tuple[str, ...],
    budget: str,
    trials: int | None,
    executor: str,
    workers: int | None,
    form: str | None,
    save: str | None,
    as_json: bool,
) -> None:
    """Measure candidates on the GPU here, and say which is the fastest.

    Each measurement is kept at once: after an interrupt the same command goes on. Without a GPU the
    model chooses. OPERATOR is the name of a shipped operator, such as decode_gqa or softmax.

    With several shapes (--at) the kernel's launches take the winner of the shape that is alike; each
    has an equal share of the time, and sizes that are given by --shape are those of all.

    \b
    Examples:
        neptune autotune decode_gqa --shape batch=1 --shape s_kv=8192
        neptune autotune decode_gqa --at batch=1,s_kv=8192 --at batch=64,s_kv=1024 --budget 2m
        neptune autotune examples/causal_attention.py:attention --shape length=4096 --budget 2m
    """

    def act() -> None:
        from neptune.autotune.task import task_of
        from neptune.autotune.tuner import options_of, tuned

        options = options_of(budget, trials, executor, workers, quiet=as_json)
        where, how = checked_target(target), template(schedule)
        task = task_of(
            expression(reference),
            how,
            target=where,
            params=named_values(params, "--param"),
            bounds=named_numbers(bounds, "--bound"),
            form=form,
        )
        outcome = tuned(task, shapes_of(shapes, at), options)
        if save is not None:
            outcome.kernel.save(save)
        answer: dict[str, Any] = outcome.as_json() | ({} if save is None else {"saved": save})
        say(answer, as_json, lambda: click.echo("\n".join(str(t) for t in outcome.shapes)))

    try:
        guarded(act, as_json)
    except KeyboardInterrupt:
        click.echo("interrupted: what was measured is kept, and the same command goes on from there", err=True)
        sys.exit(INTERRUPTED)
