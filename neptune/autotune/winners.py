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
from neptune.base.choice import Choice
from neptune.driver.explanation import family_json
from neptune.kernel import Kernel
from neptune.runtime.artifact import AT
from neptune.runtime.executable import Executable
from neptune.runtime.family import FAMILY
from neptune.runtime.parts import Measured
from neptune.tune.family import of_winners


def together(
    kernel: Callable[[Choice], Kernel], results: Sequence[Tuned], numbers: frozenset[str] = frozenset()
) -> Kernel:
    """The kernel of the winners; of a single one, that for all sizes. `numbers` are those of parts that were tuned."""
    winners = list(dict.fromkeys(t.best.choice.without(numbers) for t in results))
    compiled = [_with_numbers(kernel(w), results, numbers) for w in winners]
    if len(winners) == 1:
        return _alone(compiled[0], results[0])
    times = [[_time(w, t, numbers) for t in results] for w in winners]
    chosen = {w.template: k.executable.artifact.chosen for w, k in zip(winners, compiled, strict=True)}
    family = of_winners(winners, [dict(t.sizes) for t in results], np.array(times), chosen)
    order = [winners.index(c) for c in family.choices]
    if len(order) == 1:
        return _alone(compiled[order[0]], results[0])
    kernels = [compiled[k] for k in order]
    own = kernels[0]
    artifact = own.executable.artifact.alone()
    artifact = replace(artifact, explanation={**artifact.explanation, FAMILY: family_json(family)})
    return Kernel(Executable(artifact, own.executable.loops), own._make_build, lambda k: kernels[k])


def _time(winner: Choice, result: Tuned, numbers: frozenset[str]) -> float:
    """What a winner took at a shape; where nothing was measured, what the model says of its own one."""
    if result.best.choice.without(numbers) == winner:
        return result.times.get(result.best.choice, result.best.us)
    return result.times.get(winner, np.inf)


def _with_numbers(kernel: Kernel, results: Sequence[Tuned], numbers: frozenset[str]) -> Kernel:
    """The kernel, whose launches take the numbers of parts that were the fastest at these shapes, with the tiles of
    each: variants of one template are made of one another, and share these rows."""
    executable = kernel.executable
    own = [t for t in results if t.best.template == executable.artifact.template]
    parts = []
    for rule in executable.artifact.parts:
        tuned = [t for t in own if rule.number in numbers & t.best.params.keys()]
        rows = (Measured(_at(t, executable.modules.params.keys()), t.best.params[rule.number]) for t in tuned)
        parts.append(replace(rule, measured=(*rows, *rule.measured)))
    return Kernel(Executable(replace(executable.artifact, parts=tuple(parts)), executable.loops), kernel._make_build)


def _at(result: Tuned, names: Collection[str]) -> tuple[tuple[str, int], ...]:
    """The sizes of a shape, and the values that its winner has of these names."""
    return tuple({**result.sizes, **{n: v for n, v in result.best.params.items() if n in names}}.items())


def _alone(kernel: Kernel, result: Tuned) -> Kernel:
    """A kernel for all sizes, judged at those of a shape."""
    executable = kernel.executable
    artifact = executable.artifact.alone()
    if AT not in artifact.explanation and not artifact.shapes:
        artifact = artifact.unjudged(result.sizes)
    return Kernel(Executable(artifact, executable.loops), kernel._make_build)
