"""docs/errors.md and docs/errors/*.md: golden texts of the must-fail programs, and the user's reference in one.

`NEPTUNE_UPDATE_GOLDENS=1 python -m pytest tests/errors/test_every_error.py` rewrites them. Where two branches have
changed a page, take either side of it and run that: the cases say everything that stands there.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable
from pathlib import Path

from neptune.errors import NeptuneError
from tests.errors.table import Case, outcome

DOCS = Path(__file__).parents[2] / "docs"
NOTE = "Generated from the tests (`tests/errors/pages.py`); do not edit.\n"
HEAD = f"""# Errors

An error says what was asked, what is wrong, what is legal there, what to try, and where. All classes stand below
`neptune.NeptuneError`. The last frame of the traceback is your own line (NEPTUNE_TRACEBACK=1 shows Neptune's too).
{NOTE}"""


def index(cases: Iterable[Case]) -> str:
    """The text of docs/errors.md: every class with the pages on which it occurs, and every page with its subject."""
    families: dict[type[NeptuneError], dict[str, None]] = {}
    for c in cases:
        families.setdefault(c.error, {})[c.family] = None
    classes = "\n".join(
        f"- **{e.__name__}** ({', '.join(map(_link, families[e]))}): {_about(e)}"
        for e in sorted(families, key=lambda e: e.__name__)
    )
    subjects = "\n".join(f"- {_link(f)}: {_subject(f)}" for f in sorted({f for x in families.values() for f in x}))
    return f"{HEAD}\n## Classes\n\n{classes}\n\n## Pages\n\n{subjects}\n"


def page(family: str, cases: Iterable[Case]) -> str:
    """The text of docs/errors/<family>.md: the message of each case."""
    entries = (f"### {c.name.replace('_', ' ')}\n```text\n{_message(c)}\n```\n" for c in cases)
    source = f"tests/errors/cases/{family}.py"
    head = f"# {_subject(family)}\n\nProvoked by the functions of these names in [{source}](../../{source}). {NOTE}"
    return "\n".join([head, *entries])


def _message(case: Case) -> str:
    found = outcome(case)
    return f"{type(found.error).__name__}: {found.message}"


def _link(family: str) -> str:
    return f"[{family}](errors/{family}.md)"


def _subject(family: str) -> str:
    """The first line of the docstring of the module that has its cases."""
    doc = importlib.import_module(f"tests.errors.cases.{family}").__doc__ or ""
    return doc.split("\n\n")[0].replace("\n", " ").strip().rstrip(".")


def _about(error: type[NeptuneError]) -> str:
    return inspect.cleandoc(error.__doc__ or "").split("\n\n")[0].replace("\n", " ")
