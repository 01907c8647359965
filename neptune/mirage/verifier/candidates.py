"""Tier 1 of the verifier: is a graph worth a proof? Draws of a pair of fields, made once for a reference.

    tier = Candidates(reference)
    tier.accept(graph)  →  True where every output agrees in every draw that counts for it, and enough do

A draw counts for an element where the reference and the graph have a value there: every radicand behind it is a square.
References with many roots behind an element are drawn more often, and the draws that count most often are kept. Wrong
graphs fall on the first few draws, of which the others are independent. This is a test of n draws, and no bound is
claimed for it: see `bound`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from neptune.ir.evaluate.domains import Array, Results, Unevaluated, Value
from neptune.mirage.ir import Graph
from neptune.mirage.verifier.evaluate import Evaluator, pairs
from neptune.mirage.verifier.fields import RootField
from neptune.mirage.verifier.witness import Witness, draw_inputs, witness

DRAWS, FIRST = 64, 6
ENOUGH = 3
"""Every element needs so many draws that count."""
POOL = 64
"""At most so many times the draws are made to find ones that count."""


@dataclass(frozen=True)
class Outcome:
    """What draws say of a graph: `counted` is the number of draws that count for the element with the fewest."""

    accepted: bool
    draws: int
    counted: int
    why: str = ""

    def __str__(self) -> str:
        text = (
            f"{'agrees' if self.accepted else 'differs'} in {self.draws} draws, {self.counted} count at every element"
        )
        return f"{text}: {self.why}" if self.why else text


@dataclass(frozen=True)
class Drawn:
    """Draws, and the outputs of the reference there."""

    field: RootField
    evaluator: Evaluator
    expected: Results


class Candidates:
    """The draws for a reference. Graphs that share a beginning share its evaluation."""

    def __init__(self, reference: Graph, *, draws: int = DRAWS, seed: int = 0, probe: Witness | None = None) -> None:
        self.reference, self.probe = reference, probe or witness(reference)
        field, values, kept = _pool(reference, self.probe, draws, seed)
        self._first, self._all = (self._drawn(field, values, some, seed) for some in (kept[:FIRST], kept))

    def _drawn(self, field: RootField, values: Sequence[Mapping[str, Value]], kept: Array, seed: int) -> Drawn:
        """Some of the draws of a field, with the inputs and the scalars in `values`."""
        some = field.only(kept)
        own = [{k: field.make([x[kept] if x.ndim else x for x in v]) for k, v in many.items()} for many in values]
        evaluator = Evaluator(some, self.probe, *own, seed=seed)
        return Drawn(some, evaluator, evaluator.outputs(self.reference))

    def accept(self, graph: Graph) -> bool:
        """Return True if the graph agrees with the reference."""
        return self.outcome(graph).accepted

    def outcome(self, graph: Graph) -> Outcome:
        """What the draws say. Outputs correspond by name."""
        first = compare(self._first, graph)
        return first if not first.accepted and first.why != FEW else compare(self._all, graph)


FEW = "too few draws count"


def compare(drawn: Drawn, graph: Graph) -> Outcome:
    """Compare the outputs of a graph with those of the reference, by name."""
    draws, fewest = drawn.field.draws, drawn.field.draws
    outputs = drawn.evaluator.evaluated(graph)
    both = outputs if isinstance(outputs, Unevaluated) else pairs(drawn.field, drawn.expected, outputs)
    if isinstance(both, Unevaluated):
        return Outcome(False, draws, 0, str(both))
    for name, (expected, got) in both.items():
        counts = drawn.field.known(expected) & drawn.field.known(got)
        fewest = min(fewest, int(counts.sum(0).min()))
        if drawn.field.differs(expected, got).any():
            return Outcome(False, draws, fewest, f"output `{name}` differs")
    return Outcome(fewest >= ENOUGH, draws, fewest, "" if fewest >= ENOUGH else FEW)


def _pool(
    reference: Graph, probe: Witness, draws: int, seed: int
) -> tuple[RootField, Sequence[Mapping[str, Value]], Array]:
    """Draws, with the inputs and scalars; and those to keep: the first, or where few count, of ever more the best."""
    total = draws
    while True:
        field = RootField(total, seed)
        values = draw_inputs(field, reference, probe, np.random.default_rng((seed, total)))
        outputs = Evaluator(field, probe, *values, seed=seed, memory=0).outputs(reference)
        known = np.concatenate([field.known(v).reshape(total, -1) for v in outputs.values()], 1)
        kept = best(known, draws)
        if known[kept].sum(0).min() >= draws // 4 or total >= POOL * draws:
            return field, values, kept
        total *= 4


def best(known: Array, count: int) -> Array:
    """Draws that count at many elements, and most at those where few others do; in the order of their use.

    `known` says of each draw and element whether it counts.
    """
    seen = np.zeros(known.shape[1])
    left = np.ones(len(known), bool)
    kept = []
    for _ in range(min(count, len(known))):
        worth = np.where(left, known @ 0.5**seen, -1.0)
        k = int(worth.argmax())
        kept.append(k)
        left[k] = False
        seen += known[k]
    return np.array(kept)
