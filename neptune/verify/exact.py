"""Exact checks: small instances of a transformed program against the original, in an exact model.

The field pair comes first: it decides programs whose result does not depend on what the maximum is.
Where it accuses, or has no value for a result, the ordered rationals decide, with the true maximum.  Functions that
a model makes up, and constants, are no ground for a rejection: float64 has to confirm it.  A
program without maxima, minima and comparisons must pass in both.  One with them must also stay finite in the range
of float32 wherever the original does (`ranged`), for no exact model overflows.  Where no exact model has a value,
float64 decides.
See docs/design/checks.md, "Two exact models check every compilation".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from neptune.errors import Unsupported
from neptune.ir.analysis.ranges import RangePredicate
from neptune.ir.dtypes import is_float
from neptune.ir.evaluate.domains import EvaluationError, Model, Unevaluated, Value, every
from neptune.ir.evaluate.parallel import statement_exprs
from neptune.ir.expr import OPS, Const, Expr, Op, walk
from neptune.ir.program import Program, Update, updates
from neptune.ir.program import walk as walk_stmt
from neptune.ir.reducers import REDUCERS
from neptune.tile.ir import Reduce, Scalar, stmt_exprs, walk_stmts
from neptune.verify.degrees import Degrees, agreement
from neptune.verify.draws import Check, Effort, Instance, MakeModel, Shared, draws, tried_again
from neptune.verify.evaluate import evaluated
from neptune.verify.field import OF_TWO, OPAQUE, RULED, FieldPair
from neptune.verify.instances import AnyProgram, MakeInputs, Sizes, draw_inputs, volume
from neptune.verify.magnitudes import ELEMENTS, compare_magnitudes
from neptune.verify.ranged import ByValue, Ranged, Side, jumps
from neptune.verify.rationals import OrderedRationals
from neptune.verify.residues import P
from neptune.verify.shrink import edges_of, shrink

MAGNITUDES = "dtypes of the program, at all magnitudes"
CONFIRM = 1 << 22
"""The work that one evaluation may take where an accusation is to be confirmed."""
_ORDERED = ("max", "min", "abs")
GUESSED = frozenset({*OPAQUE, *OF_TWO, *RULED} - {"exp", "exp2"})
"""Functions that some exact model takes for arbitrary ones."""
LARGE: tuple[tuple[str, Side], ...] = (
    ("plain", "any"),
    ("plain", "below"),
    ("-inf", "any"),
    ("plain", "either"),
)
"""The instances with large numbers: at all sizes of a check, in turn with inputs of these styles and signs, twice."""


@dataclass(frozen=True)
class Counterexample:
    """An instance on which the programs differ. `seed` redraws its inputs (and the model)."""

    sizes: Sizes
    seed: int
    output: str
    index: tuple[int, ...]
    message: str

    def __str__(self) -> str:
        sizes = ", ".join(f"{k}={v}" for k, v in self.sizes.items())
        return f"{self.message}, at {sizes} (seed {self.seed})"


@dataclass(frozen=True)
class ExactReport:
    """The outcome of a check.

    `verdict` is "accepted", "rejected", or "undecided" where no model had a value for the results.
    `compared` counts the elements that were compared; elements that the original leaves undefined were not.
    """

    model: str
    draws: int
    seeds: tuple[int, ...]
    sizes: tuple[Sizes, ...]
    verdict: str
    compared: int
    counterexample: Counterexample | None
    bound: str
    notes: tuple[str, ...] = ()

    @property
    def accepted(self) -> bool:
        return self.verdict == "accepted"

    def __str__(self) -> str:
        text = f"{self.verdict} by the {self.model}: {self.draws} draws, {self.compared} elements, {self.bound}"
        return text if self.counterexample is None else f"{text}\n  {self.counterexample}"


def unchecked(why: str) -> ExactReport:
    """The report of a check for which no instance was found."""
    return ExactReport("exact models", 0, (), (), "undecided", 0, None, "no draw", (why,))


def _ordered_expr(e: Expr) -> bool:
    """Return True if the value depends on the order of floats."""
    return any(
        isinstance(x, Op) and (x.name in _ORDERED or OPS[x.name].kind == "compare") and is_float(x.args[0].dtype)
        for x in walk(e)
    )


def _orders(action: Update) -> bool:
    """Return True if a reducer looks at the order of its values."""
    return action.reducer in _ORDERED or bool(REDUCERS[action.reducer].leads)


def depends_on_order(program: AnyProgram) -> bool:
    """Return True if a program takes maxima or minima of floats, or compares them."""
    if isinstance(program, Program):
        for s in walk_stmt(program.body):
            if any(_ordered_expr(e) for e in statement_exprs(s)):
                return True
        return any(_orders(u) for u in updates(program.body))
    tiles = [x for k in program.kernels for s in walk_stmts(k.body) for e in stmt_exprs(s) for x in walk(e)]
    for t in tiles:
        if isinstance(t, Reduce) and t.reducer in _ORDERED:
            return True
        decides = isinstance(t, Op) and (t.name in _ORDERED or OPS[t.name].kind == "compare")
        if isinstance(t, Op) and decides and is_float(t.args[0].dtype):
            return True
        if isinstance(t, Scalar) and _ordered_expr(t.expr):
            return True
    return False


def _first_difference(
    model: Model, check: Check, expected: Mapping[str, Value], got: Mapping[str, Value]
) -> tuple[str, tuple[int, ...], str] | None:
    """(output, index, message) of the first wrong element; outputs correspond by position."""
    for b, mine in zip(check.original.outputs, check.transformed.outputs, strict=True):
        a, c = expected[b.name], got[mine.name]
        if not is_float(b.dtype):
            if isinstance(model, Ranged) and not model.close:
                continue
            wrong = np.asarray(a != c) if np.shape(a) == np.shape(c) else np.ones((), bool)
        elif model.parts(a)[0].shape != model.parts(c)[0].shape:
            return b.name, (), f"output {b.name} has another shape"
        else:
            wrong = model.differs(a, c)
        if wrong.any():
            index = tuple(int(i) for i in np.argwhere(wrong)[0])
            return b.name, index, f"output {b.name}[{', '.join(map(str, index))}] differs"
    return None


def _try(check: Check, make_model: MakeModel) -> ExactReport | EvaluationError:
    """All draws in one model: undecided where it has no value for a result, EvaluationError where the original makes no
    sense on any instance."""
    seeds: list[int] = []
    tried: list[Sizes] = []
    compared = 0
    counterexample: Counterexample | None = None
    for outcome in draws(check, make_model):
        if isinstance(outcome, EvaluationError):
            return outcome
        if isinstance(outcome, Unsupported):
            return ExactReport(make_model(0).name, 0, (), (), "undecided", 0, None, "no draw", (str(outcome),))
        seeds.append(outcome[0][0].seed)
        tried.append(outcome[0][0].sizes)
        compared += sum(instance.compared for instance, _ in outcome)
        counterexample = next((c for instance, got in outcome if (c := _difference(check, instance, got))), None)
        if counterexample is not None:
            break
    name = make_model(0).name
    verdict = "rejected" if counterexample else "accepted" if compared else "undecided"
    bound = f"{len(seeds)} draws, no bound"
    return ExactReport(name, len(seeds), tuple(seeds), tuple(tried), verdict, compared, counterexample, bound)


def _difference(check: Check, instance: Instance, got: Mapping[str, Value] | EvaluationError) -> Counterexample | None:
    """Return the first difference of the programs on an instance, None without one."""
    if isinstance(got, EvaluationError):
        return Counterexample(instance.sizes, instance.seed, "", (), f"the transformed program fails: {got}")
    different = _first_difference(instance.model, check, instance.expected, got)
    return None if different is None else Counterexample(instance.sizes, instance.seed, *different)


def _bound(check: Check, report: ExactReport) -> str:
    """A false-accept bound for rational functions; else the report's own words."""
    worst = 0
    for seed, sizes in zip(report.seeds, report.sizes, strict=True):
        rng = np.random.default_rng(seed)
        inputs, full = draw_inputs(check.original, sizes, FieldPair(seed), rng, 0, check.make)
        shapes = {b.name: inputs[b.name] for b in check.original.inputs}
        arrays = {n: v.p if hasattr(v, "p") else v for n, v in shapes.items()}
        numbers = {n: v.p if hasattr(v, "p") else v for n, v in full.items()}
        both = every(evaluated(p, arrays, numbers, Degrees()) for p in check.runnable)
        if isinstance(both, Unevaluated):
            return report.bound
        old, new = both
        pairs = zip(check.original.outputs, check.transformed.outputs, strict=True)
        worst = max([worst, *(agreement(old[a.name], new[b.name]) for a, b in pairs if is_float(a.dtype))])
    if worst >= P:
        return report.bound
    return (
        f"{report.draws} draws: at a size tried, results that differ as rational functions over Z_{P} "
        f"pass a draw with probability at most {worst}/{P}"
    )


def _calls(program: AnyProgram) -> frozenset[str]:
    """The operators of a program, on floats; "pow" where its exponent is no constant."""
    if isinstance(program, Program):
        plain = [e for s in walk_stmt(program.body) for e in statement_exprs(s)]
        tiles = []
    else:
        tiles = [x for k in program.kernels for s in walk_stmts(k.body) for e in stmt_exprs(s) for x in walk(e)]
        plain = [t.expr for t in tiles if isinstance(t, Scalar)]
    operators = [x for e in plain for x in walk(e) if isinstance(x, Op) and is_float(x.dtype)]
    names = {x.name for x in operators if x.name != "pow" or not isinstance(x.args[1], Const)}
    return frozenset(names | {t.name for t in tiles if isinstance(t, Op) and is_float(t.dtype)})


def _guessed(check: Check) -> frozenset[str]:
    """The functions that an exact model may have no true values of, in either program: a repair brings in its own."""
    return GUESSED & (_calls(check.original) | _calls(check.transformed))


def _exact_rationals(seed: int) -> Model:
    return OrderedRationals(seed, exact_constants=True)


def _floats(seed: int) -> Model:
    return Ranged((1.0,))


def _in_range(check: Check, report: ExactReport) -> ExactReport:
    """The report, unless large numbers leave the range of float32 where the original's stay in it."""
    close = not (jumps(check.original) or jumps(check.transformed))
    for k in range(max(2 * len(LARGE), len(report.sizes))):
        again, which = divmod(k, len(report.sizes))
        sizes, (style, side) = report.sizes[which], LARGE[(k + again) % len(LARGE)]
        model = Ranged(close=close, side=side)
        for instance, got in tried_again(check, model, sizes, check.seed * 1009 + k, style):
            difference = _difference(check, instance, got)
            if difference is not None:
                return replace(
                    report, model=Ranged.name, verdict="rejected", counterexample=difference, bound="no bound"
                )
    return report


def _decide(check: Check) -> ExactReport | EvaluationError:
    report = _exactly(check)
    if isinstance(report, ExactReport) and report.verdict == "rejected":
        guessed = report.model == OrderedRationals.name or _guessed(check)
        report = _by_value(check, report) if guessed else report
    if isinstance(report, EvaluationError):
        return report
    if report.accepted and (depends_on_order(check.original) or depends_on_order(check.transformed)):
        report = _in_range(check, report)
    if report.verdict == "undecided" and not (jumps(check.original) or jumps(check.transformed)):
        # Both exact models are without a value: an exponential of an exponential, say.
        floats = _try(check, _floats)
        if isinstance(floats, EvaluationError):
            return floats
        report = replace(floats, notes=(*report.notes, *floats.notes))
    return _at_all_magnitudes(check, report) if report.accepted and check.magnitudes else report


def _by_value(check: Check, report: ExactReport) -> ExactReport | EvaluationError:
    """A rejection, where float64 confirms it: the model has made up the values of functions or of constants."""
    floats = _try(check, ByValue)
    if isinstance(floats, EvaluationError):
        return floats
    if not floats.accepted:
        return report
    return replace(floats, notes=(*report.notes, f"{report.model}: {report.counterexample}, with values made up"))


def _at_all_magnitudes(check: Check, report: ExactReport) -> ExactReport:
    """The report, unless inputs of some magnitude leave the range of a dtype in which the original's values stay."""
    original, transformed = check.original, check.transformed
    if not isinstance(original, Program) or not isinstance(transformed, Program):
        return report
    sizes = max(report.sizes, key=lambda x: volume(original, x))
    elements = ELEMENTS if check.effort.budget < CONFIRM else CONFIRM
    scaled = compare_magnitudes(
        original,
        transformed,
        sizes,
        check.seed,
        make=check.make,
        ranges=check.ranges,
        finite=check.finite,
        elements=elements,
    )
    if isinstance(scaled, Unevaluated):
        return replace(report, notes=(*report.notes, f"{MAGNITUDES}: {scaled}"))
    if scaled.difference is None:
        note = f"{MAGNITUDES}: {scaled.compared} elements of {scaled.instances} instances agree"
        return replace(report, notes=(*report.notes, note))
    d = scaled.difference
    counterexample = Counterexample(sizes, check.seed, d.output, d.index, d.message)
    return replace(report, model=MAGNITUDES, verdict="rejected", counterexample=counterexample, bound="no bound")


def _exactly(check: Check) -> ExactReport | EvaluationError:
    field = _try(check, FieldPair)
    orders = depends_on_order(check.original) or depends_on_order(check.transformed)
    if isinstance(field, EvaluationError) or (orders and field.accepted):
        return field
    ordered = _try(check, OrderedRationals if orders else _exact_rationals)
    if isinstance(ordered, EvaluationError):
        return ordered
    if orders:
        return replace(ordered, notes=(f"field pair: {field.verdict}", *field.notes, *ordered.notes))
    if field.verdict == "rejected" and ordered.verdict != "rejected" and _guessed(check):
        # They are arbitrary functions in the field; log and pow are what they are in the rationals.
        return replace(ordered, notes=("field pair: rejected", *field.notes, *ordered.notes))
    note = f"ordered rationals: {ordered.verdict}"
    if field.accepted and ordered.verdict != "rejected":
        return replace(field, bound=_bound(check, field), notes=(*field.notes, note))
    if field.verdict == "undecided":
        return replace(ordered, notes=("field pair: undecided", *field.notes, *ordered.notes))
    return replace(ordered if field.accepted else field, notes=(*field.notes, note))


def check_exact(original: Program, transformed: AnyProgram, **options: Any) -> ExactReport:
    """`exact_report` with its options; EvaluationError is raised where the original itself cannot be run."""
    report = exact_report(original, transformed, **options)
    if isinstance(report, EvaluationError):
        raise report
    return report


def exact_report(
    original: Program,
    transformed: AnyProgram,
    *,
    draws: int = 4,
    seed: int = 0,
    inputs: MakeInputs | None = None,
    tunables: Mapping[str, Sequence[int]] | None = None,
    finite: frozenset[str] = frozenset(),
    ranges: Sequence[RangePredicate] = (),
    magnitudes: bool = False,
    shared: list[Shared] | None = None,
) -> ExactReport | EvaluationError:
    """Compare all outputs of two programs, by position, on `draws` small random instances, exactly.

    `inputs(rng, sizes)` may give some inputs (integers that must satisfy conditions); `tunables` maps
    names to the values to draw from instead of 1, 2, 4; inputs in `finite` are never -inf. With `magnitudes` two
    Programs are also compared as rounded to their dtypes, at all magnitudes that `ranges` allow. An EvaluationError is
    the answer where the original itself cannot be run. Large constants are made small where that is safe; a rejection
    is confirmed on the programs as they are. `shared` keeps what checks against the same original have in common.
    """
    check = Check(original, transformed, Effort(draws), seed, inputs, tunables, finite=finite, magnitudes=magnitudes)
    check = replace(check, ranges=tuple(ranges))
    try:
        return _confirmed(check, shared)
    except EvaluationError as error:
        # A shape or a range has no value at sizes that are drawn: it divides by one that is 0.
        return error.with_traceback(None)


def _confirmed(check: Check, shared: list[Shared] | None) -> ExactReport | EvaluationError:
    """The report of programs of small constants, where that accepts them; of the programs as they are elsewhere."""
    original, transformed = check.original, check.transformed
    forms = [shrink(original, transformed), shrink(original, transformed, edges=False), (original, transformed)]
    forms = [f for k, f in enumerate(forms) if f not in forms[:k]]
    accused: ExactReport | None = None
    for more, form in enumerate(forms, 1 - len(forms)):
        common = None if accused or shared is None else _common(shared, form[0])
        report = _decide(replace(check, original=form[0], transformed=form[1], shared=common))
        if isinstance(report, EvaluationError):
            continue
        if report.accepted:
            return replace(report, notes=(*report.notes, "large constants were made small")) if more else report
        if report.verdict == "rejected":
            # An accusation is confirmed as thoroughly as it was made, and stands unless it is refuted.
            accused = report
            check = replace(check, effort=replace(check.effort, budget=CONFIRM), near=edges_of(original, transformed))
    return accused or report


def _common(shared: list[Shared], original: AnyProgram) -> Shared:
    """Return the shared sizes and outputs of an original, added if there are none."""
    common = next((s for s in shared if s.original == original), None)
    if common is None:
        common = Shared(original)
        shared.append(common)
    return common
