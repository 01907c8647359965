"""Print asynchronous kernels: the notation of tile programs, with the statements of roles.

What stands on one line is a row that `neptune.hopper.parser` reads, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from neptune.hopper.ir import (
    AStmt,
    AsyncKernel,
    Await,
    Drain,
    Fill,
    Finish,
    Issue,
    Levers,
    Out,
    Release,
    Ring,
    Send,
    inside,
    with_inside,
)
from neptune.ir.text.notation import Syntax
from neptune.tile.ir import Branch, Loop
from neptune.tile.printer import TILES, print_assigned, print_texpr, print_tstmt


def _levers(levers: Levers) -> str:
    """Values by name, tunables last."""
    named = {f.name: getattr(levers, f.name) for f in fields(Levers) if f.name not in ("tiles", "producer")}
    if levers.producer != Levers.producer:
        named["producer"] = levers.producer
    return ", ".join(f"{name}={value}" for name, value in (named | dict(levers.tiles)).items())


ROLES = TILES.extended(
    ring=str,
    load_tile=print_texpr,
    levers=_levers,
    sizes=lambda axes: f"({', '.join(f'{name}: {extent}' for name, extent in axes)})",
)
HEAD = [
    ROLES.row(AsyncKernel, text)
    for text in (
        "async kernel {name}  grid{grid:grid}  axes{axes:sizes}",
        "groups {group} of {rows}",
        "levers {levers:levers}",
    )
]
RING_TEXT = ROLES.row(
    Ring,
    "ring {name}<{dims:words}> of {tensor}: {dtype:dtype}, {stages:integer} stages"
    "‹, own{own:flag}›‹, barrier {barrier}›",
)
OUT_TEXT = ROLES.row(Out, "out {name}<{dims:words}> of {tensor}: {dtype:dtype}‹, over {over}›")
COUNTERS_TEXT = ROLES.row(AsyncKernel, "counters {counters:words}")
WEIGHT_TEXT = ROLES.row(AsyncKernel, "weight {weight:expr}")
STATEMENTS: Mapping[type, Syntax[Any]] = {
    row.node: row
    for row in (
        ROLES.row(Fill, "fill {ring:ring}({turn:expr}) = {load:load_tile}"),
        ROLES.row(Await, "await {ring:ring}({turn:expr})"),
        ROLES.row(Release, "release {ring:ring}({turn:expr})"),
        ROLES.row(Finish, "finish {pending:integer}: {names:words}‹ also {also:words}›"),
        ROLES.row(Send, "send {out}: {buffer}{index:tile_index} = {value:tile}‹ if {mask:tile}›"),
        ROLES.row(Drain, "drain {out}"),
    )
}
"""The statements that a role has beside those of tile programs, and beside `issue`, which assigns as these do."""


def print_async(kernel: AsyncKernel) -> str:
    """The whole kernel as text."""
    first, *others = (row.write(kernel) for row in HEAD)
    others += [*map(RING_TEXT.write, kernel.rings), *map(OUT_TEXT.write, kernel.outs), COUNTERS_TEXT.write(kernel)]
    others += [WEIGHT_TEXT.write(kernel)] if kernel.weight is not None else []
    lines = [first, *(f"  {line}" for line in others)]
    for role, body in (("producer", kernel.producer), ("consumer", kernel.consumer)):
        lines += [f"{role}:", *(line for s in body for line in print_astmt(s, 1))]
    return "\n".join(lines) + "\n"


def print_astmt(s: AStmt, indent: int) -> list[str]:
    """The lines of a statement."""
    pad = "  " * indent
    match s:
        case Loop() | Branch():
            head = print_tstmt(with_inside(s, ()), indent)
            return head + [line for x in inside(s) for line in print_astmt(x, indent + 1)]
        case Issue(name, dot, stage):
            return [f"{pad}issue {print_assigned(name, dot, stage)}"]
        case Fill() | Await() | Release() | Finish() | Send() | Drain():
            return [pad + STATEMENTS[type(s)].write(s).rstrip()]
        case _:
            return print_tstmt(s, indent)
