"""One kernel of what was the fastest at several shapes: a family, whose launches take the winner of what is alike.

shapes  batch=1 s_kv=8192: flash_decoding …      →  flash_decoding … where batch <= 8, else flash_attention …
        batch=64 s_kv=1024: flash_attention …
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from neptune.autotune.search import Tuned
from neptune.autotune.space import Trial
from neptune.driver.explain import family_json
from neptune.kernel import Kernel
from neptune.runtime.artifact import AT
from neptune.runtime.executable import Executable
from neptune.runtime.family import FAMILY
from neptune.tune.family import Choice, of_winners


def together(kernel: Callable[[Trial], Kernel], found: Sequence[Tuned]) -> Kernel:
    """The kernel of the winners; of a single one, that for all sizes."""
    winners = list({t.best.key: t.best for t in found}.values())
    made = [kernel(w) for w in winners]
    if len(winners) == 1:
        return _alone(made[0], found[0])
    # Where a shape was not measured, its own winner by the model is all that is known.
    times = [[t.times.get(w.key, np.inf if w.key != t.best.key else w.us) for t in found] for w in winners]
    choices = [Choice(w.template, w.params, k.executable.artifact.chosen) for w, k in zip(winners, made, strict=True)]
    family = of_winners(choices, [dict(t.sizes) for t in found], np.array(times))
    order = [choices.index(c) for c in family.choices]
    if len(order) == 1:
        return _alone(made[order[0]], found[0])
    kernels = [made[k] for k in order]
    own = kernels[0]
    artifact = own.executable.artifact.alone()
    artifact = replace(artifact, explanation={**artifact.explanation, FAMILY: family_json(family, 0)})
    return Kernel(Executable(artifact, own.executable.loops), own._make_build, lambda k: kernels[k])


def _alone(kernel: Kernel, at: Tuned) -> Kernel:
    """A kernel for all sizes, judged at those of a shape."""
    of = kernel.executable
    artifact = of.artifact.alone()
    if AT not in artifact.explanation and not artifact.shapes:
        artifact = artifact.unjudged(at.sizes)
    return Kernel(Executable(artifact, of.loops), kernel._make_build)
