"""`neptune explain-error`: the kind of mistake behind the code of an error."""

from __future__ import annotations

import click

from neptune.cli.outputs import say
from neptune.codes import BY_CODE, Kind


@click.command("explain-error")
@click.argument("code")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def explain_error_command(code: str, as_json: bool) -> None:
    """Say what the CODE of an error stands for, and what helps.

    \b
    Example:
        neptune explain-error NPT-C005
    """
    kind = BY_CODE.get(code.upper())
    if kind is None:
        raise click.BadParameter(f"there is no code {code!r}; an error's last line has one, say {next(iter(BY_CODE))}")
    found: Kind = kind
    said = {"code": found.code, "kind": found.title, "cure": found.cure}
    say(said, as_json, lambda: click.echo(f"{found.code}: {found.title}\n  what helps: {found.cure}"))
