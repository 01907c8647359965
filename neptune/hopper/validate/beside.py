"""Both forms of a kernel beside each other, in a process that may hang or die: results, and times.

A kernel that hangs is never given up by the GPU, and one that touches what it must not takes its process's context with
it. So a form that nothing is known of yet runs in a process of its own, which is ended after a limit.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from neptune.runtime.artifact import Artifact
from neptune.runtime.hopper.accepted import Compared, Timed, timed_of
from neptune.runtime.processes.worker import Json, Worker
from neptune.runtime.saved import packed

IDLE = 15.0
"""Seconds that the process waits for a next kernel: starting one takes seconds, and it holds some memory of the GPU."""
WORKER = Worker("neptune.hopper.validate.worker", {"TRITON_INTERPRET": None}, IDLE)
LIMIT = 60.0
"""Seconds of a request: compiling both forms, and launches that take less than a second if they end."""
START = 120.0
"""Seconds until the process is there, and has the GPU."""
LOG = logging.getLogger("neptune.codegen")


@dataclass(frozen=True)
class Beside:
    """The asynchronous form of a kernel, with a record with which it runs, and its Triton form, each by itself."""

    asynchronous: Artifact
    triton: Artifact
    worker: Worker = field(default_factory=lambda: WORKER)
    limit: float = LIMIT

    def compared(self, sizes: Sequence[Mapping[str, int]]) -> Compared | str | None:
        """Results at some sizes; how the process ended, where it did; None where nothing is known, as with too little
        memory."""
        answer = self._asked("compare", list(map(dict, sizes)))
        return Compared(**answer) if isinstance(answer, dict) else answer

    def timed(self, sizes: Mapping[str, int]) -> Timed | str | None:
        """Times of calls at these sizes; else as `compared`."""
        answer = self._asked("time", dict(sizes))
        return timed_of({**answer, "sizes": sizes, "device": device()}) if isinstance(answer, dict) else answer

    def _asked(self, do: str, sizes: object) -> Json | str | None:
        forms = {"asynchronous": _json(self.asynchronous), "triton": _json(self.triton)}
        if not self._ready():
            return None
        try:
            answer = self.worker.request({"do": do, **forms, "at": sizes}, limit=self.limit)[0]
        except TimeoutError:
            return f"hung: no answer in {self.limit:g} s"
        except EOFError as error:
            return f"ended it: {error}"
        if "failed" not in answer:
            return answer
        # A process that has met a fault of the GPU is of no use.
        self.worker.close()
        if answer["failed"] == "device":
            return f"failed: {answer['why']}"
        LOG.warning("the asynchronous form of `%s` is not looked at: %s", self.triton.name, answer["why"])
        return None

    def _ready(self) -> bool:
        """True where the process is there, with the GPU that this one uses."""
        device = torch.cuda.current_device() if torch.cuda.is_available() else 0
        try:
            answer = self.worker.request({"do": "ready", "device": device}, limit=START)[0]
        except (TimeoutError, EOFError, OSError) as error:
            answer = {"why": str(error)}
        if "name" in answer:
            return True
        self.worker.close()
        LOG.warning("no second process can use the GPU, so that asynchronous forms stay unused: %s", answer["why"])
        return False


def device() -> str:
    """The GPU by name."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


def _json(artifact: Artifact) -> Json:
    saved = packed(artifact, {})
    return {"manifest": saved.manifest, "files": dict(saved.files)}
