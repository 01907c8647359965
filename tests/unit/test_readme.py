"""Every command and every example of the README works."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import blocks

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = blocks(README)
PYTHON = [text for language, text in BLOCKS if language == "python"]
SHOWN = [text for language, text in BLOCKS if language == "text"]
"""Parts of what the first example prints."""
COMMANDS = [line.split("#")[0].strip() for language, text in BLOCKS if not language for line in text.splitlines()]
# `make` and `pip` are what continuous integration itself runs (.ci/run).
MAKE_AND_PIP = ("make demo", "make test", "pip install '.[cli]'")


def test_the_readme_has_both() -> None:
    assert len(PYTHON) >= 2 and set(MAKE_AND_PIP) <= set(COMMANDS)


@pytest.mark.parametrize("text", PYTHON, ids=range(len(PYTHON)))
def test_example(text: str, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(text)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    if text == PYTHON[0]:
        printed = done.stdout.splitlines()
        assert len(SHOWN) == 2 and [x for shown in SHOWN for x in shown.splitlines() if x not in (*printed, "…")] == []
    assert any(sign in done.stdout for sign in ("@triton.jit", "program", "bytes between")), done.stdout


@pytest.mark.parametrize("command", [c for c in COMMANDS if c and c not in MAKE_AND_PIP])
def test_command(command: str) -> None:
    words = shlex.split(command)
    assert words[0] == "neptune"
    done = subprocess.run(
        [sys.executable, "-m", "neptune.cli", *words[1:]], capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_links() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target).exists(), target
