"""docs/derive_flash_attention.md: every block runs, in order, and prints what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents import Step, run_in_order, steps

PAGE = Path(__file__).parents[2] / "docs" / "derive_flash_attention.md"


@pytest.fixture(scope="module")
def done() -> list[tuple[Step, str]]:
    return run_in_order(PAGE)


def test_the_page_shows_what_its_code_prints(done: list[tuple[Step, str]]) -> None:
    assert len(done) >= 12
    for step, printed in done:
        assert step.shown == printed, f"the block at line {step.line}"


def test_most_blocks_print(done: list[tuple[Step, str]]) -> None:
    assert sum(bool(step.shown) for step, _ in done) >= 10


def test_the_blocks_of_a_page() -> None:
    page = "a\n```python\nx = 1\n```\nb\n```text\nno\n```\n```python\nprint(x)\n```\n\n```text\n1\n```\n"
    first, second = steps(page)
    assert (first.code, first.shown, first.line) == ("x = 1\n", "", 2)
    assert (second.shown, page[slice(*second.span)]) == ("1\n", "1\n")


def test_a_page_is_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEPTUNE_UPDATE_GOLDENS", raising=False)
    page = tmp_path / "page.md"
    shown = ("python\nx = 2", "python\nprint(x)", "text\n1", "python\nprint(3)")
    page.write_text("\n\n".join(f"```{x}\n```" for x in shown) + "\n")
    ((_, a), (step, b), (_, c)) = run_in_order(page)
    assert (a, b, c, step.shown) == ("", "2\n", "3\n", "1\n")
    monkeypatch.setenv("NEPTUNE_UPDATE_GOLDENS", "1")
    run_in_order(page)
    monkeypatch.delenv("NEPTUNE_UPDATE_GOLDENS")
    assert [(s.shown, p) for s, p in run_in_order(page)] == [("", ""), ("2\n", "2\n"), ("3\n", "3\n")]
