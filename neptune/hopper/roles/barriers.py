"""One pair of barriers for rings whose tiles come and go together.

fill a(turn);    fill b(turn)            one wait, one expectation of the bytes of both, then all copies
await a(turn);   await b(turn)       →   one wait
release a(turn); release b(turn)         one arrival

Which these are follows from the two bodies: rings of as many stages that stand side by side wherever one of them is
filled, awaited or released, at the same turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from neptune.hopper.ir import AStmt, Await, Body, Fill, Release, Ring, inside, with_inside
from neptune.ir.expr import Expr
from neptune.tile.ir import Branch, Loop

Step: TypeAlias = Fill | Await | Release


def together(rings: tuple[Ring, ...], bodies: tuple[Body, ...]) -> tuple[tuple[Ring, ...], tuple[Body, ...]]:
    """The rings with what they share, and the bodies, in which those that share stand side by side in one order."""
    places: dict[str, list[int]] = {r.name: [] for r in rings}
    for number, run in enumerate(x for body in bodies for x in _runs(body)):
        for s in run:
            places[s.ring].append(number)
    first: dict[tuple[int, tuple[int, ...]], str] = {}
    shared = []
    for r in rings:
        leader = first.setdefault((r.stages, tuple(places[r.name])), r.name)
        shared.append(r if leader == r.name else replace(r, barrier=leader))
    order = {name: k for k, members in enumerate(groups(tuple(shared)).values()) for name in members}
    return tuple(shared), tuple(_ordered(body, order) for body in bodies)


def groups(rings: tuple[Ring, ...]) -> Mapping[str, tuple[str, ...]]:
    """The rings of each pair of barriers, by the first of them."""
    members: dict[str, tuple[str, ...]] = {}
    for r in rings:
        leader = r.barrier or r.name
        members[leader] = (*members.get(leader, ()), r.name)
    return members


def apart(rings: tuple[Ring, ...], body: Body) -> Iterator[str]:
    """The rings that share barriers with others which somewhere do not stand beside them."""
    members = groups(rings)
    leaders = {name: leader for leader, names in members.items() for name in names}
    for run in _runs(body):
        order = [s.ring for s in run]
        for leader in dict.fromkeys(leaders[n] for n in order if n in leaders):
            names = members[leader]
            start = order.index(next(n for n in order if leaders.get(n) == leader))
            if tuple(order[start : start + len(names)]) != names or sum(order.count(n) for n in names) != len(names):
                yield from (n for n in names if n in order)


def _runs(body: Body) -> Iterator[list[Step]]:
    """Statements of one kind and one turn that follow each other, those of inner bodies too."""
    run: list[Step] = []
    key: tuple[type[AStmt], Expr] | None = None
    for s in body:
        now = (type(s), s.turn) if isinstance(s, Fill | Await | Release) else None
        if now is None or now != key:
            if run:
                yield run
            run = []
        key = now
        if isinstance(s, Fill | Await | Release):
            run.append(s)
        if isinstance(s, Loop | Branch):
            yield from _runs(inside(s))
    if run:
        yield run


def _ordered(body: Body, order: Mapping[str, int]) -> Body:
    """The body with the rings of each run in one order, those that share barriers side by side."""
    out: list[AStmt] = []
    rank = {name: (group, k) for k, (name, group) in enumerate(order.items())}
    for s in body:
        if isinstance(s, Loop | Branch):
            s = with_inside(s, _ordered(inside(s), order))
        position = len(out)
        while isinstance(s, Fill | Await | Release) and position and _behind(out[position - 1], s, rank):
            position -= 1
        out.insert(position, s)
    return tuple(out)


def _behind(other: AStmt, s: Step, rank: Mapping[str, tuple[int, int]]) -> bool:
    """True where another statement of the same run belongs behind this one."""
    same = isinstance(other, Fill | Await | Release) and type(other) is type(s) and other.turn == s.turn
    return same and isinstance(other, Fill | Await | Release) and rank[other.ring] > rank[s.ring]
