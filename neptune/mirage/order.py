"""The order of a kernel's operators: by depth, then with the fewest live tiles; and what a program then holds on chip.

    sq = sqr(x); ss = acc_sum(sq); xw = matmul(x, w)  →  sq = sqr(x); xw = matmul(x, w); ss = acc_sum(sq)

Operators of one depth (the longest path from the loads) need nothing of each other, so that a barrier is needed only
where the depth changes. What is alive at the ends of a depth does not depend on the order within it: each depth is
ordered by itself, and the whole is the best of all orders by depth.

    on_chip(rms_norm_linear, …, {"i": 64, "k": 64, "j": 64})  →  Plan(offsets=(…), size=…, bound=…)

Triton places tiles itself; the plan is what a kernel needs at least, by which graphs are compared before anything is
compiled, and by which tiles are seen to be too large. Temporaries in device memory are dealt out by the same planner
(`neptune.runtime.calls.workspace`).

Source: Wu et al., "Mirage", §6 (depths); the live tiles by dynamic programming over the sets that have run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod
from typing import NamedTuple, TypeAlias

from neptune.ir.dtypes import DTYPES
from neptune.mirage.ir import TILE, Kernel, Node, Thread, Type
from neptune.mirage.ops import OPS
from neptune.mirage.types import Typed, kernel_types
from neptune.runtime.calls.offsets import Block, Plan, plan

MOST = 12
"""Operators of one depth that are ordered exactly; where there are more, they keep the order in which they stand."""
SIDE = 64
"""Elements of a tile along each axis, to weigh matrices beside rows."""


Operator: TypeAlias = "Node | Thread"


@dataclass(frozen=True, slots=True)
class Life:
    """A tile on chip: the first and the last operator, by number, while which it is alive."""

    name: str
    first: int
    last: int


class _Way(NamedTuple):
    """An order of some operators of one depth: its peak and sum of live elements, and the operators by number."""

    peak: int
    total: int
    at: tuple[int, ...]


def ordered(kernel: Kernel, tensors: Mapping[str, Type]) -> Kernel:
    """The kernel with its operators by depth, those of one depth with the fewest live tiles.

    `tensors`: the types of tensors in device memory. Those behind the loop stay behind those in it.
    """
    typed = kernel_types(kernel, tensors)
    deep, late = _depths(kernel), _late(kernel, typed)
    body = sorted(kernel.body, key=lambda x: (late[x.name], deep[x.name]))
    uses, size = _uses(kernel, body), {n: elements(t.type) for n, t in typed.items()}
    body_ordered: list[Operator] = []
    for _, group in groupby(body, key=lambda x: (late[x.name], deep[x.name])):
        level = list(group)
        kept = body_ordered + level
        if 1 < len(level) <= MOST:
            kept = body_ordered + _level(level, [x.name for x in body_ordered], uses, size)
        body_ordered = kept
    return replace(kernel, body=tuple(body_ordered))


def lives(kernel: Kernel) -> tuple[Life, ...]:
    """When each tile of a kernel is alive: loads from the first operator that reads them, accumulators from the start,
    since they live on from one iteration to the next, the others from their own."""
    number = {x.name: 0 if OPS[_last(x).op].kind == "accumulate" else k for k, x in enumerate(kernel.body)}
    ends = len(kernel.body)
    read: dict[str, list[int]] = {}
    for k, x in enumerate(kernel.body):
        for o in operands(x):
            read.setdefault(o, []).append(k)
    for s in kernel.saves:
        read.setdefault(s.value, []).append(ends)
    names = [*(x.name for x in kernel.loads), *number]
    return tuple(Life(n, number.get(n, min(read[n])), max(read[n])) for n in names if n in read)


def operands(x: Operator) -> tuple[str, ...]:
    """The values that an operator reads, those inside of a thread graph left out; each once."""
    nodes = x.body if isinstance(x, Thread) else (x,)
    own = {n.name for n in nodes}
    return tuple(dict.fromkeys(o for n in nodes for o in n.operands if o not in own))


def _last(x: Operator) -> Node:
    return x.body[-1] if isinstance(x, Thread) else x


def elements(t: Type, side: int = SIDE) -> int:
    """About how many elements a tile of this type has."""
    return int(side ** sum(TILE in parts for parts in t.values()))


def _depths(kernel: Kernel) -> dict[str, int]:
    """The longest path to each value from a load."""
    depths: dict[str, int] = {x.name: 0 for x in kernel.loads}
    for x in kernel.body:
        depths[x.name] = 1 + max((depths[o] for o in operands(x)), default=0)
    return depths


def _late(kernel: Kernel, typed: Mapping[str, Typed]) -> dict[str, bool]:
    """Which operators run behind the loop: those that read what is there behind it. Accumulators run in the loop."""

    def late(x: Operator) -> bool:
        return OPS[_last(x).op].kind != "accumulate" and typed[x.name].behind

    return {x.name: late(x) for x in kernel.body}


def _uses(kernel: Kernel, body: Sequence[Operator]) -> dict[str, set[str]]:
    """Who reads each value; a saved one is read by nobody in the body, and stays."""
    readers: dict[str, set[str]] = {x.name: set() for x in (*kernel.loads, *body)}
    for x in body:
        for o in operands(x):
            readers[o].add(x.name)
    for s in kernel.saves:
        readers[s.value].add("")
    return readers


def _level(
    level: Sequence[Operator], before: Iterable[str], uses: Mapping[str, set[str]], size: Mapping[str, int]
) -> list[Operator]:
    """The operators of one depth with the least peak of live elements, then the least sum, then as they stood."""
    operators = {n for readers in uses.values() for n in readers} | {x.name for x in level}

    def needs(x: Operator, ran: frozenset[str]) -> int:
        """The elements alive while an operator runs: what it reads, what stays for others, and its result."""

        def alive(v: str) -> bool:
            exists = v in ran if v in operators else bool(uses[v] & (ran | {x.name}))
            return exists and bool(uses[v] - ran)

        return size[x.name] + sum(size[v] for v in uses if alive(v))

    start = frozenset(before)
    best: dict[frozenset[str], _Way] = {start: _Way(0, 0, ())}
    for _ in level:
        longer: dict[frozenset[str], _Way] = {}
        for ran, way in best.items():
            for k, x in enumerate(level):
                if x.name not in ran:
                    now = needs(x, ran)
                    new = _Way(max(way.peak, now), way.total + now, (*way.at, k))
                    longer[ran | {x.name}] = min(new, longer.get(ran | {x.name}, new))
        best = longer
    (way,) = best.values()
    return [level[k] for k in way.at]


# --- what a program holds on chip -------------------------------------------------------------------


ALIGNMENT = 128
"""Bytes: of a tile that a product or a copy of a whole tile reads."""
COMPUTED = 4
"""Bytes of an element that a kernel computes: float32."""


def on_chip(
    kernel: Kernel, tensors: Mapping[str, Type], dtypes: Mapping[str, str], tiles: Mapping[str, int], stages: int = 1
) -> Plan:
    """The plan of a program's tiles, in the order of `order.lives`.

    `tensors` and `dtypes`: the types and dtypes of tensors in device memory. `tiles`: the extent of each axis' tile.
    `stages`: how often what the loop loads is there, as a pipeline loads ahead.
    """
    return plan(blocks(kernel, tensors, dtypes, tiles, stages), ALIGNMENT)


def blocks(
    kernel: Kernel, tensors: Mapping[str, Type], dtypes: Mapping[str, str], tiles: Mapping[str, int], stages: int = 1
) -> list[Block]:
    """The tiles of a program with their lives; arguments as of `on_chip`."""
    typed = kernel_types(kernel, tensors)
    loaded = {x.name: DTYPES[dtypes[x.tensor]].bits // 8 for x in kernel.loads}

    def size(name: str) -> int:
        value = typed[name]
        copies = stages if name in loaded and value.body else 1
        elements = prod(tiles[a] for a, parts in value.type.items() if TILE in parts)
        return copies * elements * loaded.get(name, COMPUTED)

    return [Block(size(x.name), x.first, x.last) for x in lives(kernel)]
