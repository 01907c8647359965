"""Candidates on this machine: compiled by several processes, checked and timed by one, which may hang or die.

What a candidate does to its process ends with that process: the next request starts another. One that hangs is killed
after its limit.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from neptune.runtime.worker import Json, Worker

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

    def built(self, kernels: Sequence[Kernel]) -> Iterator[int]:
        """The numbers of the kernels, each when it is compiled, or has turned out not to; until the time is over."""

    def measure(self, kernel: Kernel) -> Outcome:
        """Compare a kernel with the reference, then time it."""

    def time(self, kernel: Kernel) -> Outcome:
        """Time a kernel that was compared before."""

    def close(self) -> None:
        """End every process."""


class Local:
    """The executor of this machine, for one case."""

    def __init__(self, folder: Path, case: Mapping[str, Any], bench: Bench, left: Callable[[], float]) -> None:
        """`folder` is for files of this run, `case` as `case_of`, `left` gives the seconds that are left."""
        self._file = folder / "case.json"
        self._file.write_text(json.dumps({**case, "timer": bench.timer, "options": dict(bench.options)}))
        self._bench, self._left = bench, left
        self._measuring = Worker(MODULE, {})
        self._compiling = [Worker(MODULE, {}) for _ in range(bench.workers)]
        self._unfused: Any = None
        self._closed = False

    def built(self, kernels: Sequence[Kernel]) -> Iterator[int]:
        left: queue.SimpleQueue[int] = queue.SimpleQueue()
        done: queue.SimpleQueue[int] = queue.SimpleQueue()
        for k in range(len(kernels)):
            left.put(k)

        def share(worker: Worker) -> None:
            with suppress(queue.Empty):
                while not self._closed:
                    k = left.get_nowait()
                    # Where it fails, measuring it says why.
                    with suppress(EOFError, TimeoutError):
                        self._request(worker, "compile", kernels[k], self._limit())
                    done.put(k)

        if not self._compiling:
            yield from range(len(kernels))
            return
        for worker in self._compiling[: len(kernels)]:
            threading.Thread(target=share, args=(worker,), daemon=True).start()
        for _ in kernels:
            try:
                yield done.get(timeout=self._left())
            except queue.Empty:
                return

    def measure(self, kernel: Kernel) -> Outcome:
        if self._unfused is None:
            self._unfused = self._trust()
        return self._outcome("measure", kernel, unfused=self._unfused)

    def time(self, kernel: Kernel) -> Outcome:
        return self._outcome("time", kernel)

    def close(self) -> None:
        self._closed = True
        for worker in (self._measuring, *self._compiling):
            worker.kill()
            worker.close()

    def _trust(self) -> Any:
        """Have the reference compared with the expression. NeptuneError where it is wrong, or does not run: then
        nothing can be compared."""
        answer, failed = self._asked("trust", None, self._bench.limit)
        why = failed.why if answer is None else answer["wrong"]
        if answer is None or why:
            raise NeptuneError(
                "tune on this machine",
                f"the unfused program, which candidates are compared with, {failed.failed or 'is wrong'} here: {why}",
                hint="smaller shapes; else another version of Triton or of the driver",
            )
        return answer["unfused"]

    def _outcome(self, do: str, kernel: Kernel, **more: Any) -> Outcome:
        answer, failed = self._asked(do, kernel, self._limit(), **more)
        if answer is None:
            return failed
        if "wrong" in answer:
            return Outcome(failed="wrong", why=answer["wrong"])
        return Outcome(tuple(answer["us"]), answer["clocks"])

    def _asked(self, do: str, kernel: Kernel | None, limit: float, **more: Any) -> tuple[Json | None, Outcome]:
        """The answer of the measuring process, or how it failed; then the process has ended, since a context that has
        met an illegal access is of no use."""
        try:
            answer = self._request(self._measuring, do, kernel, limit, **more)
        except TimeoutError:
            return None, Outcome(failed="hung", why=f"no answer in {limit:.0f} s")
        except EOFError as error:
            return None, Outcome(failed="died", why=str(error))
        for key, failed in (("memory", "memory"), ("error", "failed")):
            if key in answer:
                self._measuring.close()
                return None, Outcome(failed=failed, why=answer[key])
        return answer, Outcome()

    def _limit(self) -> float:
        """Seconds for a request: what is under way when the time is over gets a little more."""
        return min(self._bench.limit, self._left() + OVERTIME)

    def _request(self, worker: Worker, do: str, kernel: Kernel | None, limit: float, **more: Any) -> Json:
        packed = {} if kernel is None else {"kernel": packed_json(kernel)}
        header = {"do": do, "case": str(self._file), **packed, **more}
        return worker.request(header, limit=limit)[0]


def packed_json(kernel: Kernel) -> Json:
    """A kernel by itself as JSON."""
    packed = saved.packed(kernel.executable.artifact.alone(), {})
    return {"manifest": packed.manifest, "files": dict(packed.files)}


def case_of(
    loops: Program, reference: Kernel, sizes: Mapping[str, int | float], own: Sequence[Any] | None, folder: Path
) -> Json:
    """What a worker needs to know of one program at some sizes; `own` are arguments of the caller's, which are kept in
    the folder."""
    case: Json = {"loops": str(loops), "sizes": dict(sizes), "reference": packed_json(reference)}
    if own is None:
        return {**case, "tensors": None, "scalars": []}
    count = len(loops.inputs)
    file = folder / "tensors.pt"
    torch.save(list(own[:count]), file)
    return {**case, "tensors": str(file), "scalars": list(own[count:])}


EXECUTORS: Mapping[str, type[Local]] = {"local": Local}
"""Where candidates may be measured, by name."""


def executor_of(name: object) -> type[Local]:
    """The executor of a name. NeptuneError for one that there is not."""
    if not isinstance(name, str) or name not in EXECUTORS:
        raise NeptuneError(f"tune with executor={name!r:.40}", "there is no such executor", legal=tuple(EXECUTORS))
    return EXECUTORS[name]
