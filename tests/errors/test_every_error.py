"""Every error that the package can raise has a program that provokes it, a golden message, and the user's line last.

How to add a case: see `tests/errors/table.py`.
"""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from tests.errors.sites import every_site
from tests.errors.table import PACKAGE, Case, every_case, golden, recorded
from tests.errors.unreached import UNREACHED
from tests.goldens import check_golden

CASES = every_case()
TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.family}-{c.name}")
def test_the_last_frame_is_the_users(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEPTUNE_TRACEBACK", raising=False)
    error = case.run(tmp_path)
    frames = traceback.extract_tb(error.__traceback__)
    assert Path(frames[-1].filename).is_relative_to(TESTS), frames[-1]
    # From the call in this test on, nothing of ours is to be seen.
    assert not [f for f in frames if Path(f.filename).is_relative_to(PACKAGE)]
    assert error.__cause__ is None and (error.__context__ is None or error.__suppress_context__)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.family}-{c.name}")
def test_the_message_is_one_screen(case: Case, tmp_path: Path) -> None:
    lines = str(case.run(tmp_path)).splitlines()
    assert 2 <= len(lines) <= 24 and max(map(len, lines)) <= 400, "\n".join(lines)
    assert not any("Traceback" in x or "object at 0x" in x for x in lines)


@pytest.mark.parametrize("family", sorted({c.family for c in CASES}))
def test_messages(family: str, tmp_path: Path) -> None:
    parts = []
    for case in (c for c in CASES if c.family == family):
        error = case.run(tmp_path)
        parts.append(f"== {case.name}\n{type(error).__name__}: {golden(str(error), tmp_path)}\n")
    check_golden(f"errors/{family}.txt", "\n".join(parts))


def test_every_raise_is_provoked(tmp_path: Path) -> None:
    reached: set[tuple[str, int]] = set()
    for case in CASES:
        with recorded() as made:
            final = case.run(tmp_path)
        # What was caught on the way counts where the user reads it in the message.
        reached |= {x for e, lines in made if e is final or e.wrong.splitlines()[0] in str(final) for x in lines}
    missing = {s.key for s in every_site() if not s.holds(reached)}
    assert missing - set(UNREACHED) == set(), "write a case in tests/errors/cases (see tests/errors/table.py)"
    assert set(UNREACHED) - missing == set(), "these are reached, or gone: take them off the list"


def test_the_list_of_what_is_not_reached_says_why() -> None:
    assert all(len(why) > 20 for why in UNREACHED.values())
