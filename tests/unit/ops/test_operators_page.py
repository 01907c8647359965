"""docs/operators.md: every shipped operator with its call, and examples that print what they show."""

from __future__ import annotations

from pathlib import Path

import pytest

from neptune.ops.shipped import OPERATORS
from tests.documents import run_in_order

PAGE = Path(__file__).parents[3] / "docs" / "operators.md"
ROWS = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `")]


def test_every_operator_has_a_row() -> None:
    said = {row[0].strip("| `"): (row[1].strip("`"), row[2].removesuffix(" |").replace(r"\|", "|")) for row in ROWS}
    assert said == {s.name: (s.call, s.summary) for s in OPERATORS.values()}


@pytest.mark.compared
def test_examples_print_what_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEPTUNE_TARGET", "llvm")
    done = run_in_order(PAGE)
    assert len(done) == 3
    assert [(step.line, step.shown) for step, _ in done] == [(step.line, printed) for step, printed in done]
