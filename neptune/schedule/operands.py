"""Find matrix products and what is around them by their role in the dataflow, never by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from neptune.errors import ScheduleError
from neptune.ir.contraction import NOT_MATRICES, Contraction, NoProduct, matrix_product
from neptune.ir.expr import Var
from neptune.ir.program import writes
from neptune.schedule.alignment import Axes
from neptune.schedule.definition import Definition
from neptune.schedule.roles import reaches
from neptune.schedule.schedule import ScheduleBase

ANOTHER = "another template, or none: then one is chosen"


@dataclass(frozen=True)
class Product:
    """`stage`: c[…, row, col] += a[…, row, depth] * b[…, depth, col], the dimensions in any order.

    `row` is an axis of one operand alone, `col` of the other, `row` the one that comes first in the result; of
    several the last. `others`: products over the same rows, columns and depth (the two of a gated layer).
    `statistics`: reductions of rows from which operands are computed (a norm's). `before`: maps that are not computed
    from a product; `epilogue`: maps that are.
    """

    stage: str
    row: str
    col: str
    depth: str
    others: tuple[str, ...]
    statistics: tuple[str, ...]
    before: tuple[str, ...]
    epilogue: tuple[str, ...]


def as_written(definitions: Mapping[str, Definition], stage: str) -> Contraction | NoProduct:
    """The product that a reduction is."""
    return matrix_product(definitions[stage].action, _axes(definitions[stage]))


def product(
    sch: ScheduleBase,
    template: str,
    *,
    several: bool = True,
    statistics: bool = False,
    form: Callable[[Mapping[str, Definition], str], Contraction | NoProduct] = as_written,
) -> Product:
    """The products of a program, of equal rows, columns and depth, whose operands may only be cast; with `statistics`
    also the reductions of rows before them. `form` says which product a reduction is. ScheduleError where there is
    none, or without `several` more than one."""
    request = f"template `{template}` on program `{sch.program.name}`"
    folds = sch.reductions
    definitions = {s: sch.definition(s) for s in sch.stages}
    forms = {s: form(definitions, s) for s in folds}
    products = [s for s, c in forms.items() if not isinstance(c, NoProduct) and len(sch.definition(s).reduced) == 1]
    rows = [s for s in folds if s not in products]
    first = forms[(products or folds)[0]] if folds else NOT_MATRICES
    if len(folds) == 1 and not products:
        why = first if isinstance(first, NoProduct) else NOT_MATRICES
        hint = why.hint or (None if why.legal else ANOTHER)
        raise ScheduleError(request, f"`{folds[0]}` {why.wrong}", legal=why.legal, hint=hint)
    many = len(products) > 1 and not several
    if not products or isinstance(first, NoProduct) or bool(rows) != statistics or many:
        names = ", ".join(f"`{s}`" for s in folds) or "none"
        number = "one sum" if not several else "one or more sums"
        needed = f"{'reductions of rows, behind them ' if statistics else ''}{number} of products,"
        raise ScheduleError(request, f"it needs {needed} and maps; its reductions are: {names}", hint=ANOTHER)
    stage, order = products[0], _axes(sch.definition(products[0]))
    row, col = sorted((first.rows[-1], first.cols[-1]), key=order.index)
    depth = sch.definition(stage).reduced[0]
    behind = reaches(sch, products)
    _check_alike(sch, request, products, (row, col, depth), rows, behind)
    others = [s for s in sch.stages if s not in folds]
    results = {b.name for b in sch.program.outputs}
    unrelated = next((s for s in others if s not in behind and results & set(writes(sch.definition(s).action))), None)
    if unrelated is not None:
        wrong = f"`{unrelated}` is a result that is not computed from the product `{stage}`"
        raise ScheduleError(request, wrong, hint=ANOTHER)
    return Product(
        stage,
        row,
        col,
        depth,
        tuple(products[1:]),
        tuple(rows),
        tuple(s for s in others if s not in behind),
        tuple(s for s in others if s in behind),
    )


def _axes(d: Definition) -> tuple[str, ...]:
    """The axes of a stage in the order of its result, those that are reduced last."""
    return (*(x.name for x in d.action.index if isinstance(x, Var)), *d.reduced)


def _check_alike(
    sch: ScheduleBase, request: str, products: list[str], tile: tuple[str, ...], statistics: list[str], behind: set[str]
) -> None:
    """Raise ScheduleError for a product over other axes than the first, and for a statistic that runs over its columns
    or does not lead to it; none of them may be `behind` a product."""
    stage, *others = products
    axes = Axes({s: sch.definition(s) for s in sch.stages})
    axes.join_through_inputs()
    for other in others:
        if other in behind or any(axes.of(other, (stage, a)) is None for a in tile):
            wrong = f"`{other}` does not run over the rows, columns and depth of `{stage}`, or is computed from it"
            raise ScheduleError(request, wrong, hint=ANOTHER)
    for fold in statistics:
        row, col = (axes.of(fold, (stage, a)) for a in tile[:2])
        leads = reaches(sch, [fold]) & {stage, *behind}
        if fold in behind or row is None or col is not None or not leads:
            wrong = f"`{fold}` is no reduction of the rows from which `{stage}`, or what follows it, is computed"
            raise ScheduleError(request, wrong, hint=ANOTHER)
