"""The explanation of a kernel as plain values, gathered from its Build: decisions, facts, exact checks, variants.

It is kept with the kernel, and is what `kernel.explain(json=True)` returns; `neptune.report.explain` lays it out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from neptune.ir.printer import print_buffer
from neptune.report.explain import RECORDS
from neptune.runtime.arguments import free_scalars
from neptune.runtime.artifact import AT
from neptune.runtime.facts import Facts
from neptune.runtime.family import FAMILY, SHARED, conditions, shares, tree_json
from neptune.tune.defaults import least_tiles

if TYPE_CHECKING:
    from neptune.driver.build import Build
    from neptune.schedule.state import Decision
    from neptune.tune.family import Family
    from neptune.verify.exact import ExactReport

PROVED = "proved "


def explanation(build: Build, facts: Facts) -> dict[str, Any]:
    """Everything that explain() says, as a dict that JSON can hold."""
    p = build.loops
    return {
        "name": p.name,
        "target": str(build.target),
        "template": build.template,
        "inputs": [print_buffer(b) for b in p.inputs],
        "scalars": [s.name for s in free_scalars(p)],
        "outputs": [print_buffer(b) for b in p.outputs],
        "bounds": dict(build.bounds),
        "shapes": dict(build.shapes),
        "params": dict(build.params),
        **({"promises": list(build.promises)} if build.promises else {}),
        "chosen": list(build.tiles.chosen),
        "least": least_tiles(build.tiles),
        "schedule": list(build.trace),
        "decisions": [_decision(d) for d in build.decisions],
        "assumptions": list(_assumptions(build)),
        "kernels": [
            {
                "name": k.name,
                "grid": dict(k.grid),
                "loops": [{"axis": x.axis, "trips": x.trips} for x in k.loops],
                "temporaries": list(k.temporaries),
                "products": list(k.products),
            }
            for k in facts.kernels
        ],
        "temporaries": list(facts.temporaries),
        # JSON has no infinity.
        "traversals": {n: "every iteration" if t == math.inf else t for n, t in facts.traversals.items()},
        "checks": {name: _check(r) for name, r in build.checks.items()},
        **build.judgement,
        **({} if build.at is None else {AT: dict(build.at)}),
        **_variants(build),
        **_records(build),
        **({} if build.form is None else {build.form.data.name: dict(build.form.said)}),
    }


def _records(build: Build) -> dict[str, Any]:
    """The entry of a kernel that was chosen by measurements, too."""
    samples = () if build.family is None else build.family.samples
    if not samples:
        return {}
    counts = Counter[float]()
    for s in samples:
        counts[s.weight] += len(s.us)
    counted = [{"weight": weight, "count": n} for weight, n in sorted(counts.items(), reverse=True)]
    return {RECORDS: {"sizes": len({tuple(s.sizes.items()) for s in samples}), "of": counted}}


def _variants(build: Build) -> dict[str, Any]:
    """The entry of a kernel that is one of several."""
    from neptune.driver.counted import shared

    family = build.family
    if family is None or len(family.choices) < 2:
        return {}
    return {FAMILY: family_json(family, shared(build))}


def family_json(f: Family, shared: Collection[int] = ()) -> dict[str, Any]:
    """The variants of a kernel, and how a launch picks one; those that are `shared` may run its other form."""
    return {
        "own": 0,
        "at": dict(f.points[0]),
        "tree": tree_json(f.tree),
        "lost": {**shares(f.lost), "points": len(f.points)},
        "saved": shares(f.by_tree),
        "variants": [
            {
                **_first_taken(f, k),
                **c.plain(),
                **({SHARED: True} if k in shared else {}),
                "numbers": list(f.numbers.get(c.template, ())),
                "when": conditions(f.tree, k),
                "measured": _measured(f, k),
            }
            for k, c in enumerate(f.choices)
        ],
    }


def _first_taken(f: Family, k: int) -> dict[str, Any]:
    """The first of the points that take a variant, and the time predicted there."""
    point = f.first(k)
    return {AT: dict(f.points[point]), "us": round(float(f.times[k, point]), 2)}


def _measured(f: Family, k: int) -> list[dict[str, Any]]:
    """What records say of a variant at sizes where it is the fastest; of one choice of sizes, what is believed most."""
    choice = f.choices[k]
    samples = (s for s in f.samples if choice in s.us and s.us[choice] <= min(s.us.get(c, math.inf) for c in f.choices))
    best = {tuple(s.sizes.items()): s for s in sorted(samples, key=lambda s: s.weight)}
    return [{AT: dict(s.sizes), "us": round(s.us[choice], 2), "weight": s.weight} for s in best.values()]


def _decision(d: Decision) -> dict[str, Any]:
    proofs = [x.removeprefix(PROVED) for x in d.details if x.startswith(PROVED)]
    return {
        "kind": d.kind,
        "subject": d.subject,
        "verdict": d.verdict,
        "reason": d.reason,
        "details": [x for x in d.details if not x.startswith(PROVED)],
        "proved": proofs,
    }


def _assumptions(build: Build) -> Iterator[dict[str, Any]]:
    """What the kernel takes for granted, each once, and whether the caller has granted it."""
    for a in dict.fromkeys(a for d in build.decisions for a in d.assumed):
        yield {"name": a.name, "text": a.text, "granted": a.name in build.assume}


def _check(r: ExactReport) -> dict[str, Any]:
    return {
        "verdict": r.verdict,
        "model": r.model,
        "draws": r.draws,
        "seeds": list(r.seeds),
        "elements": r.compared,
        "bound": r.bound,
        "notes": list(r.notes),
    }
