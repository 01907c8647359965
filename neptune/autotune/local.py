"""Candidates on this machine: compiled by several processes, compared and timed by one."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from neptune.autotune.place import OVERTIME, Bench, Case, Outcome, Place, believed, packed_json
from neptune.kernel import Kernel


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
