"""Does a learned correction of the cost model choose better? Judged at sizes and operators that were left out.

    python -m bench.correct [--partitions 3] [--bounds 1.03 1.06 1.1 1.15] [--json correct.json]
    python -m bench.correct --search

Points, setups and figures are those of `bench.cost`; a family is an operator, and the same sizes of it stay together,
whichever run they were measured in. Shown are, beside the model alone:

- sizes left out: a fifth of an operator's sizes is judged with what the others teach, five times over;
- operator left out: all others are taught, which must change nothing;
- 10 to 300 records: as sizes left out, but taught only so many measurements, ten at each of the sizes that were drawn,
  also where `learned` would rather leave them alone.

Figures are means over several partitions and draws. No GPU is needed, but scikit-learn is.

`--search` replays the tuner's rounds on what a search measured, at each size of an operator with what was
measured at its other sizes: by a search of the model's there, which is what a user has, or all that it
measured. Shown: how many candidates are measured until one is within 3 % and 1 % of the best, and until it ends.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from bench import record
from bench.cost import MACHINE, Figures, Point, by_family, points
from neptune.autotune.correct import ABSENT, BOUND, LEAST, Correction, Samples, available, learned
from neptune.autotune.rounds import Search
from neptune.autotune.space import Trial
from neptune.choice import Choice
from neptune.tune.constants import FITTED
from neptune.tune.features import features
from neptune.tune.numbers import Array

FOLDS = 5
RECORDS = (10, 30, 100, 300)
A_SIZE = 10
"""Records that a tuning leaves behind at one size."""


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


def sizes_left_out(m: Measured, partition: int, bound: float = BOUND, records: int | None = None) -> Array:
    """Corrected predictions, each learned at other sizes of its operator: from all measurements, or so many."""
    made = m.predicted.copy()
    for name, own in m.operators().items():
        fold = folds(m.sizes[own], partition)
        for k in np.unique(fold):
            others = own[fold != k]
            if records is not None:
                others = drawn(m.sizes, others, records, partition)
            least = LEAST if records is None else min(records, len(others))
            taught = learned({name: m.samples(others)}, bound, least) if len(others) else Correction()
            made[own[fold == k]] *= taught.factor(name, m.rows(own[fold == k]))
    return made


def drawn(sizes: Array, of: Array, records: int, draw: int) -> Array:
    """So many of these points, A_SIZE at each of the sizes that are drawn; fewer where there are not so many."""
    rng, taken = np.random.default_rng(draw), list[int]()
    for n in rng.permutation(np.unique(sizes[of])):
        here = of[sizes[of] == n]
        taken += rng.permutation(here)[: min(A_SIZE, records - len(taken))].tolist()
    return np.array(sorted(taken), int)


def operator_left_out(m: Measured) -> Array:
    """Corrected predictions of each operator, learned from all others."""
    made, operators = m.predicted.copy(), m.operators()
    taught = learned({name: m.samples(own) for name, own in operators.items()})
    for name, own in operators.items():
        others = Correction({n: fit for n, fit in taught.families.items() if n != name})
        made[own] *= others.factor(name, m.rows(own))
    return made


# --- the tuner's rounds ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Replay:
    """How a search went: how fast the best is that it found (1: the best there is), and how many were measured until
    one was within 3 %, until within 1 %, and in all; `order` are the numbers of the points that were, in that order."""

    found: float
    to_three: int
    to_one: int
    total: int
    order: tuple[int, ...]


def replayed(m: Measured, here: Array, predicted: Array) -> Replay:
    """The tuner's rounds over the points of one size, with these predictions."""
    points = [m.points[k] for k in here]
    trials = [Trial(Choice(str(id(p.model)), p.params), float(us)) for p, us in zip(points, predicted, strict=True)]
    numbers = {t.choice: int(k) for t, k in zip(trials, here, strict=True)}
    search = Search(sorted(trials, key=lambda t: t.us))
    best, order = float(m.us[here].min()), list[int]()
    while batch := search.next_round():
        for t in batch:
            order.append(numbers[t.choice])
            search.known[t.choice] = float(m.us[numbers[t.choice]])
    fastest = np.minimum.accumulate(m.us[order])

    def until(within: float) -> int:
        near = np.flatnonzero(fastest <= within * best)
        return int(near[0]) + 1 if len(near) else len(here)

    return Replay(best / float(fastest[-1]), until(1.03), until(1.01), len(order), tuple(order))


def searches(m: Measured) -> dict[str, list[Replay]]:
    """The rounds at each size by the model alone, and corrected by what was measured at the others of its operator; of
    sizes whose others have so many measurements that something is learned."""
    found: dict[str, list[Replay]] = defaultdict(list)
    for name, own in m.operators().items():
        each = {n: own[m.sizes[own] == n] for n in np.unique(m.sizes[own])}
        alone = {n: replayed(m, here, m.predicted[here]) for n, here in each.items()}
        for n, here in each.items():
            others = own[m.sizes[own] != n]
            left = np.array([k for other, r in alone.items() if other != n for k in r.order], int)
            for what, of in (("what searches leave", left), ("all that was measured", others)):
                taught = learned({name: m.samples(of)}) if len(of) else Correction()
                if taught.families:
                    found[f"{what}: the model"].append(alone[n])
                    corrected = m.predicted[here] * taught.factor(name, m.rows(here))
                    found[f"{what}: corrected"].append(replayed(m, here, corrected))
    return found


def search_line(of: Sequence[Replay]) -> str:
    """The figures of many searches."""
    three, one, total, found = ([getattr(r, n) for r in of] for n in ("to_three", "to_one", "total", "found"))
    return (
        f"{len(of):3d} sizes | within 3 % after {np.mean(three):.1f}, at most {max(three)} | within 1 % after "
        f"{np.mean(one):.1f}, median {np.median(one):.0f} | of {np.mean(total):.0f} | found {np.mean(found):.4f}"
    )


# --- figures -------------------------------------------------------------------------------------


def mean_of(many: Sequence[Figures]) -> Figures:
    """The mean of each figure; counts are those of all."""
    means = {f.name: float(np.mean([getattr(x, f.name) for x in many])) for f in fields(Figures)}
    return Figures(**means | {"setups": many[0].setups, "points": many[0].points})  # type: ignore[arg-type]


def judged(m: Measured, made: Sequence[Array]) -> dict[str, Figures]:
    """The mean figures of several predictions, of all and by family."""
    each = [by_family(m.points, times.tolist()) for times in made]
    return {family: mean_of([figures[family] for figures in each]) for family in each[0]}


def tables(m: Measured, partitions: Sequence[int], bounds: Sequence[float]) -> Iterator[tuple[str, dict[str, Figures]]]:
    """Each way to leave something out, with its figures."""
    yield "the model alone", judged(m, [m.predicted])
    for bound in bounds:
        made = [sizes_left_out(m, p, bound) for p in partitions]
        yield f"sizes left out, within {bound - 1:.0%}", judged(m, made)
    without = operator_left_out(m)
    same = "changes nothing" if np.array_equal(without, m.predicted) else "CHANGES PREDICTIONS"
    yield f"operator left out: {same}", judged(m, [without])
    for count in RECORDS:
        made = [sizes_left_out(m, p, records=count) for p in partitions]
        yield f"{count} records of other sizes", judged(m, made)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.correct", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--partitions", type=int, default=3, metavar="N", help="partitions and draws")
    parser.add_argument("--first", type=int, default=100, metavar="N", help="the number of the first partition")
    parser.add_argument("--bounds", type=float, nargs="+", default=[BOUND], metavar="FACTOR", help="bounds to compare")
    parser.add_argument("--search", action="store_true", help="replay the tuner's rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    options = parser.parse_args(argv)
    if not available():
        print("this needs scikit-learn: pip install 'neptune-compiler[tune]'")
        return 2
    if options.search:
        for what, of in searches(measured([p for p in points() if p.setup.startswith("choice-search ")])).items():
            print(f"{what:32} {search_line(of)}")
        return 0
    m, said = measured(points()), {}
    for title, figures in tables(m, range(options.first, options.first + options.partitions), options.bounds):
        print(title)
        for family, f in figures.items():
            print(f"  {family:9} {f}", flush=True)
        said[title] = {family: asdict(f) for family, f in figures.items()}
    if options.json:
        options.json.write_text(record.as_json({"figures": said}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
