"""What a command prints: results to the standard output, errors to the standard error, or all of it as JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table

from neptune.errors import InternalError, NeptuneError

DONE, REFUSED, USAGE, DEFECT = 0, 1, 2, 3
"""Exit codes."""


def say(said: dict[str, Any], as_json: bool, shown: Callable[[], None]) -> None:
    """A result: as JSON, or as `shown` prints it for people."""
    if as_json:
        click.echo(json.dumps(said, indent=2))
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


def say_error(kind: str, message: str, as_json: bool) -> None:
    """An error: its class in red, and what it says."""
    if as_json:
        click.echo(json.dumps({"error": kind, "message": message}, indent=2))
    else:
        plain = False if os.environ.get("NO_COLOR") else None
        click.secho(f"{kind}: ", err=True, nl=False, fg="red", bold=True, color=plain)
        click.echo(message, err=True)


def guarded(act: Callable[[], None], as_json: bool) -> None:
    """Run a command; what a user can cause is one screen and exit code 1."""
    try:
        act()
    except (NeptuneError, InternalError) as error:
        say_error(type(error).__name__, str(error), as_json)
        raise SystemExit(REFUSED if isinstance(error, NeptuneError) else DEFECT) from None
