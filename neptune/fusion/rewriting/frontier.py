"""The frontier of a reduction in a loop: its nearest incomplete reductions, and the maps in between.

`frontier(state, "l", j0)` for softmax, with m = max x, e = exp(x - m), l = Σ e, m being under j0:
predecessors ("m",), between ("e",).  (Paper §4.2, L_r and the stages to inline.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from neptune.ir.program import For, reduction_loops
from neptune.schedule.alignment import Nest
from neptune.schedule.primitives.fuse_at import common_loops
from neptune.schedule.state import State


@dataclass(frozen=True)
class Frontier:
    """`predecessors`: reductions still changing in the loop, nearest on every dataflow path.
    `between`: the map stages on the way to them, producers first."""

    predecessors: tuple[str, ...]
    between: tuple[str, ...]


def frontier(state: State, target: str, nest: Nest) -> Frontier:
    """Memoised reachability from `target` back through its producers."""
    predecessors: list[str] = []
    between: list[str] = []
    leads: dict[str, bool] = {}

    def visit(stage: str) -> bool:
        """True if an incomplete reduction feeds this stage (or is this stage)."""
        if stage in leads:
            return leads[stage]
        if stage not in state.reductions:
            hits = [visit(w) for w in producers(state, stage)]  # all of them, not up to the first hit
            leads[stage] = any(hits)
            if leads[stage]:
                between.append(stage)
        else:
            leads[stage] = bool(changing_loops(state, stage, nest))
            if leads[stage]:
                predecessors.append(stage)
        return leads[stage]

    for producer in producers(state, target):
        visit(producer)
    return Frontier(tuple(predecessors), tuple(between))


def producers(state: State, stage: str) -> list[str]:
    """The stages whose results this one reads."""
    names = [state.writer(x.buffer) for x in state.definitions[stage].reads()]
    return [w for w in dict.fromkeys(names) if w is not None and w != stage]


def changing_loops(state: State, stage: str, nest: Nest) -> list[For]:
    """The loops of `nest` over which a reduction is still folding."""
    _, node = state.path(stage)
    loops = state.loops(stage)
    reduced = reduction_loops(node, loops)
    return [f for f in common_loops(loops, nest) if any(f is x for x in reduced)]


def sees_the_same(state: State, stage: str, nest: Nest, predecessors: Iterable[str]) -> bool:
    """True where `stage` stands in the nest's innermost loop and in no further one that changes a predecessor.

    What it computed from the predecessors is then what a stage at the end of `nest` would compute.
    """
    around = {id(f) for f in state.loops(stage)}
    if id(nest.outer[-1]) not in around:
        return False
    changing = {id(f) for s in predecessors for f in reduction_loops(state.path(s)[1], state.loops(s))}
    return around & changing == {id(f) for f in nest.outer} & changing
