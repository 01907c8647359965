"""The tuner: candidates in the model's order, checked and timed in processes of their own, and the fastest as a kernel.

    kernel = neptune.autotune(decode, shapes=[{"batch": 1, "s_kv": 8192}, {"batch": 64, "s_kv": 1024}], budget="2m")
    kernel = neptune.compile(decode).tune(q, k, v, budget="60s")

Every measurement is a record (`neptune.records.record`), kept before the next one begins: a search that is cut off
goes on where it was. Without a GPU the model chooses, and nothing is measured.

What was the fastest at several shapes becomes one kernel: a family, whose launches take the winner of what is alike.

shapes  batch=1 s_kv=8192: flash_decoding …      →  flash_decoding … where batch <= 8, else flash_attention …
        batch=64 s_kv=1024: flash_attention …

A number of parts that was measured to be faster than what a launch would choose is taken at the shape where that was
measured, and nowhere else: it follows from how many programs there are (`neptune.runtime.parts`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from neptune import config
from neptune.autotune.cluster import Cluster
from neptune.autotune.journal import Journal, Records
from neptune.autotune.learn import ordered
from neptune.autotune.place import Bench, Case, Executor, Local, case_of
from neptune.autotune.progress import Progress, shown
from neptune.autotune.rounds import Search
from neptune.autotune.search import Run, Tuned, shape_text
from neptune.autotune.space import FEW, Sizes, Trial, other_trials, trials
from neptune.autotune.task import Task, numbers_of, task_of, task_of_kernel
from neptune.base.boundary import public
from neptune.base.choice import Choice
from neptune.driver.explanation import family_json
from neptune.driver.imports import as_program
from neptune.driver.options import TuneOptions, takes
from neptune.errors import NeptuneError, ScheduleError, ShapeError, unless_refused
from neptune.ir.program import Program
from neptune.kernel import Kernel
from neptune.records.record import keys_of
from neptune.records.store import Store
from neptune.runtime.artifact import AT
from neptune.runtime.executable import Executable
from neptune.runtime.family import FAMILY
from neptune.runtime.parts import Measured
from neptune.tune.budget import Clock, checked_count, seconds_of
from neptune.tune.choose import AnyTemplate
from neptune.tune.family import of_winners
from neptune.tune.params import checked_sizes
from neptune.tune.points import sizes_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


class ExecutorKind(Protocol):
    """A kind of executor."""

    here: bool
    """Whether it measures on this machine alone."""

    def __call__(self, folder: Path, case: Case, bench: Bench, left: Callable[[], float]) -> Executor: ...

    def check(self) -> None:
        """NeptuneError where it cannot be used."""

    def workers(self) -> int:
        """Processes that compile, where nobody says how many."""


EXECUTORS: Mapping[str, ExecutorKind] = {"local": Local, "ray": Cluster}


def executor_of(name: object) -> ExecutorKind:
    """The executor of a name. NeptuneError for one that there is not, or that cannot be used."""
    if not isinstance(name, str) or name not in EXECUTORS:
        raise NeptuneError(f"tune with executor={name!r:.40}", "there is no such executor", legal=tuple(EXECUTORS))
    EXECUTORS[name].check()
    return EXECUTORS[name]


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
    options = Options(seconds_of(budget), checked_count("trials", "candidates", trials), executor, quiet=quiet)
    bench = Bench(workers=checked_count("workers", "processes", workers) or where.workers())
    return replace(options, records=Store(config.read().cache_dir), bench=bench)


@public
@takes(TuneOptions)
def autotune(expr: Any, template: AnyTemplate = None, **options: Unpack[TuneOptions]) -> Kernel:
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
    how = options_of(options["budget"], options["trials"], options["executor"], options["workers"], options["quiet"])
    loops = as_program(expr, options["inputs"], options["name"])
    task = task_of(loops, template, options["target"], options["params"], options["bounds"], options["form"])
    return reported(tuned(task, options["shapes"], how), how)


def tune_kernel(kernel: Kernel, args: Sequence[Any], options: Options) -> Tuning:
    """`Kernel.tune`."""
    call = kernel.executable.signature.bind(args)
    sizes = {n: int(call.scalars[n]) for n in sizes_of(kernel.executable.loops)}
    return tuned(task_of_kernel(kernel, args, sizes), sizes, options)


def reported(tuning: Tuning, options: Options) -> Kernel:
    """The kernel, after a line for each shape on the standard error."""
    progress = Progress(options.quiet)
    for shape in tuning.shapes:
        progress.say(str(shape))
    return tuning.kernel


# --- searching -------------------------------------------------------------------------------------


def tuned(task: Task, shapes: Any, options: Options) -> Tuning:
    """Search at each shape, with an equal share of the time that is left, and make one kernel of the winners."""
    points = checked_shapes(task.loops, shapes)
    total = Clock(options.seconds)
    with shown(options.seconds, options.quiet) as progress:
        results = []
        for k, sizes in enumerate(points):
            clock = Clock(total.left / (len(points) - k))
            results.append(_tuned_at(task, sizes, clock, options, progress))
    return Tuning(together(lambda choice: unless_refused(task.kernel(choice)), results, task.numbers), tuple(results))


def others_of(task: Task, on_tiles: Sequence[Trial], sizes: Sizes) -> list[Trial]:
    """The candidates in other forms than tiles that have what the caller settled."""
    every = other_trials(task.forms, on_tiles, sizes, task.machine, task.given)
    return [t for t in every if t.choice.levers.items() >= task.settled.items()]


def _tuned_at(task: Task, sizes: Sizes, clock: Clock, options: Options, progress: Progress) -> Tuned:
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
    bench = options.bench or Bench()
    why = task.unmeasurable(EXECUTORS[options.executor].here) if bench.timer == Bench().timer else ""
    if why:
        return Tuned(sizes, default, default, None, None, len(every), 0, 0, {}, why)
    records, parts = options.records, numbers_of(task.forms)
    kin, earlier = keys_of(task.loops)
    journal = Journal(records, kin, task.machine.device, task.loops.name, task.names, parts, earlier)
    every, how = ordered(task.forms, every, journal.lessons(), sizes, task.machine)
    if how:
        progress.say(f"{shape_text(sizes)}: candidates are in order {how}")
    with tempfile.TemporaryDirectory(prefix="neptune-tune-") as name:
        folder = Path(name)
        case = case_of(task.loops, task.reference(), sizes, task.machine.device, task.own)
        executor = EXECUTORS[options.executor](folder, case, bench, lambda: clock.left)
        try:
            run = Run(sizes, Search(every), default, task.kernel, executor, journal, clock, options.trials, progress)
            return run.tuned()
        finally:
            executor.close()


def checked_shapes(loops: Program, shapes: Any) -> list[dict[str, int]]:
    """The sizes of each shape by name. ShapeError where there is none, or a size is missing or none."""
    request = f"tune `{loops.name}`"
    many = [shapes] if isinstance(shapes, Mapping) else shapes
    if not isinstance(many, list | tuple) or (not many and sizes_of(loops)):
        raise ShapeError(
            f"{request} with shapes={shapes!r:.60}", "no shape is given", legal=(_shape_of(loops), "a list of such")
        )
    checked = []
    for one in many or [{}]:
        sizes = checked_sizes("shapes", loops, one)
        missing = [n for n in sizes_of(loops) if n not in sizes]
        if missing:
            raise ShapeError(
                f"{request} at {shape_text(sizes) or 'no sizes'}",
                f"no value was given for {', '.join(missing)}",
                legal=(_shape_of(loops),),
            )
        checked.append({n: sizes[n] for n in sizes_of(loops)})
    return checked


def _shape_of(loops: Program) -> str:
    return "{" + ", ".join(f'"{n}": …' for n in sizes_of(loops)) + "}"


# --- winners of several shapes as one kernel --------------------------------------------------------


def together(
    kernel: Callable[[Choice], Kernel], results: Sequence[Tuned], numbers: frozenset[str] = frozenset()
) -> Kernel:
    """The kernel of the winners; of a single one, that for all sizes. `numbers` are those of parts that were tuned."""
    winners = list(dict.fromkeys(t.best.choice.without(numbers) for t in results))
    compiled = [_with_numbers(kernel(w), results, numbers) for w in winners]
    if len(winners) == 1:
        return _alone(compiled[0], results[0])
    times = [[_time(w, t, numbers) for t in results] for w in winners]
    chosen = {w.template: k.executable.artifact.chosen for w, k in zip(winners, compiled, strict=True)}
    family = of_winners(winners, [dict(t.sizes) for t in results], np.array(times), chosen)
    order = [winners.index(c) for c in family.choices]
    if len(order) == 1:
        return _alone(compiled[order[0]], results[0])
    kernels = [compiled[k] for k in order]
    own = kernels[0]
    artifact = own.executable.artifact.alone()
    artifact = replace(artifact, explanation={**artifact.explanation, FAMILY: family_json(family)})
    return Kernel(Executable(artifact, own.executable.loops), own._make_build, lambda k: kernels[k])


def _time(winner: Choice, result: Tuned, numbers: frozenset[str]) -> float:
    """What a winner took at a shape; where nothing was measured, what the model says of its own one."""
    if result.best.choice.without(numbers) == winner:
        return result.times.get(result.best.choice, result.best.us)
    return result.times.get(winner, np.inf)


def _with_numbers(kernel: Kernel, results: Sequence[Tuned], numbers: frozenset[str]) -> Kernel:
    """The kernel, whose launches take the numbers of parts that were the fastest at these shapes, with the tiles of
    each: variants of one template are made of one another, and share these rows."""
    executable = kernel.executable
    own = [t for t in results if t.best.template == executable.artifact.template]
    parts = []
    for rule in executable.artifact.parts:
        tuned = [t for t in own if rule.number in numbers & t.best.params.keys()]
        rows = (Measured(_at(t, executable.modules.params.keys()), t.best.params[rule.number]) for t in tuned)
        parts.append(replace(rule, measured=(*rows, *rule.measured)))
    return Kernel(Executable(replace(executable.artifact, parts=tuple(parts)), executable.loops), kernel._make_build)


def _at(result: Tuned, names: Collection[str]) -> tuple[tuple[str, int], ...]:
    """The sizes of a shape, and the values that its winner has of these names."""
    return tuple({**result.sizes, **{n: v for n, v in result.best.params.items() if n in names}}.items())


def _alone(kernel: Kernel, result: Tuned) -> Kernel:
    """A kernel for all sizes, judged at those of a shape."""
    executable = kernel.executable
    artifact = executable.artifact.alone()
    if AT not in artifact.explanation and not artifact.shapes:
        artifact = artifact.unjudged(result.sizes)
    return Kernel(Executable(artifact, executable.loops), kernel._make_build)
