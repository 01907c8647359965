"""What `neptune ops` says of shipped operators."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import click

from neptune.ir.program import stages
from neptune.ir.text.printer import print_buffer
from neptune.ops.shipped import OPERATORS, Shipped, signature


def matching(words: Sequence[str]) -> list[Shipped]:
    """The operators that all words say something of: in their names, families, tasks or summaries."""
    texts = [(s, f"{s.name} {s.family} {s.task} {s.summary}".lower()) for s in OPERATORS.values()]
    matches = [s for s, text in texts if all(w.lower() in text for w in words)]
    if not matches:
        raise click.BadParameter(f"no operator has {' and '.join(words)}; `neptune ops` lists all", param_hint="WORD")
    return matches


def described(shipped: Shipped, whole: bool) -> dict[str, str]:
    """What an operator is, its inputs and the call that makes it; the `whole` of it has results, stages, options and an
    example besides."""
    program = shipped()
    some = {
        "what it is": shipped.summary,
        "inputs": signature(program),
        "call": f"neptune.ops.{shipped.call}",
    }
    if not whole:
        return some
    options = inspect.signature(shipped.builder).parameters.values()
    call = f"neptune.compile(neptune.ops.{shipped.call})({', '.join(b.name for b in program.inputs)})"
    return some | {
        "outputs": ", ".join(map(print_buffer, program.outputs)),
        "stages": ", ".join(s.name for s in stages(program.body)),
        "options": ", ".join(f"{p.name}={p.default!r}" for p in options if p.default is not p.empty) or "none",
        "example": f"{', '.join(b.name for b in program.outputs)} = {call}",
    }
