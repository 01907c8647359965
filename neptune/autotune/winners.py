"""One kernel of what was the fastest at several shapes: a family, whose launches take the winner of what is alike.

shapes  batch=1 s_kv=8192: flash_decoding …      →  flash_decoding … where batch <= 8, else flash_attention …
        batch=64 s_kv=1024: flash_attention …

A number of parts that was measured to be faster than what a launch would choose is taken at the shape where that was
measured, and nowhere else: it follows from how many programs there are (`neptune.runtime.parts`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from neptune.autotune.search import Tuned
from neptune.choice import Choice
from neptune.driver.explanation import family_json
from neptune.kernel import Kernel
from neptune.runtime.artifact import AT
from neptune.runtime.executable import Executable
from neptune.runtime.family import FAMILY
from neptune.runtime.parts import Measured
from neptune.tune.family import of_winners


def together(
    kernel: Callable[[Choice], Kernel], found: Sequence[Tuned], numbers: frozenset[str] = frozenset()
) -> Kernel:
    """The kernel of the winners; of a single one, that for all sizes. `numbers` are those of parts that were tuned."""
    winners = list(dict.fromkeys(t.best.choice.without(numbers) for t in found))
    made = [_with_numbers(kernel(w), found, numbers) for w in winners]
    if len(winners) == 1:
        return _alone(made[0], found[0])
    times = [[_time(w, t, numbers) for t in found] for w in winners]
    chosen = {w.template: k.executable.artifact.chosen for w, k in zip(winners, made, strict=True)}
    family = of_winners(winners, [dict(t.sizes) for t in found], np.array(times), chosen)
    order = [winners.index(c) for c in family.choices]
    if len(order) == 1:
        return _alone(made[order[0]], found[0])
    kernels = [made[k] for k in order]
    own = kernels[0]
    artifact = own.executable.artifact.alone()
    artifact = replace(artifact, explanation={**artifact.explanation, FAMILY: family_json(family)})
    return Kernel(Executable(artifact, own.executable.loops), own._make_build, lambda k: kernels[k])


def _time(winner: Choice, at: Tuned, numbers: frozenset[str]) -> float:
    """What a winner took at a shape; where nothing was measured, what the model says of its own one."""
    if at.best.choice.without(numbers) == winner:
        return at.times.get(at.best.choice, at.best.us)
    return at.times.get(winner, np.inf)


def _with_numbers(kernel: Kernel, found: Sequence[Tuned], numbers: frozenset[str]) -> Kernel:
    """The kernel, whose launches take the numbers of parts that were the fastest at these shapes, with the tiles of
    each: variants of one template are made of one another, and share these rows."""
    of = kernel.executable
    own = [t for t in found if t.best.template == of.artifact.template]
    parts = []
    for rule in of.artifact.parts:
        tuned = [t for t in own if rule.number in numbers & t.best.params.keys()]
        rows = (Measured(_at(t, of.modules.params.keys()), t.best.params[rule.number]) for t in tuned)
        parts.append(replace(rule, measured=(*rows, *rule.measured)))
    return Kernel(Executable(replace(of.artifact, parts=tuple(parts)), of.loops), kernel._make_build)


def _at(found: Tuned, names: Collection[str]) -> tuple[tuple[str, int], ...]:
    """The sizes of a shape, and the values that its winner has of these names."""
    return tuple({**found.sizes, **{n: v for n, v in found.best.params.items() if n in names}}.items())


def _alone(kernel: Kernel, at: Tuned) -> Kernel:
    """A kernel for all sizes, judged at those of a shape."""
    of = kernel.executable
    artifact = of.artifact.alone()
    if AT not in artifact.explanation and not artifact.shapes:
        artifact = artifact.unjudged(at.sizes)
    return Kernel(Executable(artifact, of.loops), kernel._make_build)
