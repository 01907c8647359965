"""Find a matrix product and what is around it by their role in the dataflow, never by name."""

from __future__ import annotations

from dataclasses import dataclass

from neptune.errors import ScheduleError
from neptune.ir.contraction import NOT_MATRICES, NoProduct, matrix_product
from neptune.ir.expr import Var
from neptune.ir.program import writes
from neptune.schedule.roles import reaches
from neptune.schedule.schedule import ScheduleBase


@dataclass(frozen=True)
class Product:
    """`stage`: c[…, row, col] += a[…, row, depth] * b[…, depth, col], the dimensions in any order.

    `row` is an axis of one operand alone, `col` of the other, `row` the one that comes first in the result; of
    several the last. `before`: maps that neither is behind the product; `epilogue`: maps behind it.
    """

    stage: str
    row: str
    col: str
    depth: str
    before: tuple[str, ...]
    epilogue: tuple[str, ...]


def product(sch: ScheduleBase, template: str) -> Product:
    """The product of a program, whose operands may only be cast; ScheduleError where there is none."""
    asked = f"template `{template}` on program `{sch.program.name}`"
    folds = sch.reductions
    if len(folds) != 1:
        names = ", ".join(f"`{s}`" for s in folds) or "none"
        raise ScheduleError(
            asked,
            f"it needs one reduction, a sum of products, and maps; there is: {names}",
            hint="another template, or none: then one is chosen",
        )
    stage = folds[0]
    d = sch.definition(stage)
    order = [x.name for i in d.action.index for x in (i,) if isinstance(x, Var)]
    contraction = matrix_product(d.action, (*order, *d.reduced))
    if isinstance(contraction, NoProduct) or len(d.reduced) != 1:
        why = contraction if isinstance(contraction, NoProduct) else NOT_MATRICES
        hint = why.hint or (None if why.legal else "another template, or none: then one is chosen")
        raise ScheduleError(asked, f"`{stage}` {why.wrong}", legal=why.legal, hint=hint)
    row, col = sorted((contraction.rows[-1], contraction.cols[-1]), key=order.index)
    after = reaches(sch, [stage])
    others = [s for s in sch.stages if s != stage]
    results = {b.name for b in sch.program.outputs}
    unrelated = next((s for s in others if s not in after and results & set(writes(sch.definition(s).action))), None)
    if unrelated is not None:
        raise ScheduleError(
            asked,
            f"`{unrelated}` is a result that is not computed from the product `{stage}`",
            hint="another template, or none: then one is chosen",
        )
    return Product(
        stage,
        row,
        col,
        d.reduced[0],
        tuple(s for s in others if s not in after),
        tuple(s for s in others if s in after),
    )
