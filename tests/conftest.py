"""One cache of compiled kernels for a run: a new folder, shared by xdist's workers and removed at the end.

A kernel that several tests of `tests/numerics` ask for is compiled once, by the compiler as it is now: no test ever
reads the user's cache, nor that of another run. Other tests change what compiles, look at how something is compiled
(a kernel from a cache has no checks to show), or compile twice to compare: they are not served from it, nor are those
that use `monkeypatch`. Tests of the cache itself name a folder of their own.

A template that a check rejects fails a test, also where the automatic choice would try the next one.

The exact checks are most of what a compilation takes. Where two compilations of a process come to the same programs,
these are checked once (`tests/checks.py`), but for tests that use `monkeypatch` or are `uncached`. In the quick tier,
tests that are `compared` do without checks: they hold what their kernels compute, or what they need, against something
else. Every form is still verified, and wherever these tests run otherwise (in CI, or by themselves) their kernels are
checked as well.
"""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neptune import config as settings

os.environ["NEPTUNE_STRICT"] = "1"
# Tests run side by side: one thread each, and one for the processes that they start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
LONG = (
    "fuzz/test_fuzz.py",
    "unit/bench/test_latency.py",
    "unit/bench/test_chains.py",
    "unit/qa/test_mutants.py",
    "unit/qa/test_variety.py",
    "unit/hopper/test_versions.py",
    "unit/autotune/test_tuner.py",
    "unit/driver/test_any_program.py",
    "unit/ops/test_masks.py",
    "unit/schedule/test_pack.py",
    "unit/templates/test_packed.py",
    "unit/verify/test_mutations.py",
    "unit/test_pages.py",
)
"""Files that take a minute and more. They are run before the others: at the end, one would keep a worker alone."""
QUICK = "not slow"
"""What `make test` selects."""
_ONCE: dict[str, Any] = {}
"""The compiler's check, as tests share it."""


def pytest_configure(config: pytest.Config) -> None:
    # Expressions are many small objects, few of them in cycles: at Python's 700, looking for those takes 9 % of a run.
    gc.set_threshold(50_000)
    # Workers inherit the controller's environment.
    if not hasattr(config, "workerinput"):
        folder = tempfile.mkdtemp(prefix="neptune-tests-")
        os.environ["NEPTUNE_CACHE_DIR"] = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        # xdist would take the files with the fewest tests last, among which are the longest.
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    names = {path: path.relative_to(here).as_posix() for path in {i.path for i in items}}
    # What errors say comes first: it is what a change most often breaks.
    items.sort(key=lambda i: (not names[i.path].startswith("errors/"), names[i.path] not in LONG))


def pytest_collection_finish(session: pytest.Session) -> None:
    # What has been imported stays: looking through it after each file would take half a second, three minutes in all.
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _memory_given_back(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each file its kernels go, and what was freed goes back to the system.

    Otherwise a worker has 10 GB by the end of a run, and two of them do not fit a machine of 24 GB: the kernels that
    the functions of a file have cached, and pages of arrays for ranking and exact checks, which glibc keeps.
    """
    yield
    for value in vars(request.module).values():
        if getattr(value, "__module__", None) == request.module.__name__ and hasattr(value, "cache_clear"):
            value.cache_clear()
    gc.collect()
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


@pytest.fixture(autouse=True)
def _compiled_afresh(request: pytest.FixtureRequest) -> Iterator[None]:
    """Without the run's cache where a test asks for that, or may change what compiles; see above for checks."""
    with pytest.MonkeyPatch.context() as patch:
        served = request.path.parent.name == "numerics" or request.node.get_closest_marker("cached")
        if not served or "monkeypatch" in request.fixturenames or request.node.get_closest_marker("uncached"):
            patch.setenv("NEPTUNE_CACHE_DIR", "0")
        if "monkeypatch" not in request.fixturenames and not request.node.get_closest_marker("uncached"):
            _checked_once(patch)
        if request.node.get_closest_marker("compared") and request.config.getoption("markexpr") == QUICK:
            patch.setitem(settings.DRAWS, settings.Config().verify, 0)
        before = _settings()
        yield
        # Left behind, a setting would change what the tests after this one see: without checks they pass.
        after = _settings()
        for name in before.keys() | after.keys():
            os.environ.pop(name, None)
        os.environ.update(before)
        assert after == before, "the test leaves settings behind"


def _checked_once(patch: pytest.MonkeyPatch) -> None:
    # Where nothing has imported the compiler yet, there is nothing that it has checked.
    if (passes := sys.modules.get("neptune.driver.passes")) is not None:
        from tests.checks import Once

        patch.setattr(passes, "check", _ONCE.setdefault("check", Once(passes.check)))


def _settings() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k.startswith("NEPTUNE_")}
