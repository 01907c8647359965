"""What a tuner may try: of every template that applies all combinations of values that fit, in the model's order.

trials(forms, {"batch": 1, "s_kv": 8192}, machine)[0]
→  Trial(Choice("flash_decoding", {"BLOCK_M": 16, "BLOCK_N": 128, "num_warps": 4, "num_stages": 3}), us=21.4)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from math import inf, isfinite
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from neptune.base.choice import Choice
from neptune.errors import NeptuneError
from neptune.forms import FORMS, Space
from neptune.ir.analysis.forms import cheaper
from neptune.ir.integers import evaluate_size
from neptune.ir.program import Program
from neptune.kernel import Kernel
from neptune.runtime.modules import covers
from neptune.runtime.parts import LARGEST
from neptune.tile.ir import TileProgram
from neptune.tune.choose import AUTOMATIC, AnyTemplate, lowered, lowered_or_why
from neptune.tune.model.columns import Points
from neptune.tune.model.machine import Machine
from neptune.tune.params import space_of
from neptune.tune.parts import parts_of
from neptune.tune.rank import model_of, predictions, worth_trying

TIMES = (0.25, 0.5, 2.0, 4.0)
"""Other numbers of parts that are tried, over what a launch would choose."""
Make: TypeAlias = "Callable[[Choice], Kernel | NeptuneError]"
"""The kernel of a choice in another form than tiles, or why it has none."""
FEW = 8
"""Candidates in other forms: each is derived and checked by itself, which takes seconds."""
Sizes: TypeAlias = Mapping[str, int]
NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Form:
    """What a template makes of a program: tiles for the model, and a kernel (compiled when it is first asked for, if no
    check rejects it) whose `with_params` are the candidates. `others` make one in another form, by its name, where such
    candidates are asked for."""

    template: str
    tiles: TileProgram
    kernel: Callable[[], Kernel | NeptuneError]
    others: Mapping[str, Make] = field(default_factory=dict)


@dataclass(frozen=True)
class Trial:
    """A choice that may be tried; `us` is what the model predicts."""

    choice: Choice
    us: float

    @property
    def template(self) -> str:
        return self.choice.template

    @property
    def params(self) -> Mapping[str, int]:
        return self.choice.params

    def __str__(self) -> str:
        return str(self.choice)


def forms_of(
    loops: Program,
    template: AnyTemplate,
    compiled: Callable[[AnyTemplate], Kernel | NeptuneError],
    others: Mapping[str, Callable[[AnyTemplate, Choice], Kernel | NeptuneError]] = NONE,
) -> tuple[Form, ...]:
    """The forms of a program: that of the named template, else of every one that an automatic choice would look at.
    `others` compile candidates in other forms, by name, where such ones are asked for.

    Raises what `compile` would raise for a named template that does not apply.
    """
    definitions = cheaper(loops)[0]

    def makes(name_or_function: AnyTemplate) -> dict[str, Make]:
        return {name: cache(partial(make, name_or_function)) for name, make in others.items()}

    if template is not None:
        one_lowered = lowered(template, definitions)
        return (Form(one_lowered.template, one_lowered.tiles, cache(lambda: compiled(template)), makes(template)),)
    forms: list[Form] = []
    for name in AUTOMATIC:
        # A template that does not apply is no candidate; the last one always does.
        one = lowered_or_why(name, definitions, strict=name != AUTOMATIC[-1])
        if not isinstance(one, NeptuneError):
            forms.append(Form(name, one.tiles, cache(partial(compiled, name)), makes(name)))
    return tuple(forms)


def trials(
    forms: Iterable[Form],
    sizes: Mapping[str, int],
    machine: Machine,
    given: Mapping[str, int] | None = None,
    numbers: bool = True,
) -> tuple[Trial, ...]:
    """Every combination that fits the machine, the fastest by the model first, with the values that are `given`; with
    `numbers` also with other numbers of parts than launches choose, which is what a combination without one has.

    ScheduleError for a value that no template takes; empty where nothing fits.
    """
    given = dict(given or {})
    spaces = [(f, space_of(f.tiles)) for f in forms]
    able = [(f, s) for f, s in spaces if s.takes(given)]
    if not able and spaces:
        spaces[0][1].check(f"tune `{spaces[0][0].tiles.name}`", given)
    candidates: list[Trial] = []
    for form, space in able:
        every = worth_trying(form.tiles, [sizes], machine, space.ranked(given))
        own = [t for t in predicted(form, [{**p, **given} for p in every], sizes, machine) if isfinite(t.us)]
        candidates += own
        if numbers:
            more = [p for t in own for p in _other_numbers(form.tiles, t.params, sizes, machine)]
            candidates += [t for t in predicted(form, more, sizes, machine) if isfinite(t.us)]
    return tuple(sorted(candidates, key=lambda t: t.us))


def predicted(
    form: Form, every: Sequence[Mapping[str, int]], sizes: Mapping[str, int], machine: Machine
) -> list[Trial]:
    """Trials of a form with what the model predicts; all have values for the same parameters."""
    if not every:
        return []
    space = space_of(form.tiles)
    points = Points.at([space.ranked(p) | {n: p[n] for n in space.parts if n in p} for p in every], sizes)
    us = np.asarray(predictions(model_of(form.tiles), points, machine).us).tolist()
    return [Trial(Choice(form.template, dict(p)), t) for p, t in zip(every, us, strict=True)]


def _other_numbers(
    tiles: TileProgram, params: Mapping[str, int], sizes: Mapping[str, int], machine: Machine
) -> Iterator[dict[str, int]]:
    """The values with each other number of parts that is worth trying, of which none is empty."""
    for rule in parts_of(tiles):
        if rule.number in params:
            continue
        known = {**sizes, **params, **covers(tiles, {**sizes, **params})}
        usual, steps = rule.default(known, machine.processors), evaluate_size(rule.steps, known)
        tried = (min(max(1, round(by * usual)), steps, LARGEST) for by in TIMES)
        counts = {-(-steps // -(-steps // n)) for n in tried if n}
        yield from ({**params, rule.number: n} for n in sorted(counts - {usual}))


# --- in other forms than tiles: the first levers of each by predicted time, beside the candidates on tiles ---


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
    trials: list[Trial] = []
    for point in space.every:
        tiles = frozenset(point.tiles.items())
        if tiles not in beside:
            beside[tiles] = next((t for t in own if t.params.items() >= tiles), None)
        triton = beside[tiles]
        if triton is not None:
            us = space.us(point, triton.params, triton.us)
            trials.append(Trial(triton.choice.formed(name, point.levers), us))
    return [t for t in trials if isfinite(t.us) and t.us > 0]


def like(forms: Sequence[Form], trials: Sequence[Trial], taken: Choice) -> Trial | None:
    """The first of a choice's template in its form with the levers and tile sizes that it names."""
    assert taken.form is not None
    free = FORMS[taken.form]().tile_names(next(f for f in forms if f.template == taken.template).tiles)

    def agrees(c: Choice) -> bool:
        own = {**{n: c.params[n] for n in free if n in c.params}, **c.levers}
        return c.kind == taken.kind and all(taken.levers.get(n, v) == v for n, v in own.items())

    return next((t for t in trials if agrees(t.choice)), None)
