"""From an expression to a kernel: one list of named passes, each with the reason why it stands where it does."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from neptune import config, logs
from neptune.boundary import public
from neptune.codegen.triton import generate
from neptune.driver import cache, loud
from neptune.driver.acceptance import dismissed, ready, with_verdict
from neptune.driver.asynchronous import AUTO, asynchronous_of, checked_form
from neptune.driver.build import REJECTED, Build
from neptune.driver.device import machine_for
from neptune.driver.dump import dump_failure, dump_kernel
from neptune.driver.header import header
from neptune.driver.imports import as_program as as_program
from neptune.driver.imports import imported
from neptune.driver.known import known_of
from neptune.driver.outcome import built as _built
from neptune.driver.precision import form_decisions, short_products
from neptune.driver.snapshots import Snapshot, schedule_forms
from neptune.errors import ExpressionError, FusionError, InternalError, TargetError
from neptune.fusion.schedule import Schedule, perform
from neptune.ir.bounds import check_reads
from neptune.ir.evaluate.domains import EvaluationError
from neptune.ir.forms import cheaper
from neptune.ir.program import Program
from neptune.ir.verify import verify
from neptune.kernel import Kernel
from neptune.runtime.addressing import ASYNCHRONOUS, LOADS
from neptune.runtime.artifact import AT
from neptune.runtime.capability import check_dtypes
from neptune.runtime.launch import Target, default_target, gpu_target, parse_target
from neptune.schedule.state import Decision
from neptune.schedule.template import Rewriting
from neptune.schedule.trace import Step, trace_from_json, trace_to_json
from neptune.tile.arrange import arrange, started
from neptune.tile.ir import TileProgram
from neptune.tile.localize import localize
from neptune.tile.passes.addresses import addressed
from neptune.tile.pipeline import Lowering, lowering
from neptune.tile.verify import verify_tiles
from neptune.tile.verify_addresses import verify_addresses
from neptune.tune.choose import AnyTemplate, Candidate, Wishes, apply, brought, candidates, check_settled, named
from neptune.tune.defaults import defaults
from neptune.tune.family import Family
from neptune.tune.invariance import check_invariant, reduced_sizes
from neptune.tune.machine import DEFAULT, Machine
from neptune.tune.params import checked_params, checked_sizes
from neptune.verify.draws import Shared
from neptune.verify.exact import ExactReport, unchecked
from neptune.verify.pieces import check

if TYPE_CHECKING:
    from neptune.hopper.derive import Derived

LOG = logging.getLogger("neptune.compiler")
SEARCHED = "mirage"
"""The name that stands for the best graph that a search finds (`neptune.driver.superoptimize`)."""
EVERY_FORM = 2
"""The level of NEPTUNE_VERIFY from which (or with NEPTUNE_STRICT) the result of every primitive and of every tile pass
is verified, not the last one alone: 2 to 5 % of a compilation."""


@dataclass
class Work:
    """A compilation in progress: the request, and what the passes have made of it so far.

    `loops` is the expression as imported, `definitions` what is scheduled: the same but for forms of functions.
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
    candidates: Iterator[Candidate] | None = None
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
    asynchronous: Derived | None = None

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


def _schedule(w: Work) -> None:
    if w.template is None:
        if w.candidates is None:
            w.candidates = candidates(w.definitions, w.settings.fuel, w.wishes, w.machine)
        chosen = next(w.candidates, None)
        if chosen is None:
            reasons = "\n".join(f"  {d.subject}: {d.reason}" for d in w.rejections)
            raise InternalError(f"what each template makes of `{w.loops.name}` was rejected by a check\n{reasons}")
        w.used, w.schedule, w.choice = chosen.template, chosen.schedule, chosen.decisions
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
    w.fused = localize(arrange(started(w.schedule.program)), strict=False)
    if w.settings.verify:
        verify(w.fused, lowered=True)
    return w.fused


def _check_fused(w: Work) -> ExactReport | None:
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


def _verify_tiles(w: Work) -> None:
    _well_formed(w, "the last tile pass", w.tiles)


def _check_tiles(w: Work) -> ExactReport | None:
    return _check(w, "tile program", w.tiles)


def _address(w: Work) -> str:
    """The addresses of each module that `generate` writes, as text: the ways to load, with int32 offsets."""
    shown = []
    for loads, int64 in product(LOADS, (False, True)):
        for k in w.tiles.kernels:
            made = addressed(w.tiles, k, boxes=loads == "descriptor", int64=int64)
            if w.settings.verify:
                verify_addresses(made, k)
            shown += [] if int64 else [f"{loads}s\n{made}"]
    return "\n".join(shown)


def _generate(w: Work) -> str:
    w.header = header(w.loops, w.used)
    return generate(w.tiles, defaults(w.tiles), header=w.header)


def _asynchronous(w: Work) -> str | None:
    if w.form not in (ASYNCHRONOUS, AUTO):
        return None

    def differs(walked: TileProgram) -> str | None:
        try:
            _check(w, "asynchronous form", walked)
        except Rejection as rejection:
            return rejection.text("")
        return None

    try:
        w.asynchronous = asynchronous_of(w.tiles, w.header, w.wishes.typical, differs)
    except TargetError as error:
        dismissed()
        if w.form == ASYNCHRONOUS:
            raise
        w.choice += (Decision("form", w.loops.name, "triton", f"it has no asynchronous form: {error.wrong}"),)
        return None
    return w.asynchronous.text.text


PIPELINE = (
    Pass("import", "everything below knows Programs only, whatever the front end", _import),
    Pass("verify", "a defect of a front end should not look like one of a template", _verify),
    Pass("forms", "what error a result can bear is read off the expression, before it is taken apart", _forms),
    Pass("schedule", "the template tiles and fuses; each repair is proved before it moves anything", _schedule),
    Pass("obligations", "past this point the program must compute what the expression says", _settled),
    Pass("place", "inits become explicit and tiles local: the form that every target executes", _place),
    Pass("check-fused", "before lowering, so that a wrong fusion is told from a wrong translation", _check_fused),
    Pass("lower", "loops become tiles, on which the tile passes work", _lower),
    Pass("verify-tiles", "the generator and the evaluator trust what it checks", _verify_tiles),
    Pass("check-tiles", "on the last form that is not text", _check_tiles),
    Pass("addresses", "last before text: a printer only writes down how memory is reached", _address),
    Pass("generate", "the text is a function of the tiles and their default values", _generate),
    Pass("asynchronous", "last: another form of the same tiles, where it was asked for", _asynchronous),
)


@public
def compile(
    expr: Any,
    template: AnyTemplate = None,
    *,
    inputs: Sequence[Any] | None = None,
    target: str | None = None,
    params: Mapping[str, int] | None = None,
    shapes: Mapping[Any, int] | None = None,
    bounds: Mapping[Any, int] | None = None,
    name: str | None = None,
    strict: bool = False,
    deterministic: bool = False,
    batch_invariant: bool = False,
    assume: Sequence[str] = (),
    records: bool = True,
    form: str | None = None,
) -> Kernel:
    """Compile an expression to a kernel.

    `expr`: a `te.Tensor` or a sequence of them, a PrimFunc or an IRModule with one, tensors of
    `neptune.frontend.builder`, or a Program.
    `template`: a function over a Schedule, the name of a shipped template, "mirage" for a search of ten seconds for
    a better algebra (`neptune.superoptimize`), or None for an automatic choice.
    `inputs`: the order of the call's arguments (for a Program, names of its inputs; for a PrimFunc, names).
    `target`: "cuda", "cuda:90", "hip", "hip:gfx942", "interpret" or "llvm"; by default $NEPTUNE_TARGET, else
    the GPU where there is one, else "llvm" where TVM is installed, else "interpret". All targets execute the same
    fused program.
    `params`: values of tunables, num_warps and num_stages. `shapes`: typical sizes, which never matter for
    correctness; with all of them given, template and values are those that the cost model predicts to be fastest for
    them on the target's GPU. `bounds`: the largest value of symbolic sizes, checked at each call. Both by name or
    by the variable. `name`: of the kernel.
    `strict`: what makes the kernel slower than it need be (`kernel.warnings`) is a ScheduleError, and no
    NeptunePerformanceWarning. `deterministic`: calls with the same sizes and layouts give the same bits, on any device
    that runs the same binary. `batch_invariant`: the variant, its tiles and the number of parts depend on sizes of
    reduced axes alone, so that the bits of a row do not depend on how many rows or batches are computed beside it
    (docs/numerics.md). `assume`: names of assumptions that explain() lists and the caller grants, as it then says.
    `records`: False lets the cost model choose alone; else what was measured of the program on the target's GPU counts,
    by this user or by what ships (docs/tuning.md), unless a template is named or something is promised of bits.
    `form`: "asynchronous" also makes the form of sm_90 in which one warp loads for warpgroups that compute; it runs
    where what was compiled is accepted, on dense tensors on 16 bytes (docs/hopper.md); "auto" makes it where a kernel
    has one. None or "triton": tiles alone.

    Raises ExpressionError, ScheduleError, FusionError, ShapeError or TargetError, each saying what is legal.

        kernel = neptune.compile(prefill_causal(), "flash_attention", params={"BLOCK_M": 128})
        o = kernel(q, k, v)
    """
    if template == SEARCHED:
        from neptune.driver.superoptimize import by_template

        of: dict[str, Any] = {"inputs": inputs, "target": target, "params": params, "shapes": shapes, "bounds": bounds}
        of |= {"name": name, "strict": strict, "deterministic": deterministic, "batch_invariant": batch_invariant}
        of["form"] = form
        return by_template(expr, **of, assume=assume, records=records)
    settings = config.read()
    logs.configure(settings.logs)
    chosen = target_for(target, settings)
    form = checked_form(form, chosen)
    loops = imported(expr, inputs, name)
    check_dtypes(loops, (gpu_target() or chosen) if chosen.kind == "cuda" and not chosen.arch else chosen)
    # By name, so that variables of a front end make no difference to the cache.
    typical, largest = checked_sizes("shapes", loops, shapes), checked_sizes("bounds", loops, bounds)
    values = checked_params(loops, params)
    machine = machine_for(chosen)
    asked = cache.Request(loops, template, str(chosen), values, typical, largest, settings, machine.name)
    granted = (assume,) if isinstance(assume, str) else tuple(assume or ())
    asked = replace(asked, strict=bool(strict), assume=granted)
    asked = replace(asked, deterministic=bool(deterministic), batch_invariant=bool(batch_invariant), form=form)
    if template is None and records and not (deterministic or batch_invariant):
        found, failed = known_of(loops, machine, settings)
        asked = replace(asked, samples=found, failed=failed)
    kernel = _compiled(asked)
    loud.check_granted(kernel, granted)
    loud.warn(kernel)
    return kernel


def _compiled(asked: cache.Request, forced: bool = False) -> Kernel:
    """The kernel of a request; further variants of a family are compiled when they are used first. With `forced` an
    asynchronous form runs though it is slow."""
    settings, target = asked.settings, parse_target(asked.target)

    def make() -> Build:
        deciding = reduced_sizes(asked.loops) if asked.batch_invariant else None
        wishes = Wishes(asked.shapes, asked.bounds, asked.params, deciding, asked.samples, asked.failed)
        work = Work(asked.loops, asked.template, settings, wishes, machine_for(target), form=asked.form)
        if asked.form in (ASYNCHRONOUS, AUTO):
            ready()
        try:
            _run_all(work)
            return _built(work, asked, target)
        except BaseException as error:
            # An interrupted compilation is one that its user wants to look into.
            if settings.dump is not None and work.trail:
                dump_failure(settings.dump, work.loops.name, work.trail, error)
            raise

    def variant(choice: Mapping[str, Any]) -> Kernel:
        # What a caller gave beside tiles, such as a number of parts, holds for all of them.
        values = {**asked.params, **choice["params"]}
        one = replace(asked, template=choice["template"], params=values, shapes={}, at=choice.get(AT))
        # The form that was asked for is of this kernel; another variant may have none.
        one = replace(one, samples=(), failed=frozenset(), form=AUTO if asked.form == ASYNCHRONOUS else asked.form)
        return _compiled(one, forced)

    forced = forced or asked.form == ASYNCHRONOUS
    kernel = with_verdict(cache.cached(asked, make, variant), forced=forced)
    if settings.dump is not None:
        LOG.info("dumped to %s", dump_kernel(settings.dump, kernel))
    if asked.strict:
        loud.refuse(kernel)
    return kernel


@public
def compile_scheduled(program: Program, made: Schedule | Sequence[Step], **options: Any) -> Kernel:
    """Compile definitions with a schedule that was made elsewhere: a Schedule of them, or its trace.

    Every step is carried out again on the program, so that nothing is taken on trust: legality, proofs and exact checks
    are those of `compile`, whose other arguments are `options`. Raises RecordError for what is no trace, and what
    `compile` raises, for a step with its number.

        sch = neptune.Schedule(program)
        …
        kernel = compile_scheduled(program, sch, target="cuda:90")
    """
    trace = made.trace if isinstance(made, Schedule) else made
    # As text, which a key of the cache can tell, whatever else a step holds.
    known = isinstance(trace, list | tuple) and all(isinstance(s, Step) for s in trace)
    recorded: Any = trace_to_json(trace) if known else trace

    def scheduled(sch: Schedule) -> None:
        perform(sch, trace_from_json(recorded) if known else recorded)

    return compile(program, scheduled, **options)


def _run_all(work: Work) -> None:
    """Run every pass. Where a check rejects what the automatic choice made, the passes from `schedule` on are run again
    with the next template."""
    first = next(k for k, step in enumerate(PIPELINE) if step.run is _schedule)
    for step in PIPELINE[:first]:
        _run(step, work)
    before = len(work.trail)
    while True:
        try:
            for step in PIPELINE[first:]:
                _run(step, work)
            return
        except Rejection as rejection:
            _reject(work, rejection)
        del work.trail[before:]
        work.checks.clear()
        # Sizes that serve one template hold values of its tunables, which mean something else in another.
        work.shared.clear()


def _reject(work: Work, rejection: Rejection) -> None:
    """Take note of a template that a check rejected; raise where no other one is to be tried."""
    LOG.info("template %s: %s: %s", work.used, REJECTED, rejection.text(""))
    if work.settings.strict:
        raise InternalError(rejection.text(f" of `{work.loops.name}` (template `{work.used}`)")) from None
    if work.template is not None:
        raise FusionError(
            f"compile `{work.loops.name}` with template `{work.used}`",
            rejection.text(""),
            hint="another template, or none: then one is chosen",
        ) from None
    work.rejections += (Decision("template", work.used, REJECTED, rejection.text("")),)


def _run(step: Pass, work: Work) -> None:
    start = time.perf_counter()
    made = step.run(work)
    if made is not None:
        work.saw(step.name, step.why, made)
    LOG.info("pass %s: %.1f ms", step.name, 1e3 * (time.perf_counter() - start))


# --- checking -------------------------------------------------------------------------------------


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


# --- target -----------------------------------------------------------------------


def target_for(target: str | None, settings: config.Config) -> Target:
    """The target that was asked for, by the caller or by the settings; else what runs here."""
    text = target or settings.target
    return default_target() if text is None else parse_target(text)
