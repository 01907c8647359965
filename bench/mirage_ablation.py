"""What each step of the optimizer brings: the figures of the best graph with the step, and without it.

Layouts: microseconds that the model predicts. Order: bytes that a program holds on chip at one time. Memory: bytes that
its tiles take with a plan, and side by side. Threads: tiles that operators hand on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from neptune.ir.program import Program
from neptune.mirage.cost import Cost
from neptune.mirage.ir import Graph
from neptune.mirage.memory import ALIGNMENT, blocks
from neptune.mirage.optimize import Goal, Lowering, Optimizer, predicted, tidied
from neptune.mirage.order import lives
from neptune.mirage.reference import reference
from neptune.mirage.threads import with_threads
from neptune.mirage.types import graph_types
from neptune.runtime.offsets import Block, Plan, plan
from neptune.tune.machine import Machine

NONE, LAYOUTS = frozenset[str](), frozenset({"layouts"})


def ablated(program: Program, sizes: Mapping[str, int], machine: Machine, seconds: float) -> dict[str, Any] | None:
    """The figures [with, without] of each step, for the best graph of a search of so long that can be lowered."""
    goal = Goal(reference(program), sizes, machine, without=frozenset({"order"}))
    search = Optimizer(goal, time.process_time() + seconds)
    for _ in search:
        pass
    for best in search.best:
        made, plain = (predicted(best, program, replace(goal, without=off)) for off in (NONE, LAYOUTS))
        if isinstance(made, Lowering) and isinstance(plain, Lowering):
            found, ordered = best.graph, tidied(best.graph)
            return {
                "layouts": [made.prediction.us, plain.prediction.us],
                "order": [sum(p.bound for p in _plans(g, best.cost)) for g in (ordered, found)],
                "memory": [
                    sum(p.size for p in _plans(ordered, best.cost)),
                    sum(b.size for of in _tiles(ordered, best.cost) for b in of),
                ],
                "threads": [sum(len(lives(k)) for k in g.kernels) for g in (with_threads(ordered), ordered)],
            }
    return None


def _plans(graph: Graph, cost: Cost) -> list[Plan]:
    return [plan(b, ALIGNMENT) for b in _tiles(graph, cost)]


def _tiles(graph: Graph, cost: Cost) -> list[list[Block]]:
    """The tiles of each kernel with their lives, as large as the estimate has them."""
    types, extents = graph_types(graph), {k.name: k.tiles for k in cost.kernels}
    dtypes = dict.fromkeys(types, "float16")
    return [blocks(k, types, dtypes, extents[k.name]) for k in graph.kernels]
