"""Run a Program or a TileProgram over a domain: the reference meaning of both IRs (see `neptune.ir.evaluate`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neptune.ir.evaluate.domains import Domain, Results, Unevaluated, results_or_why
from neptune.ir.evaluate.expressions import Evaluator
from neptune.ir.evaluate.memory import Memory, Work
from neptune.ir.evaluate.program import Runnable
from neptune.ir.evaluate.program import evaluate as evaluate_runnable
from neptune.ir.program import Program
from neptune.tile.ir import TileProgram
from neptune.verify.tiles import Tiles, Traits


class RunnableTiles(Runnable):
    """A TileProgram that is to be evaluated often."""

    def __init__(self, program: TileProgram) -> None:
        self.program: TileProgram = program
        self._traits = Traits()

    def run(self, memory: Memory, evaluator: Evaluator, env: dict[str, Any]) -> None:
        Tiles(memory, evaluator, self._traits).run(self.program, env)


def runnable(program: Program | TileProgram) -> Runnable:
    """The program, ready to be evaluated often."""
    return RunnableTiles(program) if isinstance(program, TileProgram) else Runnable(program)


def evaluate(
    program: Program | TileProgram | Runnable,
    inputs: Mapping[str, Any],
    sizes: Mapping[str, Any],
    domain: Domain | None = None,
    budget: Work | None = None,
) -> Results:
    """The outputs by name: `neptune.ir.evaluate.program.evaluate`, for tiles as well."""
    ready = program if isinstance(program, Runnable) else runnable(program)
    return evaluate_runnable(ready, inputs, sizes, domain, budget)


def evaluated(
    program: Program | TileProgram | Runnable,
    inputs: Mapping[str, Any],
    sizes: Mapping[str, Any],
    domain: Domain | None = None,
    budget: Work | None = None,
) -> Results | Unevaluated:
    """The outputs as `evaluate` gives them, or why there are none: a statement deep in the program finds that out."""
    return results_or_why(evaluate, program, inputs, sizes, domain, budget)
