"""The tuner on a Ray cluster with two planted GPUs: placement, one measurement a GPU at a time, lost actors."""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from neptune.autotune.place import Bench
from neptune.autotune.search import NOTHING_BETTER
from neptune.autotune.tuner import Options, tuned
from neptune.errors import NeptuneError
from neptune.kernel import Kernel
from tests.unit.autotune.planted import Planted, text_of
from tests.unit.autotune.test_tuner import SIZES, check_right, kept, options, store, task

ray = pytest.importorskip("ray", reason="an extra: pip install 'ray>=2.9'")
pytestmark = pytest.mark.slow
SPEC = "tests.unit.autotune.test_cluster:Placed"
BEST = "BLOCK_M=2 num_warps=16"


def gpu() -> str:
    """The GPU that Ray gave to this process; "any" where it does not say."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "any")


class Placed(Planted):
    """Writes down where and when it works: `GPU what begin end kernel`. `kinds`: the names of GPUs by their number."""

    def __init__(self, kinds: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(**more)
        self.kinds = dict(kinds or {})

    def name(self) -> str:
        return self.kinds.get(gpu(), self.named)

    def note(self, what: str, begin: float, kernel: Kernel) -> None:
        with self.log.with_suffix(".places").open("a") as log:
            log.write(f"{gpu()} {what} {begin} {time.monotonic()} {text_of(kernel)}\n")

    def compile(self, kernel: Kernel, sizes: Mapping[str, int]) -> None:
        super().compile(kernel, sizes)
        self.note("compiles", time.monotonic(), kernel)

    def run(self, kernel: Kernel, args: Sequence[Any], out: Sequence[torch.Tensor]) -> None:
        begin, planned = time.monotonic(), str(self.planned(kernel, args))
        super().run(kernel, args, out)
        once = self.log.with_suffix(".once")
        if planned == "kills its actor" or (planned == "kills its actor once" and not once.exists()):
            once.touch()
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(1000)
        self.note("measures", begin, kernel)

    def time(self, kernel: Kernel, args: Sequence[Any]) -> list[float]:
        return [100.0] * 3 if "once" in str(self.planned(kernel, args)) else super().time(kernel, args)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=5, num_gpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def on_ray(folder: Path, plan: Mapping[str, Any], trials: int | None = 8, **more: Any) -> Options:
    of = options(folder, plan, **more)
    assert of.bench is not None
    bench = Bench(SPEC, of.bench.options, limit=60.0, workers=2)
    return Options(240.0, trials, executor="ray", records=of.records, bench=bench, quiet=True)


def places(folder: Path) -> dict[str, list[tuple[str, float, float, str]]]:
    """What each GPU did: what, from when to when, with which kernel."""
    found = defaultdict(list)
    for line in (folder / "log.places").read_text().splitlines():
        where, what, begin, end, kernel = line.split(" ", 4)
        found[where].append((what, float(begin), float(end), kernel))
    return found


def test_work_is_spread_and_each_gpu_measures_one_at_a_time(tmp_path: Path) -> None:
    found = tuned(task(), SIZES, on_ray(tmp_path, {BEST: 42.0}, trials=None, seconds_each=0.3))
    (at,) = found.shapes
    assert (at.us, at.default_us, at.failed, at.stopped) == (42.0, 100.0, {}, NOTHING_BETTER)
    check_right(found.kernel)
    by_gpu = places(tmp_path)
    # What compiles has no GPU of its own, what measures has one.
    assert set(by_gpu) == {"any", "0", "1"}
    assert {what for what, *_ in by_gpu.pop("any")} == {"compiles"}
    spans = {where: sorted((b, e) for what, b, e, _ in rows if what == "measures") for where, rows in by_gpu.items()}
    for rows in spans.values():
        assert len(rows) >= 3 and all(end <= begin for (_, end), (begin, _) in pairwise(rows))
    assert any(b < e1 and b1 < e for b, e in spans["0"] for b1, e1 in spans["1"])
    # The finalists are timed beside each other, the same as on one machine.
    local = tuned(
        task(), SIZES, options(tmp_path / "local", {BEST: 42.0}) if (tmp_path / "local").mkdir() is None else 0
    )
    assert local.shapes[0].best == at.best and local.shapes[0].us == at.us
    assert [len(r.us) for r in store(tmp_path).all() if min(r.us) == 42.0] == [3, 3]


def test_an_actor_that_is_killed_is_replaced_and_its_candidate_tried_once_more(tmp_path: Path) -> None:
    plan = {"BLOCK_M=4 num_warps=4": "kills its actor", "BLOCK_M=2 num_warps=4": "kills its actor once", BEST: 42.0}
    found = tuned(task(), SIZES, on_ray(tmp_path, plan, trials=None))
    (at,) = found.shapes
    assert at.us == 42.0 and at.best.params["num_warps"] == 16
    (name,) = at.failed
    assert name.startswith("softmax_row BLOCK_M=4 num_warps=4 ") and at.failed[name].startswith("died: its actor was")
    assert any("'BLOCK_M': 2" in k and "'num_warps': 4" in k for k in kept(tmp_path))
    check_right(found.kernel)


def test_gpus_of_another_kind_are_not_used(tmp_path: Path) -> None:
    found = tuned(task(), SIZES, on_ray(tmp_path, {}, trials=4, kinds={"1": "A100"}))
    assert found.shapes[0].measured == 4 and set(places(tmp_path)) - {"any"} == {"0"}
    with pytest.raises(NeptuneError, match="the Ray cluster has no free H200"):
        tuned(task(), SIZES, on_ray(tmp_path, {}, named="A100"))
