"""Compile: a request of a caller, from the cache or by the passes of `neptune.driver.passes`."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from neptune import config
from neptune.base import logs
from neptune.base.boundary import public
from neptune.driver import cache, loud
from neptune.driver.device import machine_for
from neptune.driver.forms import decided, form_for, in_two, in_vain, sharing, with_verdict
from neptune.driver.imports import as_program as as_program
from neptune.driver.imports import imported
from neptune.driver.known import Known, known_of
from neptune.driver.options import CompileOptions, takes
from neptune.errors import NeptuneError, or_refusal
from neptune.forms import AUTO, FORMS
from neptune.ir.program import Program
from neptune.kernel import Kernel
from neptune.runtime.artifact import AT
from neptune.runtime.family import SHARED
from neptune.runtime.launching.capability import check_dtypes
from neptune.runtime.launching.launch import Target, default_target, gpu_target, parse_target
from neptune.tune.params import checked_params, checked_sizes

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from neptune.driver.build import Build
    from neptune.fusion.schedule import Schedule
    from neptune.schedule.trace import Step
    from neptune.tune.choose import AnyTemplate

# What compiles is imported where something is compiled: of a kernel in the cache, the import would be the time.
LOG = logging.getLogger("neptune.compiler")
SEARCHES = {"mirage": "neptune.search.superoptimize"}
"""Where a program is compiled to the best of what a search finds, by the name that stands for it as a template."""


@public
@takes(CompileOptions)
def compile(expr: Any, template: AnyTemplate = None, **options: Unpack[CompileOptions]) -> Kernel:
    """Compile an expression to a kernel.

    `expr`: a `te.Tensor` or a sequence of them, a PrimFunc or an IRModule with one, tensors of
    `neptune.frontend.builder`, or a Program.
    `template`: a function over a Schedule, the name of a shipped template, "mirage" for a search of ten seconds for
    a better algebra (`neptune.superoptimize`), or None for an automatic choice.
    `inputs`: the order of the call's arguments (for a Program, names of its inputs; for a PrimFunc, names).
    `target`: "cuda", "cuda:90", "hip", "hip:gfx942", "interpret" or "llvm"; by default $NEPTUNE_TARGET, else
    the GPU where there is one, else "llvm" where TVM is installed, else "interpret". All targets execute the same
    fused program.
    `params`: values of tunables, num_warps and num_stages, and of the parameters of a form that is asked for
    (docs/knobs.md): `consumers`, `stages`, `persistent`, `own_out`, `ahead`, with "asynchronous." in front where the
    template is a function, which may have such names of its own. `shapes`: typical sizes, which never matter for
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
    where what was compiled is accepted, on dense tensors on 16 bytes (docs/hopper.md). "auto" makes it where a kernel
    has one that is not predicted to be far slower, and takes the form that is measured to be faster; both count where
    templates are chosen. "triton": tiles alone. None: $NEPTUNE_FORM, else "auto" where the GPU here has that form,
    unless bits are promised, else "triton". Parameters of a form that are not given are those that the cost model
    puts first. `levers` is a former name of `params` for these.

    Raises ExpressionError, ScheduleError, FusionError, ShapeError or TargetError, each saying what is legal.

        kernel = neptune.compile(prefill_causal(), "flash_attention", params={"BLOCK_M": 128})
        o = kernel(q, k, v)
    """
    if isinstance(template, str) and template in SEARCHES:
        by_template: Callable[..., Kernel] = import_module(SEARCHES[template]).by_template
        return by_template(expr, **options)
    settings = config.read()
    logs.configure(settings.logs)
    chosen = target_for(options["target"], settings)
    form, levers, promised = options["form"], options["levers"], options["deterministic"] or options["batch_invariant"]
    form_here = form_for(form, chosen, settings.form, bool(promised))
    if levers is not None:
        loud.say_of_levers()
    on_tiles, settled = in_two(options["params"], levers, form or form_here, template)
    loops = imported(expr, options["inputs"], options["name"])
    check_dtypes(loops, (gpu_target() or chosen) if chosen.kind == "cuda" and not chosen.arch else chosen)
    # By name, so that variables of a front end make no difference to the cache.
    typical, largest = (
        checked_sizes("shapes", loops, options["shapes"]),
        checked_sizes("bounds", loops, options["bounds"]),
    )
    values = checked_params(loops, on_tiles)
    assume = options["assume"]
    granted = (assume,) if isinstance(assume, str) else tuple(assume or ())
    request = cache.Request(
        loops, template, str(chosen), values, typical, largest, settings, machine_for(chosen).name,
        strict=bool(options["strict"]), assume=granted, form=form_here, levers=settled,
        deterministic=bool(options["deterministic"]), batch_invariant=bool(options["batch_invariant"]),
    )  # fmt: skip
    kernel = _compiled(with_records(request) if options["records"] else request)
    loud.check_granted(kernel, granted)
    loud.warn(kernel)
    return kernel


def kernel_or_why(expr: Any, template: AnyTemplate = None, **options: Any) -> Kernel | NeptuneError:
    """What `compile` gives, or why it refuses: for those who have another kernel, and would take this one."""
    return or_refusal(compile, expr, template, **options)


def with_records(request: cache.Request) -> cache.Request:
    """A request with what was measured of its program, where the choice of a template may follow from it."""
    if request.template is not None or request.deterministic or request.batch_invariant:
        return request
    machine = machine_for(parse_target(request.target))
    known = known_of(request.loops, machine, request.settings)
    if request.form is None or request.levers:
        known = replace(known, forms=())
    return replace(request, known=known)


def kept(
    program: Program, template: str | None, target: str, variant: Mapping[str, Any] | None = None
) -> Kernel | None:
    """What `compile` gives with these arguments alone, or a `variant` as its family describes it, where nothing is
    compiled or run for it: its kernel is in the cache, and so is the verdict on its form. None where anything is
    missing."""
    settings, chosen = config.read(), parse_target(target)
    form = form_for(None, chosen, settings.form, promised=False)
    loops, machine = imported(program, None, None), machine_for(chosen)
    request = cache.Request(loops, template, str(chosen), {}, {}, {}, settings, machine.name, form=form)
    request = with_records(request)
    if variant is not None:
        request = _of_variant(request, variant, forced=request.form in FORMS)
    # One that shares the form of the kernel is compared with it where it is first called.
    entry = None if variant is not None and SHARED in variant else cache.entry(request)
    return _compiled(request) if entry is not None and decided(entry) else None


def _of_variant(request: cache.Request, choice: Mapping[str, Any], forced: bool) -> cache.Request:
    """The request for another variant of a kernel."""
    # What a caller gave beside tiles, such as a number of parts, holds for all of them.
    values = {**request.params, **choice["params"]}
    one = replace(request, template=choice["template"], params=values, shapes={}, at=choice.get(AT))
    # The form that was asked for is of this kernel; another variant may have none.
    return replace(one, known=Known(forms=request.known.forms), form=AUTO if forced else request.form)


def _compiled(request: cache.Request, forced: bool = False) -> Kernel:
    """The kernel of a request; further variants of a family are compiled when they are used first. With `forced`
    another form than tiles runs though it is slow."""
    settings, target = request.settings, parse_target(request.target)

    def make() -> Build:
        with _older_objects_kept():
            from neptune.driver.compilation import compiled

            return compiled(request, target)

    def variant(choice: Mapping[str, Any]) -> Kernel:
        if SHARED in choice and request.form == AUTO:
            return with_verdict(sharing(kernel, choice))
        return _compiled(_of_variant(request, choice, forced), forced)

    forced = forced or request.form in FORMS
    kernel = with_verdict(cache.cached(request, make, variant), forced=forced)
    if request.form == AUTO and in_vain(kernel):
        kernel = _compiled(replace(request, counting=False))
    if settings.dump is not None:
        from neptune.report.dump import dump_kernel

        folder = dump_kernel(settings.dump, kernel.explain(json=True), kernel._page, kernel.build.trail)
        LOG.info("dumped to %s", folder)
    if request.strict:
        loud.refuse(kernel)
    return kernel


@contextmanager
def _older_objects_kept() -> Iterator[None]:
    """Leave what is there already out of collections of garbage for the time of a compilation: it makes so many objects
    that those of torch would be looked through several times, for a tenth of its time."""
    if gc.get_freeze_count():
        # The caller's own, or those of a compilation around this one.
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


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
    from neptune.fusion.schedule import Schedule
    from neptune.schedule.trace import Step, trace_to_json

    trace = made.trace if isinstance(made, Schedule) else made
    # As text, which a key of the cache can tell, whatever else a step holds.
    known = isinstance(trace, list | tuple) and all(isinstance(s, Step) for s in trace)
    recorded: Any = trace_to_json(trace) if known else trace

    def scheduled(sch: Schedule) -> None:
        # Imported here: of what a template holds, the key of the cache tells plain values.
        from neptune.fusion.schedule import perform
        from neptune.schedule.trace import trace_from_json

        perform(sch, trace_from_json(recorded) if known else recorded)

    return compile(program, scheduled, **options)


# --- target -----------------------------------------------------------------------


def target_for(target: str | None, settings: config.Config) -> Target:
    """The target that was asked for, by the caller or by the settings; else what runs here."""
    text = target or settings.target
    return default_target() if text is None else parse_target(text)
