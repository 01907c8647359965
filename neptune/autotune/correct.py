"""What measurements teach beyond the cost model: a factor for each prediction, learned inside one family.

    correction = learned({"matmul": samples})
    correction.factor("matmul", features(…))   →  [0.97, 1.04, …]
    correction.factor("softmax", features(…))  →  [1.0, 1.0, …]: nothing was measured there

A family is what has records of its own: all templates of one operator. What is learned is how candidates at the same
sizes differ from what the model says of them, and not how far the model is off as a whole there, since only differences
decide a choice: measured / predicted is divided by its median over the fast candidates of these sizes. Trees boosted on
the model's own numbers (`neptune.tune.features`), as in the cost models of Ansor (Zheng et al., 2020), but as a
correction and within a bound: trees know nothing beyond the sizes that they have seen, the model does.
`python -m bench.correct` judges it on sizes that were left out; docs/performance.md has its figures.

Needs scikit-learn (`pip install 'neptune-compiler[tune]'`); without it there is no correction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neptune.tune.numbers import Array

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
    """Measurements of one family. `features`: columns, as `neptune.tune.features` makes them, ABSENT where a template
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
