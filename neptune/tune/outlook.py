"""The prediction of the cost model for one kernel, and for what else might have been chosen, as plain data.

outlook(subject, rivals)
→  {"machine": "H200", "sizes": {"m": 4096, …}, "given": False, "us": 214.8, "bound": "the matrix unit",
    "launches": 3.1, "kernels": [{"name": "matmul_kernel", "us": 211.7, "bound": "the matrix unit", "share": 0.83,
    "programs": 512, "waves": 1.94, "resident": 2}], "others": [{"template": "matmul_split", "us": 230.0, …}]}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from math import isfinite
from typing import Any

from neptune.base.choice import Choice
from neptune.tile.ir import TileProgram
from neptune.tune.family import Family
from neptune.tune.model.machine import Machine
from neptune.tune.model.prediction import KernelTime
from neptune.tune.params import space_of
from neptune.tune.rank import ranked
from neptune.tune.subject import Subject

WORDS: Mapping[str, str] = {
    "matrix": "the matrix unit",
    "special": "special functions",
    "issue": "issue slots",
    "shared": "shared memory",
    "port": "the port to L2",
    "memory": "memory",
    "latency": "latency and waves",
    "shared memory": "more shared memory than there is",
    "launch": "launches",
}
"""What may limit a kernel (`prediction.BOUNDS`), for people."""
SHOWN = 3
"""Other choices that are told."""


@dataclass(frozen=True)
class Rival:
    """Another choice and its predicted time, in microseconds, at the sizes of the one that was taken."""

    template: str
    us: float
    params: Mapping[str, int] = field(default_factory=dict)


def outlook(s: Subject, rivals: Iterable[Rival] = ()) -> dict[str, Any] | None:
    """The prediction for a kernel, with the fastest of the others; None where the model predicts nothing."""
    p = s.prediction
    if p is None:
        return None
    launches = p.us - sum(k.us for k in p.kernels)
    longest = max(p.kernels, key=lambda k: k.us)
    others = sorted((r for r in rivals if isfinite(r.us)), key=lambda r: r.us)
    return {
        "machine": s.machine.name,
        "sizes": dict(s.sizes),
        "given": s.given,
        "us": round(p.us, 2),
        "bound": WORDS["launch" if launches > p.us / 2 else longest.bound],
        "launches": round(launches, 2),
        "kernels": [_kernel(k) for k in p.kernels],
        "others": [
            {"template": r.template, "params": dict(r.params), "us": round(r.us, 2)} for r in islice(others, SHOWN)
        ],
    }


def _kernel(k: KernelTime) -> dict[str, Any]:
    return {
        "name": k.name,
        "us": round(k.us, 2),
        "bound": WORDS[k.bound],
        "share": round(k.share, 3),
        "programs": k.programs,
        "waves": round(k.waves, 2),
        "resident": k.resident,
    }


def of_family(family: Family) -> tuple[Rival, ...]:
    """The other choices of a family at its first point: its own, and templates of which it kept none."""
    kept = [Rival(c.template, float(us), c.params) for c, us in zip(family.choices, family.times[:, 0], strict=True)]
    templates = {c.template for c in family.choices}
    dropped = (Rival(name, us) for name, us in family.others.items() if name not in templates)
    return (*kept[1:], *dropped)


def of_ranking(
    choice: Choice, tiles: TileProgram, given: Mapping[str, int], sizes: Mapping[str, int], machine: Machine
) -> tuple[Rival, ...]:
    """Other values of the parameters of a choice, of which some were given; none where a size is missing.

    They were compared before, and are remembered.
    """
    order = ranked(tiles, sizes, machine, space_of(tiles).ranked(given))
    others = (r for r in order if any(choice.params.get(n) != v for n, v in r.params.items()))
    return tuple(Rival(choice.template, r.prediction.us, r.params) for r in islice(others, SHOWN))
