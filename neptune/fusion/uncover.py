"""Products of matrices behind factors that do not move, for templates that look for products.

y[i, j] += x[i, k] * r[i] * w[k, j]     uncover(sch): sch.hoist_factor("y")     uncovered: x[i, k] * w[k, j]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from neptune.fusion.hoist_factor import hoisted
from neptune.fusion.schedule import Schedule
from neptune.ir.contraction import SUMS, Contraction, NoProduct, operand_dtype
from neptune.schedule.checked import attempt
from neptune.schedule.definition import Definition, ReductionDef
from neptune.schedule.operands import as_written


def uncover(sch: Schedule, *, assuming: bool = True) -> None:
    """Hoist the factors that keep a sum from being a product of matrices, or one of narrower operands.

    To be called before anything is scheduled. What may not be hoisted stays as it is; without `assuming`, also what may
    be only for some inputs.
    """
    for stage in sch.reductions:
        definitions = {s: sch.definition(s) for s in sch.stages}
        changes = uncovered(definitions, stage) != as_written(definitions, stage)
        if changes and (assuming or _proved(sch, stage)):
            attempt(sch.hoist_factor, stage)


def _proved(sch: Schedule, stage: str) -> bool:
    """True where hoisting takes nothing for granted."""
    trial = Schedule(sch.program)
    return attempt(trial.hoist_factor, stage) is None and not trial.decisions[-1].assumed


def uncovered(definitions: Mapping[str, Definition], stage: str) -> Contraction | NoProduct:
    """The product that a sum is once its factors are taken out, where it is none before or one of wider operands.

    Nothing is proved; where no factor is in the way, it is the product as written.
    """
    d, before = definitions[stage], as_written(definitions, stage)
    if not isinstance(d, ReductionDef) or d.action.reducer != "sum" or d.action.values[0].dtype not in SUMS:
        return before
    stores = hoisted(definitions, stage)
    if stores is None:
        return before
    bare = replace(d, action=replace(d.action, values=(stores.psi,)))
    after = as_written({**definitions, stage: bare}, stage)
    if isinstance(after, NoProduct) or isinstance(before, NoProduct):
        return before if isinstance(after, NoProduct) else after
    narrow, wide = (operand_dtype(p.a.dtype, p.b.dtype) for p in (after, before))
    return after if narrow != wide == "float32" else before
