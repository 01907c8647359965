"""Subjects measured by processes: they prepare at the same time, and take turns at the GPU.

A process that dies or hangs takes along the column that it was at, and no other: that one is a row that says so, and
the rest of its subject is given to another process.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from typing import Any

HUNG = 240.0
"""Seconds without a word, beyond which a process is ended."""
LAST = 30.0
"""Seconds before the end in which no further subject is begun."""
Serve = Callable[[Any, str, Sequence[str]], None]
"""(connection, subject, columns): measures in a process, and sends ("at", column) and ("row", column, row)."""


@dataclass
class Job:
    """Columns of a subject of one part; `at` is the one that is being looked at."""

    part: str
    subject: str
    columns: list[str]
    at: str = ""


@dataclass
class _Worker:
    process: Any
    pipe: Any
    job: Job | None = None
    heard: float = field(default_factory=time.monotonic)


def pooled(
    jobs: Sequence[Job],
    workers: int,
    target: Callable[..., None],
    args: tuple[Any, ...],
    seconds: float,
    hung: float = HUNG,
) -> Iterator[tuple[Job, str, Mapping[str, Any]]]:
    """The rows of all jobs, each as it comes: job, column, row. Ends when the time is over, whatever is under way.

    `target(pipe, *args)` is a process: it receives (part, subject, columns) until it receives None, and sends
    ("at", column), ("row", column, row), ("waits",) where others have the GPU, and ("done",).
    """
    end, left = time.monotonic() + seconds, deque(jobs)
    context = get_context("spawn")
    team: list[_Worker] = []

    def begin() -> _Worker:
        ours, theirs = context.Pipe()
        process = context.Process(target=target, args=(theirs, *args))
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def give(w: _Worker) -> bool:
        """Whether there was a job to give."""
        if not left or time.monotonic() > end - min(LAST, seconds / 4):
            return False
        w.job, w.heard = left.popleft(), time.monotonic()
        with suppress(OSError):  # it has died: its end is heard of below
            w.pipe.send((w.job.part, w.job.subject, w.job.columns))
        return True

    def gone(w: _Worker, why: str) -> Iterator[tuple[Job, str, Mapping[str, Any]]]:
        """A process has ended: what it was at has failed, the rest goes to another."""
        team.remove(w)
        w.process.kill()
        w.process.join()
        w.pipe.close()
        job = w.job
        if job is None:
            return
        if job.at in job.columns:
            job.columns.remove(job.at)
            yield job, job.at, {"failed": why}
        elif not job.at:
            # Nobody knows which: each is tried by itself, and one that is alone is to blame.
            if len(job.columns) == 1:
                yield job, job.columns.pop(), {"failed": why}
            left.extendleft(Job(job.part, job.subject, [c]) for c in reversed(job.columns))
            job.columns.clear()
        if job.columns:
            left.appendleft(Job(job.part, job.subject, job.columns))

    try:
        while time.monotonic() < end:
            while len(team) < workers and len(team) < len(left) + sum(w.job is not None for w in team):
                team.append(begin())
            busy = [w for w in team if w.job is not None or give(w)]
            if not busy:
                return
            for pipe in connection.wait([w.pipe for w in busy], timeout=min(1.0, max(0.0, end - time.monotonic()))):
                w = next(w for w in team if w.pipe is pipe)
                try:
                    said = w.pipe.recv()
                except (EOFError, OSError):
                    w.process.join(5)
                    yield from gone(w, f"its process died ({w.process.exitcode})")
                    continue
                w.heard = time.monotonic()
                assert w.job is not None
                if said[0] == "at":
                    w.job.at = said[1]
                elif said[0] == "row":
                    w.job.columns.remove(said[1])
                    yield w.job, said[1], said[2]
                elif said[0] == "done":
                    w.job = None
            for w in [w for w in busy if w in team and w.job and time.monotonic() - w.heard > hung]:
                yield from gone(w, f"it hung: nothing was heard of it for {hung:.0f} s")
    finally:
        for w in team:
            w.process.kill()
            w.process.join()
            w.pipe.close()
