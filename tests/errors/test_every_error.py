"""Every error that the package can raise has a program that provokes it, a golden message, and the user's line last.

How to add a case: see `tests/errors/table.py`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import neptune
from neptune.base.boundary import public
from neptune.base.codes import BY_CODE, BY_KEY, KINDS
from neptune.errors import ScheduleError
from neptune.frontend.builder import compute, placeholder
from neptune.fusion.schedule import Schedule
from neptune.ir.decompose import decompose
from neptune.ops.softmax import softmax
from tests.errors.pages import DOCS, index, page
from tests.errors.sites import every_site, modules
from tests.errors.table import PACKAGE, Case, every_case, outcome
from tests.errors.unreached import UNREACHED
from tests.goldens import check_golden

CASES = every_case()
TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.family}-{c.name}")
def test_an_error(case: Case) -> None:
    """The last frame is the user's, none of ours is to be seen, and the message is one screen."""
    found = outcome(case)
    if sys.version_info >= (3, 11):
        # Before, a bare raise restores the whole traceback.
        assert found.files[-1].is_relative_to(TESTS), found.files
        assert not [f for f in found.files if f.is_relative_to(PACKAGE)]
    assert found.error.__cause__ is None
    assert found.error.__context__ is None or found.error.__suppress_context__
    lines = found.message.splitlines()
    assert 2 <= len(lines) <= 24 and max(map(len, lines)) <= 400, found.message
    assert not any("Traceback" in x or "object at 0x" in x for x in lines)
    assert found.error.code is not None, "no row of neptune/base/codes.py has this class and module"
    assert lines[-1] == f"  code: {found.error.code}"


@pytest.mark.parametrize("family", sorted({c.family for c in CASES}))
def test_messages(family: str) -> None:
    check_golden(f"errors/{family}.md", page(family, [c for c in CASES if c.family == family]))


def test_the_index() -> None:
    check_golden("errors.md", index(CASES), DOCS)


def test_every_kind_has_a_case() -> None:
    assert {outcome(c).error.code for c in CASES} == set(BY_CODE)


def test_a_row_of_kinds_names_what_there_is() -> None:
    """Modules of the package, or words that a `raise` gives."""
    texts = "".join(p.read_text() for p in modules())
    for (_, key), kind in BY_KEY.items():
        path = PACKAGE.joinpath(*key.split("."))
        assert path.is_dir() or path.with_suffix(".py").exists() or f'kind="{key}"' in texts, (kind.code, key)


def test_codes_are_told_apart() -> None:
    assert len(BY_CODE) == len(KINDS) and len(BY_KEY) == sum(len(k.keys) for k in KINDS)
    assert all(re.fullmatch(r"[ESFCTRN][0-9]{3}", k.number) for k in KINDS)


def test_an_error_of_a_users_template_has_no_code() -> None:
    error = ScheduleError("my own", "no rows")
    assert error.code is None and str(error) == "my own\n  no rows"


def test_every_raise_is_provoked() -> None:
    reached = set().union(*(outcome(c).reached for c in CASES))
    missing = {s.key for s in every_site() if not s.holds(reached)}
    assert missing - set(UNREACHED) == set(), "write a case in tests/errors/cases (see tests/errors/table.py)"
    assert set(UNREACHED) - missing == set(), "these are reached, or gone: take them off the list"


def test_the_list_of_what_is_not_reached_says_why() -> None:
    assert all(len(why) > 20 for why in UNREACHED.values())


def test_neptunes_frames_are_kept_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEPTUNE_TRACEBACK", "1")
    with pytest.raises(ScheduleError) as info:
        Schedule(softmax()).loops("nothing")
    assert info.traceback[-1].path.is_relative_to(PACKAGE)
    monkeypatch.setenv("NEPTUNE_TRACEBACK", "0")
    with pytest.raises(ScheduleError) as info:
        Schedule(softmax()).loops("nothing")
    assert info.traceback[-1].path == Path(__file__)


def test_an_error_in_a_template_ends_in_the_template() -> None:
    def mine(sch: Schedule) -> None:
        sch.loops("nothing")

    with pytest.raises(ScheduleError) as info:
        neptune.compile(softmax(), mine, target="llvm")
    assert [t.name for t in info.traceback] == ["test_an_error_in_a_template_ends_in_the_template", "mine"]


def test_a_mistake_of_the_users_own_is_not_touched() -> None:
    def mine(sch: Schedule) -> None:
        raise KeyError("my own")

    with pytest.raises(KeyError) as info:
        neptune.compile(softmax(), mine, target="llvm")
    assert len(info.traceback) > 2 and info.traceback[-1].name == "mine"


def test_a_mistake_in_an_expression_stays_as_it_is() -> None:
    x = placeholder((4,), "float32", "x")
    for act, error in (
        (lambda i: None + None, TypeError),
        (lambda i: {}["missing"], KeyError),
        (lambda i: list(x), TypeError),
    ):
        with pytest.raises(error):
            compute((4,), act, "bad")


def test_a_defect_of_ours_keeps_every_frame() -> None:
    @public
    def broken() -> None:
        decompose(None)  # type: ignore[arg-type]

    with pytest.raises(AttributeError) as info:
        broken()
    assert info.traceback[-1].path.is_relative_to(PACKAGE)
