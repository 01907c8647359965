"""The options of commands: those that `neptune.driver.options` declares, as click has them, and what was given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args

import click

from neptune.cli.inputs import checked_target, named_numbers, named_values
from neptune.driver.options import REQUIRED, declared

F = TypeVar("F", bound=Callable[..., Any])
reference = click.argument("reference", metavar="OPERATOR|FILE[:FUNCTION]")
schedule = click.option(
    "--template",
    "-t",
    "schedule",
    metavar="NAME",
    help="A shipped template (see `neptune templates`), or FILE:FUNCTION of your own; chosen automatically by default.",
)
save = click.option("--save", metavar="DIR", help="Write the kernel to a folder for neptune.load.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, also for errors.")


def options_of(options: type) -> Callable[[F], F]:
    """The options of a class of `neptune.driver.options` that the command line has, in their order."""

    def decorate(command: F) -> F:
        for name, (kind, row) in reversed(list(declared(options).items())):
            if not row.flag:
                continue
            several = row.metavar.startswith("NAME=")
            value = None if several or row.default is REQUIRED else row.default
            more: dict[str, Any] = {"is_flag": True} if kind is bool else {"metavar": row.metavar, "multiple": several}
            if int in (kind, *get_args(kind)) and not several:
                more["type"] = int
            names = [n for n in (row.flag, row.short, name) if n]
            command = click.option(
                *names,
                default=value,
                show_default=value is not None and kind is not bool,
                help=row.help,
                hidden=row.hidden,
                **more,
            )(command)
        return command

    return decorate


def values_of(options: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given on the command line, as the functions take it; every other option has its default."""
    values = {}
    for name, (_, row) in declared(options).items():
        value = given.get(name, row.default)
        if row.metavar.startswith("NAME=") and row.flag:
            read = named_values if row.metavar == "NAME=VALUE" else named_numbers
            value = read(value or (), row.flag) or None
        values[name] = checked_target(value) if name == "target" else value
    return values
