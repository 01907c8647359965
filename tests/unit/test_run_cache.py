"""The run's cache of kernels (tests/conftest.py): shared by the tests that may use it, out of reach of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

import neptune
from neptune import config
from neptune.driver import cache
from neptune.ops.softmax import softmax


@pytest.mark.cached
def test_a_kernel_is_compiled_once_in_a_run(caplog: pytest.LogCaptureFixture) -> None:
    folder = config.read().cache_dir
    assert folder is not None and "neptune-tests-" in folder.name and not folder.is_relative_to(Path.home())
    neptune.compile(softmax(), "softmax_row", target="interpret", params={"BLOCK_M": 2})
    if cache.source_stamp() is not None:  # None while somebody edits Neptune
        with caplog.at_level("INFO", logger="neptune.cache"):
            neptune.compile(softmax(), "softmax_row", target="interpret", params={"BLOCK_M": 2})
        assert " found: " in caplog.text


def test_a_test_that_may_change_the_compiler_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    assert config.read().cache_dir is None


@pytest.mark.uncached
def test_a_test_that_asks_for_it_is_not_served() -> None:
    assert config.read().cache_dir is None
