"""A place where candidates are compiled, compared and timed: one process that may hang or die, and what came of it.

    Place(case file, bench).outcome("measure", kernel, limit=60.0, unfused=…)  →  Outcome(us=(21.4, 21.3, …))

What a candidate does to its process ends with that process: the next request starts another. One that hangs is killed
after its limit. Executors (`neptune.autotune.local`, `neptune.autotune.cluster`) differ in where their places are.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
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
