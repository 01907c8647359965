"""`neptune autotune`: measure candidates on the GPU at hand, and say which is the fastest."""

from __future__ import annotations

import sys
from typing import Any

import click

from neptune.cli import options
from neptune.cli.inputs import expression, shapes_of, template
from neptune.cli.outputs import guarded, say
from neptune.driver.options import TuneOptions

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


@click.command("autotune", short_help="Measure candidates, and keep what they took.")
@options.reference
@options.schedule
@options.options_of(TuneOptions)
@click.option("--at", "at", multiple=True, metavar="NAME=N,…", help="One of several shapes; repeatable.")
@options.save
@options.as_json
def autotune_command(
    reference: str, schedule: str | None, at: tuple[str, ...], save: str | None, as_json: bool, **given: Any
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

        # What is not there is said before anything is imported for it.
        values, by = options.values_of(TuneOptions, given) | {"quiet": as_json}, template(schedule)
        how = options_of(*(values[n] for n in ("budget", "trials", "executor", "workers", "quiet")))
        settled = {n: values[n] for n in ("target", "params", "bounds", "form")}
        task = task_of(expression(reference), by, **settled)
        outcome = tuned(task, shapes_of(given["shapes"], at), how)
        if save is not None:
            outcome.kernel.save(save)
        answer: dict[str, Any] = outcome.as_json() | ({} if save is None else {"saved": save})
        say(answer, as_json, lambda: click.echo("\n".join(str(t) for t in outcome.shapes)))

    try:
        guarded(act, as_json)
    except KeyboardInterrupt:
        click.echo("interrupted: what was measured is kept, and the same command goes on from there", err=True)
        sys.exit(INTERRUPTED)
