"""How many operators a kernel still needs at least: what its targets have, and only an operator of its own can bring.

    target √(c·Σ x·x), state with x alone    →    a root, a constant, what is behind the loop: three operators at least

Each of these has one operand, so it joins no two tensors: a state with u tensors that nothing reads needs u - 1 further
ones. A composite brings several at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, TypeAlias

from neptune.mirage.algebra import NOTHING, ONE, Algebra
from neptune.mirage.composites import Chain

Feature: TypeAlias = tuple[str, Any]

BROUGHT = {"sqrt": "root", "rsqrt": "root", "silu": "sigmoid", "scale": "constant", "shift": "constant"}
"""The features that operators bring which are not called as these."""


class Features:
    """The features of targets as bits; `in_loop` is that of what has left the loop, 0 without one."""

    def __init__(self, algebra: Algebra, targets: Sequence[int], loop: bool, chains: Sequence[Chain]) -> None:
        self.algebra = algebra
        found = set(chain.from_iterable(self._parts(t) for t in targets))
        self._bits = {feature: 1 << n for n, feature in enumerate(sorted(found, key=repr))}
        self.in_loop = 1 << len(found) if loop else 0
        every = (1 << (len(found) + loop)) - 1
        steps = [*(1 << n for n in range(every.bit_length())), *(s for c in chains for s in self._brought(c))]
        # From every set of features: the operators needed at least, the largest sets first.
        self.missing = [0] * (every + 1)
        for have in range(every - 1, -1, -1):
            self.missing[have] = 1 + min(self.missing[have | s] for s in steps if have | s != have)

    def of(self, form: int) -> int:
        """The features of the targets that a form has."""
        found = 0
        for feature in self._parts(form):
            found |= self._bits.get(feature, 0)
        return found

    def _brought(self, c: Chain) -> Iterator[int]:
        """The features that a composite may bring at once: all that its operators may, but of nested ones one."""
        found = self.in_loop
        nested: list[int] = []
        for kind, bit in ((k, b) for k, b in self._bits.items() if self._brings(c, k)):
            if isinstance(kind[1], tuple):
                nested.append(bit)
            else:
                found |= bit
        yield from (found | bit for bit in nested or [0])

    def _brings(self, c: Chain, feature: Feature) -> bool:
        kind, label = feature
        return any(
            kind == BROUGHT.get(x.op, x.op) and (isinstance(label, str | tuple) or label == x.constant) for x in c.links
        )

    def _parts(self, form: int) -> Iterator[Feature]:
        """The functions and numbers in a form that an operator of one operand must have brought.

        Exps and roots are counted by how deep they are nested: the outer one of two is never brought with the inner.
        """
        a = self.algebra
        for term in a.summands(form):
            for side in term:
                for kind, arg, none in (("exp", side.exp, NOTHING), ("root", side.root, ONE)):
                    if arg != none:
                        inner = list(self._parts(arg))
                        yield kind, (1 + max((n[0] for k, n in inner if k == kind), default=0),)
                        yield from inner
                for atom in a.present(side.atoms):
                    if atom.kind in ("sigmoid", "max"):
                        yield atom.kind, ""
                    elif atom.kind == "power" or (atom.kind == "constant" and atom.label != -1):
                        yield atom.kind, atom.label
                    elif atom.kind == "opaque" and len(atom.args) == 1:
                        yield atom.kind, repr(atom.label)
                    for arg in atom.args:
                        yield from self._parts(arg)
