"""The command line, in this process through click's runner, and once as a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from neptune import environment
from neptune.commands import app

FILE = """
from neptune.ops.softmax import softmax
from tests.kernel_examples import pair_program, rows_fused as shared, rows_program


def rows():
    return rows_program()


def soft():
    return softmax()


def fused(sch):
    shared(sch)


def wrong(sch):
    sch.stage("nothing")
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("NEPTUNE_TARGET", "llvm")
    path = tmp_path / "expr.py"
    path.write_text(FILE)
    return str(path)


def invoke(*args):
    return CliRunner().invoke(app, args)


def test_compile_prints_the_source(file):
    done = invoke("compile", f"{file}:rows", "-t", f"{file}:fused", "--param", "BLOCK_M=32")
    assert done.exit_code == 0, done.output
    assert "@triton.jit" in done.stdout and "def rows(" in done.stdout
    assert "\x1b[" not in done.stdout
    compile(done.stdout, "source", "exec")


def test_compile_as_json(file):
    done = invoke("compile", f"{file}:soft", "--template", "softmax_row", "--target", "interpret", "--json")
    said = json.loads(done.stdout)
    assert (said["name"], said["target"], said["template"]) == ("softmax", "interpret", "softmax_row")
    assert said["params"]["num_warps"] == 4 and "@triton.jit" in said["source"]


def test_compile_shows_other_forms(file):
    done = invoke("compile", f"{file}:soft", "-t", "softmax_row", "--ir", "loops")
    assert done.stdout.startswith("program softmax\n")
    assert "ir" in json.loads(invoke("compile", f"{file}:soft", "-t", "softmax_row", "--ir", "tile", "--json").stdout)
    assert invoke("compile", file, "--ir", "ptx").exit_code == 2


def test_explain(file):
    done = invoke("explain", f"{file}:soft", "-t", "softmax_row")
    assert done.exit_code == 0 and "passes over each input: x=1" in done.stdout
    said = json.loads(invoke("explain", f"{file}:soft", "-t", "softmax_row", "--json").stdout)
    assert said["traversals"] == {"x": 1}


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("rows", "-t", "{file}:wrong"), 1, "ScheduleError: unknown stage `nothing`"),
        (("rows", "-t", "{file}:fused", "-p", "BLOCK_X=4"), 1, "legal here: BLOCK_M, BLOCK_N"),
        (("rows", "-t", "{file}:fused", "--target", "tpu"), 1, "TargetError"),
        (("rows", "-t", "{file}:fused", "-p", "BLOCK_M"), 2, "is not NAME=N"),
        (("nothing",), 2, "no function 'nothing'; it has rows, soft, fused, wrong"),
        (("", "-t", "softmax_row"), 2, "name the function"),
        (("rows", "-t", "{file}"), 2, "it has fused, wrong"),
        (("rows", "-t", "absent.py"), 2, "there is no file 'absent.py'"),
    ],
)
def test_errors_are_one_screen_and_have_their_code(file, args, code, said):
    name, *rest = args
    done = invoke("compile", f"{file}:{name}" if name else file, *(a.format(file=file) for a in rest))
    assert done.exit_code == code, done.output
    assert done.stdout == "" and said in done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= 12


def test_errors_as_json(file):
    done = invoke("explain", f"{file}:rows", "-t", f"{file}:wrong", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["error"] == "ScheduleError"


def test_the_only_function_needs_no_name(tmp_path):
    path = tmp_path / "one.py"
    path.write_text("from neptune.ops.softmax import softmax\n\n\ndef only():\n    return softmax()\n")
    assert invoke("compile", str(path), "-t", "softmax_row", "--target", "llvm").exit_code == 0


@pytest.mark.parametrize("command", ["compile", "explain", "check-env"])
def test_help_shows_an_example(command):
    done = invoke(command, "--help")
    assert done.exit_code == 0 and "Example:" in done.stdout and f"neptune {command}" in done.stdout


def test_check_env(monkeypatch):
    monkeypatch.setattr(environment, "GPU_TARGETS", ("cuda:90",))
    done = invoke("check-env", "--json")
    said = json.loads(done.stdout)
    found = {f["subject"]: f for f in said["findings"]}
    assert done.exit_code == 0 and said["usable"]
    assert found["torch"]["good"] and found["run on llvm"]["good"] and found["compile for cuda:90"]["good"]


def test_check_env_has_a_remedy_for_what_is_missing(monkeypatch):
    monkeypatch.setitem(environment.REQUIRED, "sympy", "999")
    done = invoke("check-env")
    assert done.exit_code == 1
    assert re.search(r"sympy +1\.\S+ older than 999", done.stdout)
    assert "try: pip install 'sympy>=999'" in done.stdout
    assert "this machine cannot run kernels" in done.stdout


def test_a_target_that_fails_is_a_finding_and_not_a_crash(monkeypatch):
    monkeypatch.setattr(environment, "GPU_TARGETS", ("cuda:1",))
    (finding,) = [f for f in environment._targets() if f.subject == "compile for cuda:1"]
    assert not finding.good and finding.remedy


def test_versions_wanted_are_those_of_the_project_file():
    project = Path(__file__).parents[2].joinpath("pyproject.toml").read_text()
    for name, least in environment.REQUIRED.items():
        assert f'"{name}{">=" + least if least else ""}"' in project
    for name, (least, _) in environment.OPTIONAL.items():
        assert f'"{name}>={least}"' in project


def test_missing_packages_are_named(tmp_path):
    (tmp_path / "click.py").write_text("raise ModuleNotFoundError('no click', name='click')\n")
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"}
    done = subprocess.run([sys.executable, "-m", "neptune.cli"], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 2
    assert done.stderr == "the neptune command needs click: pip install 'neptune-compiler[cli]'\n"
