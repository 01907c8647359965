"""From an expression to a kernel: one list of named passes, each with the reason why it stands where it does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from neptune import config
from neptune.codegen.triton import generate
from neptune.driver.counted import Forms, Uncounted, by_time, decided
from neptune.driver.forms import made_of, refused
from neptune.driver.header import header
from neptune.driver.imports import as_program as as_program
from neptune.driver.known import Formed
from neptune.driver.outcome import params_of
from neptune.driver.precision import form_decisions, short_functions, short_products
from neptune.driver.snapshots import Snapshot, schedule_forms
from neptune.errors import ExpressionError, InternalError
from neptune.forms import AUTO, TRITON, Form, Made, Source, Wanted
from neptune.fusion.schedule import Schedule
from neptune.ir.bounds import check_reads
from neptune.ir.evaluate.domains import EvaluationError
from neptune.ir.forms import cheaper
from neptune.ir.printer import print_expr
from neptune.ir.program import Program
from neptune.ir.verify import verify
from neptune.ir.widths import sizes_of, unfit, wider
from neptune.runtime.addressing import LOADS
from neptune.schedule.state import Decision
from neptune.schedule.template import Rewriting
from neptune.tile.arrange import arrange, started
from neptune.tile.ir import TileProgram
from neptune.tile.localize import localize
from neptune.tile.passes.addresses import addressed
from neptune.tile.pipeline import Lowering, lowering
from neptune.tile.verify import verify_tiles
from neptune.tile.verify_addresses import verify_addresses
from neptune.tune.choose import AnyTemplate, Scheduled, Wishes, apply, brought, candidates, check_settled, named
from neptune.tune.defaults import defaults
from neptune.tune.family import Family
from neptune.tune.invariance import check_invariant
from neptune.tune.machine import DEFAULT, Machine
from neptune.tune.points import reference
from neptune.verify.draws import Shared
from neptune.verify.exact import Counterexample, ExactReport, unchecked
from neptune.verify.pieces import check

LOG = logging.getLogger("neptune.compiler")
EVERY_FORM = 2
"""The level of NEPTUNE_VERIFY from which (or with NEPTUNE_STRICT) the result of every primitive and of every tile pass
is verified, not the last one alone: 2 to 5 % of a compilation."""


@dataclass
class Work:
    """A compilation in progress: the request, and what the passes have made of it so far.

    `loops` is the expression as imported, `definitions` what is scheduled: the same but for forms of functions. With
    `counting` templates are compared by the fastest of their forms; `by_form`: this one was chosen for one of
    the `others`, those that `form` stands for.
    """

    loops: Program
    template: AnyTemplate
    settings: config.Config
    wishes: Wishes = field(default_factory=Wishes)
    machine: Machine = DEFAULT
    definitions: Program = field(init=False)
    schedule: Schedule = field(init=False)
    fused: Program = field(init=False)
    tiles: TileProgram = field(init=False)
    header: str = field(init=False)
    used: str = ""
    candidates: Iterator[Scheduled] | None = None
    lowered: Lowering | None = None
    family: Family | None = None
    own: int = 0
    rejections: tuple[Decision, ...] = ()
    forms: tuple[Decision, ...] = ()
    choice: tuple[Decision, ...] = ()
    checks: dict[str, ExactReport] = field(default_factory=dict)
    shared: list[Shared] = field(default_factory=list)
    trail: list[Snapshot] = field(default_factory=list)
    form: str | None = None
    levers: Mapping[str, Any] = field(default_factory=dict)
    at: Mapping[str, int] | None = None
    formed: tuple[Formed, ...] = ()
    counting: bool = True
    by_form: bool = False
    others: tuple[Form, ...] = ()
    made: Made | None = None
    wider: tuple[Program, TileProgram] | None = None

    def saw(self, name: str, why: str, made: Program | TileProgram | ExactReport | str) -> None:
        """Remember a form for dumps and reports."""
        self.trail.append(Snapshot(name, name, why, made))


class Rejection(Exception):
    """A template's program differs from the expression: `what` names the differing form, `report` is the check's."""

    def __init__(self, what: str, report: ExactReport) -> None:
        self.what, self.report = what, report
        super().__init__(what, report)

    def text(self, by: str) -> str:
        """Describe the difference. `by` names the program and the template."""
        c = self.report.counterexample
        return f"the {self.what}{by} differs from the expression\n  {c}\n  in the {self.report.model}"


@dataclass(frozen=True)
class Pass:
    """A step of the compiler. `run` changes the Work and returns what to show of it (None: nothing new to see)."""

    name: str
    why: str
    run: Callable[[Work], Program | TileProgram | ExactReport | str | None]


def _import(w: Work) -> Program:
    # Imported by `compile`, since the key of the cache is of the Program.
    return w.loops


def _verify(w: Work) -> None:
    if not w.settings.verify:
        return
    check_reads(w.loops)
    try:
        verify(w.loops)
    except InternalError as error:
        # A Program can be written by hand.
        raise ExpressionError(f"compile `{w.loops.name}`", error.wrong) from None


def _forms(w: Work) -> Program | None:
    w.definitions, taken = cheaper(w.loops)
    w.forms = form_decisions(taken)
    return w.definitions if taken else None


def choose_template(w: Work) -> None:
    if w.template is None:
        w.used = ""
        if w.candidates is None:
            w.candidates = candidates(w.definitions, w.settings.fuel, w.wishes, w.machine, _counted(w))
        chosen = next(w.candidates, None)
        if chosen is None:
            reasons = "\n".join(f"  {d.subject}: {d.reason}" for d in w.rejections)
            raise InternalError(f"what each template makes of `{w.loops.name}` was rejected by a check\n{reasons}")
        w.used, w.schedule, w.by_form = chosen.template, chosen.schedule, chosen.by_form
        w.choice = (*chosen.decisions, *decided(w.loops.name, chosen))
        w.lowered, w.family, w.own = chosen.lowered, chosen.family, chosen.own
        w.trail += schedule_forms(w.schedule)
    else:
        w.used, template = named(w.template)
        w.schedule = Schedule(brought(template, w.definitions))
        w.choice += template.notes if isinstance(template, Rewriting) else ()
        try:
            w.choice += apply(template, w.schedule, w.settings.fuel)
        finally:
            # Where the template fails, its steps until then are what one wants to see.
            w.trail += schedule_forms(w.schedule)
    made = [(str(s), s.program) for s in w.schedule.trace if s.program is not None]
    for step, program in made if _every_form(w) else made[-1:]:
        _well_formed(w, step, program)


def _counted(w: Work) -> Forms | None:
    """The forms that count where templates are compared, if some do."""
    if not w.counting or not w.others:
        return None
    return Forms(w.others, w.wishes, w.levers, w.machine, w.formed)


def _every_form(w: Work) -> bool:
    return w.settings.strict or w.settings.verify >= EVERY_FORM


def _well_formed(w: Work, step: str, made: Program | TileProgram) -> None:
    """Raise InternalError where a form is not well-formed; the log says which step made it."""
    if not w.settings.verify:
        return
    try:
        verify_tiles(made) if isinstance(made, TileProgram) else verify(made)
    except InternalError:
        LOG.error("`%s` is not well-formed after %s", w.loops.name, step)
        raise


def _settled(w: Work) -> None:
    check_settled(w.schedule.program)


def _place(w: Work) -> Program:
    w.fused = _placed(w.schedule.program)
    if w.settings.verify:
        verify(w.fused, lowered=True)
    return w.fused


def _placed(scheduled: Program) -> Program:
    return localize(arrange(started(scheduled)), strict=False)


def _check_fused(w: Work) -> ExactReport | None:
    _check_widths(w)
    return _check(w, "fused program", w.fused)


def _lower(w: Work) -> None:
    def seen(name: str, why: str, made: TileProgram) -> None:
        if _every_form(w):
            _well_formed(w, f"tile pass {name}", made)

    if w.lowered is None:
        w.lowered = lowering(w.schedule.program, seen)
    else:
        # By these tiles the automatic choice has judged the template.
        for form in w.lowered.forms:
            seen(*form)
    w.tiles = w.lowered.tiles
    if w.wishes.deciding is not None:
        check_invariant(w.tiles, w.wishes.deciding)
    if (error := w.lowered.relaxed) is not None:
        loops = Decision("lowering", w.loops.name, "some tile axes stay loops", f"{error.asked}: {error.wrong}")
        w.choice = (*w.choice, loops)
    w.choice += short_products(w.tiles)
    for name, why, made in w.lowered.forms:
        w.saw(f"tile-{name}", why, made)
    wide = wider(w.schedule.program)
    w.wider = None if wide is None else (_placed(wide), lowering(wide).tiles)


def _verify_tiles(w: Work) -> None:
    for tiles in (w.tiles, *(w.wider or ())[1:]):
        _well_formed(w, "the last tile pass", tiles)


def _check_tiles(w: Work) -> ExactReport | None:
    if w.wider is not None:
        _check(w, "tile program in 64 bits", w.wider[1])
    return _check(w, "tile program", w.tiles)


def _address(w: Work) -> str:
    """The addresses of each module that `generate` writes, as text: the ways to load, with int32 offsets."""
    shown = []
    for loads, int64 in product(LOADS, (False, True)):
        tiles = w.tiles if w.wider is None or not int64 else w.wider[1]
        for k in tiles.kernels:
            made = addressed(tiles, k, boxes=loads == "descriptor", int64=int64)
            if w.settings.verify:
                verify_addresses(made, k)
            shown += [] if int64 else [f"{loads}s\n{made}"]
    return "\n".join(shown)


def _generate(w: Work) -> str:
    w.header = header(w.loops, w.used)
    return generate(w.tiles, defaults(w.tiles), header=w.header)


def _other_form(w: Work) -> str | None:
    if not w.others:
        return None
    choice = _choice(w)
    told = next((f for f in w.formed if f.sizes == choice.sizes and f.choice.template == w.used), None)
    if told is not None and w.form == AUTO and not told.faster:
        w.choice += (Decision("form", w.loops.name, TRITON, f"records: {told}"),)
        return None
    recorded = None if told is None else _as_recorded(w, told, choice)
    w.made = recorded or _first_that_fits(w, choice)
    return None if w.made is None else w.made.data.text


def _first_that_fits(w: Work, choice: Wanted) -> Made | None:
    """Of several forms the fastest that the program has; None with the reasons where it has none, which is an error
    where one was asked for."""
    misfits = []
    for form in by_time(w.others, Source(w.tiles, shapes=w.wishes.typical), choice):
        made = made_of(form, _source(w, form), choice)
        if isinstance(made, Made):
            return made
        misfits.append((form, made))
    if w.form != AUTO:
        raise refused(w.tiles.name, *misfits[0])
    if w.by_form:
        raise Uncounted("; ".join(m.why for _, m in misfits))
    why = (f"it has no {form.name} form: {m.why}" for form, m in misfits)
    w.choice += tuple(Decision("form", w.loops.name, TRITON, x) for x in why)
    return None


def _source(w: Work, form: Form) -> Source:
    """What a form is made of, with the exact check of what it makes of the tiles."""

    def differs(made: TileProgram) -> str | None:
        try:
            _check(w, f"{form.name} form", made)
        except Rejection as rejection:
            return rejection.text("")
        return None

    return Source(w.tiles, w.header, w.wishes.typical, differs)


def _as_recorded(w: Work, told: Formed, choice: Wanted) -> Made | None:
    """The form that records put first; None where there is none with these levers: anybody may have written them."""
    form = next((f for f in w.others if f.name == told.choice.form), None)
    if form is None:
        return None
    choice = replace(choice, levers=told.choice.levers, params={**told.choice.params, **w.wishes.params}, ahead=False)
    made = made_of(form, _source(w, form), choice)
    if isinstance(made, Made):
        w.choice += (Decision("form", w.loops.name, form.name, f"records: {told}"),)
        return made
    w.choice += (Decision("form", w.loops.name, "not as recorded", made.why),)
    return None


def _choice(w: Work) -> Wanted:
    """What is asked of a form: with "auto", that it is not predicted to be far behind."""
    sizes = w.at or reference(w.loops, w.wishes.typical, w.wishes.bounds)
    ahead = w.form == AUTO and not w.levers
    return Wanted(w.levers, w.wishes.params, sizes, w.machine, params_of(w), ahead, short_functions(w.loops))


PIPELINE = (
    Pass("import", "everything below knows Programs only, whatever the front end", _import),
    Pass("verify", "a defect of a front end should not look like one of a template", _verify),
    Pass("forms", "what error a result can bear is read off the expression, before it is taken apart", _forms),
    Pass("schedule", "the template tiles and fuses; each repair is proved before it moves anything", choose_template),
    Pass("obligations", "past this point the program must compute what the expression says", _settled),
    Pass("place", "inits become explicit and tiles local: the form that every target executes", _place),
    Pass("check-fused", "before lowering, so that a wrong fusion is told from a wrong translation", _check_fused),
    Pass("lower", "loops become tiles, on which the tile passes work", _lower),
    Pass("verify-tiles", "the generator and the evaluator trust what it checks", _verify_tiles),
    Pass("check-tiles", "on the last form that is not text", _check_tiles),
    Pass("addresses", "last before text: a printer only writes down how memory is reached", _address),
    Pass("generate", "the text is a function of the tiles and their default values", _generate),
    Pass("form", "last: another form of the same tiles, where it was asked for", _other_form),
)


# --- checking -------------------------------------------------------------------------------------


SHORT = 1 << 10
"""Sizes for which every program must get along with the widths of its integers."""


def _check_widths(w: Work) -> None:
    """Raise Rejection where arithmetic on indices leaves its dtype for small sizes, but for what the expression itself
    does: a bound that meets a tile in too few bits."""
    if not w.settings.draws:
        return
    tiles = {t.name: (1, max(t.candidates, default=SHORT)) for t in w.fused.tunables}
    small = {s.name: (-SHORT, SHORT) for s in w.fused.scalars} | sizes_of(w.fused, SHORT)
    own = next(unfit(w.definitions, small), None)
    wrong = None if own is not None else next(unfit(w.fused, {**small, **tiles}), None)
    if wrong is not None:
        sizes = {s.name: SHORT for s in w.fused.scalars}
        why = Counterexample(sizes, 0, "", (), f"`{print_expr(wrong)}` may leave {wrong.dtype}")
        bound = f"sizes up to {SHORT}"
        raise Rejection("fused program", ExactReport("widths of integers", 0, (), (), "rejected", 0, why, bound))


def _check(w: Work, what: str, made: Program | TileProgram) -> ExactReport | None:
    if not w.settings.draws:
        return None
    try:
        decisions = w.schedule.decisions
        report = check(
            w.definitions,
            made,
            draws=w.settings.draws,
            finite=frozenset(name for d in decisions for name in d.finite),
            ranges=[r for d in decisions for r in d.ranges],
            magnitudes=True,
            shared=w.shared,
        )
    except EvaluationError as error:
        # No small instance could be drawn on which the expression itself makes sense (indices within bounds).
        report = unchecked(str(error))
    if report.verdict == "rejected":
        raise Rejection(what, report)
    w.checks[what] = report
    return report
