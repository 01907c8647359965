"""Launch functions of Gluon modules through Triton's own dispatch, on a GPU that is not there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton.runtime.jit import JITFunction

import neptune
from bench import stub_driver
from neptune.hopper.gluon.module import generate
from neptune.hopper.ir import Levers
from neptune.hopper.roles.kernel import roles
from neptune.kernel import Kernel
from neptune.ops.attention import prefill_causal
from neptune.runtime.executable import Executable, warm_up
from neptune.runtime.hopper.accepted import key_of, written
from neptune.runtime.hopper.data import Asynchronous
from neptune.runtime.launching.launch import Target
from neptune.runtime.processes.source import load_source
from neptune.tile.ir import TileProgram
from tests.examples.walks import tiles_of, walked
from tests.unit.runtime.test_asynchronous import CLEAN

LEVERS = Levers(2, 2, "table", tiles={"BLOCK_M": 64, "BLOCK_N": 64})


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    """Launches go into this list; a device has five processors."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=5))
    with stub_driver.installed():
        stub_driver.Launcher.calls = []
        yield stub_driver.Launcher.calls
        stub_driver.Launcher.calls = None


@pytest.fixture(scope="module")
def plain() -> neptune.Kernel:
    return neptune.compile(prefill_causal(depth=64, heads=2), "flash_attention", target="cuda")


def made(tiles: TileProgram, params: dict[str, int] | None = None) -> Asynchronous:
    text = generate(tiles, roles(walked(tiles, LEVERS), tiles, LEVERS), params=params or {})
    of = Asynchronous(text.text, text.aligned, text.kernel, {"consumers": 2}, "cuda:90", spans=text.spans)
    return replace(of, record=written(replace(CLEAN, key=key_of(of))))


def test_other_kernels_of_a_program_stay_on_tiles(calls: list[Any]) -> None:
    _, tiles = tiles_of("qk_norm_attention", "flash_attention", depth=64, heads=2)
    form = made(tiles, {"BLOCK_N": 32, "num_warps": 4, "num_stages": 2})
    launch = load_source(form.text).attention  # type: ignore[attr-defined]
    q, k, v, o = (torch.zeros(1, 2, n, 64).half() for n in (600, 130, 130, 600))
    gain = torch.ones(64).half()
    seen: list[str] = []
    for _ in range(2):
        launch(q, k, v, gain, gain, o, launcher=lambda kernel: seen.append(kernel.__name__) or kernel)
    assert seen == ["attention_k_norm_kernel", "attention_o_kernel"] * 2
    # Tiles of 32 keys of two heads; no more programs than processors.
    assert [c[0] for c in calls] == [2 * -(-130 // 32), 5] * 2


def test_plans_replay_calls_with_their_table(calls: list[Any], plain: neptune.Kernel) -> None:
    artifact = replace(plain.executable.artifact, form=made(plain.build.tiles))
    kernel = Kernel(Executable(artifact))
    q, k, v = (torch.zeros(1, 2, n, 64).half() for n in (200, 130, 130))
    for n in (200, 200, 200, 64):
        kernel(q[:, :, :n], k, v)
    assert [c[0] for c in calls] == [4, 4, 4, 2]
    tables = [tuple(x.data_ptr() for x in c if isinstance(x, torch.Tensor) and x.dtype == torch.int32) for c in calls]
    assert len(set(tables[:3])) == 1 and len(tables[0]) == 2 and tables[3] != tables[0]
    boxes = [x for x in calls[2] if type(x).__name__ == "TensorDescriptor"]
    assert [b.base.data_ptr() for b in boxes[:3]] == [q.data_ptr(), k.data_ptr(), v.data_ptr()]


def test_tables_are_for_good_and_shared_by_shapes_with_the_same_tiles(calls: list[Any], plain: neptune.Kernel) -> None:
    """A graph that was captured reads the table of its shape whatever comes after."""
    form = made(plain.build.tiles)
    module: Any = load_source(form.text)
    for n in (130, *range(1, 200), 130, 140):
        module.prefill_causal(*(torch.zeros(1, 2, n, 64).half() for _ in range(4)))
    tables = [tuple(id(x) for x in c if isinstance(x, torch.Tensor) and x.dtype == torch.int32) for c in calls]
    assert tables[0] == tables[-1] == tables[-2] and len(tables[0]) == 2
    assert len(set(tables)) == 4 and set(tables) <= {tuple(map(id, t)) for t in module.TABLES.values()}


def test_warm_compiles_both_forms(calls: list[Any], plain: neptune.Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Triton form is for captures and other tensors; tensors without memory have no device."""
    monkeypatch.setattr("neptune.runtime.executable.gpu_target", lambda: Target("cuda", "90"))
    compiled: list[str] = []
    of = JITFunction.warmup
    monkeypatch.setattr(
        JITFunction, "warmup", lambda self, *a, **k: compiled.append(type(self).__name__) or of(self, *a, **k)
    )
    artifact = replace(plain.executable.artifact, form=made(plain.build.tiles))
    assert warm_up(Executable(artifact), {"batch": 1, "s_q": 200, "s_kv": 130})
    assert compiled == ["JITFunction", "GluonJITFunction"] and not calls


def test_one_compilation_serves_all_addresses_and_lengths(calls: list[Any]) -> None:
    _, tiles = tiles_of("attention", "flash_attention", depth=64, heads=2, causal=True, lse=True)
    form = made(tiles)
    module = load_source(form.text)
    for offset, length in ((0, 128), (1, 128), (0, 1), (3, 77)):
        q, k, v, o = (torch.zeros(1, 2, length, 64).half() for _ in range(4))
        lse = torch.zeros(2 * length + offset)[offset:].reshape(1, 2, length)
        module.attention(q, k, v, o, lse)  # type: ignore[attr-defined]
    (cache,) = getattr(module, form.kernel.function).device_caches.values()
    assert len(calls) == 4 and len(cache[0]) == 1
