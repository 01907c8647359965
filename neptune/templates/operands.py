"""Find a matrix product and what is around it by their role in the dataflow, never by name."""

from __future__ import annotations

from dataclasses import dataclass

from neptune.errors import ScheduleError
from neptune.ir.expr import Cast, Expr, Op, Var, variables
from neptune.ir.printer import print_expr
from neptune.ir.program import Update, writes
from neptune.schedule.schedule import ScheduleBase
from neptune.templates.roles import reaches


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
    folds = [s for s in sch.stages if isinstance(sch.definition(s).action, Update)]
    if len(folds) != 1:
        found = ", ".join(f"`{s}`" for s in folds) or "none"
        raise ScheduleError(
            asked,
            f"it needs one reduction, a sum of products, and maps; there is: {found}",
            hint="another template, or none: then one is chosen",
        )
    stage = folds[0]
    left, right = _operands(sch, stage, asked)
    d = sch.definition(stage)
    order = [x.name for i in d.action.index for x in (i,) if isinstance(x, Var)]
    alone = [[a for a in order if a in mine - other] for mine, other in ((left, right), (right, left))]
    if len(d.reduced) != 1 or d.reduced[0] not in left & right or not all(alone):
        raise ScheduleError(
            asked,
            f"`{stage}` is no product of matrices: each operand needs an axis of its own, "
            "and both need the one that is summed over",
            legal=["c[…, i, j] += a[…, i, k] * b[…, k, j], the dimensions in any order"],
        )
    row, col = sorted((names[-1] for names in alone), key=order.index)
    after = reaches(sch, [stage])
    others = [s for s in sch.stages if s != stage]
    results = {b.name for b in sch.program.outputs}
    apart = next((s for s in others if s not in after and results & set(writes(sch.definition(s).action))), None)
    if apart is not None:
        raise ScheduleError(
            asked,
            f"`{apart}` is a result that is not computed from the product `{stage}`",
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


def _operands(sch: ScheduleBase, stage: str, asked: str) -> tuple[frozenset[str], frozenset[str]]:
    """The variables of the two factors of what is summed."""
    action = sch.definition(stage).action
    assert isinstance(action, Update)
    value = _uncast(action.values[0])
    if action.reducer != "sum" or len(action.values) != 1 or not isinstance(value, Op) or value.name != "mul":
        raise ScheduleError(
            asked,
            f"`{stage}` is no sum of products: {action.reducer} of {print_expr(action.values[0])}",
            hint="another template, or none: then one is chosen",
        )
    if action.values[0].dtype != "float32" or value.dtype != "float32":
        raise ScheduleError(
            asked,
            f"`{stage}` multiplies in {value.dtype} and sums in {action.values[0].dtype}: "
            "the matrix unit multiplies exactly and sums in float32",
            hint='cast the operands: a[i, k].astype("float32") * b[k, j].astype("float32")',
        )
    return variables(value.args[0]), variables(value.args[1])


def _uncast(e: Expr) -> Expr:
    return _uncast(e.arg) if isinstance(e, Cast) else e
