"""The tuner: candidates in the model's order, checked and timed in processes of their own, and the fastest as a kernel.

    kernel = neptune.autotune(decode, shapes=[{"batch": 1, "s_kv": 8192}, {"batch": 64, "s_kv": 1024}], budget="2m")
    kernel = neptune.compile(decode).tune(q, k, v, budget="60s")

Every measurement is a record (`neptune.records.record`), kept before the next one begins: a search that is cut off
goes on where it was. Without a GPU the model chooses, and nothing is measured.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from neptune import config
from neptune.autotune.cluster import Cluster
from neptune.autotune.journal import Journal, Records
from neptune.autotune.learn import ordered
from neptune.autotune.local import Local
from neptune.autotune.place import Bench, Case, Executor, case_of
from neptune.autotune.progress import Progress, shown
from neptune.autotune.rounds import Search
from neptune.autotune.search import Run, Tuned, shape_text
from neptune.autotune.space import FEW, Sizes, Trial, other_trials, trials
from neptune.autotune.task import Task, numbers_of, task_of, task_of_kernel
from neptune.autotune.winners import together
from neptune.base.boundary import public
from neptune.driver.imports import as_program
from neptune.driver.options import TuneOptions, takes
from neptune.errors import NeptuneError, ScheduleError, ShapeError, unless_refused
from neptune.ir.program import Program
from neptune.kernel import Kernel
from neptune.records.record import keys_of
from neptune.records.store import Store
from neptune.tune.budget import Clock, checked_count, seconds_of
from neptune.tune.choose import AnyTemplate
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
