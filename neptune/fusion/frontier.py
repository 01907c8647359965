"""The frontier of a reduction in a loop: its nearest incomplete reductions, and the maps in between.

`frontier(state, "l", j0)` for softmax, with m = max x, e = exp(x - m), l = Σ e, m being under j0:
predecessors ("m",), between ("e",).  (Paper §4.2, L_r and the stages to inline.)
"""

from __future__ import annotations

from dataclasses import dataclass

from neptune.ir.program import Store, reduction_loops
from neptune.schedule.fuse_at import Nest, common_loops
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

    def incomplete(stage: str) -> bool:
        path, node = state.path(stage)
        loops = state.loops(stage)
        del path
        shared = common_loops(loops, nest)
        return any(f in shared for f in reduction_loops(node, loops))

    def visit(stage: str) -> bool:
        """True if an incomplete reduction feeds this stage (or is this stage)."""
        if stage in leads:
            return leads[stage]
        leads[stage] = False
        d = state.definitions[stage]
        if not isinstance(d.action, Store):
            if incomplete(stage):
                predecessors.append(stage)
                leads[stage] = True
            return leads[stage]
        hits = [visit(w) for w in producers(stage)]
        if any(hits):
            between.append(stage)
            leads[stage] = True
        return leads[stage]

    def producers(stage: str) -> list[str]:
        names = [state.writer(x.buffer) for x in state.definitions[stage].reads()]
        return [w for w in dict.fromkeys(names) if w is not None and w != stage]

    for producer in producers(target):
        visit(producer)
    return Frontier(tuple(predecessors), tuple(between))
