"""Does a learned correction of the cost model choose better? Judged at sizes and operators that were left out.

    python -m bench.correct [--partitions 3]

Points, setups and figures are those of `bench.cost`; a family is an operator, and the same sizes of it stay together,
whichever run they were measured in. Shown are, beside the model alone:

- sizes left out: a fifth of an operator's sizes is judged with what the others teach, five times over;
- operator left out: all others are taught, which must change nothing.

Figures are means over several partitions. No GPU is needed, but scikit-learn is.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from bench.cost import MACHINE, Figures, Point, by_family, points
from neptune.autotune.learn import ABSENT, Correction, Samples, available, features, learned
from neptune.tune.model.constants import FITTED
from neptune.tune.model.numbers import Array

FOLDS = 5


@dataclass(frozen=True)
class Measured:
    """All points, with what the model says of them: `table` has the columns of features, `sizes` the number of each
    point's operator and sizes."""

    points: Sequence[Point]
    table: Mapping[str, Array]
    sizes: Array
    predicted: Array
    us: Array

    def operators(self) -> dict[str, Array]:
        """The numbers of each operator's points."""
        names = np.array([operator(p) for p in self.points])
        return {str(name): np.flatnonzero(names == name) for name in dict.fromkeys(names)}

    def rows(self, of: Array) -> dict[str, Array]:
        return {name: column[of] for name, column in self.table.items()}

    def samples(self, of: Array) -> Samples:
        return Samples(self.rows(of), self.sizes[of], self.predicted[of], self.us[of])


def operator(p: Point) -> str:
    return p.model.program.name


def measured(of: Sequence[Point]) -> Measured:
    """The features of points; models are asked for all of their points at once."""
    predicted, table = np.empty(len(of)), defaultdict[str, Array](lambda: np.full(len(of), ABSENT))
    alike: dict[tuple[int, tuple[str, ...]], list[int]] = defaultdict(list)
    for k, p in enumerate(of):
        alike[id(p.model), tuple(sorted(p.params))].append(k)
    for numbers in alike.values():
        model, whole = of[numbers[0]].model, [of[k].sizes | of[k].params for k in numbers]
        columns = {n: np.array([row[n] for row in whole], np.float64) for n in whole[0]}
        found = model.predict_all(columns, MACHINE, FITTED)
        predicted[numbers] = found.us
        for name, column in features(found, columns, (t.name for t in model.program.tunables)).items():
            table[name][numbers] = column
    known = {key: k for k, key in enumerate(dict.fromkeys(map(_sizes, of)))}
    return Measured(of, dict(table), np.array([known[_sizes(p)] for p in of]), predicted, np.array([p.us for p in of]))


def _sizes(p: Point) -> tuple[Any, ...]:
    return operator(p), *sorted(p.sizes.items())


# --- what is left out ----------------------------------------------------------------------------


def folds(sizes: Array, partition: int) -> Array:
    """The fold of each point: sizes are shuffled and dealt out."""
    each = np.unique(sizes)
    dealt = np.random.default_rng(partition).permutation(len(each)) % FOLDS
    return dealt[np.searchsorted(each, sizes)]


def sizes_left_out(m: Measured, partition: int) -> Array:
    """Corrected predictions, each learned at other sizes of its operator."""
    made = m.predicted.copy()
    for name, own in m.operators().items():
        fold = folds(m.sizes[own], partition)
        for k in np.unique(fold):
            others = own[fold != k]
            taught = learned({name: m.samples(others)}) if len(others) else Correction()
            made[own[fold == k]] *= taught.factor(name, m.rows(own[fold == k]))
    return made


def operator_left_out(m: Measured) -> Array:
    """Corrected predictions of each operator, learned from all others."""
    made, operators = m.predicted.copy(), m.operators()
    taught = learned({name: m.samples(own) for name, own in operators.items()})
    for name, own in operators.items():
        others = Correction({n: fit for n, fit in taught.families.items() if n != name})
        made[own] *= others.factor(name, m.rows(own))
    return made


# --- figures -------------------------------------------------------------------------------------


def mean_of(many: Sequence[Figures]) -> Figures:
    """The mean of each figure; counts are those of all."""
    means = {f.name: float(np.mean([getattr(x, f.name) for x in many])) for f in fields(Figures)}
    return Figures(**means | {"setups": many[0].setups, "points": many[0].points})  # type: ignore[arg-type]


def judged(m: Measured, made: Sequence[Array]) -> dict[str, Figures]:
    """The mean figures of several predictions, of all and by family."""
    each = [by_family(m.points, times.tolist()) for times in made]
    return {family: mean_of([figures[family] for figures in each]) for family in each[0]}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.correct", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--partitions", type=int, default=3, metavar="N")
    options = parser.parse_args(argv)
    if not available():
        print("this needs scikit-learn: pip install 'neptune-compiler[tune]'")
        return 2
    m = measured(points())
    ways = {
        "the model alone": [m.predicted],
        "sizes left out": [sizes_left_out(m, 100 + k) for k in range(options.partitions)],
        "operator left out": [operator_left_out(m)],
    }
    for title, made in ways.items():
        print(title)
        for family, f in judged(m, made).items():
            print(f"  {family:9} {f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
