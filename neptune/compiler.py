"""From an expression to a kernel: one list of named passes, each with the reason why it stands where it does."""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from neptune import cache, config, logs
from neptune.boundary import public
from neptune.choose import AnyTemplate, apply, automatic, check_settled, named
from neptune.codegen.triton import generate
from neptune.errors import ExpressionError, InternalError, ScheduleError, TargetError
from neptune.frontend.assemble import Tensor, build
from neptune.fusion.schedule import Schedule
from neptune.ir.bounds import check_reads
from neptune.ir.names import check_names
from neptune.ir.program import Program
from neptune.ir.verify import verify
from neptune.params import checked_sizes, plain_numbers, resolve_params
from neptune.runtime.build import Build
from neptune.runtime.dump import dump_failure, dump_kernel
from neptune.runtime.kernel import Kernel
from neptune.runtime.launch import Target, default_target, parse_target
from neptune.runtime.trail import Snapshot, schedule_forms
from neptune.schedule.state import Decision
from neptune.tile.arrange import arrange, started
from neptune.tile.ir import TileProgram
from neptune.tile.localize import localize
from neptune.tile.pipeline import lower
from neptune.tile.verify import verify_tiles
from neptune.verify.domains import EvaluationError
from neptune.verify.draws import Shared
from neptune.verify.exact import ExactReport, check_exact, unchecked

REPAIRS = frozenset({"rolling_update", "split_k", "privatize"})
LOG = logging.getLogger("neptune.compiler")


@dataclass
class Work:
    """A compilation in progress: the request, and what the passes have made of it so far."""

    expr: Any
    template: AnyTemplate
    inputs: Sequence[Any] | None
    name: str | None
    settings: config.Config
    typical: Mapping[str, int] = field(default_factory=dict)
    loops: Program = field(init=False)
    schedule: Schedule = field(init=False)
    fused: Program = field(init=False)
    tiles: TileProgram = field(init=False)
    header: str = field(init=False)
    used: str = ""
    choice: tuple[Decision, ...] = ()
    checks: dict[str, ExactReport] = field(default_factory=dict)
    shared: list[Shared] = field(default_factory=list)
    trail: list[Snapshot] = field(default_factory=list)

    def saw(self, name: str, why: str, made: Program | TileProgram | ExactReport | str) -> None:
        """Remember a form for dumps and reports."""
        self.trail.append(Snapshot(name, name, why, made))


@dataclass(frozen=True)
class Pass:
    """A step of the compiler. `run` changes the Work and returns what to show of it (None: nothing new to see)."""

    name: str
    why: str
    run: Callable[[Work], Program | TileProgram | ExactReport | str | None]


def _import(w: Work) -> Program:
    w.loops = as_program(w.expr, w.inputs, w.name)
    check_names(w.loops)
    return w.loops


def _verify(w: Work) -> None:
    if not w.settings.verify:
        return
    check_reads(w.loops)
    try:
        verify(w.loops)
    except InternalError as error:
        if not isinstance(w.expr, Program):
            raise
        # A Program can be written by hand.
        raise ExpressionError(f"compile `{w.loops.name}`", error.wrong) from None


def _schedule(w: Work) -> None:
    if w.template is None:
        w.used, w.schedule, w.choice = automatic(w.loops, w.settings.fuel, w.typical)
        w.trail += schedule_forms(w.schedule)
    else:
        w.used, template = named(w.template)
        w.schedule = Schedule(w.loops)
        try:
            w.choice = apply(template, w.schedule, w.settings.fuel)
        finally:
            # Where the template fails, its steps until then are what one wants to see.
            w.trail += schedule_forms(w.schedule)
    if w.settings.verify:
        verify(w.schedule.program)


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
    forms: list[tuple[str, str, TileProgram]] = []

    def seen(name: str, why: str, made: TileProgram) -> None:
        forms.append((f"tile-{name}", why, made))

    given_up = None
    try:
        w.tiles = lower(w.schedule.program, seen)
    except (ScheduleError, TargetError) as error:
        given_up = Decision("lowering", w.loops.name, "some tile axes stay loops", f"{error.asked}: {error.wrong}")
    if given_up is not None:
        forms.clear()
        w.tiles = lower(w.schedule.program, seen, relaxed=True)
        w.choice = (*w.choice, given_up)
    for form in forms:
        w.saw(*form)


def _verify_tiles(w: Work) -> None:
    if w.settings.verify:
        verify_tiles(w.tiles)


def _check_tiles(w: Work) -> ExactReport | None:
    return _check(w, "tile program", w.tiles)


def _generate(w: Work) -> str:
    w.header = f"Triton kernels of `{w.loops.name}`, by template `{w.used}`; generated by Neptune."
    return generate(w.tiles, header=w.header)


PIPELINE = (
    Pass("import", "everything below knows Programs only, whatever the front end", _import),
    Pass("verify", "a defect of a front end should not look like one of a template", _verify),
    Pass("schedule", "the template tiles and fuses; each repair is proved before it moves anything", _schedule),
    Pass("obligations", "past this point the program must compute what the expression says", _settled),
    Pass("place", "inits become explicit and tiles local: the form that every target executes", _place),
    Pass("check-fused", "before lowering, so that a wrong fusion is told from a wrong translation", _check_fused),
    Pass("lower", "loops become tiles, on which the tile passes work", _lower),
    Pass("verify-tiles", "the generator and the evaluator trust what it checks", _verify_tiles),
    Pass("check-tiles", "on the last form that is not text", _check_tiles),
    Pass("generate", "the text is a function of the tiles alone", _generate),
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
) -> Kernel:
    """Compile an expression to a kernel.

    `expr`: a `te.Tensor` or a sequence of them, a PrimFunc or an IRModule with one, tensors of
    `neptune.frontend.builder`, or a Program.
    `template`: a function over a Schedule, the name of a shipped template, or None for an automatic choice.
    `inputs`: the order of the call's arguments (for a Program, names of its inputs; for a PrimFunc, names).
    `target`: "cuda", "cuda:90", "hip", "hip:gfx942", "interpret" or "llvm"; by default $NEPTUNE_TARGET, else
    the GPU where there is one, else "llvm". All targets execute the same fused program.
    `params`: values of tunables, num_warps and num_stages. `shapes`: typical sizes, which never matter for
    correctness. `bounds`: the largest value of symbolic sizes, checked at each call. Both by name or by the
    variable. `name`: of the kernel.

    Raises ExpressionError, ScheduleError, FusionError, ShapeError or TargetError, each saying what is legal.

        kernel = neptune.compile(prefill_causal(), "flash_attention", params={"BLOCK_M": 128})
        o = kernel(q, k, v)
    """
    settings = config.read()
    logs.configure(settings.logs)
    work = Work(expr, template, inputs, name, settings)
    chosen = _target(target, settings)
    _run(PIPELINE[0], work)
    # By name, so that variables of a front end make no difference to the cache.
    typical, largest = checked_sizes("shapes", work.loops, shapes), checked_sizes("bounds", work.loops, bounds)
    given = plain_numbers(params or {})
    asked = cache.Request(work.loops, template, str(chosen), given, typical, largest, settings)

    def make() -> Build:
        work = Work(asked.loops, template, None, None, settings, typical)
        try:
            for step in PIPELINE:
                _run(step, work)
            return _built(work, asked, chosen)
        except BaseException as error:
            # An interrupted compilation is one that its user wants to look into.
            if settings.dump is not None and work.trail:
                dump_failure(settings.dump, work.loops.name, work.trail, error)
            raise

    kernel = cache.cached(asked, make)
    if settings.dump is not None:
        LOG.info("dumped to %s", dump_kernel(settings.dump, kernel))
    return kernel


def _run(step: Pass, work: Work) -> None:
    start = time.perf_counter()
    made = step.run(work)
    if made is not None:
        work.saw(step.name, step.why, made)
    LOG.info("pass %s: %.1f ms", step.name, 1e3 * (time.perf_counter() - start))


def _built(work: Work, asked: cache.Request, target: Target) -> Build:
    return Build(
        loops=work.loops,
        scheduled=_before_repairs(work.loops, work.schedule),
        fused=work.fused,
        tiles=work.tiles,
        header=work.header,
        target=target,
        template=work.used,
        params=resolve_params(work.tiles, asked.params),
        trace=tuple(str(s) for s in work.schedule.trace),
        decisions=(*work.choice, *work.schedule.decisions),
        checks=work.checks,
        bounds=asked.bounds,
        shapes=asked.shapes,
        trail=tuple(work.trail),
    )


# --- the expression ------------------------------------------------------------------------------


def as_program(expr: Any, inputs: Sequence[Any] | None = None, name: str | None = None) -> Program:
    """The Program of whatever `compile` takes; ExpressionError for anything else."""
    if isinstance(expr, Program):
        return _renamed(_reordered(expr, inputs), name)
    first = expr[0] if isinstance(expr, list | tuple) and expr else expr
    if isinstance(first, Tensor):
        return build(expr, inputs, name)
    try:
        te = importlib.import_module("neptune.frontend.te")
        tvmscript = importlib.import_module("neptune.frontend.tvmscript")
    except ImportError as error:
        raise ExpressionError(
            f"compile {type(expr).__name__}",
            f"it is neither a Program nor tensors of the builder, and TVM cannot be imported: {error}",
            legal=("neptune.Program", "neptune.frontend.builder tensors", "te.Tensor or PrimFunc (with TVM)"),
            hint="pip install 'neptune-compiler[te]'",
        ) from None
    importer = tvmscript.from_tvmscript if tvmscript.is_function(expr) else te.from_te
    program: Program = importer(expr, inputs, name)
    return program


def _reordered(program: Program, inputs: Sequence[Any] | None) -> Program:
    if inputs is None:
        return program
    declared = {b.name: b for b in program.inputs}
    if sorted(map(str, inputs)) != sorted(declared):
        raise ExpressionError(
            f"compile `{program.name}` with inputs={list(inputs)!r}",
            "these are not the names of its inputs, each once",
            legal=tuple(declared),
        )
    return replace(program, inputs=tuple(declared[n] for n in inputs))


def _renamed(program: Program, name: str | None) -> Program:
    if name is None:
        return program
    if not isinstance(name, str) or not name.isidentifier():
        raise ExpressionError(f"compile `{program.name}` with name={name!r}", "a kernel's name is an identifier")
    return replace(program, name=name)


def _before_repairs(program: Program, sch: Schedule) -> Program:
    """The program as tiled and fused by the template up to its first repair."""
    before = program
    for step in sch.trace:
        if step.primitive in REPAIRS:
            return before
        before = step.program or before
    return before


# --- checking -------------------------------------------------------------------------------------


def _check(w: Work, what: str, made: Program | TileProgram) -> ExactReport | None:
    if not w.settings.draws:
        return None
    try:
        finite = frozenset(name for d in w.schedule.decisions for name in d.finite)
        report = check_exact(w.loops, made, draws=w.settings.draws, finite=finite, shared=w.shared)
    except EvaluationError as error:
        # No small instance could be drawn on which the expression itself makes sense (indices within bounds).
        report = unchecked(str(error))
    if report.verdict == "rejected":
        raise InternalError(
            f"the {what} of `{w.loops.name}` (template `{w.used}`) differs from the expression\n"
            f"  {report.counterexample}\n  in the {report.model}"
        )
    w.checks[what] = report
    return report


# --- target -----------------------------------------------------------------------


def _target(target: str | None, settings: config.Config) -> Target:
    text = target or settings.target
    return default_target() if text is None else parse_target(text)
