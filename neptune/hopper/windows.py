"""How many iterations of loops the check of a protocol sees: all turns of all rings, and one more.

Names of slots and parities have the period 2S in turns, for a ring of S stages. A loop whose every iteration advances a
ring by n turns, n a number, comes back to them after 2S / gcd(n, 2S) iterations: after 2S where tiles are loaded in the
loop itself, after one where it holds a loop of so many constant iterations. What the loop's own iterations do not show,
a loop within does: each of its turns is one of a constant number, and all of them are always run.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from neptune.hopper.ir import AStmt, AsyncKernel, Fill, inside
from neptune.ir.expr import Const
from neptune.tile.ir import Branch, Loop

LEAST = 3
"""First, last, and one between them."""


def window(kernel: AsyncKernel) -> int:
    """Of every loop of a length that is not known: lengths from none to so many."""
    stages = {r.name: r.stages for r in kernel.rings}
    outside = {s.ring for s in _outside(kernel.producer)}
    found = [2 * stages[name] for name in outside]
    for loop in _unknown(kernel.producer):
        found += [_period(2 * n, _advance(inside(loop), name)) for name, n in stages.items()]
    return max(LEAST, *(n + 1 for n in found))


def in_a_row(kernel: AsyncKernel) -> int:
    """How many groups a program goes through: until what is loaded once a group, or so many times, comes back to the
    same names, and one more."""
    stages = {r.name: r.stages for r in kernel.rings}
    outside = {s.ring for s in _outside(kernel.producer)}
    return max([LEAST, *(1 + _period(2 * stages[n], _advance(kernel.producer, n)) for n in outside)])


def _outside(body: tuple[AStmt, ...]) -> Iterator[Fill]:
    """What is filled in no loop of an unknown length: the turns of groups."""
    for s in body:
        if isinstance(s, Fill):
            yield s
        elif isinstance(s, Branch) or (isinstance(s, Loop) and _trips(s) is not None):
            yield from _outside(inside(s))


def _unknown(body: tuple[AStmt, ...]) -> Iterator[Loop]:
    for s in body:
        if isinstance(s, Loop) and _trips(s) is None:
            yield s
        if isinstance(s, Loop | Branch):
            yield from _unknown(inside(s))


def _trips(loop: Loop) -> int | None:
    if isinstance(loop.lo, Const) and isinstance(loop.hi, Const):
        return max(int(loop.hi.value) - int(loop.lo.value), 0)
    return None


def _advance(body: tuple[AStmt, ...], ring: str) -> int | None:
    """The turns of a ring in a body; None where they are more or fewer from time to time."""
    turns = 0
    for s in body:
        if isinstance(s, Fill):
            turns += s.ring == ring
        elif isinstance(s, Loop | Branch):
            more = _advance(inside(s), ring)
            trips = _trips(s) if isinstance(s, Loop) else None
            if more == 0 or trips == 0:
                continue
            if more is None or trips is None:
                return None
            turns += trips * more
    return turns


def _period(turns: int, advance: int | None) -> int:
    """Iterations until all names of a ring come again."""
    return turns if advance is None else turns // gcd(advance, turns) if advance else 1
