"""Numerical tests compile many programs; the exact checks of compilation have tests of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def no_exact_checks() -> Iterator[None]:
    """Other tests see none of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEPTUNE_VERIFY", "0")
        yield
