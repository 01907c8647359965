"""The runner of times without a GPU: kernels at small sizes in the interpreter, times by a clock that is made up."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import neptune
from bench import mirage_search, mirage_speed
from bench.mirage_eager import EAGER, PRODUCTS
from bench.mirage_programs import BENCHMARKS
from bench.mirage_speed import Gpu, Row, inputs, rows_of, run, save

SMALL = {"m": 3, "k": 40, "n": 24}
SHAPES = ((3, 40), (40, 24))
Call = Callable[[], Any]


class Clock(Gpu):
    """Calls on the CPU, each of which takes as long as was said for it in order."""

    device = "cpu"

    def __init__(self) -> None:
        self.order: list[Call] = []

    def load(self, path: Path) -> neptune.Kernel:
        return neptune.load(path, "interpret")

    def graph(self, call: Call) -> Call:
        call()
        self.order.append(call)
        return call

    def times(self, call: Call, count: int) -> list[float]:
        return [10.0 + self.order.index(call)] * count


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    kernel = neptune.compile(BENCHMARKS["RMSNorm"].program(**SMALL), target="cuda:90")
    row = Row("RMSNorm", 1, "float16", SHAPES, ({"num_warps": 2},))
    save(folder, row, kernel, kernel)
    return folder


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile takes a minute here."""
    monkeypatch.setattr(mirage_speed, "compiled", lambda call: call)


def test_rows_are_noted_once(saved: Path, tmp_path: Path) -> None:
    (row,) = rows_of(saved)
    mirage_speed.add_row(tmp_path, row)
    mirage_speed.add_row(tmp_path, row)
    assert rows_of(tmp_path) == [row] and row.key == "RMSNorm-1-float16"


def test_a_dry_run_looks_at_kernels_and_measures_nothing(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(saved, None, 60.0, None) == 0
    count = len(neptune.load(saved / "RMSNorm-1-float16" / "ours", "interpret").facts.kernels)
    assert f"ours {count} kernels, template {count} kernels, 1 values to try" in capsys.readouterr().out


def test_a_run_keeps_all_samples_and_goes_on(
    saved: Path, tmp_path: Path, eager: None, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "speed.json"
    assert run(saved, file, 60.0, Clock()) == 0
    said = capsys.readouterr().out
    (row,) = json.loads(file.read_text())["rows"]
    assert set(row["us"]) == {"eager", "ours", "template", "cuBLAS product", "torch.compile", "ours tuned"}
    assert all(len(us) == mirage_speed.ROUNDS * mirage_speed.SAMPLES for us in row["us"].values())
    assert not row["wrong"] and not row["failed"]
    assert row["errors"]["ours"] < 2e-3
    # Made up: eager 10, ours 11, template 12; so there is a loss against eager, and it is listed.
    assert "loss: RMSNorm-1-float16 0.91x" in said and "ours against template: 1.09x over 1 rows" in said
    before = file.read_text()
    assert run(saved, file, 60.0, Clock()) == 0 and file.read_text() == before


def test_a_wrong_kernel_is_said(saved: Path, eager: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirage_speed, "MOST_ERROR", 0.0)
    (row,) = rows_of(saved)
    found = mirage_speed.measured(row, saved, Clock())
    assert found["wrong"] == ["ours", "template"]
    assert "ours IS WRONG" in mirage_speed.line(found)


@pytest.mark.parametrize("name", list(BENCHMARKS))
def test_eager_torch_is_the_benchmark(name: str) -> None:
    """In float64 both are one function."""
    of = BENCHMARKS[name]
    sizes = dict(zip(of.symbols, (2, 3, 4, 5), strict=False))
    program = of.program(**sizes)
    shapes = tuple(tuple(int(d.value) for d in b.shape) for b in program.inputs)  # type: ignore[union-attr]
    given = [x.double() for x in inputs(Row(name, 1, "float32", shapes), "cpu")]
    exact = torch.from_numpy(of.reference(*(x.numpy() for x in given)))
    assert torch.allclose(EAGER[name](*given), exact, rtol=1e-9)
    if name in PRODUCTS:
        assert PRODUCTS[name](*given).shape == exact.shape


def test_a_search_as_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "search.json"
    asked = ["--only", "LoRA", "--budget", "1s", "--workers", "1", "--hash-seeds", "--json", str(file)]
    assert mirage_search.main(asked) == 0
    (row,) = json.loads(file.read_text())["rows"]
    assert row["states"] > 0 and row["tries"] > row["states"] and row["seconds"] < 10
    assert "LoRA " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        mirage_speed.main([])
