"""Choices of parameters of one template, with their predicted times over many sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf

import numpy as np

from neptune.tile.ir import TileProgram
from neptune.tune.gains import CLOSE, NONE, WITHIN, Asked, Counted, Gain, OtherForm
from neptune.tune.measured import Measured
from neptune.tune.model.columns import Points
from neptune.tune.model.machine import Machine
from neptune.tune.model.numbers import Array
from neptune.tune.parts import parts_of
from neptune.tune.points import Sizes
from neptune.tune.rank import Ranked, model_of, predictions, preferred, ranked, ranked_at


@dataclass
class Rows:
    """Choices of parameters of one template, and a row of predicted times over all points for each; what is `known` of
    the template corrects them, what another form of it `gains` counts, and what `failed` is none of them."""

    program: TileProgram
    points: Sequence[Sizes]
    machine: Machine
    given: Mapping[str, int]
    name: str = ""
    known: Measured = field(default_factory=Measured)
    failed: Sequence[Mapping[str, int]] = ()
    gains: Gain = NONE
    choices: list[Mapping[str, int]] = field(default_factory=list)
    rows: list[Array] = field(default_factory=list)

    @property
    def numbers(self) -> tuple[str, ...]:
        return tuple(r.number for r in parts_of(self.program))

    @property
    def times(self) -> Array:
        return np.stack(self.rows)

    def add(self, anchors: Iterable[int], most: int) -> None:
        """Add the best parameters at each of these points, of the first `most` that have any."""
        orders: Iterable[Sequence[Ranked]]
        if most == 1:
            orders = (ranked(self.program, self.points[k], self.machine, self.given) for k in anchors)
        else:
            points = [self.points[k] for k in anchors]
            orders = ranked_at(self.program, points, self.machine, self.given, most=1 + len(self.failed))
        sound = ([r.params for r in order if r.params not in self.failed] for order in orders)
        fresh: list[Mapping[str, int]] = []
        for first in islice((own[0] for own in sound if own), most):
            if first not in (*self.choices, *fresh):
                fresh.append(first)
        self.join(fresh)

    def join(self, choices: Sequence[Mapping[str, int]]) -> None:
        """Add choices of parameters that are not there yet."""
        fresh = [c for c in choices if c not in self.choices]
        if fresh:
            self.rows += list(self.predicted(fresh, self.points))
            self.choices += fresh

    def predicted(self, choices: Sequence[Mapping[str, int]], points: Sequence[Sizes]) -> Array:
        """A row of times over points for each of the choices, corrected; without end where one does not run."""
        return self.on_tiles(choices, points) * self.gains.factors(points)

    def on_tiles(self, choices: Sequence[Mapping[str, int]], points: Sequence[Sizes]) -> Array:
        """The same, without what another form gains."""
        return self.plain(choices, points) * self.known.factors(self.name, choices, points)

    def count(self, gain: Gain) -> None:
        """Have times be those of the faster form."""
        self.gains = gain
        self.rows = [row * gain.factors(self.points) for row in self.rows]

    def asked(self, k: int) -> Asked:
        """What is best on tiles at point k."""
        params = self.choices[int(self.times[:, k].argmin())]
        return Asked(self.points[k], params, float(self.plain([params], [self.points[k]])[0, 0]))

    def preference(self) -> list[tuple[float, ...]]:
        """For each choice what decides where predictions tell nothing (`neptune.tune.rank.preferred`)."""
        predicted = predictions(model_of(self.program), Points.product(self.choices, self.points[:1]), self.machine)
        return [preferred(predicted, k, params) for k, params in enumerate(self.choices)]

    def plain(self, choices: Sequence[Mapping[str, int]], points: Sequence[Sizes]) -> Array:
        """As the model alone predicts them."""
        us = np.asarray(predictions(model_of(self.program), Points.product(choices, points), self.machine).us)
        return np.where(np.isfinite(us), us, inf).reshape(len(choices), -1)


def counted(rows_of: Mapping[str, Rows], looked: Sequence[int], form: OtherForm) -> Counted:
    """Have the times of templates be those of another form, where by that they come first at some of the points that
    are `looked` at, the first of which count most. A template that nothing else comes near is not asked for it."""
    own = {n: rows.times[:, looked].min(axis=0) for n, rows in rows_of.items()}
    on_tiles = {n: float(us[0]) for n, us in own.items()}
    best = np.min(list(own.values()), axis=0)
    contested = np.sum([us <= WITHIN * best for us in own.values()], axis=0) > 1
    times: dict[str, float] = {}
    for name in sorted(own, key=lambda n: (on_tiles[n], n)):
        rows, leads = rows_of[name], own[name] <= best
        near = np.flatnonzero(contested & (own[name] <= WITHIN * best) & np.isfinite(own[name])).tolist()
        if not near:
            continue
        relative = np.ones(len(looked))
        for j, us in zip(near, form.us(name, rows.program, [rows.asked(looked[j]) for j in near]), strict=True):
            if us < own[name][j] and (leads[j] or CLOSE * us < best[j]):
                relative[j], best[j] = us / own[name][j], us
                if j == 0:
                    times[name] = us
        if (relative < 1).any():
            rows.count(Gain(tuple(rows.points[k] for k in looked), tuple(relative.tolist())))
    return Counted(form.name, times, on_tiles)
