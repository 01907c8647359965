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

import neptune
from neptune import config
from neptune.cli import environment
from neptune.cli.commands import app
from neptune.cli.environment import Finding
from neptune.errors import InternalError
from neptune.tune import choose
from neptune.versions import EXTRAS

FILE = """
from neptune.ops.softmax import softmax
from tests.examples.kernel_examples import pair_program, rows_fused as shared, rows_program


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


def test_the_asynchronous_form_and_its_parameters_are_options():
    asked = ("compile", "matmul", "--target", "cuda:90", "--form", "asynchronous")
    done = invoke(*asked, "--param", "stages=3", "--param", "asynchronous.persistent=stride")
    assert done.exit_code == 0, done.output
    assert "@gluon.jit" in done.stdout and "@triton.jit" not in done.stdout
    wrong = invoke(*asked, "--param", "stages=9")
    assert wrong.exit_code == 1 and "stages is not 9" in wrong.stderr
    assert invoke(*asked, "--param", "stages").exit_code == 2
    # By their former name.
    assert invoke(*asked, "--lever", "stages=3", "--lever", "persistent=stride").stdout == done.stdout
    assert "no such form" in invoke("compile", "matmul", "--target", "cuda:90", "--form", "asnyc").stderr


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
    said = json.loads(done.stdout)
    assert said["error"] == "ScheduleError" and said["code"] == "NPT-S001" == said["message"].split()[-1]
    assert "y" in said["legal"] and said["asked"] == "unknown stage `nothing`" and said["wrong"] in said["message"]
    assert said["kind"] in errors_page() and said["where"] is None and said["hint"] is None
    assert (said["file"], FILE.splitlines()[said["line"] - 1].strip()) == (file, 'sch.stage("nothing")')


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("def made():\n    x = 1\n    return x // 0\n", 3, "ZeroDivisionError"),
        ("x = 1\nimport nothing_at_all\n", 2, "ModuleNotFoundError"),
        ("x = 1\n\ndef f(:\n", 3, "SyntaxError"),
    ],
)
def test_a_users_own_mistake_as_json(tmp_path, text, line, said):
    path = tmp_path / "bad.py"
    path.write_text(text)
    found = json.loads(invoke("compile", str(path), "--json").stdout)
    assert found["error"] == "Error" and said in found["message"]
    assert (found["file"], found["line"]) == (str(path), line) and "code" not in found


def errors_page():
    return (Path(neptune.__file__).parents[1] / "docs/errors.md").read_text()


def test_what_a_code_stands_for():
    said = json.loads(invoke("explain-error", "npt-c005", "--json").stdout)
    assert set(said) == {"code", "kind", "cure"} and all(x in errors_page() for x in said.values())
    assert invoke("explain-error", "NPT-C005").stdout.startswith(f"NPT-C005: {said['kind']}\n")
    done = invoke("explain-error", "NPT-C999")
    assert done.exit_code == 2 and "no code 'NPT-C999'" in done.stderr


def test_the_only_function_needs_no_name(tmp_path):
    path = tmp_path / "one.py"
    path.write_text("from neptune.ops.softmax import softmax\n\n\ndef only():\n    return softmax()\n")
    assert invoke("compile", str(path), "-t", "softmax_row", "--target", "llvm").exit_code == 0


@pytest.mark.parametrize("command", ["compile", "explain", "check-env", "templates"])
def test_help_shows_an_example_and_fits_a_terminal(command):
    done = CliRunner().invoke(app, [command, "--help"], terminal_width=80)
    assert done.exit_code == 0 and "Example" in done.stdout
    examples = [x.split() for x in done.stdout.splitlines() if x.startswith("      neptune ")]
    assert examples and all(x[1] == command for x in examples)
    assert all(Path(w.split(":")[0]).name in os.listdir("examples") for x in examples for w in x if ".py:" in w)
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_help_lists_exit_codes_and_settings():
    done = CliRunner().invoke(app, ["--help"], terminal_width=80)
    assert all(f"{code}  " in done.stdout for code in range(4))
    assert not any(x.endswith("...") for x in done.stdout.splitlines()[1:]), "a summary is cut"
    assert all(f"{name} " in done.stdout for name in (*config.VARIABLES, "NO_COLOR"))
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_sizes(file):
    args = (f"{file}:rows", "-t", f"{file}:fused", "--shape", "m=64", "--bound", "n=128", "--json")
    said = json.loads(invoke("explain", *args).stdout)
    assert (said["shapes"], said["bounds"]) == ({"m": 64}, {"n": 128})
    assert invoke("compile", f"{file}:rows", "-t", f"{file}:fused", "--bound", "rows=1").exit_code == 1


def test_assembly_and_resources(file):
    args = ("compile", f"{file}:rows", "-t", f"{file}:fused")
    assert ".target sm_90" in invoke(*args, "--asm", "cuda:90").stdout
    shown = invoke(*args, "--resources", "cuda:90").stdout
    assert "registers" in shown and "rows_kernel" in shown
    (row,) = json.loads(invoke(*args, "--resources", "cuda:90", "--json").stdout)["resources"]
    assert row["name"] == "rows_kernel" and row["registers"] > 0
    (text,) = json.loads(invoke(*args, "--asm", "hip:gfx942", "--json").stdout)["asm"].values()
    assert "gfx942" in text
    assert invoke(*args, "--asm", "cuda:90", "--ir", "tile").exit_code == 2


def test_a_report(file, tmp_path):
    path = tmp_path / "r.html"
    done = invoke("explain", f"{file}:soft", "-t", "softmax_row", "--html", str(path))
    assert done.exit_code == 0 and done.stdout == f"wrote {path}\n" and path.read_text().startswith("<!doctype html>")
    assert invoke("explain", f"{file}:soft", "--html", str(tmp_path / "no" / "r.html")).exit_code == 1


def test_templates():
    said = json.loads(invoke("templates", "--json").stdout)
    assert set(said) == set(choose.shipped_templates()) and all(said.values())
    shown = invoke("templates").stdout
    assert all(name in shown for name in said)


def test_wrong_usage_as_json(file):
    for args in (("compile", "--what"), ("compile", file, "-p", "BLOCK_M"), ("compile", "absent.py"), ("compil",)):
        done = invoke(*args, "--json")
        assert done.exit_code == 2
        assert json.loads(done.stdout)["error"] == "UsageError"


def test_a_file_or_a_function_that_fails(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text("def made():\n    return 1 // 0\n")
    done = invoke("compile", str(path))
    assert done.exit_code == 1 and "made() of" in done.stderr and "ZeroDivisionError" in done.stderr
    path.write_text("import nothing_of_that_name\n")
    done = invoke("compile", str(path), "--json")
    assert done.exit_code == 1 and "nothing_of_that_name" in json.loads(done.stdout)["message"]


@pytest.mark.parametrize("text", ["raise SystemExit(0)\n", "def made():\n    raise SystemExit(0)\n"])
def test_a_file_that_exits_is_no_success(tmp_path, text):
    path = tmp_path / "leaves.py"
    path.write_text(text)
    done = invoke("compile", f"{path}:made", "--json")
    assert done.exit_code == 1 and "SystemExit" in json.loads(done.stdout)["message"]


def test_a_file_imports_its_neighbours(tmp_path):
    (tmp_path / "neighbour_of_one.py").write_text("from neptune.ops.softmax import softmax\n")
    path = tmp_path / "one.py"
    path.write_text("import neighbour_of_one\n\n\ndef only():\n    return neighbour_of_one.softmax()\n")
    assert invoke("compile", str(path), "-t", "softmax_row", "--target", "llvm").exit_code == 0


def test_a_defect_of_ours_has_its_own_code(file, monkeypatch):
    def broken(*_, **__):
        raise InternalError("something is off")

    monkeypatch.setattr("neptune.driver.pipeline.compile", broken)
    done = invoke("compile", f"{file}:rows")
    assert done.exit_code == 3 and "This is a defect in Neptune" in done.stderr


def test_nothing_is_cut_on_a_narrow_terminal(file, monkeypatch):
    plain = invoke("compile", f"{file}:rows", "-t", f"{file}:fused").stdout
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    coloured = CliRunner().invoke(app, ["compile", f"{file}:rows", "-t", f"{file}:fused"], color=True).stdout
    assert "\x1b[" in coloured and re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert CliRunner().invoke(app, ["compile", f"{file}:rows", "-t", f"{file}:fused"], color=True).stdout == plain


def test_as_a_process(file):
    root = Path(__file__).parents[3]
    env = {**os.environ, "PYTHONPATH": str(root), "NEPTUNE_LOGS": "fusion"}
    command = [sys.executable, "-m", "neptune.cli", "explain", f"{file}:soft", "-t", "softmax_online", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=root, check=False)
    assert done.returncode == 0 and json.loads(done.stdout)["template"] == "softmax_online"
    assert "[neptune.fusion] sch.rolling_update" in done.stderr
    done = subprocess.run([*command, "--target", "tpu"], capture_output=True, text=True, env=env, cwd=root, check=False)
    assert done.returncode == 1 and json.loads(done.stdout)["error"] == "TargetError"


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
    project = Path(__file__).parents[3].joinpath("pyproject.toml").read_text()
    for name, least in environment.REQUIRED.items():
        assert f'"{name}{">=" + least if least else ""}"' in project
    for name, (least, extra) in environment.OPTIONAL.items():
        assert f'"{name}>={least}"' in project and f"{name}>={least}" in EXTRAS[extra]
    for extra, packages in EXTRAS.items():
        assert f"{extra} = [{', '.join(f'{chr(34)}{p}{chr(34)}' for p in packages)}]" in project


def test_hints_name_packages_that_exist():
    """Nobody has published this project: whoever takes its name would be installed by a hint with it."""
    package = Path(__file__).parents[3] / "neptune"
    texts = {f: f.read_text() for f in package.rglob("*.py")}
    assert not [f for f, text in texts.items() if "pip install" in text and "neptune-compiler[" in text]


def test_what_nobody_needs_is_optional():
    assert Finding("a", "b", False, optional=True).mark == "optional" and Finding("a", "b", False).mark == "no"
    assert Finding("a", "b", False, required=True).mark == "missing" and Finding("a", "b", True).mark == "ok"


def test_the_packages_of_the_command_line_are_an_extra():
    project = Path(__file__).parents[3].joinpath("pyproject.toml").read_text()
    (core,) = (x for x in project.splitlines() if x.startswith("dependencies = "))
    assert "click" not in core and "rich" not in core
    code = "import sys; sys.modules |= {'click': None, 'rich': None, 'pygments': None}; import neptune.driver.pipeline"
    code += "; from neptune.ops.softmax import softmax; k = neptune.compile(softmax(), 'softmax_row', target='llvm')"
    code += "; k._repr_html_()"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_settings_that_mean_nothing_are_found(monkeypatch):
    for name in [n for n in os.environ if n.startswith("NEPTUNE_")]:
        monkeypatch.delenv(name)
    assert environment._settings() == environment.Finding("settings", "none are set", True)
    monkeypatch.setenv("NEPTUNE_LOG", "fusion")
    found = environment._settings()
    assert not found.good and not found.required and "there is no NEPTUNE_LOG;" in found.remedy
    monkeypatch.setenv("NEPTUNE_VERIFY", "9")
    found = environment._settings()
    assert found.required and "not a level of verification" in found.found and found.remedy == "unset NEPTUNE_VERIFY"


def test_missing_packages_are_named(tmp_path):
    (tmp_path / "click.py").write_text("raise ModuleNotFoundError('no click', name='click')\n")
    root = Path(__file__).parents[3]
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"}
    done = subprocess.run([sys.executable, "-m", "neptune.cli"], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 2
    assert done.stderr == "the neptune command needs click: pip install 'click>=8.1' 'rich>=13'\n"


def test_save_writes_what_load_reads(file, tmp_path):
    args = ("compile", f"{file}:rows", "-t", f"{file}:fused", "--save", str(tmp_path / "k"))
    done = invoke(*args)
    assert done.exit_code == 0 and done.stdout == f"wrote {tmp_path / 'k'}\n"
    assert neptune.load(tmp_path / "k").name == "rows"
    assert json.loads(invoke(*args, "--json").stdout)["saved"] == str(tmp_path / "k")
    assert invoke(*args[:-1], str(tmp_path)).exit_code == 1
    assert invoke(*args, "--ir", "fused").exit_code == 2


def test_check_env_shows_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path / "c"))
    assert environment._cache().found == f"{tmp_path / 'c' / 'compiled'}: 0 kernels, 0.0 MiB"
    (tmp_path / "c").touch()
    found = environment._cache()
    assert not found.good and not found.required and "NEPTUNE_CACHE_DIR" in found.remedy
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", "0")
    assert environment._cache().good


def test_what_is_slow_goes_to_the_standard_error(file):
    done = invoke("compile", f"{file}:soft", "-t", "stagewise", "--json")
    assert done.exit_code == 0 and "repeated-passes: input `x` is read in 3 passes" in done.stderr
    (said,) = json.loads(done.stdout)["warnings"]
    assert said["code"] == "repeated-passes"
    shown = invoke("explain", f"{file}:soft", "-t", "stagewise")
    assert shown.stdout.startswith("warning: ") and "predicted" in shown.stdout and not shown.stderr


def test_strict_refuses_what_is_slow(file):
    done = invoke("compile", f"{file}:soft", "-t", "stagewise", "--strict")
    assert done.exit_code == 1 and "strict=True" in done.stderr and not done.stdout
    assert invoke("compile", f"{file}:soft", "-t", "softmax_online", "--strict").exit_code == 0


def test_the_tracker_of_the_same_name_in_our_folder_is_found(tmp_path, monkeypatch):
    folder = tmp_path / "neptune"
    folder.mkdir()
    assert environment.folder_shared(folder).good
    info = tmp_path / "neptune-1.10.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: neptune\nVersion: 1.10\n")
    (info / "RECORD").write_text("neptune/__init__.py,,\nneptune/run.py,,\nneptune-1.10.dist-info/RECORD,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = environment.folder_shared(folder)
    assert not found.good and found.required and found.found.endswith("tracker `neptune` lie, too: __init__.py, run.py")
    assert 'python -c "import neptune; print(neptune.__file__)"' in found.remedy
    # Elsewhere it does no harm.
    assert environment.folder_shared(Path(neptune.__file__).parent).good
