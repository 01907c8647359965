"""A worker that is slow or dies: the limit of a request, and what the exit says."""

from __future__ import annotations

import threading
import time

import pytest

from neptune.runtime.processes.worker import Worker, serve

MODULE = "tests.unit.runtime.test_worker"


def answer(header: dict[str, object], body: bytes) -> tuple[dict[str, object], bytes]:
    import os

    if "sleep" in header:
        time.sleep(float(str(header["sleep"])))
    if "exit" in header:
        os._exit(int(str(header["exit"])))
    if "kill" in header:
        os.kill(os.getpid(), int(str(header["kill"])))
    return {"pid": os.getpid()}, body


def test_limits_deaths_and_kills() -> None:
    """One process after the other, each from a fresh start."""
    worker = Worker(MODULE, {})
    try:
        first = worker.request({}, b"abc", limit=60)
        assert first[1] == b"abc" and worker.request({})[0] == first[0]
        with pytest.raises(TimeoutError, match=r"no answer in 0\.2 s"):
            worker.request({"sleep": 60}, limit=0.2)
        assert worker.request({}, limit=60)[0] != first[0]
        with pytest.raises(EOFError, match="with exit code 3"):
            worker.request({"exit": 3}, limit=60)
        with pytest.raises(EOFError, match="of SIGSEGV"):
            worker.request({"kill": 11})
        threading.Timer(0.5, worker.kill).start()
        with pytest.raises(EOFError, match="SIGKILL"):
            worker.request({"sleep": 60})
    finally:
        worker.close()


def test_one_that_is_idle_is_ended_and_another_starts() -> None:
    worker = Worker(MODULE, {}, idle=1.5)
    try:
        worker.start()
        first = worker.request({"sleep": 2}, limit=60)[0]
        assert worker.request({}, limit=60)[0] == first, "a request longer than that is not cut"
        process = worker._process
        assert process is not None and process.wait(30) is not None
        assert worker.request({}, limit=60)[0] != first
    finally:
        worker.close()


if __name__ == "__main__":
    serve(answer)
