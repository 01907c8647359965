"""Stands for the process that runs both forms: what comes of a request is told by its sizes."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from neptune.runtime.processes.worker import Json, serve_alone

SAID: dict[int, Json] = {
    1: {"draws": 3, "error": 1e-4, "limit": 8e-3},
    2: {"failed": "memory", "why": "OutOfMemoryError: 3 GiB"},
    3: {"failed": "device", "why": "RuntimeError: CUDA error: an illegal memory access was encountered"},
    4: {"failed": "error", "why": "ValueError: what is not known"},
    5: {"asynchronous": [1.0, 2.0, 3.0], "triton": [4.0, 5.0, 6.0]},
}
HANGS, DIES = 8, 9


def handle(header: Json, _body: bytes) -> tuple[Json, bytes]:
    if header["do"] == "ready":
        return ({"name": "H200"} if "NEPTUNE_NO_GPU" not in os.environ else {"failed": "error", "why": "no GPU"}), b""
    at: Any = header["at"]
    what = (at[0] if isinstance(at, list) else at)["n"]
    if what == HANGS:
        time.sleep(1000)
    if what == DIES:
        os.kill(os.getpid(), signal.SIGSEGV)
    return SAID[what], b""


if __name__ == "__main__":
    serve_alone(handle)
