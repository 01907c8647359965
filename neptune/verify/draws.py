"""The instances of an exact check: sizes that hold the cases of both programs, each with several sets of inputs.

Sizes are chosen by `coverage`, so that few draws exercise every piece of a loop and the edges of every mask. Each is
tried with plain random inputs first, then with -inf in one input or with ties and zeros, and again where a draw
compares few elements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from math import fsum, prod
from typing import Any, TypeAlias

import numpy as np

from neptune.errors import Unsupported
from neptune.ir.analysis.ranges import RangePredicate
from neptune.ir.dtypes import is_float
from neptune.ir.evaluate.domains import EvaluationError, Model, TooLarge, Unevaluated, Value
from neptune.ir.evaluate.memory import STATEMENT, Work
from neptune.ir.evaluate.program import Runnable
from neptune.ir.expr import Expr, walk
from neptune.tile.ir import TileProgram, stmt_exprs, walk_stmts
from neptune.verify.coverage import Cases
from neptune.verify.evaluate import evaluated, runnable
from neptune.verify.instances import (
    AnyProgram,
    MakeInputs,
    Sizes,
    compared_only,
    draw_inputs,
    draw_sizes,
    number,
    structural_sizes,
    volume,
)
from neptune.verify.ranged import Ranged

QUICK = 500
"""An instance that takes four times so many statements of a tile program has to show twice as many cases."""
ONCE = 4
"""One of so many sizes has one part only, where a launch chooses the number of parts."""
RARE = 0.3
"""What a case counts that one earlier instance had; less than one."""
STYLES = ("-inf", "ties")
ENOUGH = 24
"""Sizes are tried with two sets of inputs at least; no more once so many elements agreed. Of the further draws, a third
is enough."""
WORK = 1 << 28
"""The work that all evaluations of a check may take together, its confirmation included: half a minute, where a check
of an attention that accuses nobody takes a twentieth of it."""
TIMES: Mapping[str, int] = {"ordered rationals": 16}
"""How many times as long as elsewhere an element takes in a model: fractions are no arrays of numbers."""
MakeModel: TypeAlias = Callable[[int], Model]


@dataclass(frozen=True)
class Effort:
    """The effort of an exact check. `qa.mutants` says what it finds; `draws` is what NEPTUNE_VERIFY sets."""

    draws: int = 4
    """The choices of sizes. Each costs two evaluations of either program at least; rare cases need more of them."""
    budget: int = 1 << 18
    """The work that one evaluation of an instance may take (elements, and what statements cost): what bounds the time
    of a check at constant sizes."""
    pool: int = 10
    """The sizes drawn for each choice, of which those with the most cases are taken. Of tile programs, whose cases take
    longer to find, it is a third, and a few for each instance."""
    retries: int = 4
    """How often what does not serve is drawn anew: an instance that takes too much work, smaller and with larger tiles,
    and sizes that are drawn already; inputs in a style, half as often. So many more draws there may be while sizes at
    hand hold cases that none had."""

    @property
    def attempts(self) -> int:
        """The number of times inputs are drawn until the original makes sense on them: integers may be no places."""
        return 12 * self.retries


@dataclass(frozen=True)
class Check:
    """The programs to compare, and how instances are made. Some sizes are about those in `near`.

    `finite` and `ranges` are what is assumed of inputs; with `magnitudes` all magnitudes that satisfy it are tried.
    """

    original: AnyProgram
    transformed: AnyProgram
    effort: Effort
    seed: int
    make: MakeInputs | None
    tunables: Mapping[str, Sequence[int]] | None
    finite: frozenset[str] = frozenset()
    ranges: tuple[RangePredicate, ...] = ()
    magnitudes: bool = False
    near: tuple[int, ...] = ()
    shared: Shared | None = None
    work: Work = field(default_factory=lambda: Work(WORK))

    def allowed(self, model: Model) -> Work:
        """The work that an evaluation in a model may take: no more than is left to the check as a whole, where draws go
        on. Large numbers are tried a set number of times, whatever has been done."""
        counted = None if isinstance(model, Ranged) else self.work
        return Work(self.effort.budget, counted, TIMES.get(model.name, 1))

    @cached_property
    def runnable(self) -> tuple[Runnable, Runnable]:
        return runnable(self.original), runnable(self.transformed)

    @cached_property
    def structural(self) -> frozenset[str]:
        return structural_sizes(self.original) | structural_sizes(self.transformed)

    @cached_property
    def compared(self) -> frozenset[str]:
        return compared_only(self.original)

    @cached_property
    def cases(self) -> tuple[Cases, Cases]:
        return Cases(self.original, self.compared), Cases(self.transformed, self.compared)

    @cached_property
    def _known(self) -> tuple[dict[Hashable, int], dict[Hashable, frozenset[int]]]:
        """A number for each case of either program, and the cases by sizes."""
        return {}, {}

    def cases_at(self, sizes: Sizes) -> frozenset[int]:
        """The cases of either program."""
        return self.explored([sizes])[0]

    def work_at(self, sizes: Sizes) -> int:
        """The statements of tile programs that are run."""
        return sum(c.work(sizes) for c in self.cases)

    @cached_property
    def _tiles(self) -> list[tuple[dict[str, Expr], set[tuple[str, ...]]]]:
        """For each kernel the extents of its tile axes, and the axes of its tiles."""
        kernels = [k for p in (self.original, self.transformed) if isinstance(p, TileProgram) for k in p.kernels]
        tiles = [(x for s in walk_stmts(k.body) for e in stmt_exprs(s) for x in walk(e)) for k in kernels]
        return [(dict(k.axes), {x.dims for x in found}) for k, found in zip(kernels, tiles, strict=True)]

    def padded(self, sizes: Sizes) -> int:
        """The elements of the largest tile, times those of the longest size that there are of it."""
        longest, most = max(sizes.values(), default=1), 1
        for axes, tiles in self._tiles:
            extents = {a: number(e, sizes) for a, e in axes.items()}
            steps = longest // max([1, *extents.values()]) + 1
            most = max([most, *(prod(extents.get(d, 1) for d in dims) * steps for dims in tiles)])
        return most

    def explored(self, many: Sequence[Sizes]) -> list[frozenset[int]]:
        """The cases at each of many sizes, by numbers: they are counted again with every draw."""
        numbers, known = self._known
        keys = [tuple(sorted(x.items())) for x in many]
        fresh = {key: x for key, x in zip(keys, many, strict=True) if key not in known}
        for c in self.cases:
            c.explore(list(fresh.values()))
        for key, x in fresh.items():
            both = ((k, case) for k, c in enumerate(self.cases) for case in c.at(x))
            known[key] = frozenset([numbers.setdefault(case, len(numbers)) for case in both])
        return [known[key] for key in keys]


@dataclass(frozen=True)
class Instance:
    """Sizes and inputs on which the original makes sense, and its outputs there. `full` are the sizes with the float
    scalars; `attempt` is how often inputs had to be drawn. `compared` counts the elements that the original defines."""

    seed: int
    model: Model
    sizes: Sizes
    inputs: Mapping[str, Any]
    full: Mapping[str, Any]
    expected: Mapping[str, Value]
    attempt: int
    compared: int


Tried: TypeAlias = "tuple[Instance, Mapping[str, Value] | EvaluationError]"
"""An instance, and the transformed program's outputs there, or how it fails."""


@dataclass
class Shared:
    """Sizes, and the original's outputs there, that checks of several programs against one original share."""

    original: AnyProgram
    sizes: list[Sizes] = field(default_factory=list)
    spare: list[Sizes] = field(default_factory=list)
    groups: dict[Hashable, list[Instance]] = field(default_factory=dict)

    def serves(self, check: Check) -> bool:
        """Return True if its sizes are sizes of a check: of the same original, with all tunables."""
        tunables = {t.name for t in check.transformed.tunables}
        return self.original == check.original and bool(self.sizes) and tunables <= self.sizes[0].keys()

    def group(self, make_model: MakeModel, sizes: Sizes) -> list[Instance]:
        """The instances in one model at one choice of sizes, as far as they are known."""
        return self.groups.setdefault((make_model, *sorted(sizes.items())), [])


def draws(check: Check, make_model: MakeModel) -> Iterator[list[Tried] | Unevaluated]:
    """All draws, each as what was tried at its sizes: plain inputs first.

    They end with Unsupported where the model has no value for a result, TooLarge where no instance is small enough,
    and EvaluationError where the original makes no sense on any.
    """
    pool = Pool(check)
    for k in range(check.effort.draws + check.effort.retries):
        further = k >= check.effort.draws
        if further and not pool.unseen():
            break
        first = _first(check, make_model, check.seed * 1009 + k, pool)
        if isinstance(first, Unevaluated):
            if not (isinstance(first, TooLarge) and further and check.work.left < 0):
                yield first
            return  # what was asked for is done, or cannot be
        pool.use(first[0].sizes)
        styles = ("plain",) * 3 if further else (STYLES[k % 2], "plain", STYLES[1 - k % 2])
        yield [first, *_again(check, make_model, first, styles, further)]


class Pool:
    """Sizes that were drawn and not yet used, by how much they were eased."""

    def __init__(self, check: Check) -> None:
        self.check = check
        self.seen: Counter[Hashable] = Counter()
        self._sizes: dict[int, list[Sizes]] = {}
        self.given = check.shared is not None and check.shared.serves(check)
        if check.shared is not None and self.given:
            self._sizes[0] = [*check.shared.sizes, *check.shared.spare]

    def take(self, rng: np.random.Generator, ease: int) -> Sizes | TooLarge:
        """The sizes with the most cases that earlier instances had not, or had more rarely, for their work. Of what few
        of the sizes at hand have, each counts more."""
        sizes = self._sizes.setdefault(ease, [])
        fresh = self._fresh(rng, ease, bool(sizes))
        if isinstance(fresh, TooLarge):
            return fresh
        sizes += fresh
        cases, work = self.check.explored(sizes), [self.check.work_at(x) for x in sizes]
        common = Counter(chain.from_iterable(cases))
        values = {case: RARE ** self.seen[case] / n**0.5 for case, n in common.items()}
        # The order of a set's elements must not decide: fsum rounds once.
        weights = [fsum(map(values.__getitem__, found)) for found in cases]
        worth = [v / (1 + w / QUICK) ** 0.5 for v, w in zip(weights, work, strict=True)]
        if any(fits := [w * STATEMENT <= self.check.effort.budget for w in work]):
            worth = [v if f else 0.0 for v, f in zip(worth, fits, strict=True)]
        # Of several that are worth as much, the longest: ties need several elements.
        best = sizes[max(range(len(sizes)), key=lambda k: (round(worth[k], 9), sum(sizes[k].values()), -k))]
        sizes[:] = [x for x in sizes if x != best]
        return best

    def _fresh(self, rng: np.random.Generator, ease: int, more: bool) -> list[Sizes] | TooLarge:
        """Newly drawn sizes."""
        check, effort = self.check, self.check.effort
        tiles = any(isinstance(p, TileProgram) for p in (check.original, check.transformed))
        first, further = (effort.pool // 3, effort.retries) if tiles else (effort.pool, 0)
        drawn: list[Sizes] = []
        count = (0 if self.given else further) if more else first * effort.draws
        # Where sizes are few, most of them are drawn: the one that is wanted may be rare.
        for k in range(count if more or tiles else effort.retries * count):
            if len(drawn) == count:
                break
            sizes = draw_sizes(
                check.original,
                check.transformed,
                rng,
                check.tunables,
                ease,
                check.near,
                k % ONCE == 1,
                check.structural,
                None if more else k,
            )
            if volume(check.original, sizes) > effort.budget:
                return TooLarge("its constant dimensions are too large to be evaluated exactly")
            # What one kernel computes at these sizes is never looked at where that is too much to be evaluated.
            drawn += [sizes] * (sizes not in drawn and check.padded(sizes) <= effort.budget)
        if not (drawn or more):
            return TooLarge("its tiles are too large to be evaluated exactly")
        return drawn

    def use(self, sizes: Sizes) -> None:
        """Take note of what an instance was made of."""
        self.seen.update(self.check.cases_at(sizes))
        if self.check.shared is not None and not self.given:
            self.check.shared.sizes.append(sizes)
            # A later check may use twice as many as this one.
            self.check.shared.spare[:] = self._sizes.get(0, [])[: 2 * self.check.effort.draws]

    def unseen(self) -> bool:
        """Return True if sizes explored so far hold cases that no instance had."""
        return any(found - self.seen.keys() for found in self.check.explored(self._sizes.get(0, [])))


def _first(check: Check, make_model: MakeModel, seed: int, pool: Pool) -> Tried | Unevaluated:
    """What was tried on plain inputs, at sizes that are eased until they are small enough."""
    outcome: Tried | Unevaluated = TooLarge("no instance was small enough")
    for ease in range(check.effort.retries):
        instance = _instance(check, make_model, seed, ease, pool)
        outcome = _tried(check, instance) if isinstance(instance, Instance) else instance
        if not isinstance(outcome, TooLarge):
            break
    return outcome


def _again(
    check: Check, make_model: MakeModel, first: Tried, styles: tuple[str, ...], further: bool
) -> Iterator[Tried]:
    """The sizes of an instance with other inputs, until enough elements agreed or the programs differ."""
    (begun, got), compared = first, first[0].compared
    enough = ENOUGH // 3 if further else ENOUGH
    for repeat, style in enumerate(styles, 1):
        if isinstance(got, EvaluationError) or (compared >= enough and (repeat > 1 or further)):
            return
        outcome = _repeated(check, make_model, begun, repeat, style)
        if outcome is None or not outcome.compared:
            continue
        tried = _tried(check, outcome)
        if isinstance(tried, Unsupported):  # the model has no value here: plain inputs have been compared
            continue
        compared += outcome.compared
        yield tried


def _repeated(check: Check, make_model: MakeModel, begun: Instance, repeat: int, style: str) -> Instance | None:
    """Another set of inputs at the sizes of an instance, as known from an earlier check or drawn."""
    known = [] if check.shared is None else check.shared.group(make_model, begun.sizes)
    if repeat < len(known):
        return known[repeat]
    seed = begun.seed + 7919 * repeat
    outcome = next(_on(check, make_model(seed), begun.sizes, seed, style, begun.attempt), None)
    if outcome is not None and repeat == len(known):
        known.append(outcome)
    return outcome


def _tried(check: Check, instance: Instance) -> Tried | Unsupported:
    """The transformed program on an instance; Unsupported where the model has no value for its results."""
    got = evaluated(check.runnable[1], instance.inputs, instance.full, instance.model, check.allowed(instance.model))
    return got if isinstance(got, Unsupported) else (instance, got)


def tried_again(check: Check, model: Model, sizes: Sizes, seed: int, style: str) -> Iterator[Tried]:
    """Sizes of an earlier draw in another model, with inputs of a style, as far as the original makes sense there."""
    for outcome in _on(check, model, sizes, seed, style, 0):
        tried = _tried(check, outcome)
        if not isinstance(tried, Unsupported):
            yield tried
            return


def _instance(check: Check, make_model: MakeModel, seed: int, ease: int, pool: Pool) -> Instance | Unevaluated:
    """Sizes and plain inputs on which the original makes sense; both are drawn until they are found."""
    instance: Instance | Unevaluated = EvaluationError("no instance was drawn")
    for attempt in range(check.effort.attempts):
        sizes = pool.take(np.random.default_rng((seed, attempt)), ease)
        if isinstance(sizes, TooLarge):
            return sizes
        known = [] if check.shared is None else check.shared.group(make_model, sizes)
        instance = known[0] if known else _evaluated(check, make_model(seed), sizes, seed, "plain", attempt)
        if isinstance(instance, Instance) and not known:
            known.append(instance)
        if isinstance(instance, Instance | TooLarge):
            break
    return instance


def _on(check: Check, model: Model, sizes: Sizes, seed: int, style: str, attempt: int) -> Iterator[Instance]:
    """Instances with inputs of a style, as far as the original makes sense on them."""
    for retry in range(check.effort.retries // 2):
        outcome = _evaluated(check, model, sizes, seed + retry, style, attempt)
        if isinstance(outcome, Instance):
            yield outcome


def _evaluated(check: Check, model: Model, sizes: Sizes, seed: int, style: str, attempt: int) -> Instance | Unevaluated:
    """Inputs of a style with the original's outputs, or why it has none."""
    rng = np.random.default_rng((seed, attempt, 1))
    inputs, full = draw_inputs(
        check.original, sizes, model, rng, attempt, check.make, style, check.finite, check.compared
    )
    expected = evaluated(check.runnable[0], inputs, full, model, check.allowed(model))
    if isinstance(expected, Unevaluated):
        return expected
    values = [(b.dtype, expected[b.name]) for b in check.original.outputs]
    compared = sum(int(model.known(v).sum()) if is_float(dtype) else int(np.size(v)) for dtype, v in values)
    return Instance(seed, model, sizes, inputs, full, expected, attempt, compared)
