"""What records say about the candidates at some sizes, and how much of it to believe.

A record of the same versions at the same sizes is believed. Others are a prior, which a first measurement corrects:
another version may have made the candidate faster or slower, and another size of the bucket may have another best.

Times of different sizes, or of different versions, are not compared. What carries over is how candidates stand to each
other: the times of a prior are scaled so that candidates that both know agree (or, where there is none, the fastest).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median
from typing import NamedTuple

from neptune.base.choice import Choice
from neptune.records.record import Record, Sizes, bucket_of

MADE_WITH = ("neptune", "torch", "triton")
"""The versions that count: Python's own changes no kernel."""
OTHER_VERSIONS, OTHER_SIZES = 0.5, 0.25
"""What the weight of a record is multiplied by. Exact sizes of any version weigh more than a bucket."""


class Belief(NamedTuple):
    """A candidate, the microseconds to expect of it at the sizes that were asked for, and how much to believe that:
    1 for what was measured with these versions at these sizes."""

    choice: Choice
    us: float
    weight: float


class _Origin(NamedTuple):
    """Where records come from that can be compared with each other; the first of a sorted list is the best."""

    doubt: float
    distance: float
    sizes: tuple[tuple[str, int], ...]
    versions: tuple[tuple[str, str], ...]


def best(
    records: Iterable[Record], structure: str, sizes: Sizes, device: str, versions: Mapping[str, str | None]
) -> list[Belief]:
    """What is known of each candidate at these sizes: what is believed first, then the fastest first.

    `records` may be of anything: those of another structure, device or bucket say nothing.

    >>> at = dict(structure="0" * 32, device="H200", versions={"neptune": "1"})
    >>> fast = Record(template="row", sizes={"n": 1000}, params={"BLOCK": 1}, us=[3.0, 2.0, 4.0], **at)
    >>> slow = Record(template="row", sizes={"n": 600}, params={"BLOCK": 2}, us=[9.0], **at)
    >>> told = best([fast, slow], "0" * 32, {"n": 1000}, "H200", {"neptune": "1"})
    >>> [(str(b.choice), b.us, b.weight) for b in told]
    [('row BLOCK=1', 3.0, 1.0), ('row BLOCK=2', 3.0, 0.25)]
    """
    origins: dict[_Origin, dict[Choice, list[float]]] = defaultdict(lambda: defaultdict(list))
    for r in records:
        if r.structure == structure and r.device == device and r.bucket == bucket_of(sizes):
            origins[_origin(r, sizes, versions)][r.choice].extend(r.us)
    known: dict[Choice, tuple[float, float]] = {}
    for origin in sorted(origins):
        times = {choice: median(us) for choice, us in origins[origin].items()}
        scale = _scale(times, {choice: us for choice, (us, _) in known.items()})
        for choice, us in times.items():
            known.setdefault(choice, (us * scale, 1 / origin.doubt))
    beliefs = [Belief(choice, us, weight) for choice, (us, weight) in known.items()]
    return sorted(beliefs, key=lambda b: (-b.weight, b.us))


def _scale(times: Mapping[Choice, float], known: Mapping[Choice, float]) -> float:
    """What to multiply times by so that they agree with those that are known."""
    if not known:
        return 1.0
    shared = times.keys() & known.keys()
    return median(known[c] / times[c] for c in shared) if shared else min(known.values()) / min(times.values())


def made_with(versions: Mapping[str, str | None]) -> tuple[tuple[str, str], ...]:
    """Those of the versions that count."""
    return tuple((name, str(versions.get(name))) for name in MADE_WITH)


def _origin(r: Record, sizes: Sizes, versions: Mapping[str, str | None]) -> _Origin:
    exact = r.sizes == dict(sizes)
    weight = (1 if made_with(r.versions) == made_with(versions) else OTHER_VERSIONS) * (1 if exact else OTHER_SIZES)
    distance = sum(abs(math.log2(n / sizes[name])) for name, n in r.sizes.items())
    return _Origin(1 / weight, distance, tuple(r.sizes.items()), made_with(r.versions))
