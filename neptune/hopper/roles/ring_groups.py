"""Rings that go together: one pair of barriers, and one counter, for several of them.

One pair of barriers serves rings whose tiles come and go together.

fill a(turn);    fill b(turn)            one wait, one expectation of the bytes of both, then all copies
await a(turn);   await b(turn)       →   one wait
release a(turn); release b(turn)         one arrival

Which these are follows from the two bodies: rings of as many stages that stand side by side wherever one of them is
filled, awaited or released, at the same turn.

One counter serves rings that advance together.

    k_turn = k_turn + 1                       …
    Release(v, v_turn)            →           Release(v, turn - 1)
    v_turn = v_turn + 1                       turn = turn + 1

Counters are one where, at every point of both roles, they differ by a number that is known there: in all iterations of
a loop by the same. In the values' product a step late that number is 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias, cast

from neptune.hopper.ir import AStmt, Await, Body, Fill, Issue, Release, Ring, Staged, inside, tile_of, with_inside
from neptune.ir.expr import Const, Expr, Load, Op, op, rewrite
from neptune.tile.ir import Assign, Branch, Dot, Local, Loop, Scalar, TExpr

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


# --- one counter for several rings ------------------------------------------------------------------

Offsets = Mapping[str, int]
"""The lead of each counter over the one that takes its place."""


def advanced(counter: str) -> Assign:
    """The statement that counts a turn."""
    return Assign(counter, Op("add", (Local(counter, (), "int32"), Scalar(Const(1, "int32"))), "int32"), counter)


def turn_of(counter: str, ahead: int = 0) -> Expr:
    """The turn that a counter is at, or a later one."""
    turn = Load(counter, (), "int32")
    return turn if not ahead else op("add" if ahead > 0 else "sub", turn, abs(ahead))


def shared(counters: tuple[str, ...], bodies: tuple[Body, ...], name: str) -> tuple[tuple[str, ...], tuple[Body, ...]]:
    """The bodies with as few counters as can be, and these; one that stands for several is called `name`, or like the
    first of them."""
    left, kept = list(counters), list[str]()
    while left:
        group = [left.pop(0)]
        for other in tuple(left):
            if all(_merged(b, (*group, other), group[0]) is not None for b in bodies):
                group.append(other)
                left.remove(other)
        if len(group) > 1:
            kept.append(group[0] if name in kept else name)
            bodies = tuple(_merged(b, tuple(group), kept[-1]) or b for b in bodies)
        else:
            kept += group
    return tuple(kept), bodies


def _merged(body: Body, group: tuple[str, ...], name: str) -> Body | None:
    """A role's body with one counter for a group; None where they have none in common."""
    merged = _block(body, dict.fromkeys(group, 0), name)
    return None if merged is None or any(merged[1].values()) else merged[0]


def _block(body: Body, offsets: Offsets, name: str) -> tuple[Body, Offsets] | None:
    """A block, and the offsets behind it; None where one is not known somewhere."""
    steps = {c: [k for k, s in enumerate(body) if isinstance(s, Assign) and s.name == c] for c in offsets}
    counts = {len(x) for x in steps.values()}
    # Where all advance as often, the new counter does with the last of them, else with the first in the group.
    places = (
        {max(x) for x in zip(*steps.values(), strict=True)} if len(counts) == 1 else set(next(iter(steps.values())))
    )
    now = dict(offsets)
    out: list[AStmt] = []
    either: dict[str, int] | None = None
    for k, s in enumerate(body):
        if isinstance(s, Assign) and s.name in now:
            now[s.name] += 1
        elif isinstance(s, Loop | Branch):
            block = _block(inside(s), now, name)
            if block is None:
                return None
            inner, behind = block
            out.append(with_inside(s, inner))
            if isinstance(s, Branch) and _other_side(s, body, k):
                either = dict(behind)
                continue
            if dict(behind) != (now if either is None else either):
                return None
            now, either = dict(behind), None
        else:
            out.append(_counted(s, now, name))
        if k in places:
            out.append(advanced(name))
            now = {c: n - 1 for c, n in now.items()}
    return tuple(out), now


def _other_side(s: Branch, body: Body, position: int) -> bool:
    """True where the statement behind a branch is what is done otherwise."""
    after = body[position + 1] if position + 1 < len(body) else None
    return isinstance(after, Branch) and after.pred == op("not", s.pred)


def _counted(s: AStmt, offsets: Offsets, name: str) -> AStmt:
    """A statement by the new counter."""

    def turn(e: Expr) -> Expr:
        match e:
            case Load(c, (), _) if c in offsets:
                return turn_of(name, offsets[c])
            case Op("add" | "sub" as sign, (Load(c, (), _), Const(n, _)), _) if c in offsets:
                return turn_of(name, offsets[c] + (int(n) if sign == "add" else -int(n)))
        return e

    def staged(e: TExpr) -> TExpr:
        return rewrite(e, lambda x: tile_of(replace(x, turn=turn(x.turn))) if isinstance(x, Staged) else None)

    match s:
        case Fill() | Await() | Release():
            return replace(s, turn=turn(s.turn))
        case Issue():
            return replace(s, dot=cast("Dot", staged(s.dot)))
        case Assign():
            return replace(s, value=staged(s.value))
        case _:
            return s
