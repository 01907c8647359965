"""Searches for the fastest kernel that are refused."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import torch

import neptune
from neptune.autotune import tuner
from neptune.autotune.place import Bench
from neptune.autotune.tuner import Options
from neptune.errors import NeptuneError, ScheduleError, ShapeError
from neptune.ops.linear import matmul
from neptune.ops.softmax import softmax
from tests.errors.table import case
from tests.unit.autotune.planted import SPEC

SIZES = {"rows": 4, "cols": 40}


@case(NeptuneError)
def a_budget_without_a_unit():
    neptune.autotune(softmax(), shapes=SIZES, budget="60")


@case(NeptuneError)
def a_budget_of_zero():
    neptune.autotune(softmax(), shapes=SIZES, budget="0s")


@case(NeptuneError)
def no_trials():
    neptune.autotune(softmax(), shapes=SIZES, trials=0)


@case(NeptuneError)
def an_executor_that_there_is_not():
    neptune.autotune(softmax(), shapes=SIZES, executor="slurm")


@case(ShapeError)
def no_shapes():
    neptune.autotune(softmax(), shapes=[])


@case(ShapeError)
def a_missing_size():
    neptune.autotune(softmax(), shapes=[SIZES, {"rows": 4}])


@case(ShapeError)
def an_unknown_size():
    neptune.autotune(softmax(), shapes={"batch": 1})


@case(ShapeError)
def arguments_of_another_kernel():
    neptune.compile(softmax(), "softmax_row", target="llvm").tune(torch.zeros(4))


@case(ScheduleError)
def no_candidate_that_fits():
    """Operands in shared memory sixteen times, in the largest tiles."""
    params = {"BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 256, "num_stages": 16}
    neptune.autotune(matmul(), "matmul", shapes={"m": 64, "n": 64, "k": 64}, params=params, target="llvm")


@case(NeptuneError)
def a_reference_that_is_wrong_here(monkeypatch):
    plan = {"plan": {"stagewise": "wrong"}, "log": "/dev/null"}
    planted = Options(60.0, bench=Bench(SPEC, plan, workers=0), quiet=True)
    monkeypatch.setattr(tuner, "options_of", lambda *_: planted)
    neptune.autotune(softmax(), "softmax_row", shapes=SIZES, target="llvm")


class FakeRay(ModuleType):
    """Ray as a cluster with these resources has it, or one that cannot be reached; no actor ever starts."""

    exceptions = SimpleNamespace(RayError=ConnectionError)

    def __init__(self, resources=None):
        super().__init__("ray")
        self.resources = resources

    def is_initialized(self):
        return self.resources is not None

    def init(self, **_):
        raise ConnectionError("Could not find any running Ray instance.\nStart one.")

    def cluster_resources(self):
        return self.resources

    available_resources = cluster_resources

    def remote(self, _):
        handle = SimpleNamespace(device=SimpleNamespace(remote=lambda _: "asked"))
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_: handle))

    def get(self, *_, **__):
        raise ConnectionError("not there yet")

    def put(self, _):
        return None

    wait = kill = lambda *_, **__: ([], [])


@case(NeptuneError)
def ray_where_it_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    neptune.autotune(softmax(), shapes=SIZES, executor="ray")


@case(NeptuneError)
def ray_without_a_cluster(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    neptune.autotune(softmax(), shapes=SIZES, executor="ray")


@case(NeptuneError)
def ray_without_a_gpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", FakeRay({"CPU": 8.0}))
    neptune.autotune(softmax(), shapes=SIZES, executor="ray")


@case(NeptuneError)
def ray_whose_gpus_are_busy_or_of_another_kind(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", FakeRay({"CPU": 8.0, "GPU": 2.0}))
    neptune.autotune(softmax(), "softmax_row", shapes=SIZES, executor="ray", target="cuda:90", budget="60s")
