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
from math import log, log2

import numpy as np

from neptune.base.choice import Choice
from neptune.runtime.family import Tree, pick
from neptune.tile.ir import TileProgram
from neptune.tune.gains import FURTHER, Counted, OtherForm
from neptune.tune.measured import Measured, Sample
from neptune.tune.model.machine import Machine
from neptune.tune.model.numbers import Array
from neptune.tune.params import space_of
from neptune.tune.points import Sizes
from neptune.tune.rank import CLOSE, LAUNCH
from neptune.tune.rows import Rows, counted
from neptune.tune.tree import (
    DEEPEST,
    FEWEST,
    MISSED,
    NEVER,
    SHORT,
    compared,
    cut,
    grown,
    log_times,
    renumbered,
    where_measured,
)

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
HOPELESS = 1.3
"""A template whose first choice is slower by that much wherever it takes some time is not looked at any further."""
FAR = 3.0
"""Nor are other parameters of it looked for at sizes where it is slower by that much."""
SEVERAL = 4
"""Sizes that have at most so many values, as a batch has, are taken with all of them."""


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


@dataclass(frozen=True)
class Wishes:
    """What a caller says of sizes and parameters: typical and largest sizes, values of parameters. `deciding` are the
    sizes that choices may follow from, None for all. `samples` are what was measured of the program, `failed` what is
    not taken."""

    typical: Mapping[str, int] = field(default_factory=dict)
    bounds: Mapping[str, int] = field(default_factory=dict)
    params: Mapping[str, int] = field(default_factory=dict)
    deciding: frozenset[str] | None = None
    samples: tuple[Sample, ...] = ()
    failed: frozenset[Choice] = frozenset()


def choose(
    programs: Mapping[str, TileProgram],
    points: Sequence[Sizes],
    machine: Machine,
    wishes: Wishes,
    form: OtherForm | None = None,
) -> Family | None:
    """The family of these templates; None where the first point has no prediction. At measured sizes that the wishes
    allow, what is then the fastest is taken, whatever it is at other points. Another `form` counts where it is faster
    than tiles."""
    given = {n: space_of(p).ranked(wishes.params) for n, p in programs.items()}
    known_there = [s for s in wishes.samples if s.sizes.keys() == points[0].keys()]
    samples = _possible(programs, given, known_there)
    marked = [p for p in _measured_at(known_there, wishes, points) if any(s.sizes == p for s in samples)]
    few = _sampled(points)
    anchors = _anchors(few)
    first = {n: Rows(p, [*few, *marked], machine, given[n]) for n, p in programs.items()}
    known = Measured.of(samples, lambda name, *question: first[name].plain(*question))
    rows_of = _with_anchors(first, known, wishes.failed, anchors)
    if not rows_of:
        return None
    # The first point, and some of those that a user calls.
    looked = [*anchors[:1], *anchors[OUTER:][:FURTHER]]
    with_form = None if form is None else counted(rows_of, looked, form)
    close = _close(rows_of, anchors)
    times = np.concatenate([rows.times for rows in close.values()])
    times, there = times[:, : len(few)], times[:, len(few) :]
    ran = np.isfinite(there).any(axis=0)
    there, marked = there[:, ran], [p for p, ok in zip(marked, ran, strict=True) if ok]
    runs = np.isfinite(times).any(axis=0)
    if not runs[0]:
        return None
    candidates = [Choice(n, c) for n, rows in close.items() for c in rows.choices]
    own = candidates.index(_best_at_first(close))
    kept = _in_order(own, _kept(log_times(times[:, runs])), times, there, close)
    all_times = np.stack([close[c.template].predicted([c.params], points)[0] for c in (candidates[k] for k in kept)])
    runs = np.isfinite(all_times).any(axis=0)
    all_times, sizes = all_times[:, runs], tuple(p for p, ok in zip(points, runs, strict=True) if ok)
    tree = grown(all_times, sizes, wishes.deciding)
    all_times, first_marked, sizes = np.hstack([all_times, there[kept]]), len(sizes), (*sizes, *marked)
    tree = where_measured(tree, all_times, sizes, first_marked)
    tree, used = renumbered(tree, [0, *sorted(set(fastest(all_times).tolist()))])
    kept, all_times = [kept[k] for k in used], all_times[used]
    others = {n: float(rows.times[:, 0].min()) for n, rows in rows_of.items()}
    missed = lost(times[kept].min(axis=0), times.min(axis=0))
    by_tree = lost(np.array([all_times[pick(tree, p), k] for k, p in enumerate(sizes)]), all_times.min(axis=0))
    taken = tuple(candidates[k] for k in kept)
    models = {n: close[n] for n in dict.fromkeys(c.template for c in taken)}
    numbers = {n: rows.numbers for n, rows in close.items()}
    return Family(taken, tree, sizes, all_times, others, missed, by_tree, with_form, known, models, numbers)


def _in_order(own: int, kept: Sequence[int], times: Array, there: Array, close: Mapping[str, Rows]) -> list[int]:
    """The candidates to keep, with what is the fastest at measured points (the columns of `there`), in the order in
    which one is taken where predictions tell nothing: the kernel's own, then as ranks are."""
    won = _won(there, kept)
    preference = [p for rows in close.values() for p in rows.preference()]
    preferred = _preferred(times, kept[: MOST - 1 - len(won)], preference)
    return [own, *sorted({*preferred, *won} - {own}, key=lambda k: (preference[k], k))]


def _measured_at(samples: Sequence[Sample], wishes: Wishes, points: Sequence[Sizes]) -> list[Sizes]:
    """The sizes of samples that the wishes allow, those of the least weight first; none where all sizes are given, or
    where some may not decide."""
    if len(points) == 1 or wishes.deciding is not None:
        return []
    marked: dict[tuple[tuple[str, int], ...], Sizes] = {}
    for s in sorted(samples, key=lambda s: s.weight):
        at_sizes = {n: s.sizes[n] for n in points[0]}
        within = all(v <= wishes.bounds.get(n, v) for n, v in at_sizes.items())
        if within and at_sizes.items() >= dict(wishes.typical).items():
            marked[tuple(at_sizes.items())] = at_sizes
    return list(marked.values())


def _with_anchors(
    rows_of: Mapping[str, Rows], known: Measured, failed: frozenset[Choice], anchors: Sequence[int]
) -> dict[str, Rows]:
    """The templates that have a candidate: the best one of each anchor, and what was measured to be fast somewhere."""
    for name, rows in rows_of.items():
        rows.name, rows.known = name, known
        rows.failed = [c.params for c in failed if c.template == name]
        rows.add(anchors, most=1)
        rows.join([{n: c[n] for n in (*space_of(rows.program).tiles, *LAUNCH)} for c in known.candidates(name)])
    return {n: rows for n, rows in rows_of.items() if rows.choices}


def _close(rows_of: Mapping[str, Rows], anchors: Sequence[int]) -> dict[str, Rows]:
    """The templates that may be the fastest somewhere, with all candidates of the anchors where they are not far
    behind."""
    best = np.min([rows.times.min(axis=0) for rows in rows_of.values()], axis=0)
    close = {n: rows for n, rows in rows_of.items() if _promising(rows.times.min(axis=0), best)}
    for rows in close.values():
        own = rows.times.min(axis=0)
        rows.add([k for k in anchors if own[k] <= FAR * best[k]], most=len(anchors))
    return close


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


def of_winners(
    choices: Sequence[Choice], points: Sequence[Sizes], times: Array, numbers: Mapping[str, tuple[str, ...]]
) -> Family:
    """The family of choices (rows of times) that were measured at these points, infinite where one was not: at each
    point it takes the fastest. `numbers` are as in Family."""
    # Each point twice, since a cut leaves no single one alone.
    logs = np.repeat(np.where(np.isfinite(times), np.log(np.maximum(times, 1e-3)), NEVER), FEWEST, axis=1)
    twice = [p for p in points for _ in range(FEWEST)]
    tree, used = renumbered(cut(logs, compared(twice), DEEPEST))
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
    octaves = np.array([[log2(max(1, v)) for v in p.values()] for p in points]).reshape(len(points), -1)
    ends = np.array([_at_an_end(column) for column in octaves.T]).reshape(-1, len(points))
    outer = _spread(octaves, OUTER)
    inner = [k for k in np.flatnonzero(~ends.any(axis=0)) if k not in outer]
    return outer + [int(inner[k]) for k in _spread(octaves[inner], INNER)]


def _at_an_end(values: Array) -> Array:
    """Where a size is the least or the largest that it is anywhere; nowhere for one that is few."""
    ends = (values == values.min()) | (values == values.max())
    return ends & (len(np.unique(values)) > SEVERAL)


def _spread(octaves: Array, count: int) -> list[int]:
    """The numbers of points that lie far apart: the first, then always the farthest from those."""
    chosen = [0] if len(octaves) else []
    while chosen and len(chosen) < min(count, len(octaves)):
        far = np.abs(octaves[:, None] - octaves[chosen][None]).sum(axis=2).min(axis=1)
        chosen.append(int(far.argmax()))
    return chosen


def _preferred(times: Array, kept: Sequence[int], preference: Sequence[tuple[float, ...]]) -> list[int]:
    """Of the candidates that are kept, each or what is preferred to it and as fast over the points at which it is the
    fastest, as far as predictions tell: by CLOSE on average, and twice that at most."""
    taken = np.array(kept)[times[kept].argmin(axis=0)]
    preferred = []
    for k in kept:
        times_there = times[:, (taken == k) & np.isfinite(times[kept].min(axis=0))]
        slower = np.log(times_there / times_there[k])
        on_average = slower.sum(axis=1) <= log(CLOSE) * times_there.shape[1]
        alike = np.flatnonzero(on_average & (slower.max(axis=1, initial=0.0) <= 2 * log(CLOSE))).tolist()
        preferred.append(min(alike, key=lambda j: (preference[j], j)) if times_there.shape[1] else k)
    return list(dict.fromkeys(preferred))


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
