"""Other forms than tiles where templates are compared: each is as fast as the fastest of its forms.

What is counted is predicted, before any form is derived. Where the form of the template that won by it is refused
later, by a check, by what it compiles to or by its verdict, the choice is made again, by times on tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING

from neptune.driver.device import machine_for
from neptune.driver.forms import DECIDES
from neptune.driver.known import MeasuredForm
from neptune.forms import FORMS, Form, Source, Wanted
from neptune.runtime.artifact import Artifact
from neptune.schedule.state import Decision
from neptune.tile.ir import TileProgram
from neptune.tune.gains import Asked
from neptune.tune.model.columns import Points
from neptune.tune.model.machine import Machine
from neptune.tune.rank import model_of, predictions
from neptune.tune.subject import tiles_of

if TYPE_CHECKING:
    from neptune.driver.build import Build
    from neptune.tune.choose import Scheduled
    from neptune.tune.family import Wishes

SHORT = 20.0
"""Microseconds: what takes no longer is not timed in another form."""


@dataclass(frozen=True)
class Forms:
    """What the model says of programs in the fastest of some forms, with the levers that a caller settles; where it was
    `measured`, that decides."""

    forms: tuple[Form, ...]
    wishes: Wishes
    levers: Mapping[str, int | str]
    machine: Machine
    measured: tuple[MeasuredForm, ...] = ()

    @property
    def name(self) -> str:
        """Of the forms."""
        return " or ".join(f.name for f in self.forms)

    def us(self, template: str, program: TileProgram, points: Sequence[Asked]) -> list[float]:
        """Microseconds of a template's program at some sizes; infinite where tiles are faster."""
        source = Source(program, shapes=self.wishes.typical)
        choice = Wanted(self.levers, self.wishes.params, machine=self.machine)
        times = zip(*(f.time(source, choice, points) for f in self.forms), strict=True)
        us = (min(t.us for t in of_forms) for of_forms in times)
        return [self._or_measured(template, a.sizes, t) for a, t in zip(points, us, strict=True)]

    def _or_measured(self, template: str, sizes: Mapping[str, int], us: float) -> float:
        record = next((f for f in self.measured if f.sizes == sizes), None)
        if record is None:
            return us
        return record.us if record.faster and record.choice.template == template else inf


def by_time(forms: Sequence[Form], source: Source, choice: Wanted) -> Sequence[Form]:
    """Forms of a program at the sizes of a choice, the one that is predicted to be the fastest first."""
    if len(forms) < 2 or choice.sizes is None:
        return forms
    us = predictions(model_of(source.tiles), Points.at([choice.on_tiles], choice.sizes), choice.machine).us
    points = [Asked(dict(choice.sizes), choice.on_tiles, float(us[0]))]
    return sorted(forms, key=lambda f: f.time(source, choice, points)[0].us)


def shared(build: Build) -> frozenset[int]:
    """Other variants of a kernel's template that may be faster in its other form: where one of them is called first,
    both forms are timed at its sizes."""
    family, form = build.family, build.form
    if family is None or form is None:
        return frozenset()
    name = family.choices[0].template
    others = [k for k, c in enumerate(family.choices) if k and c.template == name]
    others = [k for k in others if family.choices[k].form is None]
    others = [k for k in others if family.times[k, family.first(k)] > SHORT]
    if not others:
        return frozenset()
    points = [Asked(family.points[family.first(k)], family.choices[k].params, 0.0) for k in others]
    wanted = Wanted(form.levers, form.tiles, machine=machine_for(build.target))
    times = FORMS[form.data.name]().time(Source(build.tiles, shapes=build.shapes), wanted, points)
    return frozenset(k for k, time in zip(others, times, strict=True) if time.close)


def in_form(artifact: Artifact, machine: Machine) -> Callable[[Mapping[str, int], float], float] | None:
    """Microseconds of a kernel in its other form at some sizes, where it takes so many on tiles: as predicted, and as
    far off as the prediction was where both were timed. None where it has no form, or that does not run."""
    data = artifact.form
    if data is None or data.name not in FORMS or data.faults or artifact.target not in FORMS[data.name]().targets:
        return None
    form, tiles = FORMS[data.name](), tiles_of(artifact)
    own = form.tile_names(tiles)
    levers = {n: v for n, v in data.levers.items() if n in form.levers}
    wanted = Wanted(levers, {n: int(v) for n, v in data.levers.items() if n in own}, machine=machine)
    source, params = Source(tiles, shapes=artifact.shapes), artifact.params

    def predicted(sizes: Mapping[str, int], us: float) -> float:
        return form.time(source, wanted, [Asked(dict(sizes), params, us)])[0].us

    if data.timed is None:
        return predicted
    timed_sizes, ratio = data.timed
    us = float(predictions(model_of(tiles), Points.at([params], timed_sizes), machine).us[0])
    off = ratio * us / predicted(timed_sizes, us)
    return (lambda sizes, us: off * predicted(sizes, us)) if isfinite(off) and off > 0 else predicted


def decided(program: str, chosen: Scheduled) -> tuple[Decision, ...]:
    """That a template was chosen for its form, if it was."""
    if not chosen.by_form:
        return ()
    assert chosen.family is not None and chosen.family.counted is not None
    known = chosen.family.counted
    best = min(known.on_tiles, key=lambda n: known.on_tiles[n])
    why = f"{chosen.template} is predicted to take {known.us[chosen.template]:.0f} µs in it, on tiles"
    why += f" {known.on_tiles[chosen.template]:.0f} µs, and {best} {known.on_tiles[best]:.0f} µs"
    return (Decision("form", program, DECIDES, why),)
