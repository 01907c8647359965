"""docs/errors.md is what the must-fail programs and their goldens say."""

from __future__ import annotations

from tests.errors.index import PAGE, page


def test_the_page_is_up_to_date() -> None:
    assert page() == PAGE.read_text(), "run python -m tests.errors.index"
