"""Changes to definitions: a stage in front of another, and every expression by a rule."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace

from neptune.ir.expr import Expr, Load, Var
from neptune.ir.names import fresh_name
from neptune.ir.program import ZERO, Buffer, For, Stage, Stmt, Store, Update, map_exprs, nests, seq, stages, wrap
from neptune.mirage.definitions import Definitions, Home
from neptune.schedule.state import reads

Action = Callable[[str, tuple[Var, ...]], "Store | Update"]
"""(buffer, index) → what a new stage does."""


def inserted(
    made: Definitions,
    before: str,
    wish: str,
    axes: Sequence[str],
    action: Action,
    home: Home,
    folded: Sequence[str] = (),
) -> tuple[Definitions, Load]:
    """A new stage over `axes` (and `folded` axes) in front of another; also the load of its element."""
    program = made.program
    taken = {*program.globals, *(s.name for s in program.scalars), *made.sizes}
    name, index = fresh_name(taken, wish), tuple(Var(a) for a in axes)
    stage = Stage(name, action(name, index))
    dtype = stage.action.values[0].dtype
    loops = [For(a, ZERO, made.sizes[a], stage) for a in (*axes, *folded)]
    fresh: list[Stmt] = []
    for nest in nests(program.body):
        if any(s.name == before for s in stages(nest)):
            fresh.append(wrap(loops, stage))
        fresh.append(nest)
    buffer = Buffer(name, tuple(made.sizes[a] for a in axes), dtype)
    program = replace(program, body=seq(*fresh), temporaries=(*program.temporaries, buffer))
    homes: dict[str, Home] = {}
    for other, at in made.homes.items():
        homes |= {name: home, other: at} if other == before else {other: at}
    return replace(made, program=program, homes=homes), Load(name, index, dtype)


def mapped(made: Definitions, fn: Callable[[Expr], Expr]) -> Definitions:
    """The definitions with a rule applied to every expression."""
    return replace(made, program=made.program.with_body(map_exprs(made.program.body, fn)))


def ordered(made: Definitions, inside: Container[str]) -> Definitions:
    """The stages of each step: what those `inside` its loop are computed from, these, and what follows."""
    feeding: set[str] = set()
    for s in reversed(made.stages):
        if s.name in inside or feeding.intersection(s.action.buffers):
            feeding |= {x.buffer for x in reads(s)}

    def rank(nest: Stmt) -> tuple[int, int]:
        (stage,) = stages(nest)
        return made.homes[stage.name].step, 1 if stage.name in inside else 2 * (stage.name not in feeding)

    left, done = [*nests(made.program.body)], list[Stmt]()
    missing = {b for s in made.stages for b in s.action.buffers}
    while left:
        ready = [n for n in left if not missing & {x.buffer for x in reads(stages(n)[0])}]
        chosen = min(ready, key=rank)
        missing -= {*stages(chosen)[0].action.buffers}
        left.remove(chosen)
        done.append(chosen)
    names = [stages(n)[0].name for n in done]
    homes = {n: made.homes[n] for n in names}
    return replace(made, program=made.program.with_body(seq(*done)), homes=homes)
