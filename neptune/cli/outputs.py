"""What a command prints: results to the standard output, errors to the standard error, or all of it as JSON."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table

from neptune.base.boundary import users_frames
from neptune.base.codes import BY_CODE
from neptune.errors import InternalError, NeptuneError

DONE, REFUSED, USAGE, DEFECT = 0, 1, 2, 3
"""Exit codes."""


def say(answer: dict[str, Any], as_json: bool, shown: Callable[[], None]) -> None:
    """A result: as JSON, or as `shown` prints it for people."""
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    else:
        shown()


def show(text: str, language: str) -> None:
    """Coloured on a terminal; plain text, as it is, anywhere else (and with NO_COLOR)."""
    console = Console()
    if console.is_terminal and not console.no_color and language != "text":
        # Printed as text: as a Syntax, lines would be cut at the width of the terminal.
        console.print(
            Syntax("", language, theme="ansi_dark", background_color="default").highlight(text), soft_wrap=True, end=""
        )
    else:
        click.echo(text, nl=not text.endswith("\n"))


def table(rows: list[dict[str, Any]]) -> None:
    """Rows of equal keys, aligned; the terminal wraps what is too wide."""
    printed = Table(box=None, pad_edge=False, header_style="dim")
    for name in rows[0] if rows else ():
        printed.add_column(name.replace("_", " "))
    for row in rows:
        printed.add_row(*(escape(", ".join(v) if isinstance(v, list) else str(v)) for v in row.values()))
    Console(width=None if sys.stdout.isatty() else 200).print(printed)


class UsersMistake(click.ClickException):
    """An exception of the user's own file, with where it was raised."""

    def __init__(self, what: str, error: BaseException) -> None:
        super().__init__(f"{what}: {type(error).__name__}: {error}")
        self.error = error


def fields(error: BaseException) -> dict[str, Any]:
    """What an error knows beside its message: the parts of a NeptuneError, and the last line of the user's.

    {"code": "NPT-S001", "kind": "There is no such stage, …", "asked": …, "legal": […], "file": "mine.py", "line": 9}
    """
    values: dict[str, Any] = {}
    if isinstance(error, NeptuneError):
        kind = BY_CODE.get(error.code or "")
        values = {"code": error.code, "kind": kind and kind.title, "asked": error.asked, "wrong": error.wrong}
        values |= {"where": error.where, "legal": list(error.legal), "hint": error.hint}
    if isinstance(error, SyntaxError):
        return {**values, "file": error.filename, "line": error.lineno}
    frames = [
        (f.filename, f.lineno)
        for f in traceback.extract_tb(users_frames(error.__traceback__))
        # The machinery that imports the user's file.
        if not f.filename.startswith("<")
    ]
    return values | (dict(zip(("file", "line"), frames[-1], strict=True)) if frames else {})


def say_error(kind: str, message: str, as_json: bool, error: BaseException | None = None) -> None:
    """An error: its class in red, and what it says; as JSON, with the fields of the exception behind it."""
    if as_json:
        more = {} if error is None else fields(error)
        click.echo(json.dumps({"error": kind, "message": message, **more}, indent=2))
    else:
        plain = False if os.environ.get("NO_COLOR") else None
        click.secho(f"{kind}: ", err=True, nl=False, fg="red", bold=True, color=plain)
        click.echo(message, err=True)


def guarded(act: Callable[[], None], as_json: bool) -> None:
    """Run a command; what a user can cause is one screen and exit code 1."""
    try:
        act()
    except (NeptuneError, InternalError) as error:
        say_error(type(error).__name__, str(error), as_json, error)
        raise SystemExit(REFUSED if isinstance(error, NeptuneError) else DEFECT) from None
