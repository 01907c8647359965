"""The tuner: candidates in the model's order, checked and timed in processes of their own, and the fastest as a kernel.

    kernel = neptune.autotune(decode, shapes=[{"batch": 1, "s_kv": 8192}, {"batch": 64, "s_kv": 1024}], budget="2m")
    kernel = neptune.compile(decode).tune(q, k, v, budget="60s")

Every measurement is a record (`neptune.records.record`), kept before the next one begins: a search that is cut off
goes on where it was. Without a GPU the model chooses, and nothing is measured.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from neptune import config
from neptune.autotune.executors import EXECUTORS, executor_of
from neptune.autotune.forms import FEW, like, other_trials
from neptune.autotune.journal import Journal, Records
from neptune.autotune.learn import ordered
from neptune.autotune.place import Bench, case_of
from neptune.autotune.progress import Progress, shown
from neptune.autotune.reference import TEMPLATE
from neptune.autotune.rounds import Search
from neptune.autotune.search import Run, Tuned, shape_text
from neptune.autotune.space import Form, Trial, forms_of, predicted, trials
from neptune.autotune.winners import together
from neptune.boundary import public
from neptune.choice import Choice, qualified
from neptune.driver.device import machine_for
from neptune.driver.fingerprint import fingerprint
from neptune.driver.forms import checked_form, in_two
from neptune.driver.imports import imported
from neptune.driver.pipeline import kernel_or_why, target_for
from neptune.errors import NeptuneError, NeptunePerformanceWarning, ScheduleError, ShapeError, unless_refused
from neptune.forms import AUTO, TRITON
from neptune.forms import forms_of as other_forms
from neptune.ir.parser import parse_program
from neptune.ir.program import Program
from neptune.kernel import Kernel
from neptune.records.record import keys_of
from neptune.records.store import Store
from neptune.runtime.launch import Target, gpu_target, parse_target
from neptune.tile.parser import parse_tiles
from neptune.tune.budget import Clock, checked_count, seconds_of
from neptune.tune.choose import AnyTemplate, shipped_templates
from neptune.tune.machine import Machine
from neptune.tune.params import checked_params, checked_sizes, space_of
from neptune.tune.points import sizes_of
from neptune.variants import Variant

NO_GPU = "there is no GPU here: the model chose, nothing was measured"
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Task:
    """What is tuned: a program, the forms that templates make of it, and what a default kernel would take at some
    sizes (in another form than tiles, its tile sizes are among the levers). `given` are values that the caller fixed,
    `settled` those of other forms' parameters, `own` arguments of a call, `names` what records call the templates,
    `numbers` the numbers of parts that may be other ones than launches choose."""

    loops: Program
    target: Target
    forms: tuple[Form, ...]
    chosen: Callable[[Sizes], Choice]
    reference: Callable[[], Kernel]
    machine: Machine
    given: Mapping[str, int]
    names: Mapping[str, str]
    own: Sequence[Any] | None = None
    numbers: frozenset[str] = frozenset()
    settled: Mapping[str, Any] = field(default_factory=dict)

    def kernel(self, choice: Choice) -> Kernel | NeptuneError:
        """The kernel of a candidate, or why there is none: a check rejects its template, say."""
        form = next(f for f in self.forms if f.template == choice.template)
        if choice.form is not None:
            return form.others[choice.form](choice)
        made = form.kernel()
        return made if isinstance(made, NeptuneError) else made.with_params(choice.params)

    def default(self, sizes: Sizes, others: Sequence[Trial] = ()) -> Trial:
        """What the model takes at some sizes; one in another form than tiles is among these."""
        own = self.chosen(sizes)
        if own.form is not None and (taken := like(self.forms, others, own)) is not None:
            return taken
        form = next(f for f in self.forms if f.template == own.template)
        (made,) = predicted(form, [own.params], sizes, self.machine)
        return made

    def unmeasurable(self, here: bool = True) -> str:
        """Why nothing can be measured, `here` or on other machines; "" where it can."""
        if not here:
            return "" if self.target.on_gpu else f"target {self.target} runs on no GPU: nothing was measured"
        present = gpu_target()
        if present is None or not self.target.on_gpu:
            return NO_GPU if present is None else f"target {self.target} runs on no GPU: nothing was measured"
        if self.target.kind == present.kind and self.target.arch in ("", present.arch):
            return ""
        return f"the GPU here is {present}, not {self.target}: nothing was measured"


@dataclass(frozen=True)
class Tuning:
    """The kernel that came of a search, and what was found at each shape."""

    kernel: Kernel
    shapes: tuple[Tuned, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"name": self.kernel.name, "target": self.kernel.target, "shapes": [t.as_json() for t in self.shapes]}


@dataclass(frozen=True)
class Options:
    """How to search: seconds, candidates at most, where, and where records go (None: nowhere)."""

    seconds: float
    trials: int | None = None
    executor: str = "local"
    records: Records | None = None
    bench: Bench | None = None
    quiet: bool = False


def options_of(
    budget: str, trials: int | None, executor: str, workers: int | None = None, quiet: bool = False
) -> Options:
    """The options of a caller. NeptuneError for a budget, a number or an executor that is none."""
    where = executor_of(executor)
    found = Options(seconds_of(budget), checked_count("trials", "candidates", trials), executor, quiet=quiet)
    bench = Bench(workers=checked_count("workers", "processes", workers) or where.workers())
    return replace(found, records=Store(config.read().cache_dir), bench=bench)


@public
def autotune(
    expr: Any,
    template: AnyTemplate = None,
    *,
    shapes: Sequence[Mapping[Any, int]] | Mapping[Any, int],
    budget: str = "60s",
    trials: int | None = None,
    inputs: Sequence[Any] | None = None,
    target: str | None = None,
    params: Mapping[str, Any] | None = None,
    bounds: Mapping[Any, int] | None = None,
    name: str | None = None,
    executor: str = "local",
    workers: int | None = None,
    quiet: bool = False,
    form: str | None = None,
) -> Kernel:
    """Compile an expression to the kernel that is measured to be the fastest at some shapes.

    `shapes`: sizes by name or variable, all of them, or several such mappings; then launches with other sizes take the
    variant of what is alike. `budget`: "60s", "5m" or "1h", compiling included. `trials`: candidates at most.
    `executor`: "local", or "ray" for the GPUs of a Ray cluster. `workers`: processes that compile, by default one less
    than there are processors. `quiet`: nothing is said on the standard error. `form`: "auto" or "asynchronous" for
    candidates in the asynchronous form of sm_90, too, of its first levers by predicted time (docs/hopper.md). The
    others are as in `neptune.compile`; values in `params` are not changed.

    Inputs are drawn: normal floats, small integers, and 0 for integers that are indices. Where values decide how
    much is computed, `kernel.tune` takes tensors. Every candidate is compared with the unfused program before it is
    timed. Without a GPU the kernel is the model's choice.

    Raises what `compile` raises, ShapeError for shapes that are none, ScheduleError where no candidate fits the GPU,
    NeptuneError for a budget or an executor that is none.

        kernel = neptune.autotune(prefill_causal(), shapes={"batch": 1, "heads": 32, "s_q": 8192, "s_kv": 8192})
    """
    asked = options_of(budget, trials, executor, workers, quiet)
    task = task_of(expr, template, inputs, target, params, bounds, name, form)
    return told(tuned(task, shapes, asked), asked)


def task_of(
    expr: Any,
    template: AnyTemplate = None,
    inputs: Sequence[Any] | None = None,
    target: str | None = None,
    params: Mapping[str, Any] | None = None,
    bounds: Mapping[Any, int] | None = None,
    name: str | None = None,
    form: str | None = None,
) -> Task:
    """The task of an expression; arguments as in `neptune.compile`."""
    loops, where = imported(expr, inputs, name), target_for(target, config.read())
    on_tiles, settled = in_two(params, None, form, template)
    given = checked_params(loops, on_tiles)
    also = other_forms(checked_form(form, where), str(where))
    every = {**given, **{n: v for f in also for n, v in qualified(f.name, settled).items()}}

    def compiled(
        t: AnyTemplate, values: Mapping[str, int] | None = None, at: Sizes | None = None, **more: Any
    ) -> Kernel | NeptuneError:
        with warnings.catch_warnings():
            # The kernel that comes of it says what makes it slow.
            warnings.simplefilter("ignore", NeptunePerformanceWarning)
            more = {"form": TRITON, "records": False, **more}
            return kernel_or_why(loops, t, target=str(where), params=values, bounds=bounds, shapes=at, **more)

    def other(t: AnyTemplate, choice: Choice) -> Kernel | NeptuneError:
        return compiled(t, choice.values, form=choice.form)

    @cache
    def default(sizes: tuple[tuple[str, int], ...]) -> Variant:
        return unless_refused(compiled(template, every, dict(sizes), form=AUTO if also else TRITON)).chosen(
            **dict(sizes)
        )

    def chosen(sizes: Sizes) -> Choice:
        return choice_of_variant(default(tuple(sizes.items())), given)

    forms = forms_of(loops, template, compiled, {f.name: other for f in also})
    return Task(
        loops,
        where,
        forms,
        chosen,
        lambda: unless_refused(compiled(TEMPLATE)),
        machine_for(where),
        given,
        _recorded(forms, template),
        # With bounds all launches have the number of the largest sizes.
        numbers=frozenset() if bounds else numbers_of(forms) - given.keys(),
        settled=settled,
    )


def choice_of_variant(variant: Variant, given: Mapping[str, int]) -> Choice:
    """What a variant is made with, with the values that are `given`: in its other form, with the levers and tiles of
    that, where it has one that is not known not to run."""
    own, of = Choice(variant.template, {**variant.params, **given}), variant.kernel.executable.artifact.form
    return own if of is None or of.faults else own.formed(of.name, of.levers)


def numbers_of(forms: Sequence[Form]) -> frozenset[str]:
    """The numbers of parts that launches of any form choose."""
    return frozenset(n for f in forms for n in space_of(f.tiles).parts)


def _recorded(forms: Sequence[Form], template: AnyTemplate) -> Mapping[str, str]:
    """What records call the templates: a shipped one by its name, the caller's own with a digest of what it does."""
    if template is None or isinstance(template, str):
        return {f.template: f.template for f in forms}
    digest = fingerprint(template)
    return {} if digest is None else {f.template: f"{f.template}-{digest[:12]}" for f in forms}


def task_of_kernel(kernel: Kernel, args: Sequence[Any], sizes: Sizes) -> Task:
    """The task of a kernel at the sizes of a call: every shipped template, where its own is one and nothing was
    promised of bits; else values of its own. Where it has another form, candidates in such forms, too."""
    loops, where = kernel.executable.loops, parse_target(kernel.target)
    bounds = kernel.executable.artifact.bounds
    own = kernel.chosen(**sizes)
    if own.template in shipped_templates() and not kernel.executable.artifact.explanation.get("promises"):
        has = any(k.executable.artifact.form is not None for k in (kernel, own.kernel))
        task = task_of(loops, target=str(where), bounds=bounds, form=AUTO if has else TRITON)
        if any(f.template == own.template for f in task.forms):
            return replace(task, chosen=lambda _: choice_of_variant(own, {}), own=args)
    artifact = own.kernel.executable.artifact
    # In another number of parts there are other bits.
    free = not bounds and not artifact.explanation.get("promises")
    tiles = parse_tiles(artifact.programs["tile"], parse_program(artifact.declarations))
    form = Form(own.template, tiles, lambda: own.kernel)
    shipped = own.template in shipped_templates()
    names = {own.template: own.template} if shipped else {}
    reference = task_of(loops, TEMPLATE, target=str(where), bounds=bounds)
    return replace(
        reference,
        forms=(form,),
        chosen=lambda _: Choice(own.template, own.params),
        reference=lambda: unless_refused(reference.forms[0].kernel()),
        names=names,
        own=args,
        numbers=numbers_of((form,)) - artifact.params.keys() if free else frozenset(),
    )


def tune_kernel(kernel: Kernel, args: Sequence[Any], asked: Options) -> Tuning:
    """`Kernel.tune`."""
    call = kernel.executable.signature.bind(args)
    sizes = {n: int(call.scalars[n]) for n in sizes_of(kernel.executable.loops)}
    return tuned(task_of_kernel(kernel, args, sizes), sizes, asked)


def told(found: Tuning, asked: Options) -> Kernel:
    """The kernel, after a line for each shape on the standard error."""
    progress = Progress(asked.quiet)
    for at in found.shapes:
        progress.say(str(at))
    return found.kernel


# --- searching -------------------------------------------------------------------------------------


def tuned(task: Task, shapes: Any, asked: Options) -> Tuning:
    """Search at each shape, with an equal share of the time that is left, and make one kernel of the winners."""
    points = checked_shapes(task.loops, shapes)
    whole = Clock(asked.seconds)
    with shown(asked.seconds, asked.quiet) as progress:
        found = []
        for k, sizes in enumerate(points):
            clock = Clock(whole.left / (len(points) - k))
            found.append(_tuned_at(task, sizes, clock, asked, progress))
    return Tuning(together(lambda choice: unless_refused(task.kernel(choice)), found, task.numbers), tuple(found))


def others_of(task: Task, on_tiles: Sequence[Trial], sizes: Sizes) -> list[Trial]:
    """The candidates in other forms than tiles that have what the caller settled."""
    every = other_trials(task.forms, on_tiles, sizes, task.machine, task.given)
    return [t for t in every if t.choice.levers.items() >= task.settled.items()]


def _tuned_at(task: Task, sizes: Sizes, clock: Clock, asked: Options, progress: Progress) -> Tuned:
    every = trials(task.forms, sizes, task.machine, task.given, bool(task.numbers))
    plain = [t for t in every if not task.numbers & t.params.keys()]
    others = others_of(task, plain, sizes)
    default = task.default(sizes, others)
    if not every:
        raise ScheduleError(
            f"tune `{task.loops.name}` at {shape_text(sizes)}",
            f"no candidate fits {task.machine.name}"
            + (f" with {shape_text(task.given)}" if task.given else ": none has a prediction"),
            hint="fewer or other params" if task.given else "neptune.compile, which needs no prediction",
        )
    every = tuple(sorted((*every, *others[:FEW]), key=lambda t: t.us))
    if all(t.choice != default.choice for t in every):
        every = (*every, default)
    # A Bench of the caller's own brings its timer along.
    bench = asked.bench or Bench()
    why = task.unmeasurable(EXECUTORS[asked.executor].here) if bench.timer == Bench().timer else ""
    if why:
        return Tuned(sizes, default, default, None, None, len(every), 0, 0, {}, why)
    records, parts = asked.records, numbers_of(task.forms)
    kin, earlier = keys_of(task.loops)
    journal = Journal(records, kin, task.machine.device, task.loops.name, task.names, parts, earlier)
    every, how = ordered(task.forms, every, journal.lessons(), sizes, task.machine)
    if how:
        progress.say(f"{shape_text(sizes)}: candidates are in order {how}")
    with tempfile.TemporaryDirectory(prefix="neptune-tune-") as made:
        folder = Path(made)
        case = case_of(task.loops, task.reference(), sizes, task.machine.device, task.own)
        executor = EXECUTORS[asked.executor](folder, case, bench, lambda: clock.left)
        try:
            run = Run(sizes, Search(every), default, task.kernel, executor, journal, clock, asked.trials, progress)
            return run.tuned()
        finally:
            executor.close()


def checked_shapes(loops: Program, shapes: Any) -> list[dict[str, int]]:
    """The sizes of each shape by name. ShapeError where there is none, or a size is missing or none."""
    asked = f"tune `{loops.name}`"
    many = [shapes] if isinstance(shapes, Mapping) else shapes
    if not isinstance(many, list | tuple) or (not many and sizes_of(loops)):
        raise ShapeError(
            f"{asked} with shapes={shapes!r:.60}", "no shape is given", legal=(_shape_of(loops), "a list of such")
        )
    found = []
    for one in many or [{}]:
        sizes = checked_sizes("shapes", loops, one)
        missing = [n for n in sizes_of(loops) if n not in sizes]
        if missing:
            raise ShapeError(
                f"{asked} at {shape_text(sizes) or 'no sizes'}",
                f"no value was given for {', '.join(missing)}",
                legal=(_shape_of(loops),),
            )
        found.append({n: sizes[n] for n in sizes_of(loops)})
    return found


def _shape_of(loops: Program) -> str:
    return "{" + ", ".join(f'"{n}": …' for n in sizes_of(loops)) + "}"
