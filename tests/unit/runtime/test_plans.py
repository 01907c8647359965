"""Replayed launches are those that the long way would have made."""

from __future__ import annotations

import functools
import random
import re
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_mutation
from torch._library.triton import set_wrap_triton_enabled
from torch.fx.experimental.proxy_tensor import make_fx
from triton import knobs
from triton.tools.tensor_descriptor import TensorDescriptor

import neptune
from bench import stub_driver
from neptune.frontend import builder as nt
from neptune.kernel import Kernel
from neptune.ops.attention import prefill_causal
from neptune.ops.softmax import softmax
from neptune.runtime.artifact import Artifact
from neptune.runtime.executable import Executable
from neptune.runtime.modules import Form
from neptune.runtime.processes.source import load_source

pytestmark = pytest.mark.compared


@pytest.fixture
def calls() -> Iterator[list[tuple[Any, ...]]]:
    """Launches go into this list instead of to a GPU."""
    with stub_driver.installed():
        stub_driver.Launcher.calls = []
        yield stub_driver.Launcher.calls
        stub_driver.Launcher.calls = None


@functools.cache
def compiled(template: str, **how: Any) -> neptune.Kernel:
    return neptune.compile(prefill_causal(depth=16, **how), template, target="cuda")


def attention(template: str = "flash_attention", **how: Any) -> neptune.Kernel:
    """A kernel that has never been called."""
    return compiled(template, **how).for_target("cuda")


def scaled() -> neptune.Kernel:
    """(x - max) / Σ x·factor, of rows, with a trailing scalar."""
    m, n, factor = nt.var("m"), nt.var("n"), nt.var("factor", "float32")
    x = nt.placeholder((m, n), "float32", name="x")
    j = nt.reduce_axis((0, n), "j")
    total = nt.compute((m,), lambda i: nt.sum(x[i, j] * factor, axis=j), name="total")
    peak = nt.compute((m,), lambda i: nt.max(x[i, j], axis=j), name="peak")
    y = nt.compute((m, n), lambda i, j: (x[i, j] - peak[i]) / total[i], name="y")
    return neptune.compile(y, three_kernels, target="cuda")


def three_kernels(sch: neptune.Schedule) -> None:
    for stage in sch.stages:
        rows, columns = sch.loops(stage)
        outer, _ = sch.split(rows, sch.param("BLOCK_M", [4]))
        sch.cover(columns, f"BLOCK_{stage}")
        sch.bind(outer, "grid.x")


def inputs(s_q: int = 40, s_kv: int = 72, heads: int = 2) -> list[torch.Tensor]:
    return [torch.randn(3, heads, n, 16).half() for n in (s_q, s_kv, s_kv)]


def plain(call: tuple[Any, ...], tensors: list[torch.Tensor]) -> list[Any]:
    """What a launch was given, tensors by their place among `tensors` (other ones by their shape)."""

    def name(t: torch.Tensor) -> Any:
        return next((k for k, x in enumerate(tensors) if x is t), tuple(t.shape))

    shown: list[Any] = []
    for x in call[6:]:  # the grid, the stream, the function and its metadata, then hooks and arguments
        if isinstance(x, torch.Tensor):
            shown.append(("tensor", name(x)))
        elif isinstance(x, TensorDescriptor):
            fields = (list(x.shape), list(x.strides), list(x.block_shape), x.padding)
            shown.append(("descriptor", name(x.base), *fields))
        elif isinstance(x, int | float):
            shown.append(x)
    return [call[:5], *shown]


def test_a_replay_launches_what_the_long_way_launches(calls: list[Any]) -> None:
    kernel = attention(lse=True)
    first, second = inputs(), inputs()
    kernel(*first)
    kernel.executable.plans._plans.clear()
    long = kernel(*second)
    replayed = kernel(*second)
    assert len(calls) == 3
    assert plain(calls[1], [*second, *long]) == plain(calls[2], [*second, *replayed])
    assert [t.shape for t in replayed] == [t.shape for t in long] and [t.dtype for t in replayed] == [
        t.dtype for t in long
    ]
    assert all(a.data_ptr() != b.data_ptr() for a, b in zip(long, replayed, strict=True))


def test_temporaries_and_several_kernels_are_replayed(calls: list[Any]) -> None:
    kernel = attention("attention_unfused")
    given = inputs()
    kernel(*given)
    count = len(calls)
    assert count > 1
    out = kernel(*given)
    again = calls[count:]
    assert [plain(c, [*given]) for c in calls[:count]] == [plain(c, [*given]) for c in again]
    assert any(x is out for c in again for x in c[9:]) or any(
        getattr(x, "base", None) is out for c in again for x in c[9:]
    )


@pytest.mark.parametrize("view", ["strided", "unaligned", "rows"])
def test_other_layouts_are_other_plans(calls: list[Any], view: str) -> None:
    kernel = attention()
    q, k, v = inputs()
    kernel(q, k, v)
    if view == "strided":
        q = torch.randn(3, 2, 40, 32).half()[..., :16]
    elif view == "unaligned":
        q = torch.randn(q.numel() + 1).half()[1:].view(q.shape)
    else:
        q = torch.randn(3, 2, 41, 16).half()
    assert kernel.executable.plans.replay((q, k, v), None) is None
    kernel(q, k, v)
    assert kernel.executable.plans.replay((q, k, v), None) is not None


def test_wrong_arguments_are_refused_after_a_plan_too(calls: list[Any]) -> None:
    kernel = attention()
    q, k, v = inputs()
    kernel(q, k, v)
    wrong: list[tuple[Any, ...]] = [
        (q.bfloat16(), k, v),
        (q, k),
        (q, k, v[:, :1]),
        (q.requires_grad_(), k, v),
        (q.detach().to_sparse(), k, v),
        (None, k, v),
    ]
    for args in wrong:
        with pytest.raises(neptune.ShapeError):
            kernel(*args)
    with torch.no_grad():
        kernel(q, k, v)
    assert len(calls) == 2


def test_an_output_that_overlaps_an_input_is_refused_after_a_plan_too(calls: list[Any]) -> None:
    kernel = attention()
    given = inputs(72, 72)
    out = torch.empty_like(given[0])
    kernel(*given, out=out)
    assert kernel.executable.plans.replay(given, out) is out
    with pytest.raises(neptune.ShapeError, match="overlaps"):
        kernel(*given, out=given[1])


def test_scalars_are_filled_in(calls: list[Any]) -> None:
    kernel = scaled()
    x = torch.randn(8, 32)
    kernel(x, 0.5)
    assert kernel.executable.plans.replay((x, 0.25), None) is not None
    floats = [{v for v in c if isinstance(v, float)} for c in calls]
    assert {0.5} in floats[: len(calls) // 2] and {0.25} in floats[len(calls) // 2 :]
    assert {0.5} not in floats[len(calls) // 2 :]
    assert kernel.executable.plans.replay((x, 1), None) is None  # an int where a float is declared takes the long way
    kernel(x, 1)


def test_profilers_see_every_launch(calls: list[Any]) -> None:
    kernel = attention()
    given = inputs()
    kernel(*given)

    def hook(metadata: Any) -> None:
        raise AssertionError("the stub calls no hooks")

    knobs.runtime.launch_enter_hook.add(hook)
    try:
        assert kernel.executable.plans.replay(given, None) is None
    finally:
        knobs.runtime.launch_enter_hook.remove(hook)
    assert kernel.executable.plans.replay(given, None) is not None


def earlier(artifact: Artifact) -> Artifact:
    """The artifact of a kernel that was saved before launch functions took a launcher."""

    def text(source: str) -> str:
        source = re.sub(r",\s*launcher=lambda kernel: kernel", "", source)
        return re.sub(r"launcher\((\w+)\)\[grid\]", r"\1[grid]", re.sub(r"    launcher: .*\n", "", source))

    modules = {n: replace(m, texts=(text(m.texts[0]), text(m.texts[1]))) for n, m in artifact.modules.items()}
    return replace(artifact, modules=modules)


def test_launch_functions_without_a_launcher_are_recorded_too(calls: list[Any]) -> None:
    kernel = scaled()
    before = Kernel(Executable(earlier(kernel.executable.artifact)))
    assert "launcher" in kernel.source and "launcher" not in before.source
    x = torch.randn(5, 16)
    for k in (kernel, before):
        k(x, 2.0)
        k(x, 2.0)
    assert len(calls) == 4 * 3 and all(k.executable.plans._plans for k in (kernel, before))
    shown = [plain(c, [x])[1:] for c in calls]
    assert shown[:3] == shown[3:6] == shown[6:9] == shown[9:]


def test_a_launcher_sees_every_launch(calls: list[Any]) -> None:
    """It is given each kernel at each call, whatever plans there are, and learns nothing of it for later ones."""
    kernel = scaled()
    seen: list[str] = []

    def launcher(k: Any) -> Any:
        seen.append(k.__name__)
        return k

    x = torch.randn(5, 16)
    for _ in range(3):
        kernel(x, 2.0, launcher=launcher)
        assert len(seen) == len(calls) == 3
        seen.clear()
        kernel(x, 2.0)
        assert not seen and [plain(c, [x])[1:] for c in calls[:3]] == [plain(c, [x])[1:] for c in calls[3:]]
        calls.clear()
    with pytest.raises(neptune.ShapeError):
        kernel(x, launcher=launcher)


def test_values_of_one_kernel_reach_a_launcher(calls: list[Any]) -> None:
    kernel = scaled().with_params({"total.num_warps": 1})
    given: dict[str, int] = {}

    class Noted:
        def __init__(self, k: Any) -> None:
            self.name = k.__name__

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda *args, **keywords: given.update({self.name: keywords["num_warps"]})

    kernel(torch.randn(5, 16), 2.0, launcher=Noted)
    assert sorted(given.values())[0] == 1 and len(set(given.values())) == 2 and not calls


def test_other_targets_launch_nothing_that_it_could_see() -> None:
    kernel = neptune.compile(softmax(), "softmax_row", target="llvm")
    with pytest.raises(neptune.TargetError, match="launches no Triton kernels"):
        kernel(torch.randn(3, 5), launcher=lambda k: k)


@pytest.mark.parametrize("make", [attention, scaled])
def test_torch_traces_a_call(calls: list[Any], make: Callable[[], neptune.Kernel]) -> None:
    kernel = make()
    tensors = inputs() if make is attention else [torch.randn(5, 16)]
    scalars = [2.0] if kernel.scalars else []

    def traced(*given: torch.Tensor) -> Any:
        return kernel(*given, *scalars, launcher=torch.library.wrap_triton)

    with set_wrap_triton_enabled(True):
        graph = make_fx(traced)(*tensors).graph
    launches = [n for n in graph.nodes if n.target is triton_kernel_wrapper_mutation]
    assert len(launches) == len(kernel.facts.kernels)


@pytest.mark.parametrize("make", [attention, scaled])
def test_torch_traces_a_launch(calls: list[Any], make: Callable[[], neptune.Kernel]) -> None:
    """With sizes that stay symbols: the launch function reads them off its tensors, and takes its launcher."""
    kernel = make()
    launch = getattr(load_source(kernel.executable.modules.source(Form("pointer"))), kernel.name)

    def traced(*tensors: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(tensors[0])
        launch(*tensors, out, *([2.0] if kernel.scalars else []), launcher=torch.library.wrap_triton)
        return out

    tensors = inputs() if make is attention else [torch.randn(5, 16)]
    with set_wrap_triton_enabled(True):
        graph = make_fx(traced, tracing_mode="symbolic")(*tensors).graph
    launches = [n for n in graph.nodes if n.target is triton_kernel_wrapper_mutation]
    assert len(launches) == len(kernel.facts.kernels) and not calls
    grids = [g for n in launches for g in n.kwargs["grid"][0]]
    assert any(isinstance(g, torch.fx.Node) for g in grids)


def test_a_plan_keeps_no_tensor_alive(calls: list[Any]) -> None:
    kernel = attention(lse=True)
    given = inputs()
    results = [*kernel(*given), *kernel(*given)]
    watched = [weakref.ref(t) for t in (*given, *results)]
    calls.clear()
    del given, results
    assert [w() for w in watched] == [None] * len(watched)


def test_threads_share_a_kernel(calls: list[Any]) -> None:
    kernel = attention()
    failed: list[BaseException] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(30):
                given = inputs(rng.randint(1, 5), rng.randint(1, 5))
                out = kernel(*given)
                assert isinstance(out, torch.Tensor) and out.shape == given[0].shape
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed and len(calls) == 180
    # However the threads met, each call was launched on its own tensors.
    assert all(c[9].base.shape == c[12].base.shape for c in calls)


def test_a_hundred_lengths_need_one_compilation(calls: list[Any]) -> None:
    kernel = attention(lse=True)
    rng = random.Random(0)
    for _ in range(100):
        kernel(*inputs(rng.randint(1, 300), rng.randint(1, 300), rng.randint(1, 4)))
    assert len(kernel.specialisations) == 1, "\n".join(map(str, kernel.specialisations))
    assert "BLOCK_M=128; BLOCK_N=64" in str(kernel.specialisations[0]).replace(", ", "; ")


def test_rows_are_compiled_by_alignment_and_by_tile(calls: list[Any]) -> None:
    kernel = neptune.compile(softmax(), "softmax_row", target="cuda", params={"BLOCK_M": 1})
    rng = random.Random(0)
    for _ in range(100):
        kernel(torch.randn(rng.randint(1, 20), rng.randint(2, 256)))
    tiles = {dict(s.constants)["BLOCK_N"] for s in kernel.specialisations}
    # A row of n numbers starts on 16 bytes or not.
    assert len(kernel.specialisations) <= 2 * len(tiles) and max(tiles) == 256


def test_a_binary_that_spills_is_told_once(calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    spilled = lambda *_: (object(), 0, 255, 300, 1024)  # noqa: E731
    monkeypatch.setattr(stub_driver.Utils, "load_binary", spilled)
    kernel = compiled("flash_attention", heads=3).for_target("cuda")
    with pytest.warns(
        neptune.NeptunePerformanceWarning, match=r"spills 1200 bytes a thread, with 255 registers"
    ) as told:
        kernel(*inputs(heads=3))
    assert {Path(w.filename).name for w in told} == {Path(__file__).name}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel(*inputs(heads=3))
        kernel(*inputs(s_q=41, heads=3))
