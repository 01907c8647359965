"""Placement of fused stages: a definition at the end of a loop's body, or a stage beside another in a loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from neptune.errors import FusionError, ScheduleError
from neptune.ir.expr import Expr, conjuncts, logical_and, variables
from neptune.ir.program import For, Made, Seq, Stage, Stmt, map_action, rewrite_stmt, stages
from neptune.schedule.definition import Definition
from neptune.schedule.primitives.fuse_at import fuse_definition
from neptune.schedule.state import Loop, State, insert_before


def without(body: Stmt, name: str) -> Stmt:
    """The body without a stage that is not the only one."""
    rest = rewrite_stmt(body, lambda s: None if isinstance(s, Stage) and s.name == name else s)
    assert rest is not None
    return rest


def place_in(state: State, name: str, d: Definition, ref: Loop, request: str, provenance: Made | None = None) -> State:
    """Take a stage, if it stands anywhere, from there and put definition `d` of it at the end of the loop.

    `made`: what a new stage is made for.
    """
    provenance = next((s.made for s in stages(state.program.body) if s.name == name), provenance)
    try:
        return fuse_definition(state.with_body(without(state.program.body, name)), name, d, ref, request, provenance)
    except ScheduleError as e:
        wrong = e.wrong if e.wrong.startswith(f"`{name}`") else f"`{name}`: {e.wrong}"
        raise FusionError(request, wrong, where=e.where, legal=e.legal, hint=e.hint) from None


def beside(
    state: State,
    ref: Loop,
    like: str,
    before: str,
    stage: Stage,
    counts: Mapping[str, Expr] | None = None,
    also: frozenset[str] = frozenset(),
) -> State:
    """Insert a stage, written over the axes of `like`, into the loop in front of the nest of stage `before`.

    It gets the inner loops of `like` that its index uses, and the parts of the guard about these. `counts` stand
    for other names in it; `also` is as in `nested`.
    """
    loop = state.loop(ref)
    path, node = state.path(before)
    place = next(k for k, s in enumerate(path) if s is loop) + 1
    inside = [*path[place:], node]
    anchor = inside[1] if isinstance(inside[0], Seq) else inside[0]
    action = map_action(stage.action, lambda e: state.present(like, e, counts))
    fresh = replace(stage, action=action, when=state.path(like)[1].when)
    nest = nested(state, fresh, below(state, like, loop), also)
    return state.with_body(insert_before(state.program.body, anchor, nest))


def below(state: State, stage: str, loop: For) -> tuple[For, ...]:
    """The loops around a stage inside of one of them."""
    loops = state.loops(stage)
    return loops[next(k for k, f in enumerate(loops) if f is loop) + 1 :]


def nested(state: State, stage: Stage, loops: tuple[For, ...], also: frozenset[str] = frozenset()) -> Stmt:
    """Those of `loops` that the stage's index uses around it, and of its guard what is about the index.

    `also`: what else counts as used, the loops that it reduces over.
    """
    used = also.union(*(variables(i) for i in stage.action.index))
    sizes = {s.name for s in state.program.scalars} | {t.name for t in state.program.tunables}
    # What says when the fold runs must not stop a repair, nor the copy of the value before it.
    guards = [c for c in conjuncts(stage.when) if variables(c) <= used | sizes]
    nest: Stmt = replace(stage, when=logical_and(*guards) if guards else None)
    for f in reversed(loops):
        if f.var in used:
            nest = replace(f, body=nest)
    return nest
