"""The few choices of template and parameters that serve all sizes, and which sizes take which.

Candidates are what is best by the cost model at a few sizes far apart, for each template. Of them those are kept that
lose least over all points (`neptune.tune.points`), at most MOST. At a call's own sizes the model tells them apart
(`neptune.tune.chooser`); for a saved kernel, which has none, a tree of comparisons of sizes does
(`neptune.runtime.family`), cut where that makes the predicted times shortest.

    choose({"flash_attention": …, "flash_decoding": …}, points, machine)
    →  choices: flash_attention 128×64 w8 s3, flash_decoding 16×64 w4 s3, …;  tree: s_q <= 16: 1, else 0
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import log, log2, prod

import numpy as np

from neptune.choice import Choice
from neptune.runtime.family import Cut, Tree, pick
from neptune.tile.ir import TileProgram
from neptune.tune.gains import FURTHER, Counted, OtherForm
from neptune.tune.graft import grafted
from neptune.tune.machine import Machine
from neptune.tune.measured import Measured
from neptune.tune.numbers import Array
from neptune.tune.params import space_of
from neptune.tune.points import Sizes
from neptune.tune.rank import CLOSE, LAUNCH
from neptune.tune.rows import Rows, counted
from neptune.tune.samples import Sample

MOST = 24
"""Choices that are kept: few differ in more than values, and each is compiled when it is used."""
OUTER, INNER = 12, 36
"""Points at which each template's own best parameters are looked for: among all, and among those with no size at an end
of what it is anywhere."""
SAMPLE = 384
"""Points at which candidates are compared; what is kept of them is told apart at all points."""
SAVED = 0.0001
"""What one more choice must save, as a share of the time, on average over all points: few more keep what the model can
tell at a call's own sizes (`neptune.tune.chooser`) within half a percent of the best, where GAIN lost one."""
GAIN = 0.0005
"""What each cut must save over its own points."""
DEEPEST = 10
"""Comparisons on the way to a choice."""
HOPELESS = 1.3
"""A template whose first choice is slower by that much wherever it takes some time is not looked at any further."""
FAR = 3.0
"""Nor are other parameters of it looked for at sizes where it is slower by that much."""
SEVERAL = 4
"""Sizes that have at most so many values, as a batch has, are taken with all of them."""
SHORT = 20.0
"""Microseconds: of what takes so long the logarithm counts half, of what takes longer more."""
NEVER = 40.0
"""The logarithm of the time of what cannot run."""
FEWEST = 2
"""Points of each side of a cut."""
MISSED = 1.005
"""What is slower by that at a measured point than the fastest choice there is not taken."""


@dataclass(frozen=True)
class Family:
    """Choices, the first of which is the fastest at the first point. `times` has the prediction of each (rows) at each
    point; `others` are the best of each template at the first one, in microseconds; `lost` is what the fastest of the
    choices loses against the best candidate of each point, as a share of its time, on average and at most, and
    `by_tree` what those lose beside it that the `tree` takes. Predictions were corrected by what is `known`. With
    `counted`, times are those of the faster form. `numbers` are those that launches of a template choose, by its name,
    and `rows` the models of templates that choices are of."""

    choices: tuple[Choice, ...]
    tree: Tree
    points: tuple[Sizes, ...]
    times: Array
    others: Mapping[str, float]
    lost: tuple[float, float]
    by_tree: tuple[float, float]
    counted: Counted | None = None
    known: Measured = field(default_factory=Measured)
    rows: Mapping[str, Rows] = field(default_factory=dict)
    numbers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The measurements that predictions were corrected by."""
        return self.known.samples

    def first(self, choice: int) -> int:
        """The first point that takes a choice; else that at which it loses least."""
        takes = fastest(self.times) == choice
        relative = self.times[choice] / self.times.min(axis=0)
        return int(takes.argmax() if takes.any() else np.nan_to_num(relative, nan=np.inf).argmin())

    def us(self, k: int = 0) -> float:
        """The predicted time of what is taken at point k."""
        return float(self.times[fastest(self.times)[k], k])


def fastest(times: Array) -> Array:
    """Of choices (rows) the number of what each point takes: the first of those that differ so little from the fastest
    that predictions tell nothing."""
    return np.asarray((times <= CLOSE * times.min(axis=0)).argmax(axis=0))


def choose(
    programs: Mapping[str, TileProgram],
    points: Sequence[Sizes],
    machine: Machine,
    given: Mapping[str, Mapping[str, int]],
    deciding: frozenset[str] | None = None,
    samples: Sequence[Sample] = (),
    marked: Sequence[Sizes] = (),
    failed: frozenset[Choice] = frozenset(),
    form: OtherForm | None = None,
) -> Family | None:
    """The family of these templates, with the values that are `given` to each; None where the first point has no
    prediction. Only the sizes `deciding` tell choices apart, where they are named. Predictions are corrected by
    `samples`; at the `marked` ones of their sizes what is then the fastest is taken, whatever it is at other points.
    What is known to have `failed` is no candidate. Another `form` counts where it is faster than tiles."""
    samples = _possible(programs, given, samples)
    marked = [p for p in marked if any(s.sizes == p for s in samples)]
    few = _sampled(points)
    anchors = _anchors(few)
    first = {n: Rows(p, [*few, *marked], machine, given.get(n, {})) for n, p in programs.items()}
    known = Measured.of(samples, lambda name, *asked: first[name].plain(*asked))
    for name, rows in first.items():
        rows.name, rows.known = name, known
        rows.failed = [c.params for c in failed if c.template == name]
        rows.add(anchors, most=1)
        rows.join([{n: c[n] for n in (*space_of(rows.program).tiles, *LAUNCH)} for c in known.candidates(name)])
    rows_of = {n: rows for n, rows in first.items() if rows.choices}
    if not rows_of:
        return None
    # The first point, and some of those that a user calls.
    looked = [*anchors[:1], *anchors[OUTER:][:FURTHER]]
    with_form = None if form is None else counted(rows_of, looked, form)
    best = np.min([rows.times.min(axis=0) for rows in rows_of.values()], axis=0)
    close = {n: rows for n, rows in rows_of.items() if _promising(rows.times.min(axis=0), best)}
    for rows in close.values():
        own = rows.times.min(axis=0)
        rows.add([k for k in anchors if own[k] <= FAR * best[k]], most=len(anchors))
    times = np.concatenate([rows.times for rows in close.values()])
    times, there = times[:, : len(few)], times[:, len(few) :]
    ran = np.isfinite(there).any(axis=0)
    there, marked = there[:, ran], [p for p, ok in zip(marked, ran, strict=True) if ok]
    runs = np.isfinite(times).any(axis=0)
    if not runs[0]:
        return None
    candidates = [Choice(n, c) for n, rows in close.items() for c in rows.choices]
    kept = _kept(_logs(times[:, runs]))
    won = _won(there, kept)
    preference = [p for rows in close.values() for p in rows.preference()]
    kept = _preferred(times, kept[: MOST - 1 - len(won)], preference)
    own = candidates.index(_best_at_first(close))
    # In the order in which one is taken where predictions tell nothing: the kernel's own, then as ranks are.
    kept = [own, *sorted({*kept, *won} - {own}, key=lambda k: (preference[k], k))]
    whole = np.stack([close[c.template].predicted([c.params], points)[0] for c in (candidates[k] for k in kept)])
    runs = np.isfinite(whole).any(axis=0)
    whole, at = whole[:, runs], tuple(p for p, ok in zip(points, runs, strict=True) if ok)
    tree = grown(whole, at, deciding)
    whole, first_marked, at = np.hstack([whole, there[kept]]), len(at), (*at, *marked)
    tree, used = _renumbered(where_measured(tree, whole, at, first_marked), [0, *sorted(set(fastest(whole).tolist()))])
    kept, whole = [kept[k] for k in used], whole[used]
    others = {n: float(rows.times[:, 0].min()) for n, rows in rows_of.items()}
    missed = lost(times[kept].min(axis=0), times.min(axis=0))
    by_tree = lost(np.array([whole[pick(tree, p), k] for k, p in enumerate(at)]), whole.min(axis=0))
    numbers = {n: rows.numbers for n, rows in close.items()}
    taken = tuple(candidates[k] for k in kept)
    models = {n: close[n] for n in dict.fromkeys(c.template for c in taken)}
    return Family(taken, tree, at, whole, others, missed, by_tree, with_form, known, models, numbers)


def grown(times: Array, points: Sequence[Sizes], deciding: frozenset[str] | None = None, depth: int = DEEPEST) -> Tree:
    """The comparisons of sizes (those `deciding` alone, where they are named) by which the times of choices (rows) are
    the shortest over all points."""
    return _cut(_logs(times), _features(points, deciding), depth)


def _best_at_first(close: Mapping[str, Rows]) -> Choice:
    """The choice for the first point: what ranks first of the template that is the fastest there."""
    name = min(close, key=lambda n: float(close[n].times[:, 0].min()))
    times = close[name].times[:, 0]
    first = int((times <= CLOSE * times.min()).argmax())
    return Choice(name, close[name].choices[first])


def _sampled(points: Sequence[Sizes]) -> list[Sizes]:
    """The first point, and some of the others, always the same."""
    return [points[0], *random.Random(0).sample(points[1:], min(SAMPLE, len(points)) - 1)]


def _possible(
    programs: Mapping[str, TileProgram], given: Mapping[str, Mapping[str, int]], samples: Sequence[Sample]
) -> list[Sample]:
    """The samples, of candidates that there are with the values that are given."""
    spaces = {n: space_of(p) for n, p in programs.items()}

    def is_one(c: Choice) -> bool:
        name, params = c.template, c.params
        if name not in spaces or params.keys() != {*spaces[name].tiles, *LAUNCH} or not spaces[name].takes(params):
            return False
        return params.items() >= given.get(name, {}).items()

    usable = (replace(s, us={c: us for c, us in s.us.items() if is_one(c)}) for s in samples)
    return [s for s in usable if s.us]


def _won(times: Array, kept: Sequence[int]) -> list[int]:
    """What was the fastest at a measured point, and is missed there."""
    if not times.shape[1]:
        return []
    best = times.argmin(axis=0)
    missed = times[kept].min(axis=0) > MISSED * times.min(axis=0)
    return list(dict.fromkeys(int(k) for k in best[missed]))[:MOST]


def where_measured(tree: Tree, times: Array, points: Sequence[Sizes], first: int) -> Tree:
    """The tree that takes the fastest choice at each measured point, those from number `first` on, and at what is alike
    and does not lose by it. Sizes that all points share tell nothing apart."""
    names = [n for n in points[0] if len({p[n] for p in points}) > 1]
    points = [{n: p[n] for n in names} for p in points]
    for k in range(first, len(points)):
        take = int(times[:, k].argmin())
        if times[pick(tree, points[k]), k] > MISSED * times[take, k]:
            own = np.array([times[pick(tree, p), j] for j, p in enumerate(points)])
            loses = np.flatnonzero(times[take] > MISSED * own)
            tree = grafted(tree, points[k], take, [points[j] for j in loses])
    return tree


def _logs(times: Array) -> Array:
    """What is made small: logarithms of times, which count less where everything is short."""
    fastest = times.min(axis=0)
    logs = np.where(np.isfinite(times), np.log(np.maximum(times, 1e-3)), NEVER)
    return np.asarray(logs * (fastest / (fastest + SHORT)))


def of_winners(
    choices: Sequence[Choice], points: Sequence[Sizes], times: Array, numbers: Mapping[str, tuple[str, ...]]
) -> Family:
    """The family of choices (rows of times) that were measured at these points, infinite where one was not: at each
    point it takes the fastest. `numbers` are as in Family."""
    # Each point twice, since a cut leaves no single one alone.
    logs = np.repeat(np.where(np.isfinite(times), np.log(np.maximum(times, 1e-3)), NEVER), FEWEST, axis=1)
    twice = [p for p in points for _ in range(FEWEST)]
    tree, used = _renumbered(_cut(logs, _features(twice), DEEPEST))
    own = times[used]
    by_tree = lost(np.array([own[pick(tree, p), k] for k, p in enumerate(points)]), times.min(axis=0))
    taken = tuple(choices[k] for k in used)
    return Family(taken, tree, tuple(points), own, {}, by_tree, (0.0, 0.0), numbers=numbers)


def _promising(own: Array, best: Array) -> bool:
    """True for a template that is the fastest somewhere, or not much slower than that where it takes some time."""
    return bool(((own <= best) | ((own <= HOPELESS * best) & (best > SHORT))).any())


def lost(taken: Array, best: Array) -> tuple[float, float]:
    """How much longer what is taken takes than the best where anything runs, on average (of logarithms) and at most."""
    runs = np.isfinite(best)
    ratio = np.maximum(taken[runs], 1e-3) / np.maximum(best[runs], 1e-3)
    return float(np.exp(np.log(ratio).mean()) - 1), float(ratio.max() - 1)


def _anchors(points: Sequence[Sizes]) -> list[int]:
    """Points for which parameters are looked for, the first one first. Most of the points that lie far apart have the
    shortest and the longest of everything; what a user calls lies between, so that most are taken from there."""
    at = np.array([[log2(max(1, v)) for v in p.values()] for p in points]).reshape(len(points), -1)
    ends = np.array([_at_an_end(column) for column in at.T]).reshape(-1, len(points))
    outer = _spread(at, OUTER)
    inner = [k for k in np.flatnonzero(~ends.any(axis=0)) if k not in outer]
    return outer + [int(inner[k]) for k in _spread(at[inner], INNER)]


def _at_an_end(values: Array) -> Array:
    """Where a size is the least or the largest that it is anywhere; nowhere for one that is few."""
    ends = (values == values.min()) | (values == values.max())
    return ends & (len(np.unique(values)) > SEVERAL)


def _spread(at: Array, count: int) -> list[int]:
    """The numbers of points that lie far apart: the first, then always the farthest from those."""
    chosen = [0] if len(at) else []
    while chosen and len(chosen) < min(count, len(at)):
        far = np.abs(at[:, None] - at[chosen][None]).sum(axis=2).min(axis=1)
        chosen.append(int(far.argmax()))
    return chosen


def _preferred(times: Array, kept: Sequence[int], preference: Sequence[tuple[float, ...]]) -> list[int]:
    """Of the candidates that are kept, each or what is preferred to it and as fast over the points at which it is the
    fastest, as far as predictions tell: by CLOSE on average, and twice that at most."""
    taken = np.array(kept)[times[kept].argmin(axis=0)]
    found = []
    for k in kept:
        at = times[:, (taken == k) & np.isfinite(times[kept].min(axis=0))]
        slower = np.log(at / at[k])
        on_average = slower.sum(axis=1) <= log(CLOSE) * at.shape[1]
        alike = np.flatnonzero(on_average & (slower.max(axis=1, initial=0.0) <= 2 * log(CLOSE))).tolist()
        found.append(min(alike, key=lambda j: (preference[j], j)) if at.shape[1] else k)
    return list(dict.fromkeys(found))


def _kept(logs: Array) -> list[int]:
    """The candidates that lose least together: one after the other, the one that saves most."""
    kept = [int(logs.mean(axis=1).argmin())]
    while len(kept) < MOST:
        now = logs[kept].min(axis=0)
        saved = (now - np.minimum(now, logs)).mean(axis=1)
        best = int(saved.argmax())
        if not saved[best] > SAVED:
            break
        kept.append(best)
    return kept


# --- the tree --------------------------------------------------------------------------------------


def _features(points: Sequence[Sizes], deciding: frozenset[str] | None = None) -> dict[tuple[str, ...], Array]:
    """What is compared, at each point: sizes that differ (those `deciding` alone), and products of them."""
    legal = points[0] if deciding is None else [n for n in points[0] if n in deciding]
    names = [n for n in legal if len({p[n] for p in points}) > 1]
    products = (of for count in (1, 2, 3) for of in combinations(names, count))
    return {of: np.array([float(prod(p[n] for n in of)) for p in points]) for of in products}


def _cut(logs: Array, features: Mapping[tuple[str, ...], Array], depth: int) -> Tree:
    """The tree that picks among rows with the least sum over all points."""
    whole = logs.sum(axis=1)
    best = int(whole.argmin())
    cost, found = float(whole[best]), None
    if depth and len(logs) > 1 and float(logs.min(axis=0).sum()) < cost - GAIN:
        for of, values in features.items():
            order = values.argsort(kind="stable")
            below = logs[:, order].cumsum(axis=1)
            above = below[:, -1:] - below
            sums = below.min(axis=0) + above.min(axis=0)
            at = values[order]
            ends = np.flatnonzero(at[1:] > at[:-1])
            ends = ends[(ends + 1 >= FEWEST) & (ends + 1 <= len(at) - FEWEST)]
            if len(ends) and float(sums[ends].min()) < cost - max(GAIN, GAIN * len(at)):
                k = int(ends[sums[ends].argmin()])
                cost, found = float(sums[k]), (of, at[k], at[k + 1])
    if found is None:
        return best
    of, low, high = found
    side = features[of] <= low
    below, above = (_cut(logs[:, s], {n: v[s] for n, v in features.items()}, depth - 1) for s in (side, ~side))
    return below if below == above else Cut(of, _between(int(low), int(high)), below, above)


def _between(low: int, high: int) -> int:
    """A number from low to below high: the power of two that lies in the middle, where there is one.

    >>> _between(1, 4), _between(1024, 2048), _between(1024, 16384), _between(5, 7)
    (2, 1024, 4096, 5)
    """
    powers = [1 << k for k in range(high.bit_length()) if low <= 1 << k < high]
    middle = (max(1, low) * high) ** 0.5
    return min(powers, key=lambda p: abs(log2(p / middle)), default=low)


def _renumbered(tree: Tree, first: Sequence[int] = ()) -> tuple[Tree, list[int]]:
    """The tree with its choices numbered anew, those that come `first` before others as they are met, and their old
    numbers."""
    used: list[int] = list(dict.fromkeys(first))

    def again(t: Tree) -> Tree:
        if isinstance(t, Cut):
            return Cut(t.of, t.at, again(t.below), again(t.above))
        if t not in used:
            used.append(t)
        return used.index(t)

    return again(tree), used
