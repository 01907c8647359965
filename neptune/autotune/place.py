"""A place where candidates are compiled, compared and timed: one process that may hang or die, and what came of it.

    Place(case file, bench).outcome("measure", kernel, limit=60.0, unfused=…)  →  Outcome(us=(21.4, 21.3, …))

What a candidate does to its process ends with that process: the next request starts another. One that hangs is killed
after its limit. Executors (`Local` here, `neptune.autotune.cluster`) differ in where their places are. On this
machine candidates are compiled by several processes, compared and timed by one.
"""

from __future__ import annotations

import io
import json
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from neptune.autotune.timer import GPU
from neptune.errors import NeptuneError
from neptune.ir.program import Program
from neptune.kernel import Kernel
from neptune.runtime import saved
from neptune.runtime.processes.worker import Json, Worker

MODULE = "neptune.autotune.worker"
LIMIT = 60.0
"""Seconds that one request may take."""
OVERTIME = 3.0
"""Seconds beyond the budget for what is under way."""


@dataclass(frozen=True)
class Outcome:
    """What came of a candidate: microseconds of each call, with clocks in MHz; or how it `failed` ("wrong", "hung",
    "died", "memory", "failed"), and why."""

    us: tuple[float, ...] = ()
    clocks: Mapping[str, int] = field(default_factory=dict)
    failed: str = ""
    why: str = ""


@dataclass(frozen=True)
class Bench:
    """How candidates are timed: a Timer by its name and options, the seconds of one request, and how many processes
    compile (none: the one that measures does)."""

    timer: str = GPU
    options: Mapping[str, Any] = field(default_factory=dict)
    limit: float = LIMIT
    workers: int = 1


class Executor(Protocol):
    """Where candidates are compiled and measured."""

    def measured(self, kernels: Sequence[Kernel]) -> Iterator[tuple[int, Outcome]]:
        """Compile kernels, compare each with the reference and time it: the number of each with what came of it, until
        the time is over. NeptuneError where the reference itself is wrong, Lost where nothing can be measured."""

    def time(self, kernel: Kernel) -> Outcome:
        """Time a kernel that was compared before, always on the same GPU."""

    def close(self) -> None:
        """End every process."""


class Lost(Exception):
    """There is no place left where anything can be measured."""


def believed(trusted: tuple[Any, str]) -> Any:
    """What `Place.trust` says of the reference. NeptuneError where it is wrong, or does not run: then nothing can be
    compared."""
    unfused, why = trusted
    if why:
        raise NeptuneError(
            "tune on this machine",
            f"the unfused program, which candidates are compared with, {why}",
            hint="smaller shapes; else another version of Triton or of the driver",
        )
    return unfused


@dataclass(frozen=True)
class Case:
    """One program at some sizes, as JSON for the worker, for a GPU by its name in the table of machines; with arguments
    of the caller's as bytes of `torch.save`."""

    said: Json
    device: str
    tensors: bytes | None = None

    def written(self, folder: Path, bench: Bench) -> Path:
        """Its file in a folder, which is for the files of one run."""
        own = None
        if self.tensors is not None:
            own = str(folder / "tensors.pt")
            Path(own).write_bytes(self.tensors)
        file = folder / "case.json"
        file.write_text(json.dumps({**self.said, "tensors": own, "timer": bench.timer, "options": dict(bench.options)}))
        return file


def case_of(
    loops: Program, reference: Kernel, sizes: Mapping[str, int | float], device: str, own: Sequence[Any] | None
) -> Case:
    """What a worker needs to know of one program at some sizes; `own` are arguments of the caller's."""
    fields: Json = {"loops": str(loops), "sizes": dict(sizes), "reference": packed_json(reference), "scalars": []}
    if own is None:
        return Case(fields, device)
    count, file = len(loops.inputs), io.BytesIO()
    torch.save(list(own[:count]), file)
    return Case({**fields, "scalars": list(own[count:])}, device, file.getvalue())


def packed_json(kernel: Kernel) -> Json:
    """A kernel by itself as JSON."""
    packed = saved.packed(kernel.executable.artifact.alone(), {})
    return {"manifest": packed.manifest, "files": dict(packed.files)}


class Place:
    """One process, and the requests to it."""

    def __init__(self, file: Path, env: dict[str, str | None] | None = None) -> None:
        """`file` is that of a Case; `env` is laid over the environment, None removes a variable."""
        self._file = file
        self._worker = Worker(MODULE, env or {})

    def trust(self, limit: float) -> tuple[Any, str]:
        """Have the reference compared with the expression: what a comparison needs of it, and what is wrong ("")."""
        answer, failed = self._asked("trust", None, limit)
        if answer is None:
            return None, f"{failed.failed} here: {failed.why}"
        return answer["unfused"], f"is wrong here: {answer['wrong']}" if answer["wrong"] else ""

    def device(self, limit: float) -> str:
        """The GPU by its name in the table of machines; "" where there is none."""
        answer, _ = self._asked("device", None, limit)
        return "" if answer is None else str(answer["device"])

    def compile(self, kernel: Json, limit: float) -> None:
        """Have a kernel compiled. Where that fails, measuring it says why."""
        self._asked("compile", kernel, limit)

    def outcome(self, do: str, kernel: Json, limit: float, **more: Any) -> Outcome:
        """What comes of a kernel: "measure" compares it and times it, "time" only that."""
        answer, failed = self._asked(do, kernel, limit, **more)
        if answer is None:
            return failed
        if "wrong" in answer:
            return Outcome(failed="wrong", why=answer["wrong"])
        if "refused" in answer:
            return Outcome(failed="failed", why=answer["refused"])
        return Outcome(tuple(answer["us"]), answer["clocks"])

    def kill(self) -> None:
        """End the process if there is one, also while a request of another thread is under way."""
        self._worker.kill()

    def close(self) -> None:
        """End the process, and free what it held."""
        self._worker.kill()
        self._worker.close()

    def _asked(self, do: str, kernel: Json | None, limit: float, **more: Any) -> tuple[Json | None, Outcome]:
        """The answer of the process, or how it failed; then it has ended, since a context that has met an illegal
        access is of no use."""
        header = {"do": do, "case": str(self._file), **({} if kernel is None else {"kernel": kernel}), **more}
        try:
            answer = self._worker.request(header, limit=limit)[0]
        except TimeoutError:
            return None, Outcome(failed="hung", why=f"no answer in {limit:.0f} s")
        except EOFError as error:
            return None, Outcome(failed="died", why=str(error))
        for key, failed in (("memory", "memory"), ("error", "failed")):
            if key in answer:
                self._worker.close()
                return None, Outcome(failed=failed, why=answer[key])
        return answer, Outcome()


# --- places on this machine -------------------------------------------------------------------------


class Local:
    """The executor of this machine, for one case."""

    here = True

    def __init__(self, folder: Path, case: Case, bench: Bench, left: Callable[[], float]) -> None:
        """`folder` is for files of this run, `left` gives the seconds that are left."""
        file = case.written(folder, bench)
        self._bench, self._left = bench, left
        self._measuring = Place(file)
        self._compiling = [Place(file) for _ in range(bench.workers)]
        self._closed = False
        # Processes start, and the reference is compared, while the caller makes the first candidates.
        pool = ThreadPoolExecutor(1 + bench.workers)
        self._trusted = pool.submit(self._measuring.trust, bench.limit)
        self._early: list[Future[Any]] = [self._trusted]
        self._early += [pool.submit(place.device, bench.limit) for place in self._compiling]
        pool.shutdown(wait=False)

    @staticmethod
    def check() -> None:
        """There is always this machine."""

    @staticmethod
    def workers() -> int:
        """Processes that compile, where nobody says how many: one processor is left to what is measured."""
        return max(1, len(os.sched_getaffinity(0)) - 1)

    def measured(self, kernels: Sequence[Kernel]) -> Iterator[tuple[int, Outcome]]:
        for k in self._built(kernels):
            unfused = believed(self._trusted.result())
            if not self._left():
                return
            yield k, self._measuring.outcome("measure", packed_json(kernels[k]), self._limit(), unfused=unfused)

    def time(self, kernel: Kernel) -> Outcome:
        return self._measuring.outcome("time", packed_json(kernel), self._limit())

    def close(self) -> None:
        self._closed = True
        places = (self._measuring, *self._compiling)
        for place in places:
            place.kill()
        while wait(self._early, timeout=0.05).not_done:
            # A process was about to start.
            for place in places:
                place.kill()
        for place in places:
            place.close()

    def _built(self, kernels: Sequence[Kernel]) -> Iterator[int]:
        """The numbers of the kernels, each when it is compiled, or has turned out not to; until the time is over."""
        left: queue.SimpleQueue[int] = queue.SimpleQueue()
        done: queue.SimpleQueue[int] = queue.SimpleQueue()
        for k in range(len(kernels)):
            left.put(k)

        def share(place: Place) -> None:
            with suppress(queue.Empty):
                while not self._closed:
                    k = left.get_nowait()
                    place.compile(packed_json(kernels[k]), self._limit())
                    done.put(k)

        if not self._compiling:
            yield from range(len(kernels))
            return
        for place in self._compiling[: len(kernels)]:
            threading.Thread(target=share, args=(place,), daemon=True).start()
        for _ in kernels:
            try:
                yield done.get(timeout=self._left())
            except queue.Empty:
                return

    def _limit(self) -> float:
        """Seconds for a request: what is under way when the time is over gets a little more."""
        return min(self._bench.limit, self._left() + OVERTIME)
