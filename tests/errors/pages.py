"""docs/errors.md, an entry for each code, and tests/golden/errors/*.md, the message of every must-fail program.

`NEPTUNE_UPDATE_GOLDENS=1 python -m pytest tests/errors/test_every_error.py` rewrites them. Where two branches have
changed a page, take either side of it and run that: the cases and the table of kinds say everything that stands there.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable
from pathlib import Path

from neptune import errors
from neptune.base.codes import CLASSES, KINDS, Kind
from tests.errors.table import Case, outcome

DOCS = Path(__file__).parents[2] / "docs"
NOTE = "Generated from the tests (`tests/errors/pages.py`); do not edit.\n"
HEAD = f"""# Errors

An error says what was asked, what is wrong, what is legal there, what to try, where, and the code of its kind, which
stays the same from version to version. All classes stand below `neptune.NeptuneError`; `error.code`, `.asked`,
`.wrong`, `.legal`, `.hint` and `.where` hold the parts. The last frame of the traceback is your own line
(NEPTUNE_TRACEBACK=1 shows Neptune's too). `neptune explain-error CODE` prints an entry without its example.
{NOTE}"""


def index(cases: Iterable[Case]) -> str:
    """The text of docs/errors.md: the table of all kinds, then for each its cure and the first case's message."""
    first: dict[str, Case] = {}
    for c in cases:
        first.setdefault(outcome(c).error.code or "", c)
    parts = [HEAD]
    for name, letter in CLASSES.items():
        mine = [k for k in KINDS if k.number[0] == letter]
        rows = "\n".join(f"| [{k.code}](#{k.code.lower()}) | {k.title} |" for k in mine)
        parts.append(f"## {name}\n\n{_about(name)}\n\n| code | what is wrong |\n|---|---|\n{rows}\n")
        parts += [_entry(k, first[k.code]) for k in mine]
    return "\n".join(parts)


def page(family: str, cases: Iterable[Case]) -> str:
    """The text of tests/golden/errors/<family>.md: the message of each case."""
    entries = (f"### {c.name.replace('_', ' ')}\n```text\n{_message(c)}\n```\n" for c in cases)
    source = f"tests/errors/cases/{family}.py"
    head = f"# {_subject(family)}\n\nProvoked by the functions of these names in {source}. {NOTE}"
    return "\n".join([head, *entries])


def _entry(kind: Kind, example: Case) -> str:
    return f"### {kind.code}\n\n{kind.title}.\n\n```text\n{_message(example)}\n```\n\n**What helps.** {kind.cure}\n"


def _message(case: Case) -> str:
    found = outcome(case)
    return f"{type(found.error).__name__}: {found.message}"


def _subject(family: str) -> str:
    """The first line of the docstring of the module that has its cases."""
    doc = importlib.import_module(f"tests.errors.cases.{family}").__doc__ or ""
    return doc.split("\n\n")[0].replace("\n", " ").strip().rstrip(".")


def _about(name: str) -> str:
    return inspect.cleandoc(getattr(errors, name).__doc__ or "").split("\n\n")[0].replace("\n", " ")
