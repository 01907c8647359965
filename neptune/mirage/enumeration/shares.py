"""The work of a search in shares, done here or by processes; results come in the order of the shares either way.

A share is a problem, a number of operators and the first choices. A worker that dies loses the share that it had, which
is counted; the others go on, and where none is left the shares are done here.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from typing import Any

from neptune.mirage.enumeration.enumerate import Counts, Enumerator, Solution
from neptune.mirage.enumeration.operators import Problem

FEW = 20_000
"""Operators tried one size earlier, below which a problem is not worth handing out."""


@dataclass(frozen=True)
class Share:
    """What follows from the first choices `path` in problem `number`, with `depth` operators."""

    problem: Problem
    number: int
    depth: int
    path: tuple[int, ...]


@dataclass(frozen=True)
class Result:
    """What came of a share. `whole`: it was searched to its end; `lost`: its worker died; `seconds`:
    of the processor, where it was done by a worker."""

    solutions: list[Solution] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    whole: bool = True
    lost: bool = False
    seconds: float = 0.0


class Searcher:
    """Does shares, one after another, and keeps the tables of each problem."""

    def __init__(self) -> None:
        self._kept: dict[int, Enumerator] = {}

    def enumerator(self, number: int, problem: Problem) -> Enumerator:
        if number not in self._kept:
            self._kept[number] = Enumerator(problem)
        return self._kept[number]

    def do(self, share: Share, deadline: float | None) -> Result:
        if deadline is not None and time.process_time() > deadline:
            return Result(whole=False)
        e = self.enumerator(share.number, share.problem)
        e.counts = Counts()
        e.deadline = deadline
        solutions, complete = e.solve(share.depth, share.path)
        return Result(solutions, e.counts, complete)


class Workers:
    """Processes that do shares. Close it, or use it in `with`."""

    def __init__(self, count: int) -> None:
        self.here = Searcher()
        self._count = count if count > 1 else 0
        self._spent = 0.0
        self._pipes: dict[Connection, Any] = {}
        self._known: dict[Connection, set[int]] = {}

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe, process in self._pipes.items():
            pipe.close()
            process.terminate()
        for process in self._pipes.values():
            process.join()
        self._pipes.clear()

    def now(self) -> float:
        """Seconds of the processor: of this process, and of a worker, on the mean."""
        return time.process_time() + self._spent

    @property
    def processes(self) -> list[Any]:
        return list(self._pipes.values())

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        while len(self._pipes) < self._count:
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there,), daemon=True)
            process.start()
            there.close()
            self._pipes[here] = process
            self._known[here] = set()

    def run(self, shares: Sequence[Share], tried: int, deadline: float | None) -> Iterator[Result]:
        """The results of the shares, in their order; `tried` says how large the problem was one size earlier."""
        if not self._count or tried < FEW or len(shares) < 2:
            for share in shares:
                yield self.here.do(share, self._own(deadline))
            return
        self._start()
        done: dict[int, Result] = {}
        waiting = list(enumerate(shares))[::-1]
        busy: dict[Connection, int] = {}
        given = 0
        while given < len(shares):
            for pipe in [p for p in self._pipes if p not in busy]:
                if waiting and self._hand(pipe, waiting[-1][1], deadline):
                    busy[pipe] = waiting.pop()[0]
            if not busy and waiting:
                n, share = waiting.pop()
                done[n] = self.here.do(share, self._own(deadline))
            ready = wait(list(busy)) if busy else []
            for pipe in [p for p in busy if p in ready]:
                done[busy.pop(pipe)] = self._receive(pipe)
            while given in done:
                yield done.pop(given)
                given += 1

    def _own(self, deadline: float | None) -> float | None:
        return None if deadline is None else deadline - self._spent

    def _hand(self, pipe: Connection, share: Share, deadline: float | None) -> bool:
        problem = None if share.number in self._known[pipe] else share.problem
        left = None if deadline is None else deadline - self.now()
        try:
            pipe.send((share.number, problem, share.depth, share.path, left))
        except OSError:
            self._drop(pipe)
            return False
        self._known[pipe].add(share.number)
        return True

    def _receive(self, pipe: Connection) -> Result:
        try:
            result = pipe.recv()
        except (EOFError, OSError):
            self._drop(pipe)
            return Result(whole=False, lost=True)
        assert isinstance(result, Result)
        self._spent += result.seconds / self._count
        return result

    def _drop(self, pipe: Connection) -> None:
        """A worker is dead: there is one fewer from now on."""
        self._count -= 1
        process = self._pipes.pop(pipe)
        pipe.close()
        process.join()


def _serve(pipe: Connection) -> None:
    """A worker: shares come, results go, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    searcher = Searcher()
    problems: dict[int, Problem] = {}
    with contextlib.suppress(EOFError, OSError):
        while True:
            number, problem, depth, path, left = pipe.recv()
            problems[number] = problem or problems[number]
            begin = time.process_time()
            deadline = None if left is None else begin + left
            result = searcher.do(Share(problems[number], number, depth, path), deadline)
            pipe.send(replace(result, seconds=time.process_time() - begin))
