"""The order of a tuner's candidates, with what earlier searches taught (`neptune.autotune.correct`).

    ordered(forms, trials, lessons, sizes, machine)
    →  trials by corrected predictions, "by the model, corrected by 412 measurements"

Lessons are measurements of the same program by the same versions, at whatever sizes. With what searches leave behind at
an operator's other sizes, one at the size left out was within 3 % of the best after 1.8 candidates on average instead
of 8.8, within 1 % after 2.5 instead of 9.5 (20 sizes that were searched). What a default kernel takes
does not follow from it: there records themselves do better (`neptune.tune.measured`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from neptune.autotune.correct import ABSENT, LEAST, Correction, Samples, available, learned
from neptune.autotune.space import Form, Trial
from neptune.base.choice import Choice
from neptune.tune.columns import Points, columns_of
from neptune.tune.features import features
from neptune.tune.machine import Machine
from neptune.tune.numbers import Array
from neptune.tune.params import space_of
from neptune.tune.rank import model_of

FAMILY = "program"
"""All templates of a program are one family."""
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Lesson:
    """What a choice took at some sizes, in microseconds."""

    choice: Choice
    sizes: Sizes
    us: float


def ordered(
    forms: Sequence[Form], trials: Sequence[Trial], lessons: Sequence[Lesson], sizes: Sizes, machine: Machine
) -> tuple[tuple[Trial, ...], str]:
    """The trials by corrected predictions, and a line that says so; as they are, with "", where there are few lessons,
    or where scikit-learn is not installed, which is said."""
    if len(lessons) < LEAST:
        return tuple(trials), ""
    if not available():
        return tuple(trials), f"by the model alone: {len(lessons)} measurements teach nothing without scikit-learn"
    taught = correction(forms, lessons, machine)
    if not taught.families:
        return tuple(trials), ""
    factors = _factors(taught, forms, trials, sizes, machine)
    corrected = [replace(t, us=t.us * f) for t, f in zip(trials, factors, strict=True)]
    line = f"by the model, corrected by {len(lessons)} measurements"
    return tuple(sorted(corrected, key=lambda t: t.us)), line


def correction(forms: Sequence[Form], lessons: Sequence[Lesson], machine: Machine) -> Correction:
    """What the lessons teach; nothing where they are too few, or all of the same sizes."""
    tables: list[tuple[Mapping[str, Array], Array]] = []
    rows: list[Lesson] = []
    for form in forms:
        own = [x for x in lessons if x.choice.template == form.template]
        if own:
            tables.append(_table(form, [x.choice.params for x in own], [x.sizes for x in own], machine))
            rows += own
    if not rows:
        return Correction()
    predicted, us = np.concatenate([p for _, p in tables]), np.array([x.us for x in rows])
    numbers = {which: k for k, which in enumerate(dict.fromkeys(tuple(sorted(x.sizes.items())) for x in rows))}
    which = np.array([numbers[tuple(sorted(x.sizes.items()))] for x in rows])
    runs = np.isfinite(predicted) & (predicted > 0)
    table = {n: column[runs] for n, column in _joined([t for t, _ in tables], [len(p) for _, p in tables]).items()}
    return learned({FAMILY: Samples(table, which[runs], predicted[runs], us[runs])})


def _factors(
    taught: Correction, forms: Sequence[Form], trials: Sequence[Trial], sizes: Sizes, machine: Machine
) -> list[float]:
    """What to multiply the prediction of each trial with."""
    factors = dict.fromkeys(range(len(trials)), 1.0)
    for form in forms:
        # What was learned of tiles says nothing of the other form.
        own = [k for k, t in enumerate(trials) if t.template == form.template and t.choice.form is None]
        if own:
            table, _ = _table(form, [trials[k].params for k in own], [sizes] * len(own), machine)
            factors |= zip(own, taught.factor(FAMILY, table).tolist(), strict=True)
    return [factors[k] for k in range(len(trials))]


def _table(
    form: Form, params: Sequence[Mapping[str, int]], sizes: Sequence[Sizes], machine: Machine
) -> tuple[Mapping[str, Array], Array]:
    """The features of each of the choices at its sizes, and the microseconds that the model predicts."""
    space, numbers = space_of(form.tiles), range(len(params))
    columns = columns_of(form.tiles, Points([space.ranked(p) for p in params], sizes, numbers, numbers), machine)
    predictions = model_of(form.tiles).predict_all(columns, machine)
    return features(predictions, columns, (t.name for t in form.tiles.tunables)), np.asarray(predictions.us)


def _joined(tables: Sequence[Mapping[str, Array]], counts: Sequence[int]) -> dict[str, Array]:
    """One table of several; a column that one of them has not is ABSENT there."""
    names = dict.fromkeys(n for t in tables for n in t)
    pairs = list(zip(tables, counts, strict=True))
    return {n: np.concatenate([t.get(n, np.full(count, ABSENT)) for t, count in pairs]) for n in names}
