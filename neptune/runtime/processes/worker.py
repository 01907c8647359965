"""A persistent worker process: one request at a time, JSON headers and raw bytes over pipes, no pickle.

Compiling and interpreting Triton each need a process of their own: `TRITON_INTERPRET` counts only
before triton's first import, ptxas failures print to stdout, and compiler assertions abort.

A frame is two 8-byte lengths, a JSON object, and that many raw bytes.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

Json = dict[str, Any]
LENGTHS = struct.Struct("<QQ")
GRACE = 1.0
"""Seconds between the end of a worker's pipes and its own."""
WATCH = 0.5
"""Seconds between looks at whether the parent is there."""


def write_frame(stream: BinaryIO, header: Json, body: bytes = b"") -> None:
    """Send one message."""
    text = json.dumps(header).encode()
    stream.write(LENGTHS.pack(len(text), len(body)))
    stream.write(text)
    stream.write(body)
    stream.flush()


def read_frame(stream: BinaryIO) -> tuple[Json, bytes]:
    """Receive one message; EOFError where the other side is gone."""
    head, body = LENGTHS.unpack(_exactly(stream, LENGTHS.size))
    return json.loads(_exactly(stream, head)), _exactly(stream, body)


def _exactly(stream: BinaryIO, count: int) -> bytes:
    data = stream.read(count)
    if len(data) != count:
        raise EOFError
    return data


_WORKERS: weakref.WeakSet[Worker] = weakref.WeakSet()


def _forget_all() -> None:
    for worker in _WORKERS:
        worker._forget()


os.register_at_fork(after_in_child=_forget_all)


class Worker:
    """A child that runs `python -m module` and answers requests; started on first use, restarted if it dies.

    `env` is laid over this process's environment; None removes a variable. One that nobody asks for `idle` seconds is
    ended, which gives what it holds of a GPU back; None keeps it.
    """

    def __init__(self, module: str, env: dict[str, str | None], idle: float | None = None) -> None:
        self.module, self.env, self.idle = module, env, idle
        self._uses = 0
        self._forget()
        _WORKERS.add(self)

    def _forget(self) -> None:
        """Have no process: after a fork its pipes are the parent's, and so is the thread that may hold the lock."""
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        atexit.unregister(self._end)

    def request(self, header: Json, body: bytes = b"", limit: float | None = None) -> tuple[Json, bytes]:
        """One round trip. EOFError where the worker died of it, TimeoutError where it was killed after `limit` seconds;
        the next request starts a new one."""
        with self._lock:
            process = self._started()
            assert process.stdin is not None and process.stdout is not None
            late = threading.Event()
            timer = None if limit is None else _after(limit, late, process)
            try:
                write_frame(process.stdin, header, body)  # type: ignore[arg-type]
                return read_frame(process.stdout)  # type: ignore[arg-type]
            except (EOFError, OSError) as e:
                # Its pipes close a little before it is gone.
                code = self._stop(GRACE)
                if late.is_set():
                    raise TimeoutError(f"the worker {self.module} gave no answer in {limit:g} s") from e
                raise EOFError(f"the worker {self.module} died{_of_what(code)}") from e
            except BaseException:
                # An interrupted exchange leaves half a frame behind.
                self._stop()
                raise
            finally:
                if timer is not None:
                    timer.cancel()
                self._rest()

    def start(self) -> None:
        """Have the process start by itself, before the first request."""
        with self._lock:
            self._started()
            self._rest()

    def _rest(self) -> None:
        """End the process once it has been idle for long."""
        self._uses += 1
        if self.idle is None or self._process is None:
            return
        timer = threading.Timer(self.idle, self._unused, (self._uses,))
        timer.daemon = True
        timer.start()

    def _unused(self, since: int) -> None:
        with self._lock:
            if self._uses == since:
                self._stop()

    def kill(self) -> None:
        """End the process now, also from another thread: a request under way is an EOFError."""
        process = self._process
        if process is not None:
            process.kill()

    def _end(self) -> None:
        """`close` where this process ends: another thread may wait for an answer."""
        self.kill()
        self.close()

    def close(self) -> None:
        """End the process; a later request starts another."""
        with self._lock:
            self._stop()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            root = str(Path(__file__).resolve().parents[2])
            path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH", "")) if p)
            env = {**os.environ, "PYTHONPATH": path}
            for name, value in self.env.items():
                env.pop(name, None)
                if value is not None:
                    env[name] = value
            command = [sys.executable, "-m", self.module]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
            atexit.register(self._end)
        return self._process

    def _stop(self, grace: float = 0.0) -> int | None:
        """End the process; the exit code of one that ends by itself within `grace` seconds, None for any other."""
        process, self._process = self._process, None
        atexit.unregister(self._end)
        if process is None:
            return None
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(grace)
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        return code


def _after(limit: float, late: threading.Event, process: subprocess.Popen[bytes]) -> threading.Timer:
    """A running timer that kills the process, and sets `late`, after so many seconds."""

    def end() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(limit, end)
    timer.daemon = True
    timer.start()
    return timer


def _of_what(code: int | None) -> str:
    """What an exit code says, for people.

    >>> _of_what(-11), _of_what(3), _of_what(None)
    (' of SIGSEGV', ' with exit code 3', '')
    """
    if code is None:
        return ""
    if code >= 0:
        return f" with exit code {code}"
    with contextlib.suppress(ValueError):
        return f" of {signal.Signals(-code).name}"
    return f" of signal {-code}"


def serve(handle: Callable[[Json, bytes], tuple[Json, bytes]]) -> None:
    """The child's loop: answer frames until the parent closes the pipe.

    The pipe keeps a descriptor of its own; what libraries print goes to /dev/null. An exception in
    `handle` is answered as {"error": …}.
    """
    replies = os.fdopen(os.dup(1), "wb")
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    while True:
        try:
            header, body = read_frame(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = handle(header, body)
        except Exception as e:
            answer = {"error": f"{type(e).__name__}: {e}"}, b""
        write_frame(replies, *answer)


def serve_alone(handle: Callable[[Json, bytes], tuple[Json, bytes]]) -> None:
    """`serve` of a child that may hang: it leaves when its parent has gone, and an interrupt is the parent's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    serve(handle)


def _end_with(parent: int) -> None:
    """Leave when the parent has gone: a call that hangs never comes back to look."""
    while os.getppid() == parent:
        time.sleep(WATCH)
    os._exit(1)


def first_line(error: BaseException) -> str:
    """The first line of an error, after its class."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]:.200}"
