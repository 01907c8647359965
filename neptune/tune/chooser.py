"""Which of a kernel's variants the sizes of a call take: what the cost model predicts to be the fastest there.

It is asked once for each class of sizes (`neptune.runtime.family`), at the class's upper end, so that a choice
follows from the class, the machine and the records alone, whoever called first. What that needs is what a compilation
leaves in the cache: the tile programs of the templates that variants are of, as text.

    counts_of(family, {})                →  the text that is kept
    Chooser.read(text, variants, program, machine).number({"batch": 4, "s_q": 1, "s_kv": 5000})   →  3
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from neptune.base import logs
from neptune.base.choice import Choice
from neptune.ir.program import Program
from neptune.ir.text.parser import parse_program
from neptune.runtime.family import Tree, pick
from neptune.tile.parser import parse_tiles
from neptune.tile.printer import declarations
from neptune.tune.family import Family, fastest, lost
from neptune.tune.gains import Gain
from neptune.tune.measured import Measured, Sample
from neptune.tune.model.machine import Machine
from neptune.tune.model.numbers import Array
from neptune.tune.points import Sizes, between, class_sizes, points, sizes_of
from neptune.tune.rows import Rows
from neptune.tune.tree import grown, where_measured

InForm: TypeAlias = Callable[[Sizes, float], float]
"""Microseconds of a kernel in another form at some sizes, where it takes so many on tiles."""
MORE, DEEPER = 3000, 12
"""Sizes beside the usual ones by which the comparisons of a saved kernel are found, and how deep these are. At random
sizes of attention these lose 2.5 % in place of 5 by the usual sizes alone, of products 2.2 in place of 2.9."""
LOG = logging.getLogger("neptune.compiler")


def counts_of(family: Family, fixed: Mapping[str, int]) -> str:
    """What a Chooser of these choices needs, as JSON; sizes that are `fixed` decide nothing."""
    known = family.known
    off = [known.off.get(c) for c in family.choices]
    return json.dumps(
        {
            "fixed": dict(fixed),
            "templates": {
                name: {
                    "declarations": declarations(rows.program),
                    "tiles": str(rows.program),
                    "gain": [[dict(s) for s in rows.gains.sizes], list(rows.gains.relative)],
                }
                for name, rows in family.rows.items()
            },
            "samples": {
                "of": [[dict(s.sizes), s.weight] for s in known.samples],
                "first": np.asarray(known.first).tolist(),
                # As much as is known of each choice; JSON has no NaN.
                "off": [None if row is None else [x if np.isfinite(x) else None for x in row.tolist()] for row in off],
            },
        }
    )


@dataclass
class Chooser:
    """The choices of a kernel's variants, with the model of each template; the kernel's `own`, which may have another
    `form` than tiles."""

    choices: Sequence[Choice]
    rows: Mapping[str, Rows]
    program: Program
    fixed: Mapping[str, int] = field(default_factory=dict)
    own: int = 0
    form: InForm | None = None

    @staticmethod
    def read(
        text: str, described: Mapping[str, Any], program: Program, machine: Machine, form: InForm | None = None
    ) -> Chooser:
        """The Chooser of what `counts_of` has written, for an Artifact's family as it is `described`; the kernel may
        have a `form` of its own."""
        variants, own = described["variants"], int(described["own"])
        counts = json.loads(text)
        choices = [Choice(v["template"], dict(v["params"])) for v in variants]
        known = _measured(counts["samples"], choices, program)
        rows = {}
        for name, texts in counts["templates"].items():
            tiles = parse_tiles(texts["tiles"], parse_program(texts["declarations"]))
            sizes, relative = texts["gain"]
            gain = Gain(tuple(sizes), tuple(relative))
            rows[name] = Rows(tiles, (), machine, {}, name, known, gains=gain)
        return Chooser(choices, rows, program, counts["fixed"], own, form)

    @property
    def names(self) -> tuple[str, ...]:
        """The sizes that it is asked with."""
        return tuple(n for n in sizes_of(self.program) if n not in self.fixed)

    def number(self, sizes: Mapping[str, int | float]) -> int | None:
        """The number of the variant for these sizes; None where nothing is predicted to run."""
        try:
            times = self.times(sizes)
        except Exception as error:
            logs.defect(LOG, f"the cost model on the variants of `{self.program.name}`", error)
            return None
        return int(fastest(times)) if np.isfinite(times).any() else None

    def times(self, sizes: Mapping[str, int | float]) -> Array:
        """Microseconds of every choice at the end of the class of some sizes, infinite where it does not run."""
        point: Sizes = {**class_sizes(self.program, {**sizes, **self.fixed}), **self.fixed}
        times = np.full(len(self.choices), np.inf)
        for name, rows in self.rows.items():
            own = [k for k, c in enumerate(self.choices) if c.template == name]
            # What the kernel's template gains its form says: no estimate between other sizes does.
            predicted = rows.on_tiles if name == self.choices[self.own].template else rows.predicted
            times[own] = predicted([self.choices[k].params for k in own], [point])[:, 0]
        if self.form is not None and np.isfinite(times[self.own]):
            times[self.own] = min(times[self.own], self.form(point, float(times[self.own])))
        return times

    def tree(self, bounds: Mapping[str, int]) -> tuple[Tree, tuple[float, float]]:
        """The comparisons of sizes that a saved kernel goes by, and what they lose, on average and at most. Another
        form counts by estimates between sizes."""
        measured = [dict(s.sizes) for s in next(iter(self.rows.values())).known.samples]
        usual = [*points(self.program, {}, bounds), *between(self.program, bounds, MORE)]
        # Where some sizes may not decide, what was measured at others' says nothing.
        sizes = [{**p, **self.fixed} for p in (*usual, *(() if self.fixed else measured))]
        times = np.stack([self.rows[c.template].predicted([c.params], sizes)[0] for c in self.choices])
        runs = np.flatnonzero(np.isfinite(times).any(axis=0)).tolist()
        times, sizes = times[:, runs], [sizes[k] for k in runs]
        first = sum(k < len(usual) for k in runs)
        tree = grown(times[:, :first], sizes[:first], frozenset(self.names), DEEPER)
        tree = where_measured(tree, times, sizes, first)
        return tree, lost(np.array([times[pick(tree, p), k] for k, p in enumerate(sizes)]), times.min(axis=0))

    def why(self, sizes: Mapping[str, int | float]) -> str:
        """The prediction for what is taken at these sizes, and the next best, for people."""
        if any(int(sizes[n]) < 1 for n in self.names):
            return "nothing is predicted of sizes below 1"
        times = self.times(sizes)
        if not np.isfinite(times).any():
            return "nothing is predicted to run"
        taken, machine = int(fastest(times)), next(iter(self.rows.values())).machine.name
        others = [k for k in times.argsort(kind="stable").tolist() if np.isfinite(times[k]) and k != taken]
        next_best = "".join(f"; next: {self.choices[k]}, {times[k]:.1f} µs" for k in others[:1])
        return f"predicted {times[taken]:.1f} µs on {machine}{next_best}"


def _measured(samples: Mapping[str, Any], choices: Sequence[Choice], program: Program) -> Measured:
    """What corrects the predictions of these choices: what was measured at some sizes is believed of their class."""
    if not samples["of"]:
        return Measured()
    off = {
        c: np.array([np.nan if x is None else x for x in row])
        for c, row in zip(choices, samples["off"], strict=True)
        if row is not None
    }
    known = tuple(Sample(class_sizes(program, s), {}, weight) for s, weight in samples["of"])
    return Measured(known, off, np.array(samples["first"]))
