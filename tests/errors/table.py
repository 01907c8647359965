"""The table of must-fail programs.

One case is a function in `tests/errors/cases/*.py` that does what a user did wrong:

    @case(ScheduleError)
    def split_into_nothing():
        sch = Schedule(matmul())
        sch.split(sch.loops("c")[0], 0)

Its message is golden (`tests/golden/errors/<file>.md`; `tests/errors/pages.py` says how to rewrite it), the last frame
of its traceback must be a line of the tests, a primitive that raises must leave its schedule as it was, and the `raise`
it came from counts as covered. A function may take pytest's
`monkeypatch` and `tmp_path`, which is written <tmp> in the golden.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import neptune
from neptune import config
from neptune.errors import NeptuneError
from neptune.fusion.repairs import repair, theorem
from neptune.fusion.schedule import PRIMITIVES, Schedule
from neptune.tune import choose
from tests.examples.schedule_examples import Frozen

KNOWN = (repair.solve, theorem.inverse, choose._applying)
"""What answers for all later compilations of a process: a repair that was proved is not refused where a case breaks the
prover, and what a template was refused for is raised once."""
PACKAGE = Path(neptune.__file__).parent
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Case:
    """`family` is the file it stands in, `error` the class that it must raise, exactly. `quotes`: the message repeats
    the words of another tool's version, which the golden leaves out."""

    family: str
    name: str
    error: type[NeptuneError]
    quotes: bool
    act: Callable[..., object]

    def run(self, folder: Path) -> NeptuneError:
        """Do it; the error that a user would see."""
        with pytest.MonkeyPatch.context() as patch:
            for variable in config.VARIABLES:
                patch.delenv(variable, raising=False)
            # Nothing of the user's own, and nothing that another case has left.
            patch.setenv("NEPTUNE_CACHE_DIR", "0")
            for known in KNOWN:
                known.cache_clear()
            given: dict[str, Any] = {"monkeypatch": patch, "tmp_path": folder}
            wanted = inspect.signature(self.act).parameters
            for name in PRIMITIVES:
                patch.setattr(Schedule, name, _atomic(getattr(Schedule, name)))
            with pytest.raises(self.error) as info:
                self.act(**{n: v for n, v in given.items() if n in wanted})
        assert type(info.value) is self.error, type(info.value)
        return info.value


@dataclass(frozen=True)
class Outcome:
    """What came of a case: the error, the files of its traceback below the test's own call, its text without what
    differs from one machine to another, and the lines of the package that it was made in."""

    error: NeptuneError
    files: tuple[Path, ...]
    message: str
    reached: frozenset[tuple[str, int]]


@cache
def outcome(case: Case) -> Outcome:
    """Run a case, once for all tests of this process."""
    with tempfile.TemporaryDirectory() as folder, recorded() as made:
        error = case.run(Path(folder))
        message = re.sub(r"0x[0-9a-f]{6,}", "0x…", str(error).replace(folder, "<tmp>"))
    if case.quotes:
        message = re.sub(
            r"\n.*?(?=\n  (?:try|legal here|at|code): |$)", "\n  <its words>", message, count=1, flags=re.S
        )
    files = tuple(Path(f.filename) for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__)
    # What was caught on the way counts where the user reads it in the message.
    final = [_in_package(x) for e, x in made if e is error or e.wrong.splitlines()[0] in str(error)]
    return Outcome(error.with_traceback(None), files, message, frozenset().union(*final))


def _atomic(method: Callable[..., Any]) -> Callable[..., Any]:
    """The primitive, which must leave the schedule as it was where it raises."""

    @functools.wraps(method)
    def call(sch: Schedule, *args: Any, **named: Any) -> Any:
        with Frozen(sch):
            return method(sch, *args, **named)

    return call


CASES: list[Case] = []


def case(
    error: type[NeptuneError], name: str | None = None, *, quotes: bool = False
) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Put a function into the table, under its own name."""

    def add(act: Callable[..., object]) -> Callable[..., object]:
        family, wanted = Path(sys._getframe(1).f_code.co_filename).stem, name or act.__name__
        same = sum(c.family == family and c.name.split(" (")[0] == wanted for c in CASES)
        CASES.append(Case(family, f"{wanted} ({same + 1})" if same else wanted, error, quotes, act))
        return act

    return add


def every_case() -> list[Case]:
    """All cases of all files."""
    for file in sorted((HERE / "cases").glob("*.py")):
        importlib.import_module(f"tests.errors.cases.{file.stem}")
    names = [(c.family, c.name) for c in CASES]
    assert len(set(names)) == len(names), [n for n in names if names.count(n) > 1]
    return CASES


def _in_package(lines: set[tuple[str, int]]) -> set[tuple[str, int]]:
    """Those of Neptune's files, by their paths in the package."""
    prefix = f"{PACKAGE}{os.sep}"
    return {(Path(f).relative_to(PACKAGE).as_posix(), n) for f, n in lines if f.startswith(prefix)}


@contextmanager
def recorded() -> Iterator[list[tuple[NeptuneError, set[tuple[str, int]]]]]:
    """Every NeptuneError that is made, with the files and lines of what was making it."""
    made: list[tuple[NeptuneError, set[tuple[str, int]]]] = []
    original = NeptuneError.__init__

    def init(self: NeptuneError, *args: Any, **kwargs: Any) -> None:
        # Paths are looked at for the few errors that count: searches make and catch many.
        lines: set[tuple[str, int]] = set()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            lines.add((frame.f_code.co_filename, frame.f_lineno))
            frame = frame.f_back
        made.append((self, lines))
        # The module that makes an error gives it its kind, and that is not this one.
        kind = kwargs.pop("kind", None) or sys._getframe(1).f_globals["__name__"]
        original(self, *args, kind=kind, **kwargs)

    NeptuneError.__init__ = init  # type: ignore[method-assign]
    try:
        yield made
    finally:
        NeptuneError.__init__ = original  # type: ignore[method-assign]
