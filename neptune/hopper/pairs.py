"""Operands that loops carry, two elements to a register.

    p_cast = cast(f16, p)              p_cast = pairs of cast(f16, p), int32
    for …:                       →     for …:
        acc = acc + p_cast · v             acc = acc + halves of p_cast · v
        p_cast = cast(f16, p)              p_cast = pairs of cast(f16, p)

A product takes two elements of 16 bits in a register. What a loop carries the compiler sees element by element: where
two loops follow each other it puts every pair together anew in each iteration (64 of the 513 instructions of causal
attention).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from neptune.hopper.ir import AStmt, Issue, exprs_of, inside, walk_async
from neptune.ir.dtypes import DTYPES
from neptune.tile.ir import Assign, Local, Loop, read_by


def paired(body: tuple[AStmt, ...]) -> frozenset[str]:
    """The operands of 16 bits that several loops carry, and that nothing but products reads."""
    every: list[Any] = list(walk_async(body))
    products = [s for s in every if isinstance(s, Issue)]
    names = {n: s.dot.a.dtype for s in products if (n := _operand(s)) is not None}
    read = {n for s in every for e in _others(s) for n in read_by(e)}
    carried = Counter(n for s in every if isinstance(s, Loop) for n in _first_read(inside(s)))
    return frozenset(n for n, t in names.items() if DTYPES[t].bits == 16 and carried[n] > 1 and n not in read)


def _operand(s: Issue) -> str | None:
    """The local that is the left operand of a product."""
    return s.dot.a.name if isinstance(s.dot.a, Local) else None


def _others(s: Any) -> Iterable[Any]:
    """The expressions of a statement but for the left operand of a product."""
    if isinstance(s, Issue):
        return [e for e in (s.dot.b, s.dot.acc) if e is not None]
    return exprs_of(s)


def _first_read(body: tuple[AStmt, ...]) -> set[str]:
    """The operands of products that a body reads before it assigns them."""
    assigned: set[str] = set()
    found: set[str] = set()
    for s in walk_async(body):
        if isinstance(s, Issue) and (name := _operand(s)) is not None and name not in assigned:
            found.add(name)
        elif isinstance(s, Assign):
            assigned.add(s.name)
    return found
