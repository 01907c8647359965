"""Both forms in a process of their own: one that hangs or dies costs that process alone, and is known for it."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator

import pytest

import neptune
from neptune.hopper.validate.beside import Beside
from neptune.hopper.validate.worker import ROUNDS, Session, rounds
from neptune.ops.attention import prefill_causal
from neptune.runtime.artifact import Artifact
from neptune.runtime.hopper.accepted import Compared, Timed
from neptune.runtime.processes.worker import Worker
from tests.unit.hopper.beside_child import DIES, HANGS

CHILD = "tests.unit.hopper.beside_child"


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    kernel = neptune.compile(prefill_causal(depth=16), "flash_attention", target="cuda:90")
    return kernel.executable.artifact.alone()


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker(CHILD, {})
    yield made
    made.close()


def test_what_comes_of_a_form(artifact: Artifact, worker: Worker) -> None:
    beside = Beside(artifact, artifact, worker)
    assert beside.compared([{"n": 1}]) == Compared(3, 1e-4, 8e-3)
    assert beside.timed({"n": 5}) == Timed((1.0, 2.0, 3.0), (4.0, 5.0, 6.0), {"n": 5}, "")
    failed = beside.compared([{"n": 3}])
    assert isinstance(failed, str) and "illegal memory access" in failed
    assert beside.timed({"n": 3}) == failed, "the process is another by then"
    # Nothing is known of the form: it is asked again another time.
    assert beside.compared([{"n": 2}]) is None and beside.timed({"n": 2}) is None
    assert beside.compared([{"n": 4}]) is None


def test_a_form_that_hangs_is_ended(artifact: Artifact, worker: Worker) -> None:
    beside = Beside(artifact, artifact, worker, limit=0.5)
    start = time.perf_counter()
    assert beside.compared([{"n": HANGS}]) == "hung: no answer in 0.5 s"
    assert beside.timed({"n": HANGS}) == "hung: no answer in 0.5 s"
    assert time.perf_counter() - start < 100
    assert beside.compared([{"n": 1}]) == Compared(3, 1e-4, 8e-3)


def test_a_form_that_dies_is_known_for_it(artifact: Artifact, worker: Worker) -> None:
    beside = Beside(artifact, artifact, worker)
    died = beside.compared([{"n": DIES}])
    assert isinstance(died, str) and "SIGSEGV" in died


def test_without_a_gpu_for_a_second_process_nothing_is_known(artifact: Artifact) -> None:
    worker = Worker(CHILD, {"NEPTUNE_NO_GPU": "1"})
    beside = Beside(artifact, artifact, worker)
    assert beside.compared([{"n": 1}]) is None and beside.timed({"n": 5}) is None
    gone = Beside(artifact, artifact, Worker("neptune.no_such_module", {}))
    assert gone.compared([{"n": 1}]) is None


def test_a_process_may_be_started_before_it_is_asked(worker: Worker) -> None:
    worker.start()
    process = worker._process
    assert process is not None and process.pid != os.getpid()
    assert worker.request({"do": "ready"})[0] == {"name": "H200"} and worker._process is process


def test_forms_take_turns() -> None:
    clock, order = itertools.count(), []

    def sampled(call: object) -> list[float]:
        order.append(call)
        return [float(next(clock)), 1e6, 0.0]

    first, second = rounds([len, max], sampled)
    assert order == [len, max, *([max, len, len, max] * ROUNDS)][: 2 * ROUNDS]
    # The median of a round's calls; what grows with time grows alike for both.
    assert first[1] == pytest.approx(second[1], abs=1) and first[0] < first[1] < first[2]


def test_a_process_without_a_gpu_says_so() -> None:
    answer, _ = Session().handle({"do": "ready", "device": 0}, b"")
    assert answer.keys() == {"failed", "why"}
