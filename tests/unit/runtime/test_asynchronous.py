"""The asynchronous form is one more module: taken where tensors and verdict allow it, else the others run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import neptune
from bench import stub_driver
from neptune.ir.expr import Const
from neptune.ir.integers import Span
from neptune.kernel import Kernel
from neptune.ops.attention import prefill_causal
from neptune.runtime.artifact import pack, unpack
from neptune.runtime.calls.addressing import KernelParameters
from neptune.runtime.executable import Executable
from neptune.runtime.hopper import accepted
from neptune.runtime.hopper.accepted import Verdict, key_of, written
from neptune.runtime.hopper.data import Asynchronous
from neptune.runtime.launching.launch import Target, runs_other
from neptune.runtime.modules import Form, Modules

CLEAN = Verdict(
    key="", shared_bytes=0, spill_bytes=0, local=0, local_inner=0, warnings=(), split=(240, 24), consumers=(240,),
    producers=(24,), findings=(), products=64, in_flight=2, exps=66, overlapped=66, protocol=accepted.CLEAN,
    compared=accepted.Compared(3, 0.0, 0.01),
)  # fmt: skip
ACCEPTED = "a record that is clean, of this very form"


@pytest.fixture
def calls() -> Iterator[list[tuple[Any, ...]]]:
    """Launches go into this list instead of to a GPU."""
    with stub_driver.installed():
        stub_driver.Launcher.calls = []
        yield stub_driver.Launcher.calls
        stub_driver.Launcher.calls = None


@pytest.fixture(scope="module")
def plain() -> neptune.Kernel:
    return neptune.compile(prefill_causal(depth=16), "flash_attention", target="cuda")


def with_form(kernel: neptune.Kernel, record: Any, architecture: str = "cuda:90") -> Kernel:
    """The kernel with its module with pointers, in tiles of its own and with a table, as another form."""
    artifact = kernel.executable.artifact
    pointers = artifact.modules["pointer"]
    text = pointers.texts[0].replace("BLOCK_M=128", "BLOCK_M=16").replace("BLOCK_N=64", "BLOCK_N=32")
    text = text.replace("_kernel(\n    q_ptr,", "_kernel(\n    table,\n    q_ptr,")
    text = text.replace("\n        q, k, v, o,", "\n        TABLE, q, k, v, o,")
    text += "\n\nimport torch\n\nTABLE = torch.zeros(3, dtype=torch.int32)\nTABLE.kept = True\n"
    spans = (Span("q", ((0, Const(64, "int32"), 1),)),)
    levers = {"BLOCK_M": 16}
    of = Asynchronous(text, ("q", "k", "v", "o"), pointers.kernels[0], levers, architecture, spans=spans)
    of = replace(of, record=written(replace(CLEAN, key=key_of(of))) if record is ACCEPTED else record)
    return Kernel(Executable(replace(artifact, form=of)))


def given() -> list[torch.Tensor]:
    return [torch.randn(1, 2, n, 16).half() for n in (40, 72, 72)]


def grids(calls: list[tuple[Any, ...]]) -> list[int]:
    return [c[0] * c[1] * c[2] for c in calls]


@pytest.mark.parametrize(
    ("record", "architecture", "taken"),
    [
        (ACCEPTED, "cuda:90", True),
        (None, "cuda:90", False),
        ({"accepted": True}, "cuda:90", False),
        (written(CLEAN), "cuda:90", False),
        (ACCEPTED, "cuda:100", False),
    ],
)
def test_it_runs_where_it_is_accepted(
    calls: list[Any], plain: neptune.Kernel, record: Any, architecture: str, taken: bool
) -> None:
    kernel = with_form(plain, record, architecture)
    kernel(*given())
    tiles = 16 if taken else kernel.params["BLOCK_M"]
    assert grids(calls) == [2 * -(-40 // tiles)] and (tiles == 16) == taken


def test_tensors_that_it_does_not_take_are_served_by_another_form(calls: list[Any], plain: neptune.Kernel) -> None:
    kernel = with_form(plain, ACCEPTED)
    q, k, v = given()
    odd = torch.randn(2 * 40 * 16 + 1).half()[1:].reshape(1, 2, 40, 16)
    kernel(odd, k, v)
    kernel(q, k, v)
    assert grids(calls) == [2 * -(-40 // kernel.params["BLOCK_M"]), 2 * -(-40 // 16)]


def test_strides_that_int32_offsets_do_not_span_are_served_by_another_form(
    calls: list[Any], plain: neptune.Kernel
) -> None:
    kernel = with_form(plain, ACCEPTED)
    q, k, v = given()
    for stride in (1 << 24, 1 << 26):
        kernel(q.as_strided(q.shape, (stride, *q.stride()[1:])), k, v)
    assert grids(calls) == [2 * -(-40 // 16), 2 * -(-40 // kernel.params["BLOCK_M"])]


def test_a_plan_keeps_its_table(calls: list[Any], plain: neptune.Kernel) -> None:
    kernel = with_form(plain, ACCEPTED)
    for _ in range(3):
        kernel(*given())
    tables = {id(x) for c in calls for x in c if isinstance(x, torch.Tensor) and x.shape == (3,)}
    assert len(calls) == 3 and len(tables) == 1


def test_a_shape_whose_first_call_is_captured_takes_another_form(
    calls: list[Any], plain: neptune.Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = with_form(plain, ACCEPTED)
    mine, theirs = 2 * -(-40 // 16), 2 * -(-40 // kernel.params["BLOCK_M"])
    for capturing in (True, True, False, True):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda now=capturing: now)
        kernel(*given())
    assert grids(calls) == [theirs, theirs, mine, mine]
    # A shape that has been called, in another layout.
    q, k, v = given()
    kernel(q.transpose(1, 2).contiguous().transpose(1, 2), k, v)
    assert grids(calls)[-1] == mine


def test_launchers_see_the_kernels_that_triton_knows(calls: list[Any], plain: neptune.Kernel) -> None:
    kernel = with_form(plain, ACCEPTED)
    seen: list[bool] = []

    def launcher(of: Any) -> Any:
        seen.append("table" in of.arg_names)
        return of

    kernel(*given(), launcher=launcher)
    assert seen == [False] and grids(calls) == [2 * -(-40 // kernel.params["BLOCK_M"])]


def test_it_is_saved_with_its_verdict(plain: neptune.Kernel) -> None:
    artifact = with_form(plain, ACCEPTED).executable.artifact
    again = unpack(pack(artifact, {}))
    assert again.form == artifact.form
    modules = Executable(again).modules
    assert modules.source(Form("asynchronous")) != modules.source(Form("pointer"))


def test_other_parameters_are_those_of_tiles(plain: neptune.Kernel) -> None:
    kernel = with_form(plain, ACCEPTED).with_params(BLOCK_M=64)
    assert kernel.executable.artifact.form is None


def test_a_record_is_read_once_for_the_settings_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """At each new length it took a third of the host's time."""
    asked: list[object] = []
    of = Asynchronous("", (), KernelParameters("f", {}, {}, ()), {}, "cuda:90")
    modules = Modules({}, "", {}, other=of)
    monkeypatch.setattr(accepted, "runs", lambda of: asked.append(of) or len(asked) == 1)
    here, other = Target("cuda", "90"), Target("cuda", "80")
    assert all(runs_other(modules, here) for _ in range(3)) and len(asked) == 1
    assert not runs_other(modules, other) and len(asked) == 1
    monkeypatch.setenv(accepted.SETTINGS[0], "1")
    assert not runs_other(modules, here) and len(asked) == 2
