"""Every command and every example of the README works, and prints what is shown."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

from tests.documents import ROOT, agrees, run_in_order

README = ROOT / "README.md"
INSTALL = "pip install '.[cli]'  # in a checkout; Linux, Python 3.10 or later\n"
"""What continuous integration does itself: tests/unit/test_packaging.py."""


@pytest.mark.cached
def test_the_readme_runs(tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        done = run_in_order(README, but=(INSTALL,))
    assert INSTALL in README.read_text()
    assert {step.language for step, _ in done} == {"python", "sh"}
    for step, printed in done:
        if step.shown or step.language == "python":
            assert agrees(step.shown, printed), f"line {step.line} prints\n{printed}"
        else:
            assert printed.strip()


def test_links() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README.read_text()):
        assert (ROOT / target).exists(), target
