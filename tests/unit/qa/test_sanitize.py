"""compute-sanitizer is found or missed, and what it says of a run is told, also of one without an end."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from qa import sanitize

SAYS = """#!/bin/sh
echo "$@" > "{seen}"
case "$*" in
  *racecheck*) echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)";;
  *synccheck*) echo "========= ERROR SUMMARY: 3 errors"; exit 9;;
  *initcheck*) exec sleep 100;;
  *) echo "Traceback"; exit 1;;
esac
"""


TEXT = """\
def matmul_consumer(W):
    barrier()


@gluon.jit
def matmul_kernel(a_desc):
    gl.warp_specialize(
"""
RACES = """\
========= Error: Race reported between Read access at matmul_kernel+0xd0 in generated_1.py:6
=========     and Write access at matmul_kernel+0x27c0 in generated_1.py:6 [14 hazards]
=========     and Write access at matmul_kernel+0x3df0 in generated_1.py:7 [11 hazards]
=========
========= Error: Race reported between Read access at matmul_kernel+0xd0 in generated_1.py:6
=========     and Write access at matmul_kernel+0x500 in generated_1.py:{line} [2 hazards]
"""


@pytest.mark.parametrize(("line", "own"), [(7, 2), (2, 1), (99, 1)])
def test_races_in_which_triton_hands_roles_over_are_told_from_ours(line: int, own: int) -> None:
    assert sanitize.of_roles(RACES.format(line=line), TEXT) == (own, 2)
    assert sanitize.of_roles("Race reported between nobody", TEXT) == (0, 1)


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sanitizer that knows what it will find, for kernels that nobody makes."""
    folder = tmp_path / "bin"
    folder.mkdir()
    path = folder / sanitize.TOOL
    path.write_text(SAYS.format(seen=tmp_path / "seen"))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(sanitize, "save", lambda name, folder: (folder / name.replace(" ", "_"), TEXT))
    return path


def asked(tmp_path: Path, *more: str) -> int:
    return sanitize.main(["causal 64", "--logs", str(tmp_path / "logs"), *more])


def test_a_run_without_a_finding(tool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sanitize.sanitizer() == str(tool)
    assert asked(tmp_path, "--tools", "racecheck") == 0
    assert "racecheck causal 64: clean, RACECHECK SUMMARY: 0 hazards" in capsys.readouterr().out
    said = (tmp_path / "seen").read_text()
    assert "--tool racecheck --error-exitcode 9" in said and "--call causal 64" in said
    assert "0 hazards" in (tmp_path / "logs" / "racecheck-causal_64.log").read_text()


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("synccheck", "ERROR SUMMARY: 3 errors"),
        ("memcheck", "exit status 1 without a summary: Traceback"),
        ("initcheck", "no end in 1 s"),
    ],
)
def test_what_is_not_clean(tool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, why: str) -> None:
    assert asked(tmp_path, "--tools", f"{kind},racecheck", "--each", "1") == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{kind} causal 64: NOT CLEAN, {why}") and "racecheck causal 64: clean" in second


@pytest.mark.usefixtures("tool")
def test_no_run_starts_after_the_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(tmp_path, "--seconds", "0") == 1
    assert capsys.readouterr().out.count("not run, the time is over") == 3


def test_without_a_sanitizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sanitize, "sanitizer", lambda: None)
    assert asked(tmp_path) == 2 and "is not here" in capsys.readouterr().out
