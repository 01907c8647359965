"""The explanation of a kernel as plain values, gathered from its Build: decisions, facts, exact checks, variants.

It is kept with the kernel, and is what `kernel.explain(json=True)` returns; `neptune.report.explain` lays it out.

The judgement on a kernel is what makes it slow, and what the cost model predicts:

    judged(subject, rivals)  →  {"warnings": [{"code": …, "stage": …, "message": …, "remedy": …}], "prediction": {…}}

It is made when a kernel is compiled, and kept as data. A kernel whose parameters were changed has none until it is
asked for: then it follows from the texts that the kernel holds.

Of arithmetic it says what is less exact than float32: products on some GPU, and functions.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict
from math import expm1
from typing import TYPE_CHECKING, Any

from neptune.base import logs
from neptune.driver.device import machine_for
from neptune.ir.analysis.forms import FORMS, Taken, short
from neptune.ir.analysis.perturb import ABSOLUTE
from neptune.ir.dtypes import FLOAT8
from neptune.ir.expr import Expr, Load, rewrite
from neptune.ir.program import Program, map_exprs, updates
from neptune.ir.text.printer import print_buffer
from neptune.report.explain import RECORDS
from neptune.runtime.artifact import AT, PREDICTION, WARNINGS, Artifact
from neptune.runtime.calls.arguments import free_scalars
from neptune.runtime.facts import Facts
from neptune.runtime.family import FAMILY, SHARED, conditions, shares, tree_json
from neptune.runtime.launching.launch import parse_target
from neptune.schedule.state import Decision
from neptune.tile.ir import TileProgram
from neptune.tile.registers import dots
from neptune.tune.defaults import least_tiles
from neptune.tune.outlook import Rival, outlook
from neptune.tune.slow.advice import advice
from neptune.tune.subject import Subject, subject_of
from neptune.verify.exact import ExactReport, exact_report

if TYPE_CHECKING:
    from neptune.driver.build import Build
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


# --- the judgement ----------------------------------------------------------------------------------

LOG = logging.getLogger("neptune.compiler")


def judged(s: Subject, rivals: Iterable[Rival] = ()) -> dict[str, Any]:
    """The two entries of an explanation; without a prediction where the cost model fails."""
    try:
        return {WARNINGS: [asdict(r) for r in advice(s)], PREDICTION: outlook(s, rivals)}
    except Exception as error:
        logs.defect(LOG, f"the judgement on `{s.loops.name}`", error)
        return {WARNINGS: [], PREDICTION: None}


def with_judgement(artifact: Artifact) -> dict[str, Any]:
    """The explanation of a kernel with a judgement: its own, or one that follows from its texts."""
    e = artifact.explanation
    if WARNINGS in e and PREDICTION in e:
        return e
    s = subject_of(artifact, machine_for(parse_target(artifact.target)))
    return {**e, **judged(s)}


# --- arithmetic that is less exact than float32 -----------------------------------------------------


def short_products(tiles: TileProgram) -> tuple[Decision, ...]:
    """A Decision for each kernel that multiplies matrices of 8-bit floats.

    c += dot(x, w), of float8_e4m3fn   →   scaled_kernel: multiplies float8_e4m3fn (products)
    """
    decisions = []
    for k in tiles.kernels:
        dtypes = sorted({d.a.dtype for d in dots(k)} & set(FLOAT8))
        if dtypes:
            reason = (
                "NVIDIA's units of sm_89 and sm_90 sum 8-bit products with about 14 bits: 32 of them on sm_90 (a tile "
                "in the asynchronous form), a tile on sm_89; these sums are added in float32\n"
                "where that is too coarse: cast the operands to float16, then to float32, and float16 is multiplied"
            )
            decisions.append(Decision("products", k.name, f"multiplies {' and '.join(dtypes)}", reason))
    return tuple(decisions)


def form_decisions(taken: tuple[Taken, ...]) -> tuple[Decision, ...]:
    """A Decision for each stage in which functions have cheaper forms.

    score = tanh(s)·50   →   score: tanh to an absolute error of 9.0e-07 (forms)
    """
    decisions = []
    for t in taken:
        off = ", ".join(f"`{name}` by {expm1(error.size):.1e}" for name, error in t.results.items())
        verdict = " and ".join(map(_to, t.operators))
        reason = f"moves {off}, relative to the magnitudes of its summands: less than its last place"
        decisions.append(Decision("forms", t.stage, verdict, reason))
    return tuple(decisions)


def _to(name: str) -> str:
    form = FORMS[name]
    what = "an absolute error" if form.kind == ABSOLUTE else "an error"
    return f"{form.of} to {what} of {form.error:.1e}"


def short_functions(program: Program) -> tuple[Taken, ...]:
    """The stages whose functions may be single instructions on sm_90 (`neptune.ir.analysis.forms.short`).

    The maximum that a softmax takes off cancels: where the results do not depend on it, as an exact check of the
    program with another one says, its error does not count. Several that each cancel need not do so together.
    """
    maxima = frozenset(b for u in updates(program.body) if u.reducer == "max" for b in u.buffers)
    taken = short(program, maxima)
    if not taken or taken == (known := short(program)):
        return taken
    return taken if len(maxima) == 1 and all(_is_free(program, b) for b in maxima) else known


def _is_free(program: Program, buffer: str) -> bool:
    """True if other values in a buffer, for each place another one, leave the results as they are."""

    def other(x: Expr) -> Expr | None:
        return x * 0.5 + 1.0 if isinstance(x, Load) and x.buffer == buffer else None

    changed = program.with_body(map_exprs(program.body, lambda e: rewrite(e, other)))
    report = exact_report(program, changed)
    return isinstance(report, ExactReport) and report.accepted
