"""`neptune search`: a graph by a command, as text and as JSON, saved, and found again without a search."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import neptune
from neptune.cli.commands import app

FILE = """
from neptune.frontend.builder import build, compute, placeholder, reduce_axis, sum, var


def scaled():
    m, k, n = var("m"), var("k"), var("n")
    x, w = placeholder((m, k), "float16", "x"), placeholder((k, n), "float16", "w")
    p, q = reduce_axis((0, k), "p"), reduce_axis((0, k), "q")
    s = compute((m,), lambda i: sum(x[i, q].astype("float32"), axis=q), "s")
    z = compute((m, k), lambda i, p: (x[i, p].astype("float32") / s[i]).astype("float16"), "z")
    c = compute((m, n), lambda i, j: sum(z[i, p].astype("float32") * w[p, j].astype("float32"), axis=p), "c")
    return build(compute((m, n), lambda i, j: c[i, j].astype("float16"), "y"), name="scaled")
"""
BOUNDS = ("--max-block-ops", "6", "--max-kernels", "1", "--target", "cuda:90")
SIZES = ("--shape", "m=16", "--shape", "k=4096", "--shape", "n=6144")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("search") / "norm.py"
    path.write_text(FILE)
    return path


@pytest.fixture(autouse=True)
def cache(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(file.parent / "cache"))


def invoke(*args: str) -> Result:
    return CliRunner().invoke(app, ["search", *args])


def test_as_json_and_saved_and_then_from_a_record(file: Path, tmp_path: Path) -> None:
    asked = (f"{file}:scaled", *SIZES, *BOUNDS, "--top", "3", "--save", str(tmp_path / "kernel"), "--json")
    done = invoke(*asked)
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["name"] == "scaled" and said["numbers"]["verified"] > 0 and not said["recorded"]
    assert 1 <= len(said["graphs"]) <= 3 and all(g["graph"].startswith("graph scaled") for g in said["graphs"])
    kernel = neptune.load(tmp_path / "kernel", "interpret")
    assert (kernel.graph is not None) == bool(said["graph"])
    again = json.loads(invoke(*asked[:-3], "--save", str(tmp_path / "again"), "--json").stdout)
    assert again["recorded"] and again["graph"] == said["graph"]


def test_as_text_with_lines_of_progress(file: Path) -> None:
    done = invoke(f"{file}:scaled", *SIZES, *BOUNDS)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("graph: ") and "predicted: " in done.stdout and "Traceback" not in done.output


def test_mistakes_are_one_line_each(file: Path) -> None:
    done = invoke(str(file), "--budget", "soon")
    assert done.exit_code == 1 and "60s, 5m, 1h" in done.stderr
    done = invoke(str(file), "--max-kernels", "0", "--json")
    assert done.exit_code == 1 and "no number of kernels" in json.loads(done.stdout)["message"]
    assert invoke("nowhere.py").exit_code == 2
