"""From an expression to a kernel: one list of named passes, each with the reason why it stands where it does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeAlias, TypeVar

from neptune.codegen.modules import header
from neptune.codegen.triton.module import generate
from neptune.driver.counted import Forms, by_time, decided
from neptune.driver.explanation import form_decisions, short_functions, short_products
from neptune.driver.forms import made_of, refused
from neptune.driver.imports import as_program as as_program
from neptune.driver.known import MeasuredForm
from neptune.driver.stages import Attempt, Differs, Fused, Lowered, Prepared, Uncounted
from neptune.errors import ExpressionError, InternalError, Unsupported
from neptune.forms import AUTO, TRITON, Form, Made, Source, Wanted
from neptune.fusion.schedule import Schedule
from neptune.ir.analysis.forms import cheaper
from neptune.ir.check import check_reads
from neptune.ir.evaluate.domains import EvaluationError
from neptune.ir.indices.widths import sizes_of, unfit, wider
from neptune.ir.program import Program
from neptune.ir.text.printer import print_expr
from neptune.ir.verify import verify
from neptune.report.snapshots import Snapshot, schedule_forms
from neptune.runtime.calls.addressing import LOADS
from neptune.schedule.state import Decision
from neptune.schedule.template import Rewriting
from neptune.tile.arrange import arrange, started
from neptune.tile.ir import TileProgram
from neptune.tile.localize import localize
from neptune.tile.passes.addresses import addressed
from neptune.tile.pipeline import lowering
from neptune.tile.verify import same_but_widths, verify_tiles
from neptune.tile.verify_addresses import verify_addresses
from neptune.tune.choose import Scheduled, apply, brought, candidates, check_settled, named
from neptune.tune.defaults import defaults
from neptune.tune.invariance import check_invariant
from neptune.tune.points import reference
from neptune.verify.exact import Counterexample, ExactReport, unchecked
from neptune.verify.pieces import check

LOG = logging.getLogger("neptune.compiler")
Shown: TypeAlias = "Program | TileProgram | ExactReport | str | tuple[Snapshot, ...] | None"
"""What there is new to see of a stage."""
Checked = TypeVar("Checked", bound=Fused)


@dataclass(frozen=True)
class Pass:
    """A step of the compiler. `run` makes the next stage of the one before, or a value that says why there is none;
    `shows` is what there is new to see of it."""

    name: str
    why: str
    run: Callable[[Any], Any]
    shows: Callable[[Any], Shown] = lambda _: None


# --- what is scheduled --------------------------------------------------------------------------------


def _verified(p: Prepared) -> Prepared:
    if not p.settings.verify:
        return p
    check_reads(p.loops)
    try:
        verify(p.loops)
    except InternalError as error:
        # A Program can be written by hand.
        raise ExpressionError(f"compile `{p.loops.name}`", error.wrong) from None
    return p


def _forms(p: Prepared) -> Prepared:
    definitions, taken = cheaper(p.loops)
    return replace(p, definitions=definitions, notes=form_decisions(taken))


def _other_definitions(p: Prepared) -> Program | None:
    return p.definitions if p.notes else None


# --- schedules ----------------------------------------------------------------------------------------


def attempts(p: Prepared, trail: list[Snapshot]) -> Iterator[Attempt]:
    """What templates make of the definitions, best first: of the one that the caller names alone, where there is one.
    The steps of each are in the `trail`."""
    # A template of the caller's may raise anything, StopIteration too, which a generator would turn into another error.
    return _chosen(p, trail) if p.request.template is None else iter((Attempt(p, _as_named(p, trail)),))


def _chosen(p: Prepared, trail: list[Snapshot]) -> Iterator[Attempt]:
    for scheduled in candidates(p.definitions, p.settings.fuel, p.wishes, p.machine, _counted(p)):
        trail += schedule_forms(scheduled.schedule)
        yield Attempt(p, replace(scheduled, decisions=(*scheduled.decisions, *decided(p.loops.name, scheduled))))


def _as_named(p: Prepared, trail: list[Snapshot]) -> Scheduled:
    name, template = named(p.request.template)
    schedule = Schedule(brought(template, p.definitions))
    notes = template.notes if isinstance(template, Rewriting) else ()
    try:
        spent = apply(template, schedule, p.settings.fuel)
    finally:
        # Where the template fails, its steps until then are what one wants to see.
        trail += schedule_forms(schedule)
    return Scheduled(name, schedule, None, (*notes, *spent))


def _counted(p: Prepared) -> Forms | None:
    """The forms that count where templates are compared, if some do."""
    counting = p.counting and p.others
    return Forms(p.others, p.wishes, p.request.levers, p.machine, p.request.known.forms) if counting else None


def _well_scheduled(a: Attempt) -> Attempt:
    steps = [(str(s), s.program) for s in a.scheduled.schedule.trace if s.program is not None]
    for step, program in steps if a.prepared.verifies_every_form else steps[-1:]:
        _well_formed(a.prepared, step, program)
    return a


def _well_formed(p: Prepared, step: str, program: Program | TileProgram) -> None:
    """Raise InternalError where a form is not well-formed; the log says which step made it."""
    if not p.settings.verify:
        return
    try:
        verify_tiles(program) if isinstance(program, TileProgram) else verify(program)
    except InternalError:
        LOG.error("`%s` is not well-formed after %s", p.loops.name, step)
        raise


def _settled(a: Attempt) -> Attempt:
    check_settled(a.scheduled.schedule.program)
    return a


def _place(a: Attempt) -> Fused:
    program = _placed(a.scheduled.schedule.program)
    if a.prepared.settings.verify:
        verify(program, lowered=True)
    return Fused(a.prepared, a.scheduled, program)


def _placed(scheduled: Program) -> Program:
    return localize(arrange(started(scheduled)), strict=False)


def _check_fused(f: Fused) -> Fused | Differs:
    return _unfit_widths(f) or _checked(f, "fused program", f.program)


# --- tiles --------------------------------------------------------------------------------------------


def _lower(f: Fused) -> Lowered:
    def seen(name: str, why: str, tiles: TileProgram) -> None:
        if f.prepared.verifies_every_form:
            _well_formed(f.prepared, f"tile pass {name}", tiles)

    result = f.scheduled.lowered
    if result is None:
        result = lowering(f.scheduled.schedule.program, seen)
    else:
        # By these tiles the automatic choice has judged the template.
        for form in result.forms:
            seen(*form)
    if f.prepared.wishes.deciding is not None:
        check_invariant(result.tiles, f.prepared.wishes.deciding)
    notes = short_products(result.tiles)
    if (error := result.relaxed) is not None:
        why = f"{error.asked}: {error.wrong}"
        notes = (Decision("lowering", f.prepared.loops.name, "some tile axes stay loops", why), *notes)
    wide = wider(f.scheduled.schedule.program)
    both = None if wide is None else (_placed(wide), lowering(wide).tiles)
    return Lowered(f.prepared, f.scheduled, f.program, f.checks, f.shared, lowering=result, wider=both, notes=notes)


def _tile_forms(lowered: Lowered) -> tuple[Snapshot, ...]:
    return tuple(Snapshot(f"tile-{name}", f"tile-{name}", why, form) for name, why, form in lowered.lowering.forms)


def _verify_tiles(w: Lowered) -> Lowered:
    for tiles in (w.tiles, *(w.wider or ())[1:]):
        _well_formed(w.prepared, "the last tile pass", tiles)
    return w


def _check_tiles(w: Lowered) -> Lowered | Differs:
    checked = _checked(w, "tile program", w.tiles)
    if isinstance(checked, Differs) or w.wider is None or same_but_widths(w.tiles, w.wider[1]):
        return checked
    return _checked(checked, "tile program in 64 bits", w.wider[1])


def _address(w: Lowered) -> Lowered:
    """The addresses of each module that `generate` writes, as text: the ways to load, with int32 offsets."""
    shown = []
    for loads, int64 in product(LOADS, (False, True)):
        tiles = w.tiles if w.wider is None or not int64 else w.wider[1]
        for k in tiles.kernels:
            addresses = addressed(tiles, k, boxes=loads == "descriptor", int64=int64)
            if w.prepared.settings.verify:
                verify_addresses(addresses, k)
            shown += [] if int64 else [f"{loads}s\n{addresses}"]
    return replace(w, addresses="\n".join(shown))


def _generate(w: Lowered) -> Lowered:
    above = header(w.prepared.loops, w.scheduled.template)
    return replace(w, header=above, text=generate(w.tiles, defaults(w.tiles), header=above))


# --- another form -------------------------------------------------------------------------------------


def _other_form(w: Lowered) -> Lowered | Uncounted:
    p = w.prepared
    if not p.others:
        return w
    wanted = _wanted(w)
    records = (f for f in p.request.known.forms if f.choice.template == w.scheduled.template)
    record = next((f for f in records if f.sizes == wanted.sizes), None)
    if record is not None and p.request.form == AUTO and not record.faster:
        return _noted(w, Decision("form", p.loops.name, TRITON, f"records: {record}"))
    recorded = None if record is None else _as_recorded(w, record, wanted)
    if isinstance(recorded, Unsupported):
        w = _noted(w, Decision("form", p.loops.name, "not as recorded", str(recorded)))
    return recorded if isinstance(recorded, Lowered) else _first_that_fits(w, wanted)


def _noted(w: Lowered, *notes: Decision) -> Lowered:
    return replace(w, notes=(*w.notes, *notes))


def _first_that_fits(w: Lowered, wanted: Wanted) -> Lowered | Uncounted:
    """With the fastest of several forms that the program has; with the reasons where it has none, which is an error
    where one was asked for."""
    misfits = []
    for form in by_time(w.prepared.others, Source(w.tiles, shapes=w.prepared.wishes.typical), wanted):
        result = _with_form(w, form, wanted)
        if isinstance(result, Lowered):
            return result
        misfits.append((form, result))
    if w.prepared.request.form != AUTO:
        raise refused(w.tiles.name, *misfits[0])
    if w.scheduled.by_form:
        return Uncounted("; ".join(str(m) for _, m in misfits))
    why = (f"it has no {form.name} form: {m}" for form, m in misfits)
    return _noted(w, *(Decision("form", w.prepared.loops.name, TRITON, x) for x in why))


def _with_form(w: Lowered, form: Form, wanted: Wanted) -> Lowered | Unsupported:
    """With a form, and the exact check of what it makes of the tiles; or why there is none."""
    checked: list[Lowered] = []

    def differs(tiles: TileProgram) -> str | None:
        result = _checked(w, f"{form.name} form", tiles)
        if isinstance(result, Differs):
            return result.text()
        checked.append(result)
        return None

    lowered = made_of(form, Source(w.tiles, w.header, w.prepared.wishes.typical, differs), wanted)
    return replace(checked[-1] if checked else w, form=lowered) if isinstance(lowered, Made) else lowered


def _as_recorded(w: Lowered, record: MeasuredForm, wanted: Wanted) -> Lowered | Unsupported | None:
    """With the form that records, which anybody may write, put first; None or Unsupported where there is none."""
    form = next((f for f in w.prepared.others if f.name == record.choice.form), None)
    if form is None:
        return None
    params = {**record.choice.params, **w.prepared.wishes.params}
    result = _with_form(w, form, replace(wanted, levers=record.choice.levers, params=params, ahead=False))
    why = Decision("form", w.prepared.loops.name, form.name, f"records: {record}")
    return result if isinstance(result, Unsupported) else _noted(result, why)


def _wanted(w: Lowered) -> Wanted:
    """What is asked of a form: with "auto", that it is not predicted to be far behind."""
    p = w.prepared
    request, wishes = p.request, p.wishes
    sizes = request.at or reference(p.loops, wishes.typical, wishes.bounds)
    ahead = request.form == AUTO and not request.levers
    return Wanted(request.levers, wishes.params, sizes, p.machine, w.params, ahead, short_functions(p.loops))


def _form_text(w: Lowered) -> str | None:
    return None if w.form is None else w.form.data.text


# --- checks -------------------------------------------------------------------------------------------


SHORT = 1 << 10
"""Sizes for which every program must get along with the widths of its integers."""


def _unfit_widths(f: Fused) -> Differs | None:
    """That arithmetic on indices leaves its dtype for small sizes, but for what the expression itself does: a bound
    that meets a tile in too few bits."""
    if not f.prepared.settings.draws:
        return None
    tiles = {t.name: (1, max(t.candidates, default=SHORT)) for t in f.program.tunables}
    small = {s.name: (-SHORT, SHORT) for s in f.program.scalars} | sizes_of(f.program, SHORT)
    own = next(unfit(f.prepared.definitions, small), None)
    wrong = None if own is not None else next(unfit(f.program, {**small, **tiles}), None)
    if wrong is None:
        return None
    sizes = {s.name: SHORT for s in f.program.scalars}
    why = Counterexample(sizes, 0, "", (), f"`{print_expr(wrong)}` may leave {wrong.dtype}")
    bound = f"sizes up to {SHORT}"
    return Differs("fused program", ExactReport("widths of integers", 0, (), (), "rejected", 0, why, bound))


def _checked(stage: Checked, what: str, program: Program | TileProgram) -> Checked | Differs:
    """A stage with the exact check of what was made, unless that is rejected."""
    report = _check(stage, program)
    if report is None:
        return stage
    if report.verdict == "rejected":
        return Differs(what, report)
    return replace(stage, checks={**stage.checks, what: report})


def _check(stage: Fused, program: Program | TileProgram) -> ExactReport | None:
    if not stage.prepared.settings.draws:
        return None
    decisions = stage.scheduled.schedule.decisions
    report = check(
        stage.prepared.definitions,
        program,
        draws=stage.prepared.settings.draws,
        finite=frozenset(name for d in decisions for name in d.finite),
        ranges=[r for d in decisions for r in d.ranges],
        magnitudes=True,
        shared=stage.shared,
    )
    # No small instance could be drawn on which the expression itself makes sense (indices within bounds).
    return unchecked(str(report)) if isinstance(report, EvaluationError) else report


def _report_of(what: str) -> Callable[[Fused], ExactReport | None]:
    return lambda f: f.checks.get(what)


PREPARATION = (
    # Imported by `compile`, since the key of the cache is of the Program.
    Pass("import", "everything below knows Programs only, whatever the front end", lambda p: p, lambda p: p.loops),
    Pass("verify", "a defect of a front end should not look like one of a template", _verified),
    Pass(
        "forms",
        "what error a result can bear is read off the expression, before it is taken apart",
        _forms,
        _other_definitions,
    ),
)
"""What comes before a template."""
LOWERING = (
    Pass("schedule", "the template tiles and fuses; each repair is proved before it moves anything", _well_scheduled),
    Pass("obligations", "past this point the program must compute what the expression says", _settled),
    Pass(
        "place",
        "inits become explicit and tiles local: the form that every target executes",
        _place,
        lambda f: f.program,
    ),
    Pass(
        "check-fused",
        "before lowering, so that a wrong fusion is told from a wrong translation",
        _check_fused,
        _report_of("fused program"),
    ),
    Pass("lower", "loops become tiles, on which the tile passes work", _lower, _tile_forms),
    Pass("verify-tiles", "the generator and the evaluator trust what it checks", _verify_tiles),
    Pass("check-tiles", "on the last form that is not text", _check_tiles, _report_of("tile program")),
    Pass(
        "addresses",
        "last before text: a printer only writes down how memory is reached",
        _address,
        lambda w: w.addresses,
    ),
    Pass("generate", "the text is a function of the tiles and their default values", _generate, lambda w: w.text),
    Pass("form", "last: another form of the same tiles, where it was asked for", _other_form, _form_text),
)
"""What becomes of each template's schedule, until one passes all checks."""
PIPELINE = (*PREPARATION, *LOWERING)
