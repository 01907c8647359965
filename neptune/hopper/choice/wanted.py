"""The constraints of a caller: levers and tile sizes that are settled, and the order of those that fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from neptune.errors import Unsupported
from neptune.forms import Wanted
from neptune.hopper.bodies.role_bodies import RoleBodies
from neptune.hopper.choice.memory import counts_of, forms, misfit
from neptune.hopper.choice.predict import BEHIND, Predictor, fastest, with_parts
from neptune.hopper.group_order import by_data
from neptune.hopper.ir import Levers
from neptune.tile.ir import TileProgram
from neptune.tile.passes.short import shortened
from neptune.tune.model.machine import Machine
from neptune.tune.rank import model_of

EXCLUSIVE = ("persistent", "own_out", "ahead")
"""Levers of which not all go together."""


def predictor(wanted: Wanted, program: TileProgram, bodies: RoleBodies) -> Predictor:
    """The predictor of the times of a kernel's forms."""
    assert wanted.sizes is not None
    short = frozenset(t.stage for t in wanted.short)
    return predictor_of(program, bodies, with_parts(wanted.sizes, program, wanted.params), wanted.machine, short)


def times(wanted: Wanted, program: TileProgram, bodies: RoleBodies, levers: Levers) -> dict[str, float] | None:
    """The predicted times of a kernel in both forms, in microseconds; None where no sizes are known."""
    if wanted.sizes is None:
        return None
    model = predictor(wanted, program, bodies)
    return {"us": round(model.of(levers).us, 2), "triton": round(model.on_tiles(wanted.on_tiles), 2)}


def predictor_of(
    program: TileProgram,
    bodies: RoleBodies,
    sizes: Mapping[str, int],
    machine: Machine,
    short: frozenset[str] = frozenset(),
) -> Predictor:
    """The predictor of the times of a kernel's forms at some sizes; in the stages of `short` they have instructions."""
    kernel = bodies.kernel.name, bool(bodies.late), counts_of(bodies).kept
    return _predictor(program, *kernel, tuple(sorted(sizes.items())), machine, short)


@lru_cache(maxsize=32)
def _predictor(
    program: TileProgram,
    name: str,
    late: bool,
    carried: bool,
    sizes: tuple[tuple[str, int], ...],
    machine: Machine,
    short: frozenset[str],
) -> Predictor:
    """Kept with what it has counted: templates are compared by it before the form of one is derived."""
    shorter = replace(program, kernels=tuple(shortened(k, short) for k in program.kernels)) if short else program
    tiles = model_of(program)
    return Predictor(model_of(shorter), dict(sizes), machine, late=late, carried=carried, name=name, tiles=tiles)


def ordered(bodies: RoleBodies, program: TileProgram, wanted: Wanted) -> list[Levers] | Unsupported:
    """The levers that fit and are asked for, the best first: by predicted times where sizes are known.

    Unsupported where there are none, with what is legal, or where all are far behind the Triton form, if they may not
    be.
    """
    persistent = wanted.levers.get("persistent")
    every = [replace(x, persistent=persistent or x.persistent) for x in forms(bodies, program, wanted.params)]
    # Programs of one group have no next one.
    every = [x for x in every if not x.ahead or not x.once]
    matching = [x for x in every if all(getattr(x, n) == v for n, v in wanted.levers.items())]
    if matching:
        return matching if wanted.sizes is None else _by_time(matching, bodies, program, wanted)
    return _without(every, bodies, program, wanted)


def _without(every: Sequence[Levers], bodies: RoleBodies, program: TileProgram, wanted: Wanted) -> Unsupported:
    """Why none of the forms that fit has the levers and the tile sizes that are asked for, with what is legal."""
    name = bodies.kernel.name
    if not every:
        sizes = {n: sorted({x.tiles[n] for x in forms(bodies, program) if n in x.tiles}) for n in wanted.params}
        legal = [f"{n} of {' or '.join(map(str, values))}" for n, values in sizes.items() if values]
        return Unsupported("no tile sizes, consumers and stages of it fit into a program", name, legal=legal)
    exclusive = {n: v for n, v in wanted.levers.items() if n in EXCLUSIVE}
    if not any(_has(x, exclusive) for x in every):
        listed = " and ".join(f"{n}={v!r}" for n, v in exclusive.items())
        fit = (*every, *forms(bodies, program, wanted.params))
        kinds = dict.fromkeys(tuple((n, getattr(x, n)) for n in exclusive) for x in fit)
        near = sorted(kinds, key=lambda kind: sum(exclusive[n] != v for n, v in kind))
        why = f"it has no form with {listed}: {_excluded(every, bodies, exclusive)}"
        return Unsupported(why, name, legal=[" and ".join(f"{n}={v!r}" for n, v in kind) for kind in near])
    unfit = (misfit(bodies, program, replace(x, **wanted.levers)) for x in every if _has(x, exclusive))
    return next(filter(None, unfit), None) or Unsupported("no form that fits has all of these levers", name)


def _has(x: Levers, settled: Mapping[str, Any]) -> bool:
    return all(getattr(x, n) == v for n, v in settled.items())


def _excluded(every: Sequence[Levers], bodies: RoleBodies, exclusive: Mapping[str, Any]) -> str:
    """The reason why levers exclude each other, or a kernel."""
    if exclusive.get("ahead") and not counts_of(bodies).once:
        return "all its tiles come in loops, none once for a group of rows"
    if exclusive.get("ahead") and exclusive.get("persistent") in ("once", "reverse"):
        return "programs of one group of rows have no next one"
    if exclusive.get("ahead") and not any(x.ahead for x in every):
        return "two stages of what is loaded once a group do not fit, or programs have one group"
    if exclusive.get("ahead") and not exclusive.get("own_out", True):
        return "a result lies over a tile of one stage alone"
    if not exclusive.get("own_out", True):
        return "no result fits into the memory of another tile"
    return "others take too much memory"


def _by_time(
    candidates: Sequence[Levers], bodies: RoleBodies, program: TileProgram, wanted: Wanted
) -> list[Levers] | Unsupported:
    """Levers by their predicted times; Unsupported where all are far behind the Triton form, if they may not be."""
    model = predictor(wanted, program, bodies)
    order = fastest(candidates, model, wanted.on_tiles)
    if wanted.ahead:
        ours = model.of(order[0]).us + model.behind(wanted.on_tiles, model.parts(order[0]))
        triton = model.on_tiles(wanted.on_tiles) + model.behind(wanted.on_tiles, {})
        # A trial's data is not the caller's: where data says how much work there is, what it measures decides nothing.
        if ours > (1.0 if by_data(bodies) else BEHIND) * triton:
            sizes = ", ".join(f"{n}={v}" for n, v in model.sizes.items())
            why = f"it is predicted to take {ours:.0f} µs at {sizes}, and the Triton form {triton:.0f} µs"
            return Unsupported(why, bodies.kernel.name)
    return order
