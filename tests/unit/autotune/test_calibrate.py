"""Constants from planted times, and what is done with those that are kept. Probes are compiled and not run: no GPU."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from neptune.autotune.calibrate import Gpu, Probe, Reading, calibrate, of_processors
from neptune.autotune.journal import Journal
from neptune.autotune.present import BLOCK, DEPTH, EXPONENTIALS, MATRIX, TILE
from neptune.autotune.space import Trial
from neptune.base.choice import Choice
from neptune.cli import calibrated as cli
from neptune.driver import device
from neptune.errors import NeptunePerformanceWarning, TargetError
from neptune.records.store import Store
from neptune.records.structure import DIGITS
from neptune.runtime.launching.launch import Target
from neptune.tune.model.calibrated import FILE, keep, kept, means_something, with_measured
from neptune.tune.model.machine import DEVICES, Machine
from tests.examples.sass import LoopStats, Request, compile_kernel

NAME, ARCH = "NVIDIA H200", "cuda:90"
RATES = {"float16": 3900.0, "int8": 7700.0}
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
        rates = {"port": self.port, "special": self.special} | {f"matrix {d}": r for d, r in RATES.items()}
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
    assert found.launch == 2.5 and matrix == pytest.approx(RATES)
    asked = {"clock": 1.6, "memory": 4100, "port": 50, "special": 15, "processors": 120, "l2": 40 << 20}
    assert {n: found.constants[n] for n in asked} == pytest.approx(asked)
    assert means_something(dict(found.constants))


def test_times_that_are_far_apart_are_refused() -> None:
    assert calibrate(Planted(jitter=0.05)).constants["memory"] < 4100
    with pytest.raises(TargetError, match="`memory` takes"):
        calibrate(Planted(jitter=0.2))


def test_a_machine_has_what_was_measured_and_another_name() -> None:
    row = DEVICES["H200"]
    first, second = (with_measured(row, calibrate(Planted(memory=m)).constants, False) for m in (4100.0, 3000.0))
    assert (first.memory, first.special, first.processors) == pytest.approx((4100, 15, 120))
    assert first.matrix["int8"] == pytest.approx(7700) and first.matrix["tf32"] == row.matrix["tf32"]
    assert first.shared == row.shared and len({row.name, first.name, second.name}) == 3
    assert with_measured(row, None, False) is row
    assert first.device == second.device == row.device == row.name


def test_of_a_gpu_in_the_table_its_own_clock_and_memory_rate_are_taken(monkeypatch: Any, tmp_path: Path) -> None:
    """What all of a kind have alike stays: the model was fitted with it. Of another GPU it is measured."""
    off = calibrate(Planted(special=29.6, port=20.0)).constants
    known, other = (with_measured(DEVICES["H200"], off, k) for k in (True, False))
    assert (known.clock, known.memory, known.processors) == pytest.approx((1.6, 4100, 120))
    assert (known.special, known.matrix) == (16, DEVICES["H200"].matrix)
    assert other.special == pytest.approx(29.6) and other.port == known.port == 64
    for name, special in ((NAME, 16.0), ("NVIDIA H20", 29.6)):
        keep(tmp_path, name, ARCH, off)
        assert machine_here(monkeypatch, tmp_path, name).special == pytest.approx(special)


def test_measurements_of_a_calibrated_gpu_are_kept(monkeypatch: Any, tmp_path: Path) -> None:
    """Under the name of its row, so that those of the shipped records are found, and of before."""
    keep(tmp_path, NAME, ARCH, calibrate(Planted()).constants)
    machine, structure = machine_here(monkeypatch, tmp_path), "ab" * (DIGITS // 2)
    assert machine.name != "H200"
    journal = Journal(store := Store(tmp_path), structure, machine.device, "f", {"t": "t"})
    journal.keep({"m": 8}, Trial(Choice("t", {"BLOCK_M": 16}), 3.0), [4.0], {})
    assert journal.known({"m": 8}) == {Choice("t", {"BLOCK_M": 16}): 4.0} and store.find(structure, "H200")


def machine_here(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str = NAME) -> Machine:
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(folder))
    monkeypatch.setattr(device, "gpu_target", lambda: Target("cuda", "90"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
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
    assert rows["memory"] == {"constant": "memory", "unit": "GB/s", "measured": "4100", "H200": "4350",
                              "taken": "measured"}  # fmt: skip
    assert rows["matrix int8"]["measured"] == "7700" and rows["matrix int8"]["H200"] == "8192"
    assert rows["matrix int8"]["taken"] == rows["port"]["taken"] == "table"
    assert "far" not in cli.summary(said)


def test_what_is_far_from_the_table_is_said() -> None:
    assert "far from the table: special (1.85×)" in cli.summary(cli.measure(Planted(special=29.6)))
    assert "far from the table: memory (0.46×)" in cli.summary(cli.measure(Planted(memory=2000.0)))
    assert "far" not in cli.summary(cli.measure(Planted(port=20.0)))


def spent(processors: int, programs: int, cycles: int, begin: int = 1 << 40) -> Any:
    """Rows of programs that share a unit, which takes the oldest first, at 2 cycles a nanosecond."""
    rows = [
        [p, begin + 7 * p, begin + 7 * p + cycles * (k + 1) // programs, 500, 500 + cycles * (k + 1) // programs // 2]
        for p in range(processors)
        for k in range(programs)
    ]
    return np.array(rows)


def test_a_processor_is_busy_until_its_last_program_ends() -> None:
    """Half of the programs have ended after half of the time: a median of theirs is half of what a share takes."""
    assert of_processors(spent(132, 8, 80_000), 132) == pytest.approx((80_000, 2.0))
    assert of_processors(spent(132, 2, 80_000), 132) == pytest.approx((80_000, 2.0))
    # Spread unevenly: one with twice the programs takes twice as long.
    third = spent(1, 4, 2000)
    third[:, 0] = 2
    uneven = np.concatenate([spent(2, 2, 1000), third])
    assert of_processors(uneven, 4) == pytest.approx((1000, 2.0))


def loops(kernel: str, warps: int, capability: int = 90, **types: str) -> tuple[LoopStats, ...]:
    """The loops of a probe as the GPU would run it."""
    constants = {"multiply": {"ROWS": TILE, "COLS": TILE, "DEPTH": DEPTH}, "exponentials": {"BLOCK": EXPONENTIALS}}
    aligned = tuple(n for n in types if n not in ("steps",))
    own = constants.get(kernel, {"BLOCK": BLOCK})
    report = compile_kernel(
        Request(f"neptune.autotune.probes:{kernel}", types, own, aligned, warps, capability=capability)
    )
    assert not report.spill_bytes and not report.warnings and report.loops
    assert not any(loop.local for loop in report.loops)
    return report.loops


BUFFERS = {"out": "*fp32", "spent": "*i64", "steps": "i32"}
TYPES = {"float16": ("*fp16", "*fp32", 2), "tf32": ("*fp32", "*fp32", 4), "int8": ("*i8", "*i32", 1),
         "float8_e4m3fn": ("*fp8e4nv", "*fp32", 1)}  # fmt: skip
"""Pointers to operands and to the sum in Triton's names, and the bytes of an operand."""


def once(found: tuple[LoopStats, ...], count: Callable[[LoopStats], int]) -> int:
    """What the machine code does for one step: loops do several at a time, but for the one that is left over."""
    counts = [count(loop) for loop in found]
    assert all(n and n % min(counts) == 0 for n in counts)
    return min(counts)


@pytest.mark.parametrize(
    ("capability", "dtype"),
    [(90, "float16"), (90, "tf32"), (90, "int8"), (90, "float8_e4m3fn"), (80, "float16"), (80, "tf32"), (80, "int8")],
)
def test_products_do_what_they_are_counted_for(capability: int, dtype: str) -> None:
    """The FLOP of one step, by the shapes of matrix instructions: 32 bytes of depth, of 64 × 128 sums for a warp group,
    of 16 × 8 for each of four warps."""
    assert dtype in MATRIX and MATRIX[dtype][2] <= capability
    operand, total, size = TYPES[dtype]
    found = loops("multiply", 4, capability, x=operand, y=operand, **(BUFFERS | {"out": total}))
    assert not any(loop.ldg or loop.ex2 for loop in found)
    group, warp = (2 * rows * (32 // size) for rows in (64 * 128, 4 * 16 * 8))
    assert once(found, lambda loop: loop.hgmma * group + loop.hmma * warp) == 2 * TILE * TILE * DEPTH


@pytest.mark.parametrize("capability", [80, 90])
def test_exponentials_are_as_many_as_are_counted(capability: int) -> None:
    found = loops("exponentials", 4, capability, **BUFFERS)
    assert once(found, lambda loop: 4 * 32 * loop.ex2) == EXPONENTIALS
    assert all(loop.instructions < 3 * loop.ex2 for loop in found)


def test_reads_are_wide_and_all_there() -> None:
    for loop in loops("read_again", 8, x="*fp32", length="i32", **BUFFERS):
        # 16 floats a thread, four to a load.
        assert loop.ldg == 4
    assert all(loop.ldg % 4 == 0 for loop in loops("read", 8, x="*fp32", out="*fp32", steps="i32"))


def test_a_gpu_of_which_nothing_is_known_is_said_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device._say_unknown.cache_clear()
    with pytest.warns(NeptunePerformanceWarning, match="no figures are known of NVIDIA H20: .* H200; `nep"):
        assert machine_here(monkeypatch, tmp_path, "NVIDIA H20").name == "H200"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        machine_here(monkeypatch, tmp_path, "NVIDIA H20")
        device._say_unknown.cache_clear()
        machine_here(monkeypatch, tmp_path, NAME)
        keep(tmp_path, "NVIDIA H20", ARCH, calibrate(Planted()).constants)
        machine_here(monkeypatch, tmp_path, "NVIDIA H20")
