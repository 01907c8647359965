"""Candidates in other forms than tiles: the first levers of each by predicted time, beside the candidates on tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isfinite

from neptune.autotune.space import Form, Trial
from neptune.choice import Choice
from neptune.forms import FORMS, Space
from neptune.tune.machine import Machine

FEW = 8
"""Candidates in other forms: each is derived and checked by itself, which takes seconds."""
Sizes = Mapping[str, int]


def other_trials(
    forms: Sequence[Form], on_tiles: Sequence[Trial], sizes: Sizes, machine: Machine, given: Sizes | None = None
) -> list[Trial]:
    """Candidates in the other forms of the templates that have one, the best first: by predicted time, but for those
    that are close to the best of a form, as a compilation takes them.

    `on_tiles` are the other candidates. Beside each form stands the fastest of its template with the same tile sizes,
    which runs where the form cannot.
    """
    ordered: list[list[Trial]] = []
    for name in dict.fromkeys(name for f in forms for name in f.others):
        spaces = [(f, FORMS[name]().space(f.tiles, sizes, machine, given)) for f in forms if name in f.others]
        every = [t for f, space in spaces for t in _of_template(name, f, space, on_tiles, given or {})]
        limit = min((t.us for t in every), default=0.0) * min(space.close for _, space in spaces)
        ordered.append([t for t in every if t.us <= limit])
        ordered[-1] += sorted((t for t in every if t.us > limit), key=lambda t: t.us)
    return [t for own in sorted(ordered, key=lambda own: min((t.us for t in own), default=inf)) for t in own]


def _of_template(name: str, form: Form, space: Space, on_tiles: Sequence[Trial], given: Sizes) -> list[Trial]:
    """Those of a template, in the order of the form."""
    # Launches choose numbers of parts for either form; another one that is tried on tiles says nothing here.
    tried = set(form.tiles.chosen) - given.keys()
    alike = (t for t in on_tiles if t.template == form.template and not tried & t.params.keys())
    own = sorted(alike, key=lambda t: t.us)
    beside: dict[frozenset[tuple[str, int]], Trial | None] = {}
    found: list[Trial] = []
    for point in space.every:
        tiles = frozenset(point.tiles.items())
        if tiles not in beside:
            beside[tiles] = next((t for t in own if t.params.items() >= tiles), None)
        triton = beside[tiles]
        if triton is not None:
            us = space.us(point, triton.params, triton.us)
            found.append(Trial(triton.choice.formed(name, point.levers), us))
    return [t for t in found if isfinite(t.us) and t.us > 0]


def like(forms: Sequence[Form], trials: Sequence[Trial], taken: Choice) -> Trial | None:
    """The first of a choice's template in its form with the levers and tile sizes that it names."""
    assert taken.form is not None
    free = FORMS[taken.form]().tile_names(next(f for f in forms if f.template == taken.template).tiles)

    def agrees(c: Choice) -> bool:
        own = {**{n: c.params[n] for n in free if n in c.params}, **c.levers}
        return c.kind == taken.kind and all(taken.levers.get(n, v) == v for n, v in own.items())

    return next((t for t in trials if agrees(t.choice)), None)
