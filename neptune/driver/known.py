"""What was measured of a program on the GPU that it is compiled for: the records that the automatic choice reads.

Records of other versions are a prior (`neptune.records.believe`). None are read where a template is named, where bits
are promised (they would follow from what somebody has measured), or where the caller wants none.

All values of a choice in a record are whole numbers, and its form is told by their names:

    Choice(…, {…, "asynchronous.consumers": 2, "asynchronous.persistent": "table", …}, "asynchronous")
    ↔  Choice(…, {…, "asynchronous.consumers": 2, "asynchronous.persistent": 2, …})

A record keeps those of a form among its `numbers`. No tunable has such a name, and what a launch is given beside
(NUM_SPLITS) has no dot: a record without them is of a kernel on tiles.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from neptune.base.choice import Choice, qualified
from neptune.config import Config
from neptune.forms import FORMS
from neptune.ir.program import Program
from neptune.records.believe import OTHER_VERSIONS, made_with
from neptune.records.record import Failure, Record, keys_of
from neptune.records.store import Store
from neptune.tune.measured import BELIEVED, Sample
from neptune.tune.model.machine import Machine
from neptune.versions import versions

MOST = 64
"""Choices of sizes that are looked at: those of these versions first, then those measured last."""


@dataclass(frozen=True)
class MeasuredForm:
    """What these versions measured at some sizes of forms beside tiles: the fastest choice, in microseconds, and what
    the fastest one on tiles took, None where none was measured."""

    sizes: Mapping[str, int]
    choice: Choice
    us: float
    on_tiles: float | None

    @property
    def faster(self) -> bool:
        """True where nothing on tiles was as fast."""
        return self.on_tiles is None or self.us < self.on_tiles

    def __str__(self) -> str:
        tiles = "" if self.on_tiles is None else f", on tiles {self.on_tiles:.1f} µs"
        values, sizes = (", ".join(f"{n}={v}" for n, v in x.items()) for x in (self.choice.values, self.sizes))
        return f"{self.us:.1f} µs with {values} at {sizes}{tiles}"


@dataclass(frozen=True)
class Known:
    """What was measured of a program: `samples` on tiles and the candidates that `failed` there, which the automatic
    choice reads, and its other `forms` at each choice of sizes."""

    samples: tuple[Sample, ...] = ()
    failed: frozenset[Choice] = frozenset()
    forms: tuple[MeasuredForm, ...] = ()

    @property
    def key(self) -> list[str]:
        """What tells it apart, as text: nothing but "" where nothing is known."""
        return [digest(self.samples, self.failed), *map(repr, self.forms)]


NOTHING_KNOWN = Known()


def known_of(loops: Program, machine: Machine, settings: Config) -> Known:
    """What the user's records, and those that ship, say of a program on a machine; nothing where settings say so."""
    if not settings.records:
        return NOTHING_KNOWN
    records, failures = Store(settings.cache_dir).told(keys_of(loops), machine.device)
    bad = failed(failures)
    return Known(samples(records, bad), bad, measured_forms(records, failures))


def measured_forms(records: Iterable[Record], failures: Iterable[Failure] = ()) -> tuple[MeasuredForm, ...]:
    """Records of one program and device that have levers among their numbers, beside those that have no numbers. What
    failed with these versions is not taken."""
    here = made_with(versions())
    bad = {f.choice for f in failures if made_with(f.versions) == here}
    times: dict[tuple[tuple[str, int], ...], dict[Choice, list[float]]] = defaultdict(lambda: defaultdict(list))
    for r in (r for r in records if made_with(r.versions) == here and r.choice not in bad):
        if (choice := read(r.choice)) is not None:
            times[tuple(sorted(r.sizes.items()))][choice].extend(r.us)
    forms = []
    for sizes, us in sorted(times.items()):
        order = sorted(((median(x), c) for c, x in us.items()), key=lambda o: o[0])
        best = next(((x, c) for x, c in order if c.form is not None), None)
        if best is not None:
            on_tiles = next((x for x, c in order if c.form is None), None)
            forms.append(MeasuredForm(dict(sizes), best[1], best[0], on_tiles))
    return tuple(forms)


def failed(failures: Iterable[Failure]) -> frozenset[Choice]:
    """The candidates that failed with these versions, at whatever sizes, and no numbers that only a tuner gives. What
    found no memory at some sizes may find it at others."""
    here = made_with(versions())
    own = (f for f in failures if f.how != "memory" and not f.numbers and made_with(f.versions) == here)
    return frozenset(f.choice for f in own)


def samples(records: Iterable[Record], bad: frozenset[Choice] = frozenset()) -> tuple[Sample, ...]:
    """Records of one program and device by sizes and versions, but for candidates that failed; numbers that a launch
    was given are its own affair."""
    here = made_with(versions())
    groups: dict[tuple[float, tuple[tuple[str, int], ...], tuple[tuple[str, str], ...]], list[Record]]
    groups = defaultdict(list)
    for r in (r for r in records if not r.numbers and r.choice not in bad):
        own = made_with(r.versions)
        groups[BELIEVED if own == here else OTHER_VERSIONS, tuple(r.sizes.items()), own].append(r)
    order = sorted(groups.items(), key=lambda g: (g[0][0], max(r.when for r in g[1]), g[0]), reverse=True)
    return tuple(_sample(dict(sizes), weight, group) for (weight, sizes, _), group in order[:MOST])


def _sample(sizes: dict[str, int], weight: float, group: Iterable[Record]) -> Sample:
    times: dict[Choice, list[float]] = defaultdict(list)
    for r in group:
        times[r.choice].extend(r.us)
    return Sample(sizes, {c: median(us) for c, us in times.items()}, weight)


def digest(samples: Iterable[Sample], failed: Iterable[Choice] = ()) -> str:
    """A name for samples and failed candidates: the same ones, in any order, have the same; "" for none."""
    values = ((sorted(s.sizes.items()), sorted((c.key, us) for c, us in s.us.items()), s.weight) for s in samples)
    lines = sorted(map(repr, values))
    lines += sorted(repr(c.key) for c in failed)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest() if lines else ""


# --- choices as records hold them ------------------------------------------------------------------


def written(choice: Choice) -> Choice:
    """The choice with every value as a number: a word by its place among those that there are.

    >>> levers = {"consumers": 2, "stages": 3, "persistent": "table", "own_out": True, "ahead": False}
    >>> written(Choice("matmul", {}).formed("asynchronous", levers)).values["asynchronous.persistent"]
    2
    """
    if choice.form is None:
        return choice
    legal = FORMS[choice.form]().levers
    codes = {n: _code(values, choice.levers[n]) for n, values in legal.items()}
    return Choice(choice.template, {**choice.params, **qualified(choice.form, codes)})


def read(choice: Choice) -> Choice | None:
    """The choice that is `written` so; None where its form, or one of its levers, is none that there is.

    >>> print(read(Choice("matmul_split", {"BLOCK_M": 64, "NUM_SPLITS": 4})))
    matmul_split BLOCK_M=64 NUM_SPLITS=4
    >>> print(read(Choice("matmul", {"asynchronous.consumers": 9})))
    None
    """
    own = lever_names() & choice.values.keys()
    if not own:
        return choice
    plain = choice.without(own)
    for form, load in FORMS.items():
        legal = load().levers
        if own == {f"{form}.{n}" for n in legal}:
            levers = {n: _lever(values, choice.values[f"{form}.{n}"]) for n, values in legal.items()}
            return None if None in levers.values() else plain.formed(form, levers)
    return None


def lever_names() -> frozenset[str]:
    """What the levers of all forms are called among values."""
    return frozenset(f"{form}.{n}" for form, load in FORMS.items() for n in load().levers)


def _code(legal: tuple[Any, ...], value: Any) -> int:
    return legal.index(value) if isinstance(value, str) else int(value)


def _lever(legal: tuple[Any, ...], code: int) -> Any:
    return next((v for v in legal if _code(legal, v) == code), None)
