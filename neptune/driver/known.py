"""What was measured of a program on the GPU that it is compiled for: the records that the automatic choice reads.

Records of other versions are a prior (`neptune.records.believe`). None are read where a template is named, where bits
are promised (they would follow from what somebody has measured), or where the caller wants none.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from neptune.config import Config
from neptune.driver.coded import form_of, levers_of, names, without_levers
from neptune.ir.program import Program
from neptune.records.believe import OTHER_VERSIONS, made_with
from neptune.records.record import Failure, Record, structure_of
from neptune.records.store import Store
from neptune.tune.machine import Machine
from neptune.tune.samples import BELIEVED, Candidate, Sample, candidate
from neptune.versions import versions

MOST = 64
"""Choices of sizes that are looked at: those of these versions first, then those measured last."""


@dataclass(frozen=True)
class Formed:
    """What these versions measured at some sizes of forms beside tiles: the fastest, by its name (`form`), template,
    values and levers, in microseconds, and what the fastest candidate on tiles took, None where none was measured."""

    sizes: Mapping[str, int]
    template: str
    params: Mapping[str, int]
    levers: Mapping[str, int | str]
    us: float
    on_tiles: float | None
    form: str

    @property
    def faster(self) -> bool:
        """True where nothing on tiles was as fast."""
        return self.on_tiles is None or self.us < self.on_tiles

    def __str__(self) -> str:
        values = {**self.params, **self.levers}
        tiles = "" if self.on_tiles is None else f", on tiles {self.on_tiles:.1f} µs"
        said, at = (", ".join(f"{n}={v}" for n, v in x.items()) for x in (values, self.sizes))
        return f"{self.us:.1f} µs with {said} at {at}{tiles}"


def formed_of(loops: Program, machine: Machine, settings: Config) -> tuple[Formed, ...]:
    """What the user's records say of other forms of a program at each choice of sizes; nothing where settings
    say so."""
    if not settings.records:
        return ()
    records, failures = Store(settings.cache_dir).told(structure_of(loops), machine.device)
    return formed(records, failures)


def formed(records: Iterable[Record], failures: Iterable[Failure] = ()) -> tuple[Formed, ...]:
    """Records of one program and device that have levers among their numbers, beside those that have no numbers. What
    failed with these versions is not taken."""
    here = made_with(versions())
    bad = {_whole(f) for f in failures if made_with(f.versions) == here}
    times: dict[tuple[tuple[str, int], ...], dict[Candidate, list[float]]] = defaultdict(lambda: defaultdict(list))
    for r in (r for r in records if made_with(r.versions) == here and _whole(r) not in bad):
        times[tuple(sorted(r.sizes.items()))][_whole(r)].extend(r.us)
    found, known = [], names()
    for sizes, us in sorted(times.items()):
        order = sorted(((median(x), t, dict(v)) for (t, v), x in us.items()), key=lambda o: o[0])
        others = ((x, t, v, levers) for x, t, v in order if (levers := levers_of(v)) is not None)
        best = next(others, None)
        if best is not None:
            x, template, values, levers = best
            on_tiles = next((x for x, _, v in order if not known & v.keys()), None)
            form = form_of(values) or ""
            found.append(Formed(dict(sizes), template, without_levers(values), levers, x, on_tiles, form))
    return tuple(found)


def _whole(r: Record | Failure) -> Candidate:
    return candidate(r.template, {**r.params, **r.numbers})


def known_of(loops: Program, machine: Machine, settings: Config) -> tuple[tuple[Sample, ...], frozenset[Candidate]]:
    """What the user's records, and those that ship, say of a program on a machine, and the candidates that failed;
    nothing where settings say so."""
    if not settings.records:
        return (), frozenset()
    records, failures = Store(settings.cache_dir).told(structure_of(loops), machine.device)
    bad = failed(failures)
    return samples(records, bad), bad


def failed(failures: Iterable[Failure]) -> frozenset[Candidate]:
    """The candidates that failed with these versions, at whatever sizes, and no numbers that only a tuner gives. What
    found no memory at some sizes may find it at others."""
    here = made_with(versions())
    own = (f for f in failures if f.how != "memory" and not f.numbers and made_with(f.versions) == here)
    return frozenset(candidate(f.template, f.params) for f in own)


def samples(records: Iterable[Record], bad: frozenset[Candidate] = frozenset()) -> tuple[Sample, ...]:
    """Records of one program and device by sizes and versions, but for candidates that failed; numbers that a launch
    was given are its own affair."""
    here = made_with(versions())
    groups: dict[tuple[float, tuple[tuple[str, int], ...], tuple[tuple[str, str], ...]], list[Record]]
    groups = defaultdict(list)
    for r in (r for r in records if not r.numbers and candidate(r.template, r.params) not in bad):
        made = made_with(r.versions)
        groups[BELIEVED if made == here else OTHER_VERSIONS, tuple(r.sizes.items()), made].append(r)
    order = sorted(groups.items(), key=lambda g: (g[0][0], max(r.when for r in g[1]), g[0]), reverse=True)
    return tuple(_sample(dict(sizes), weight, group) for (weight, sizes, _), group in order[:MOST])


def _sample(sizes: dict[str, int], weight: float, group: Iterable[Record]) -> Sample:
    times: dict[Candidate, list[float]] = defaultdict(list)
    for r in group:
        times[candidate(r.template, r.params)].extend(r.us)
    return Sample(sizes, {c: median(us) for c, us in times.items()}, weight)


def digest(found: Iterable[Sample], failed: Iterable[Candidate] = ()) -> str:
    """A name for samples and failed candidates: the same ones, in any order, have the same; "" for none."""
    lines = sorted(repr((sorted(s.sizes.items()), sorted(s.us.items()), s.weight)) for s in found)
    lines += sorted(map(repr, failed))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest() if lines else ""
