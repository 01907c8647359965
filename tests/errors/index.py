"""docs/errors.md: every must-fail program with its message, by class; written by `python -m tests.errors.index`."""

from __future__ import annotations

import inspect
import re
import textwrap
from functools import cache
from pathlib import Path

from neptune import errors
from tests.errors.table import Case, every_case
from tests.goldens import FOLDER

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
HEAD = """# Errors

Every error that Neptune raises: what was asked, what is wrong, what is legal there, what to try, and where, with the
program that provokes it where that says more than the message. All are classes below `neptune.NeptuneError`, and the
last frame of the traceback is your own line (NEPTUNE_TRACEBACK=1 shows Neptune's too). Generated from the tests by
`python -m tests.errors.index`; do not edit.
"""


def page() -> str:
    """The text of docs/errors.md, from the cases and their goldens."""
    cases = every_case()
    classes = sorted({c.error for c in cases}, key=lambda c: c.__name__)
    return "\n".join([HEAD, *(_section(c, [x for x in cases if x.error is c]) for c in classes)])


def _section(error: type[errors.NeptuneError], cases: list[Case]) -> str:
    about = inspect.cleandoc(error.__doc__ or "").split("\n\n")[0].replace("\n", " ")
    return "\n".join([f"## {error.__name__}\n\n{about}\n", *map(_entry, cases)])


def _entry(case: Case) -> str:
    words = case.name.replace("_", " ")
    program = _program(case)
    shown = f"```python\n{program}\n```\n\n" if program else ""
    return f"### {case.family}: {words}\n\n{shown}```text\n{_messages(case.family)[case.name]}\n```\n"


@cache
def _messages(family: str) -> dict[str, str]:
    """The goldens of one file, by name."""
    parts = re.split(r"^== (.*)\n", (FOLDER / "errors" / f"{family}.txt").read_text(), flags=re.M)
    return {name: text.strip("\n") for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def _program(case: Case) -> str:
    """The body of a case that is a function of its own; of one made by a helper, the request is in the message."""
    if case.act.__name__ != case.name:
        return ""
    return textwrap.dedent(inspect.getsource(case.act).split(":\n", 1)[1]).strip("\n")


if __name__ == "__main__":
    PAGE.write_text(page())
