"""Tiered compilation: what a first call waits for is the fastest thing to compile; the better kernel takes over later.

    first call    one template on tiles, the best for its sizes' class     with its exact checks: its result
    beside it     the choices for all sizes; another form, its verdict     in a process, a kernel at a time
    then          the better kernel takes over, between two calls          from the cache: nothing is compiled here

And where a call's sizes take a variant that is not there yet, the kernel of the first calls serves it, and the variant
is made beside. Nothing is made beside where results are promised to stay the same bits (torch's deterministic mode), or
to be the same in several processes (an initialised process group): then the first call waits.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import torch

from neptune import config
from neptune.driver.pipeline import compile, kept, kernel_or_why
from neptune.errors import NeptuneError, unless_refused
from neptune.forms import TRITON
from neptune.ir.program import Program
from neptune.ir.text.parser import parse_program
from neptune.ir.text.printer import print_program
from neptune.kernel import Kernel
from neptune.runtime.executable import warm_up
from neptune.runtime.family import Standby
from neptune.runtime.launching.launch import parse_target
from neptune.runtime.processes.worker import Json, Worker, serve_alone
from neptune.tune.points import class_sizes

IDLE = 15.0
"""Seconds that the process waits for a next kernel: starting one takes as long as compiling one."""
LIMIT = 300.0
"""Seconds of one job. A compilation takes up to a minute on one core."""
MOST = 64
"""Jobs that wait; what is asked for beyond them is asked for again by a later call."""
WORKER = Worker("neptune.driver.tiers", {"TRITON_INTERPRET": None}, IDLE)
LOG = logging.getLogger("neptune.recompiles")


@dataclass(frozen=True)
class Job:
    """A kernel to compile into the cache as `compile` does with these arguments alone, its variant of this number, or
    the one that serves these `sizes`, and the binaries of a call with them."""

    program: str
    template: str | None
    target: str
    variant: int | None = None
    sizes: tuple[tuple[str, int], ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """Of jobs that do the same: any sizes of a variant will do."""
        return self.program, self.template, self.target, self.variant


class Jobs:
    """Jobs that a process does one after the other, each once; a thread waits for it, and is there while there are
    some."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.forget()

    def forget(self) -> None:
        """Have no jobs: after a fork there is no thread, and what was under way is the parent's."""
        self._changed = threading.Condition()
        self._seen: set[tuple[object, ...]] = set()
        self._waiting: deque[tuple[Job, Callable[[], object]]] = deque()
        self._thread: threading.Thread | None = None

    def ask(self, job: Job, done: Callable[[], object]) -> None:
        """Have a job done, once in the life of this process; `done` is called in another thread where it succeeds."""
        with self._changed:
            if job.key in self._seen or len(self._waiting) >= MOST:
                return
            self._seen.add(job.key)
            self._waiting.append((job, done))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="neptune-tiers", daemon=True)
                self._thread.start()

    def wait(self, seconds: float | None) -> bool:
        """Wait until no job is left, so many seconds at most; whether none is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._thread = None
                    self._changed.notify_all()
                    return
                job, done = self._waiting.popleft()
            try:
                self._do(job, done)
            except Exception as error:
                LOG.warning("what was compiled beside is not used: %s: %s", type(error).__name__, error)

    def _do(self, job: Job, done: Callable[[], object]) -> None:
        start = time.monotonic()
        device = torch.cuda.current_device() if torch.cuda.is_available() else 0
        header = {**asdict(job), "sizes": dict(job.sizes), "device": device, "settings": _settings()}
        try:
            answer = self._worker.request(header, limit=LIMIT)[0]
        except (EOFError, OSError) as error:
            answer = {"failed": str(error)}
        if "failed" in answer:
            LOG.warning("nothing better is compiled beside: %s", answer["failed"])
            return
        done()
        LOG.info("compiled beside in %.1f s", time.monotonic() - start)


def _settings() -> dict[str, str]:
    """The settings of this process, which may not be those that the other one was started with."""
    return {n: os.environ[n] for n in config.VARIABLES if n in os.environ}


JOBS = Jobs(WORKER)
os.register_at_fork(after_in_child=JOBS.forget)


def settle(seconds: float | None = None) -> bool:
    """Wait until everything that is compiled beside has taken over, for so many seconds at most; whether it has.

    y = neptune.functional.attention(q, k, v)    # the first call, by what compiles fastest
    neptune.functional.settle()                  # later ones take the fastest kernel
    """
    return JOBS.wait(seconds)


def first(
    program: Program,
    template: str | None,
    target: str,
    sizes: Mapping[str, int | float],
    takes_over: Callable[[Kernel], None],
) -> Kernel:
    """The kernel for the first calls of a program, chosen for the class of the first one's `sizes`. `takes_over` is
    given the better one once it is there, in another thread; where that is in the cache already it is the first."""
    if not applies(target):
        return compile(program, template, target=target)
    job = Job(print_program(program), template, target, sizes=_integers(sizes))
    never = config.read().tiered == config.NEVER
    better = kept(program, template, target)
    if better is not None:
        _stand_by(better, better, program, job, never)
        return better
    kernel = unless_refused(quick(program, template, target, sizes))

    def done() -> None:
        # What is promised by now may not have been before.
        better = kept(program, template, target) if applies(target) else None
        if better is None:
            LOG.warning("`%s`: the first kernel stays: nothing better has a verdict, or may take over", program.name)
            return
        _stand_by(better, kernel, program, job, never)
        takes_over(better)

    if not never:
        JOBS.ask(job, done)
    return kernel


def quick(
    program: Program, template: str | None, target: str, sizes: Mapping[str, int | float]
) -> Kernel | NeptuneError:
    """The kernel that is there soonest for the class of some sizes: the one that is in the cache, else what compiles
    fastest; or why it does not compile."""
    kernel = kept(program, template, target) if applies(target) else kernel_or_why(program, template, target=target)
    if kernel is not None:
        return kernel
    return kernel_or_why(program, template, target=target, form=TRITON, shapes=class_sizes(program, sizes))


def applies(target: str) -> bool:
    """True where the choices for all sizes, and a better form if a target has one, are worth their compilation, and a
    first call need not wait for them."""
    settings = config.read()
    if settings.tiered == config.WAIT or settings.cache_dir is None or settings.dump is not None or settings.strict:
        return False
    if torch.are_deterministic_algorithms_enabled():
        return False
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return False
    return parse_target(target).on_gpu


def _stand_by(better: Kernel, kernel: Kernel, program: Program, job: Job, never: bool) -> None:
    """Have `kernel` serve calls whose variant of the better one is not there, nor in the cache, and this variant made
    beside."""
    members, family = better.executable.members, better.executable.artifact.family
    if members is None and better is kernel:
        return
    looked: set[int] = set()

    def ask(variant: int, sizes: Mapping[str, int | float]) -> bool:
        if members is None or family is None:
            return False
        if variant not in looked:
            looked.add(variant)
            if kept(program, job.template, job.target, family["variants"][variant]) is not None:
                return True
        if not never:
            variant_job = Job(job.program, job.template, job.target, variant, _integers(sizes))
            JOBS.ask(variant_job, lambda: members.member(variant))
        return False

    own = kernel.executable if better is not kernel or members is None else members.member(members.own)
    better.executable.standby = Standby(own, ask)


def _integers(sizes: Mapping[str, int | float]) -> tuple[tuple[str, int], ...]:
    return tuple((n, v) for n, v in sizes.items() if isinstance(v, int))


# --- the child -------------------------------------------------------------------------------------


def handle(header: Json, _body: bytes) -> tuple[Json, bytes]:
    """Do one job: {} is answered where the kernel is in the cache, with the verdict on its form, else {"failed": …}."""
    for name in config.VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(header["settings"])
    if torch.cuda.is_available():
        torch.cuda.set_device(header["device"])
    try:
        kernel = compile(parse_program(header["program"]), header["template"], target=header["target"])
        if header["variant"] is not None:
            kernel = kernel.variants[header["variant"]].kernel
        executable = kernel.executable
        sizes = {s.name: header["sizes"][s.name] for s in executable.loops.scalars if s.name in header["sizes"]}
        if sizes:
            # Its verdict and its times as well: a variant is judged where it is made. Where it cannot be made another
            # serves these sizes, and the kernel is still the better one.
            warm_up(executable if executable.members is None else executable.members.of(sizes), sizes)
    except Exception as error:
        line = (str(error).strip().splitlines() or [""])[0]
        return {"failed": f"{type(error).__name__}: {line:.300}"}, b""
    return {}, b""


if __name__ == "__main__":
    serve_alone(handle)
