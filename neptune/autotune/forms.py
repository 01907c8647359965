"""Candidates in the asynchronous form of sm_90: its first levers by predicted time, beside the candidates on tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite

from neptune.autotune.space import Form, Levers, Trial
from neptune.driver.coded import coded
from neptune.hopper.offered import offers, tile_names
from neptune.hopper.predict import CLOSE
from neptune.tune.machine import Machine

FEW = 8
"""Candidates in this form: each is derived and checked by itself, which takes seconds."""
Sizes = Mapping[str, int]


def asynchronous_trials(
    forms: Sequence[Form], on_tiles: Sequence[Trial], sizes: Sizes, machine: Machine, given: Sizes | None = None
) -> list[Trial]:
    """Candidates in the asynchronous form of the templates that have one, the best first: by predicted time, but for
    those that are close to the best, as a compilation takes them.

    `on_tiles` are the other candidates. Beside each form stands the fastest of its template with the same tile sizes,
    which runs where the form cannot.
    """
    found = [t for f in forms if f.asynchronous is not None for t in _of_template(f, on_tiles, sizes, machine, given)]
    best = min((t.us for t in found), default=0.0)
    close = [t for t in found if t.us <= CLOSE * best]
    return [*close, *sorted((t for t in found if t.us > CLOSE * best), key=lambda t: t.us)]


def _of_template(
    form: Form, on_tiles: Sequence[Trial], sizes: Sizes, machine: Machine, given: Sizes | None
) -> list[Trial]:
    """Those of a template, in the order of counts."""
    known = offers(form.tiles, sizes, machine, given)
    # Launches choose numbers of parts for either form; another one that is tried on tiles says nothing here.
    tried = set(form.tiles.chosen) - (given or {}).keys()
    alike = (t for t in on_tiles if t.template == form.template and not tried & t.params.keys())
    own = sorted(alike, key=lambda t: t.us)
    beside: dict[frozenset[tuple[str, int]], Trial | None] = {}
    found: list[Trial] = []
    for offer in known.every:
        tiles = frozenset(offer.tiles.items())
        if tiles not in beside:
            beside[tiles] = next((t for t in own if t.params.items() >= tiles), None)
        triton = beside[tiles]
        if triton is not None:
            us = known.us(offer, triton.params, triton.us)
            found.append(replace(triton, params={**triton.params, **coded(offer.levers)}, us=us))
    return [t for t in found if isfinite(t.us) and t.us > 0]


def like(forms: Sequence[Form], trials: Sequence[Trial], template: str, levers: Levers) -> Trial | None:
    """The first of a template with the levers and tile sizes that a kernel's asynchronous form names."""
    free = tile_names(next(f for f in forms if f.template == template).tiles)

    def agrees(t: Trial) -> bool:
        own = {**{n: t.params[n] for n in free if n in t.params}, **(t.levers or {})}
        return t.template == template and all(levers.get(n, v) == v for n, v in own.items())

    return next(filter(agrees, trials), None)
