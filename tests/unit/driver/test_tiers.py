"""Tiered compilation: first calls by what compiles fastest, and the takeover. On a CPU, where no form is better, the
same kernel stands for the better one: what takes over is another object, from the cache of another process."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import neptune
from neptune import config
from neptune.base.shelf import Shelf
from neptune.driver import tiers
from neptune.errors import FusionError
from neptune.functional import kernels
from neptune.graph import choose
from neptune.kernel.variants import KernelFamily
from neptune.ops.attention import attention
from neptune.ops.softmax import softmax
from neptune.runtime import executable
from neptune.runtime.family import Standby
from neptune.runtime.launching.launch import Target

ROOT = Path(__file__).parents[3]


class Answers:
    """A worker that does a job here, or as it is told to."""

    def __init__(self, answer=None):
        self.asked, self.answer = [], answer or (lambda header: tiers.handle(header, b""))

    def request(self, header, body=b"", limit=None):
        self.asked.append(header)
        return self.answer(header)


@pytest.fixture
def cold(tmp_path, monkeypatch):
    """Nothing compiled, nothing kept, and a better form wherever nothing is promised."""
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("NEPTUNE_STRICT", "0")
    monkeypatch.delenv("NEPTUNE_TIERED", raising=False)
    for name in ("_KERNELS", "_BY_TEXT", "_PROGRAMS"):
        monkeypatch.setattr(kernels, name, {})
    monkeypatch.setattr(tiers, "parse_target", lambda _: Target("cuda"))


@pytest.fixture
def jobs(cold, monkeypatch):
    """Jobs that no other process does."""
    made = tiers.Jobs(Answers())
    monkeypatch.setattr(tiers, "JOBS", made)
    return made


def serving():
    (kernel,) = kernels.compiled().values()
    return kernel


def test_the_better_kernel_takes_over_from_another_process(cold, monkeypatch):
    x, came = torch.randn(7, 33), []
    take_over = kernels._take_over
    monkeypatch.setattr(kernels, "_take_over", lambda text, better: (came.append(better), take_over(text, better)))
    y = neptune.functional.softmax(x)
    assert neptune.functional.settle(240)
    assert came == [serving()] and serving().executable.standby is not None
    torch.testing.assert_close(neptune.functional.softmax(x), y, rtol=0, atol=0)


def test_calls_of_threads_during_the_switch_are_right(jobs, monkeypatch):
    go = threading.Event()
    jobs._worker.answer = lambda header: (go.wait(60), tiers.handle(header, b""))[1]
    x, wrong = torch.randn(64, 33), []
    expected = torch.softmax(x.double(), -1)
    neptune.functional.softmax(x)
    before = serving()

    def calls():
        results = (neptune.functional.softmax(x) for _ in range(200))
        wrong.extend(y for y in results if not torch.allclose(y.double(), expected, atol=1e-6))

    threads = [threading.Thread(target=calls) for _ in range(4)]
    for t in threads:
        t.start()
    go.set()
    assert jobs.wait(60)
    for t in threads:
        t.join()
    assert not wrong and serving() is not before


def test_a_kernel_that_is_kept_is_the_first_one(jobs):
    neptune.functional.softmax(torch.randn(3, 5))
    assert jobs.wait(60) and len(jobs._worker.asked) == 1
    for memory in (kernels._KERNELS, kernels._BY_TEXT):
        memory.clear()
    jobs.forget()
    neptune.functional.softmax(torch.randn(3, 5))
    assert jobs.wait(60) and len(jobs._worker.asked) == 1


@pytest.mark.parametrize(
    "answer",
    [
        lambda header: ({"failed": "TargetError: no"}, b""),
        lambda header: (_ for _ in ()).throw(EOFError("the worker died")),
        lambda header: (_ for _ in ()).throw(TimeoutError("no answer")),
        lambda header: (_ for _ in ()).throw(OSError("no more processes")),
    ],
)
def test_a_process_that_fails_dies_or_hangs_changes_nothing(jobs, answer, caplog):
    jobs._worker.answer = answer
    x = torch.randn(3, 5)
    with caplog.at_level(logging.WARNING, "neptune.recompiles"):
        neptune.functional.softmax(x)
        before = serving()
        assert jobs.wait(60)
    assert serving() is before and len(caplog.records) == 1
    torch.testing.assert_close(neptune.functional.softmax(x), torch.softmax(x, -1))


def test_what_comes_without_a_verdict_is_not_taken(jobs, monkeypatch):
    monkeypatch.setattr(tiers, "kept", lambda *_: None)
    neptune.functional.softmax(torch.randn(3, 5))
    before = serving()
    assert jobs.wait(60) and serving() is before


def test_promises_that_are_made_meanwhile_hold(jobs):
    go = threading.Event()
    jobs._worker.answer = lambda header: (go.wait(60), tiers.handle(header, b""))[1]
    neptune.functional.softmax(torch.randn(3, 5))
    before = serving()
    torch.use_deterministic_algorithms(True)
    try:
        go.set()
        assert jobs.wait(60) and serving() is before
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("name", "value"),
    [("NEPTUNE_TIERED", "wait"), ("NEPTUNE_CACHE_DIR", "0"), ("NEPTUNE_DUMP", "x"), ("NEPTUNE_STRICT", "1")],
)
def test_settings_that_wait(cold, monkeypatch, name, value):
    assert tiers.applies("cuda:90")
    monkeypatch.setenv(name, value)
    assert not tiers.applies("cuda:90")


def test_what_is_promised_of_bits_waits(cold, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert not tiers.applies("cuda:90")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert not tiers.applies("cuda:90")


def test_choices_for_sizes_are_made_beside_on_every_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("NEPTUNE_STRICT", "0")
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("NEPTUNE_TIERED", raising=False)
    assert tiers.applies("cuda:80") and tiers.applies("hip:gfx942") and not tiers.applies("llvm")


def test_the_first_kernel_is_chosen_for_the_class_of_the_first_call(jobs):
    neptune.functional.softmax(torch.randn(3, 1000))
    assert serving().explain(json=True)["shapes"] == {"rows": 3, "cols": 1024}
    assert jobs.wait(60) and jobs._worker.asked[0]["sizes"] == {"rows": 3, "cols": 1000}


def test_never_asks_for_nothing(jobs, monkeypatch):
    monkeypatch.setenv("NEPTUNE_TIERED", config.NEVER)
    neptune.functional.softmax(torch.randn(3, 5))
    assert jobs.wait(60) and not jobs._worker.asked


def test_jobs_are_done_once_and_bounded(monkeypatch):
    go = threading.Event()
    worker = Answers(lambda header: (go.wait(60), ({}, b""))[1])
    jobs, done = tiers.Jobs(worker), []
    for k in range(1000):
        for _ in range(2):
            jobs.ask(tiers.Job("p", None, "cuda", k), lambda k=k: done.append(k))
    go.set()
    assert jobs.wait(60)
    assert len(done) == len(set(done)) == len(worker.asked) and tiers.MOST <= len(done) <= tiers.MOST + 1


def test_what_fails_in_taking_over_is_logged(caplog):
    jobs = tiers.Jobs(Answers(lambda header: ({}, b"")))

    def fails():
        raise RuntimeError("a full disk")

    with caplog.at_level(logging.WARNING, "neptune.recompiles"):
        jobs.ask(tiers.Job("p", None, "cuda"), fails)
        assert jobs.wait(60)
    assert "a full disk" in caplog.text
    jobs.ask(tiers.Job("q", None, "cuda"), lambda: None)
    assert jobs.wait(60)


# --- sizes whose variant is not there --------------------------------------------------------------


@pytest.fixture
def family():
    """A kernel with variants, of which the first is there, and sizes that take another."""
    kernel = neptune.compile(attention(depth=64, causal=True), target="llvm")
    q, k = torch.randn(1, 2, 1, 64), torch.randn(1, 2, 300, 64)
    return kernel, (q.half(), k.half(), k.half())


def sizes(q, k):
    return {"batch": q.shape[0], "heads": q.shape[1], "s_q": q.shape[2], "s_kv": k.shape[2]}


def test_a_call_whose_variant_is_not_there_does_not_wait(family, monkeypatch):
    kernel, args = family
    own = kernel.executable.members
    number = own.number_of(sizes(*args[:2]))
    monkeypatch.setattr(own, "_made", {k: m for k, m in own._made.items() if k != number})
    first = neptune.compile(attention(depth=64, causal=True), target="llvm").with_params()
    asked = []
    kernel.executable.standby = Standby(first.executable, lambda k, at: bool(asked.append((k, at["s_kv"]))))
    for _ in range(3):
        kernel(*args)
    # Each call asks: jobs are done once by whoever does them.
    assert asked == [(number, 300)] * 3 and not own.is_made(number)
    own.member(number)
    kernel(*args)
    assert len(asked) == 3


def test_a_variant_of_the_cache_is_taken_at_once(jobs):
    """One job makes the kernel and the variant for the sizes that were called. Neither this process nor another one has
    calls served by what is slower then, or a variant made beside."""
    program, q, k = attention(depth=64), torch.randn(1, 2, 1, 64).half(), torch.randn(1, 2, 5000, 64).half()

    def taken(kernel):
        kernel(q, k, k)
        members = kernel.executable.members
        number = members.number_of(sizes(q, k))
        return number != members.own and members.is_made(number)

    came = []
    tiers.first(program, None, "llvm", sizes(q, k), came.append)
    assert jobs.wait(120) and taken(*came)
    jobs.forget()
    assert taken(tiers.first(program, None, "llvm", sizes(q, k), came.append))
    assert jobs.wait(60) and len(jobs._worker.asked) == len(came) == 1


def test_no_call_is_served_by_a_tile_of_far_longer_rows(jobs):
    """A row of 128 is a tile: 4096 wait for their own variant, which takes no longer to compile."""
    came = []
    first = tiers.first(softmax("float32"), None, "llvm", {"rows": 3, "cols": 128}, came.append)
    assert jobs.wait(120)
    members, standby = came[0].executable.members, came[0].executable.standby
    assert standby.first is first.executable
    for rows, cols, served in ((5000, 512, True), (3, 4096, False)):
        members._made = {members.own: members._made[members.own]}
        number = members.number_of({"rows": rows, "cols": cols})
        came[0].executable.standby = Standby(standby.first, lambda k, at: False)
        x = torch.randn(rows, cols)
        torch.testing.assert_close(came[0](x), x.softmax(-1))
        assert number != members.own and members.is_made(number) != served


def test_a_capture_takes_the_kernel_that_is_loaded(family, monkeypatch):
    kernel, args = family
    first = neptune.compile(attention(depth=64, causal=True), target="llvm").with_params()
    served = []
    call = first.executable.call
    monkeypatch.setattr(first.executable, "call", lambda *a: (served.append(1), call(*a))[1])
    kernel.executable.standby = Standby(first.executable, lambda k, at: False)
    monkeypatch.setattr(executable, "capturing", lambda: True)
    kernel(*args)
    assert served == [1]


# --- regions of graphs -----------------------------------------------------------------------------


@pytest.fixture
def regions(jobs, monkeypatch):
    """The Serving of each region that is taken, of graphs that are compiled from now on."""
    torch._dynamo.reset()
    made = []
    serving_of = choose.Serving.__init__
    monkeypatch.setattr(choose.Serving, "__init__", lambda self, *a: (made.append(self), serving_of(self, *a))[1])
    for known in (choose._compiled, choose.serving):
        known.cache_clear()
    yield made
    for known in (choose._compiled, choose.serving):
        known.cache_clear()
    torch._dynamo.reset()


@torch.no_grad()
def test_a_region_is_served_at_once_and_the_better_kernel_takes_over(jobs, regions):
    go = threading.Event()
    jobs._worker.answer = lambda header: (go.wait(60), tiers.handle(header, b""))[1]
    fused = neptune.fuse(lambda x: torch.softmax(x, -1), target="llvm", take="all")
    x = torch.randn(5, 33)
    y = fused(x)
    (serves,) = regions
    first = serves.kernel
    assert sorted(first.explain(json=True)["shapes"].values()) == [5, 33] and len(first.variants) == 1
    go.set()
    assert jobs.wait(120) and len(jobs._worker.asked) == 1
    assert serves.kernel is not first and len(serves.kernel.variants) > 1
    torch.testing.assert_close(fused(x), y, rtol=0, atol=1e-7)
    wide = torch.randn(3, 700)
    torch.testing.assert_close(fused(wide), torch.softmax(wide, -1))
    torch.testing.assert_close(y, torch.softmax(x, -1))


@torch.no_grad()
def test_nothing_is_made_beside_for_what_is_inductors(jobs, regions):
    fused = neptune.fuse(lambda x: torch.softmax(x, -1), target="llvm", take="predicted")
    x = torch.randn(5, 33)
    torch.testing.assert_close(fused(x), torch.softmax(x, -1))
    (report,) = fused.reports
    assert jobs.wait(60) and len(jobs._worker.asked) == len(regions) == len(report.taken)


# --- processes -------------------------------------------------------------------------------------

SLEEPER = (
    "import time\nfrom neptune.runtime.processes.worker import serve_alone\nserve_alone(lambda h, b: time.sleep(600))\n"
)
ENDS = """
import os, sys
from neptune.driver import tiers
from neptune.runtime.processes.worker import Worker
jobs = tiers.Jobs(Worker("sleeper", {}))
jobs.ask(tiers.Job("p", None, "llvm"), lambda: None)
while jobs._worker._process is None:
    pass
if sys.argv[1] == "fork":
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
assert not jobs.wait(0.1)
print(jobs._worker._process.pid)
"""


@pytest.mark.parametrize("how", ["plain", "fork"])
def test_a_process_ends_with_a_job_under_way(tmp_path, how):
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    done = subprocess.run(
        [sys.executable, "-c", ENDS, how], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout.split()[-1]), 0)


def test_the_child_says_why_a_job_fails(monkeypatch):
    header = {"program": str(softmax("float32")), "template": "none", "target": "llvm", "device": 0}
    header |= {"variant": None, "sizes": {}, "settings": {}}
    answer, _ = tiers.handle({**header, "settings": dict(tiers._settings())}, b"")
    assert answer["failed"].startswith("ScheduleError: ")


def test_a_variant_that_cannot_be_made_is_no_failure_of_the_kernel(family, monkeypatch):
    kernel, args = family
    at = sizes(*args[:2])
    assert kernel.executable.members.number_of(at) != kernel.executable.members.own
    asked, make = [], KernelFamily.kernel

    def refuses(self, k):
        asked.append(k)
        if k != self.own:
            raise FusionError("compile a variant", "a check rejects it")
        return make(self, k)

    monkeypatch.setattr(KernelFamily, "kernel", refuses)
    header = {"program": str(attention(depth=64, causal=True)), "template": None, "target": "llvm", "device": 0}
    header |= {"variant": None, "sizes": at, "settings": dict(tiers._settings())}
    assert tiers.handle(header, b"") == ({}, b"") and asked


# --- one compiles, others wait ---------------------------------------------------------------------

COMPILES = """
import sys, time
from neptune.base.shelf import Shelf
from pathlib import Path
shelf = Shelf(Path(sys.argv[1]), "made", b"magic ", 1 << 20, 99)
with shelf.alone("key"):
    if shelf.read("key") is None:
        print("made", flush=True)
        time.sleep(1)
        shelf.write("key", b"body")
"""


def test_one_of_several_processes_makes_an_entry(tmp_path):
    command = [sys.executable, "-c", COMPILES, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    several = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = [p.communicate(timeout=120)[0] for p in several]
    assert [p.returncode for p in several] == [0] * 4 and "".join(said) == "made\n"


def test_a_lock_goes_with_its_process(tmp_path):
    holds = COMPILES.replace("time.sleep(1)", "time.sleep(600)")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    holder = subprocess.Popen([sys.executable, "-c", holds, str(tmp_path)], env=env, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "made\n"
    holder.kill()
    holder.wait()
    done = subprocess.run(
        [sys.executable, "-c", COMPILES, str(tmp_path)], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "made\n"


def test_nobody_waits_for_itself_or_without_locks(tmp_path, monkeypatch):
    shelf = Shelf(tmp_path, "made", b"magic ", 1 << 20, 99)
    with shelf.alone("a"), shelf.alone("a"), shelf.alone("b"):
        pass
    (tmp_path / "file").write_text("")
    with Shelf(tmp_path / "file", "made", b"magic ", 1 << 20, 99).alone("a"):
        pass
    monkeypatch.setattr("neptune.base.shelf.PATIENCE", 0.1)
    taken = threading.Event()
    with shelf.alone("a"):
        thread = threading.Thread(target=lambda: [taken.set() for _ in [0] if shelf.alone("a").__enter__() is None])
        thread.start()
        assert taken.wait(60)
        thread.join()
