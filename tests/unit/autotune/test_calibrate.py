"""Constants from planted times, and what is done with those that are kept. Probes are compiled and not run: no GPU."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from bench.sass import LoopStats, Request, compile_kernel
from neptune.autotune.calibrate import Gpu, Probe, Reading, calibrate
from neptune.cli import calibrated as cli
from neptune.driver import device
from neptune.errors import TargetError
from neptune.runtime.launch import Target
from neptune.tune.calibrated import FILE, keep, kept, means_something, with_measured
from neptune.tune.machine import DEVICES, Machine

NAME, ARCH = "NVIDIA H200", "cuda:90"
MATRIX = {"float16": 3900.0, "int8": 7700.0}
AMOUNTS = {"memory": 2.0**30, "port": 3e9, "special": 5e8, "matrix float16": 7e11, "matrix int8": 9e11}


@dataclass
class Planted:
    """A GPU whose probes take what these constants say; `jitter`: how far the slowest samples are off."""

    clock: float = 1.6
    memory: float = 4100.0
    port: float = 50.0
    special: float = 15.0
    jitter: float = 0.0
    name: str = NAME
    arch: str = ARCH
    processors: int = 120
    l2: int = 40 << 20
    read_names: list[str] = field(default_factory=list)

    def probes(self) -> list[Probe]:
        return [Probe("launch", 1, lambda: None), *(Probe(n, a, lambda: None) for n, a in AMOUNTS.items())]

    def read(self, probe: Probe) -> Reading:
        self.read_names.append(probe.name)
        rates = {"port": self.port, "special": self.special} | {f"matrix {d}": r for d, r in MATRIX.items()}
        if probe.name == "launch":
            return Reading((2.5, 2.5, 2.6, 2.5))
        if probe.name == "memory":
            us = probe.amount / self.memory / 1e3
            return Reading((us, us, us * (1 + self.jitter), us * (1 + self.jitter)))
        cycles = probe.amount / self.processors / rates[probe.name]
        # A launch takes longer than the loops that its programs count, and products slow the clock down.
        ghz = self.clock if "float16" in probe.name else 1.9
        return Reading((cycles / ghz / 1e3 + 4.0,) * 4, cycles, ghz)


def test_planted_times_give_the_planted_constants() -> None:
    gpu: Gpu = Planted()
    found = calibrate(gpu)
    matrix = found.constants["matrix"]
    assert found.launch == 2.5 and matrix == pytest.approx(MATRIX)
    asked = {"clock": 1.6, "memory": 4100, "port": 50, "special": 15, "processors": 120, "l2": 40 << 20}
    assert {n: found.constants[n] for n in asked} == pytest.approx(asked)
    assert means_something(dict(found.constants))


def test_times_that_are_far_apart_are_refused() -> None:
    assert calibrate(Planted(jitter=0.05)).constants["memory"] < 4100
    with pytest.raises(TargetError, match="`memory` takes"):
        calibrate(Planted(jitter=0.2))


def test_a_machine_has_what_was_measured_and_another_name() -> None:
    row = DEVICES["H200"]
    first, second = (with_measured(row, calibrate(Planted(memory=m)).constants) for m in (4100.0, 3000.0))
    assert (first.memory, first.port, first.processors) == pytest.approx((4100, 50, 120))
    assert first.matrix["int8"] == pytest.approx(7700) and first.matrix["tf32"] == row.matrix["tf32"]
    assert first.shared == row.shared and len({row.name, first.name, second.name}) == 3
    assert {first.device, second.device, row.device} == {row.name}
    assert with_measured(row, None) is row


def machine_here(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Machine:
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(folder))
    monkeypatch.setattr(device, "gpu_target", lambda: Target("cuda", "90"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: NAME)
    return device.machine_for(Target("cuda"))


def test_what_is_kept_is_found_by_the_gpu_it_was_measured_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert machine_here(monkeypatch, tmp_path) is DEVICES["H200"]
    said = cli.measure(Planted())
    assert machine_here(monkeypatch, tmp_path).memory == pytest.approx(4100)
    assert said["kept"] == str(tmp_path / FILE)
    keep(tmp_path, "NVIDIA H100", ARCH, calibrate(Planted(memory=2000)).constants)
    assert machine_here(monkeypatch, tmp_path).memory == pytest.approx(4100)
    assert kept(tmp_path, "NVIDIA H100", "cuda:80") is None and not list(tmp_path.glob(f"{FILE}?*"))
    assert device.machine_for(Target("cuda", "80")) is DEVICES["A100"]


@pytest.mark.parametrize(
    "change",
    [{"memory": 0}, {"memory": "4100"}, {"clock": float("nan")}, {"port": True}, {"processors": 1.5}, {"matrix": 3},
     {"matrix": {"float16": -1}}, {"special": None}],
)  # fmt: skip
def test_constants_that_mean_nothing_are_not_used(change: dict[str, object], tmp_path: Path) -> None:
    good = dict(calibrate(Planted()).constants)
    keep(tmp_path, NAME, ARCH, good)
    assert kept(tmp_path, NAME, ARCH) == good
    keep(tmp_path, NAME, ARCH, good | change)
    assert kept(tmp_path, NAME, ARCH) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '"a"', "[" * 5000])
def test_a_damaged_file_is_not_used_and_is_written_anew(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    assert kept(tmp_path, NAME, ARCH) is None
    keep(tmp_path, NAME, ARCH, calibrate(Planted()).constants)
    assert kept(tmp_path, NAME, ARCH) is not None


def test_where_nothing_can_be_kept_it_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", "0")
    said = cli.measure(Planted())
    assert said["kept"] is None and "not kept: there is no cache folder" in cli.summary(said)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path / "file"))
    said = cli.measure(Planted())
    assert said["kept"] is None and str(tmp_path / "file") in cli.summary(said)


def test_the_table_shows_both() -> None:
    said = cli.measure(Planted())
    rows = {r["constant"]: r for r in cli.rows(json.loads(json.dumps(said)))}
    assert rows["memory"] == {"constant": "memory", "unit": "GB/s", "measured": "4100", "H200": "4350"}
    assert rows["matrix int8"]["measured"] == "7700" and rows["matrix int8"]["H200"] == "8192"


def loops(kernel: str, warps: int, capability: int = 90, **types: str) -> tuple[LoopStats, ...]:
    """The loops of a probe as the GPU would run it."""
    constants = {"multiply": {"ROWS": 128, "COLS": 128, "DEPTH": 32}, "exponentials": {"BLOCK": 1024}}
    aligned = tuple(n for n in types if n not in ("steps",))
    own = constants.get(kernel, {"BLOCK": 4096})
    report = compile_kernel(
        Request(f"neptune.autotune.probes:{kernel}", types, own, aligned, warps, capability=capability)
    )
    assert not report.spill_bytes and not report.warnings and report.loops
    assert not any(loop.local for loop in report.loops)
    return report.loops


def test_probes_keep_busy_what_they_are_for() -> None:
    """In their machine code: matrix instructions, exponentials, wide loads, and little beside them."""
    buffers = {"out": "*fp32", "spent": "*i64", "steps": "i32"}
    for loop in loops("multiply", 4, x="*fp16", y="*fp16", **buffers):
        assert loop.hgmma >= 4 and not loop.ldg and not loop.ex2
    assert all(loop.hmma >= 64 for loop in loops("multiply", 4, 80, x="*fp16", y="*fp16", **buffers))
    for loop in loops("exponentials", 4, **buffers):
        assert loop.ex2 >= 8 and loop.instructions < 3 * loop.ex2
    for loop in loops("read_again", 8, x="*fp32", length="i32", **buffers):
        # 16 floats a thread, four to a load.
        assert loop.ldg == 4
    assert all(loop.ldg % 4 == 0 for loop in loops("read", 8, x="*fp32", out="*fp32", steps="i32"))
