"""Numerical tests compile many programs; the exact checks of compilation have tests of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def plain_settings() -> Iterator[None]:
    """No exact checks, and one thread each: the tests themselves run side by side. (Other tests see none of it.)"""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEPTUNE_VERIFY", "0")
        patch.setenv("OMP_NUM_THREADS", "1")  # for the interpreter's process
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(threads)
