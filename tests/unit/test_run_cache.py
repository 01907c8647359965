"""The run's cache of kernels and of exact checks (tests/conftest.py): shared by the tests that may use them, out of
reach of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import neptune
from neptune import config
from neptune.driver import cache, passes
from neptune.ir.program import Program
from neptune.ops.softmax import softmax
from neptune.tile.ir import TileProgram
from neptune.verify.exact import ExactReport, unchecked
from neptune.verify.pieces import check
from tests.checks import Check, Once


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


# --- exact checks are made once -------------------------------------------------------------------


def forms(template: str) -> tuple[Program, Program, TileProgram]:
    """A softmax as expression, loops and tiles."""
    build = neptune.compile(softmax(), template, target="interpret").build
    return build.loops, build.fused, build.tiles


def reports(check: Check, original: Program, *made: Program | TileProgram) -> list[ExactReport]:
    shared: list[Any] = []
    return [check(original, m, draws=2, shared=shared) for m in made]


def test_what_was_checked_is_not_checked_again_and_says_the_same() -> None:
    asked: list[object] = []

    def noted(original: Program, made: Program | TileProgram, **options: Any) -> ExactReport:
        asked.append(made)
        return check(original, made, **options)

    once = Once(noted)
    original, loops, tiles = forms("softmax_row")
    _, _, other = forms("softmax_online")
    fresh = reports(check, original, loops, tiles)
    assert reports(once, original, loops, tiles) == fresh and asked == [loops, tiles]
    assert reports(once, original, loops, tiles) == fresh and asked == [loops, tiles]
    # A form that is new goes on from what the checks before it leave, which are made for that.
    assert reports(once, original, loops, other) == reports(check, original, loops, other)
    assert asked == [loops, tiles, loops, other]
    # Other sizes were drawn where nothing came before it: it is no form that is known.
    assert reports(once, original, tiles) == reports(check, original, tiles) and asked[4:] == [tiles]


def test_what_is_not_accepted_is_never_kept() -> None:
    original, loops, _ = forms("softmax_row")
    asked: list[object] = []

    def undecided(original: Program, made: Program | TileProgram, **options: Any) -> ExactReport:
        asked.append(made)
        return unchecked("no draw")

    once = Once(undecided)
    assert [len(reports(once, original, loops)) for _ in range(2)] == [1, 1] and asked == [loops, loops]


def test_checks_are_made_once_in_a_run() -> None:
    assert isinstance(passes.check, Once)


@pytest.mark.uncached
def test_but_not_where_a_test_asks_for_that() -> None:
    assert passes.check is check


def test_nor_where_it_may_change_what_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert passes.check is check


def test_the_files_that_are_run_first_are_there(request: pytest.FixtureRequest) -> None:
    here = Path(__file__).parents[1]
    conftest = request.config.pluginmanager.get_plugin(str(here / "conftest.py"))
    assert conftest is not None and all((here / name).is_file() for name in conftest.LONG)
