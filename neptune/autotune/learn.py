"""The order of a tuner's candidates, with what earlier searches taught.

    ordered(forms, trials, lessons, sizes, machine)
    →  trials by corrected predictions, "by the model, corrected by 412 measurements"

Lessons are measurements of the same program by the same versions, at whatever sizes. With what searches leave behind at
an operator's other sizes, one at the size left out was within 3 % of the best after 1.8 candidates on average instead
of 8.8, within 1 % after 2.5 instead of 9.5 (20 sizes that were searched). What a default kernel takes
does not follow from it: there records themselves do better (`neptune.tune.measured`).

What measurements teach beyond the cost model is a factor for each prediction, learned inside one family.

    correction = learned({"matmul": samples})
    correction.factor("matmul", features(…))   →  [0.97, 1.04, …]
    correction.factor("softmax", features(…))  →  [1.0, 1.0, …]: nothing was measured there

A family is what has records of its own: all templates of one operator. What is learned is how candidates at the same
sizes differ from what the model says of them, and not how far the model is off as a whole there, since only differences
decide a choice: measured / predicted is divided by its median over the fast candidates of these sizes. Trees boosted on
the model's own numbers (`features`), as in the cost models of Ansor (Zheng et al., 2020), but as a
correction and within a bound: trees know nothing beyond the sizes that they have seen, the model does.
`python -m bench.correct` judges it on sizes that were left out; docs/performance.md has its figures.

Needs scikit-learn (`pip install scikit-learn`); without it there is no correction.

What the cost model knows of a point are numbers that a correction can learn from:

features(model.predict_all(columns, machine), columns, ("BLOCK_M",)).keys()  →  {"matrix", …, "waves", "BLOCK_M", …}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from neptune.autotune.space import Form, Trial
from neptune.base.choice import Choice
from neptune.tune.model.columns import Points, columns_of
from neptune.tune.model.machine import Machine
from neptune.tune.model.numbers import Array
from neptune.tune.model.prediction import SPENT, Predictions
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


# --- a correction that is learned -------------------------------------------------------------------

MOST = 1.15
"""No correction may be larger."""
BOUND = 1.06
"""The factor that a correction stays within, however much was measured: of 1.03 to 1.15 the one that chose best at
sizes that were left out."""
LEAST = 300
"""Measurements of a family, and at least two sizes of them, with fewer of which nothing is learned: up to 100, ten of a
size, made the first choice at other sizes worse."""
NEAR = 1.5
"""What takes longer than that, relative to the best of its sizes, says little of the fast ones."""
ABSENT = -1.0
"""The feature of a template that has no such tile; log₂ of a tile is at least 0."""


@dataclass(frozen=True)
class Samples:
    """Measurements of one family. `features`: columns, as the function makes them, ABSENT where a template
    has no such tile; `sizes`: the number of the sizes that each was measured at; `predicted` and `measured`:
    microseconds, finite and above 0."""

    features: Mapping[str, Array]
    sizes: Array
    predicted: Array
    measured: Array

    def __len__(self) -> int:
        return len(self.measured)


@dataclass(frozen=True)
class Fit:
    """What was learned of one family: a regressor of log factors on the columns `names`, and how large they may be."""

    names: tuple[str, ...]
    trees: Any
    limit: float


@dataclass(frozen=True)
class Correction:
    """Factors for predictions; of no family at first."""

    families: Mapping[str, Fit] = field(default_factory=dict)

    def factor(self, family: str, features: Mapping[str, Array]) -> Array:
        """What to multiply predictions with, between 1 / BOUND and BOUND: 1 in a family without records."""
        count = len(next(iter(features.values())))
        fit = self.families.get(family)
        if fit is None or not count:
            return np.ones(count)
        return np.exp(np.clip(fit.trees.predict(_matrix(features, fit.names)), -fit.limit, fit.limit))


def available() -> bool:
    """True if scikit-learn is installed."""
    return _regressor() is not None


def learned(families: Mapping[str, Samples], bound: float = BOUND, least: int = LEAST) -> Correction:
    """The correction that measurements teach, in each family that has at least so many of them; none without
    scikit-learn. A `bound` beyond MOST is MOST."""
    regressor = _regressor()
    if regressor is None:
        return Correction()
    limit = float(np.log(min(bound, MOST)))
    return Correction({name: _fit(s, regressor, limit) for name, s in families.items() if _enough(s, least)})


def _enough(s: Samples, least: int) -> bool:
    return len(s) >= least and len(np.unique(s.sizes)) >= 2


def _fit(s: Samples, regressor: Any, limit: float) -> Fit:
    names = tuple(sorted(s.features))
    target, weight = beside_the_model(s)
    # A tree splits a few measurements no finer than their noise allows.
    trees = regressor(
        max_iter=40, learning_rate=0.06, max_leaf_nodes=8, min_samples_leaf=min(20, max(3, len(s) // 8)),
        l2_regularization=1.0, early_stopping=False, random_state=0,
    )  # fmt: skip
    trees.fit(_matrix(s.features, names), target, sample_weight=weight)
    return Fit(names, trees, limit)


def beside_the_model(s: Samples) -> tuple[Array, Array]:
    """log(measured / predicted) of each measurement beside that of the fast ones at its sizes; and its weight: equal
    for all sizes together, less for what is far from the best. What is beyond ten times the bound is cut there."""
    ratio = np.log(s.measured / s.predicted)
    target, weight = np.empty(len(s)), np.empty(len(s))
    for n in np.unique(s.sizes):
        here = s.sizes == n
        slower = s.measured[here] / s.measured[here].min()
        target[here] = ratio[here] - np.median(ratio[here][slower < NEAR])
        weight[here] = np.minimum(1.0, (1.2 / slower) ** 2) / np.sqrt(here.sum())
    limit = 10 * np.log(BOUND)
    return np.clip(target, -limit, limit), weight / weight.mean()


def _matrix(features: Mapping[str, Array], names: tuple[str, ...]) -> Array:
    count = len(next(iter(features.values())))
    return np.stack([np.asarray(features.get(n, np.full(count, ABSENT)), np.float64) for n in names], axis=1)


def _regressor() -> Any:
    """scikit-learn's class, imported when first asked for; None where it is not installed."""
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
    except ImportError:
        return None
    return HistGradientBoostingRegressor


# --- what a correction learns from ------------------------------------------------------------------

LAUNCH = ("num_warps", "num_stages")


def features(predictions: Predictions, columns: Mapping[str, Array], tiles: Iterable[str]) -> dict[str, Array]:
    """Columns with an element a point, float64 and finite. Each of SPENT: the share of the predicted time that it would
    take alone, all kernels together. "us", the "waves", "resident" and "programs" of the longest kernel, warps, stages
    and `tiles`: log₂. What does not fit has zeros."""
    us = np.asarray(predictions.us, np.float64)
    runs = np.isfinite(us) & (us > 0)
    total = np.where(runs, us, 1.0)
    spent = sum(np.where(runs, k.spent, 0.0) for k in predictions.kernels) / total
    longest = np.stack([np.where(runs, k.us, 0.0) for k in predictions.kernels]).argmax(axis=0)[None]

    def of_longest(rows: Sequence[Array]) -> Array:
        return np.take_along_axis(np.stack([np.broadcast_to(r, us.shape) for r in rows]), longest, axis=0)[0]

    numbers = {
        "us": total,
        "waves": of_longest([k.waves for k in predictions.kernels]),
        "resident": of_longest([k.resident for k in predictions.kernels]),
        "programs": of_longest([k.programs for k in predictions.kernels]),
        **{n: np.broadcast_to(np.asarray(columns[n], np.float64), us.shape) for n in (*LAUNCH, *tiles)},
    }
    logs = {n: np.where(runs, np.log2(np.maximum(x, 2.0**-10)), 0.0) for n, x in numbers.items()}
    return dict(zip(SPENT, spent, strict=True)) | logs
