"""What a caller asks of asynchronous forms: levers and tile sizes that are settled, and the order of those that fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from neptune.hopper.ir import Levers
from neptune.hopper.memory import Counts, check_fits, forms
from neptune.hopper.predict import BEHIND, Predictor, fastest, with_parts
from neptune.hopper.refusal import Refusal
from neptune.hopper.short import shortened
from neptune.hopper.walked import Walked
from neptune.ir.forms import Taken
from neptune.tile.ir import TileProgram
from neptune.tune.machine import DEFAULT, Machine
from neptune.tune.rank import model_of


@dataclass(frozen=True)
class Wanted:
    """What a caller says of forms: `levers` by name, tile sizes among `params`; and what the model is asked: at which
    `sizes` (None: nothing is), on which machine, whether a form must be `ahead` of the kernel with `on_tiles`. In the
    stages of `short` functions may be single instructions."""

    levers: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, int] = field(default_factory=dict)
    sizes: Mapping[str, int] | None = None
    machine: Machine = DEFAULT
    on_tiles: Mapping[str, int] = field(default_factory=dict)
    ahead: bool = False
    short: tuple[Taken, ...] = ()

    def predictor(self, program: TileProgram, walked: Walked) -> Predictor:
        """What predicts the times of a kernel's forms."""
        assert self.sizes is not None
        short = frozenset(t.stage for t in self.short)
        return predictor_of(program, walked, with_parts(self.sizes, program, self.params), self.machine, short)

    def times(self, program: TileProgram, walked: Walked, levers: Levers) -> dict[str, float] | None:
        """What is predicted of a kernel in both forms, in microseconds; None where nothing is."""
        if self.sizes is None:
            return None
        asked = self.predictor(program, walked)
        return {"us": round(asked.of(levers).us, 2), "triton": round(asked.on_tiles(self.on_tiles), 2)}


def predictor_of(
    program: TileProgram,
    walked: Walked,
    sizes: Mapping[str, int],
    machine: Machine,
    short: frozenset[str] = frozenset(),
) -> Predictor:
    """What predicts the times of a kernel's forms at some sizes; in the stages of `short` they have instructions."""
    of = walked.kernel.name, bool(walked.late), Counts(walked).kept
    return _predictor(program, *of, tuple(sorted(sizes.items())), machine, short)


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
    made = replace(program, kernels=tuple(shortened(k, short) for k in program.kernels)) if short else program
    tiles = model_of(program)
    return Predictor(model_of(made), dict(sizes), machine, late=late, carried=carried, name=name, tiles=tiles)


def ordered(walked: Walked, program: TileProgram, wanted: Wanted) -> list[Levers]:
    """The levers that fit and are asked for, the best first: by predicted times where sizes are known.

    Refusal where there are none, with what is legal, or where all are far behind the Triton form, if they may not be.
    """
    persistent = wanted.levers.get("persistent")
    every = [replace(x, persistent=persistent or x.persistent) for x in forms(walked, program, wanted.params)]
    # Programs of one group have no next one.
    every = [x for x in every if not x.ahead or x.persistent != "once"]
    asked = [x for x in every if all(getattr(x, n) == v for n, v in wanted.levers.items())]
    if asked:
        return asked if wanted.sizes is None else _by_time(asked, walked, program, wanted)
    if every:
        for x in every:
            check_fits(walked, program, replace(x, **wanted.levers))
        raise Refusal("no result fits into the memory of another tile", walked.kernel.name, legal=["own_out=True"])
    raise Refusal("no tile sizes, consumers and stages of it fit into a program", walked.kernel.name)


def _by_time(found: Sequence[Levers], walked: Walked, program: TileProgram, wanted: Wanted) -> list[Levers]:
    """Levers by their predicted times; Refusal where all are far behind the Triton form, if they may not be."""
    asked = wanted.predictor(program, walked)
    order = fastest(found, asked, wanted.on_tiles)
    if wanted.ahead:
        ours = asked.of(order[0]).us + asked.behind(wanted.on_tiles, asked.parts(order[0]))
        theirs = asked.on_tiles(wanted.on_tiles) + asked.behind(wanted.on_tiles, {})
        if ours > BEHIND * theirs:
            at = ", ".join(f"{n}={v}" for n, v in asked.sizes.items())
            why = f"it is predicted to take {ours:.0f} µs at {at}, and the Triton form {theirs:.0f} µs"
            raise Refusal(why, walked.kernel.name)
    return order
