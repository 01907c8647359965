"""Every block of Python and every shell command of the pages in docs/ runs, in order, and prints what is shown."""

from __future__ import annotations

import contextlib
import re
import shlex
from pathlib import Path

import click
import pytest

from neptune.cli.commands import app
from neptune.functional import kernels
from neptune.fusion.schedule import PRIMITIVES
from tests.documents import ROOT, agrees, blocks, run_in_order, shell, steps

DOCS = ROOT / "docs"
ELSEWHERE = {"derive_flash_attention.md": "test_derivation.py", "schedule.md": "test_generate_schedule.py"}
"""Pages whose blocks are run by a test of their own."""
PAGES = [p for p in sorted(DOCS.rglob("*.md")) if p.name not in ELSEWHERE and any(steps(p.read_text()))]
SHOW_CHECKS = {"start.md", "read_kernel.md"}
"""Pages that print what exact checks found; the others compare numbers."""
INSTALL = "python3 -m venv .venv\n. .venv/bin/activate\npip install '.[cli]'\n"
"""What continuous integration does itself: `make demo` and tests/unit/test_packaging.py."""
CHECK = "export NEPTUNE_TARGET=interpret\nneptune check-env\n"
"""Compiles for four targets; tests/unit/test_readme.py runs it already."""


@pytest.mark.cached
@pytest.mark.parametrize(
    "page",
    [pytest.param(p, id=p.stem, marks=() if p.name in SHOW_CHECKS else pytest.mark.compared) for p in PAGES],
)
def test_page(page: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(tmp_path):
        patch.setenv("NEPTUNE_TARGET", "interpret")
        # By structure, whatever the target was: no other test is given the interpreter's, nor a page another's.
        for known in ("_KERNELS", "_BY_TEXT"):
            patch.setattr(kernels, known, {})
        done = run_in_order(page, but=(INSTALL, CHECK))
    assert done
    for step, printed in done:
        # A command may print what is not shown; Python may not.
        if step.shown or step.language == "python":
            assert agrees(step.shown, printed), f"{page.name}, line {step.line} prints\n{printed}"


def test_every_primitive_has_its_line() -> None:
    page = (DOCS / "write_template.md").read_text()
    assert set(re.findall(r"\[`(\w+)`\]\(schedule\.md#", page)) == set(PRIMITIVES)


def test_commands_that_are_only_shown_exist() -> None:
    texts = [text for p in sorted(DOCS.rglob("*.md")) for kind, text in blocks(p.read_text()) if kind == "console"]
    lines = [shlex.split(line, comments=True) for text in texts for line in text.splitlines()]
    assert len(lines) >= 5 and {words[0] for words in lines} == {"neptune"}
    for _, *words in lines:
        command: click.Command = app
        while isinstance(command, click.Group):
            command = command.commands[words.pop(0)]
        command.make_context("neptune", words)


def test_what_is_shown_may_be_shortened() -> None:
    assert agrees("a\n…\nd\n", "a\nb\nc\nd\n") and agrees("a\n…\n", "a\n") and agrees("", "")
    assert agrees("a …\nb\n", "a c\nb\n") and not agrees("a …\nb\n", "a\nb\n")
    assert not agrees("a\n…\nd\n", "a\nb\nd\ne\n") and not agrees("a\n…\n", "b\n") and not agrees("", "a\n")


def test_a_command_that_fails_fails_its_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '```python title="x.py"\ny = 1\n```\n\n```sh\nneptune templates --json | head -n 1\nneptune no\n```\n'
    )
    with contextlib.chdir(tmp_path), pytest.raises(AssertionError, match="No such command"):
        run_in_order(page)
    assert (tmp_path / "x.py").read_text() == "y = 1\n"
    assert shell("python -c 'print(6 * 7)'") == "42\n"
