"""docs/knobs.md lists every setting that there is, and none that there is not."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import click
import pytest

import neptune
from neptune import config
from neptune.autotune.tuner import autotune
from neptune.base import logs
from neptune.cli.commands import app
from neptune.driver.options import CompileOptions, SearchOptions, TuneOptions, declared
from tests.documents import ROOT

PAGE = (ROOT / "docs" / "knobs.md").read_text()
QUOTED = re.compile(r"`([^`]+)`")


def table(heading: str) -> dict[str, str]:
    """The rows below a heading: the first cell's names, and the rest of the line."""
    section = re.search(rf"^##+ {re.escape(heading)}$(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert section is not None, heading
    rows = [line.strip("| ").partition("|") for line in section[1].splitlines() if line.startswith("| `")]
    return {name: rest for first, _, rest in rows for name in QUOTED.findall(first)}


def keywords(function: Callable[..., Any]) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name for p in parameters if p.kind is not p.VAR_POSITIONAL and p.kind is not p.VAR_KEYWORD}


def commands(group: click.Group, above: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{above}{name} ")
        else:
            yield above + name, command


def test_variables() -> None:
    assert tuple(table("Environment")) == config.VARIABLES
    assert config.__doc__ is not None and set(re.findall(r"^(NEPTUNE_\w+)", config.__doc__, re.MULTILINE)) == set(
        config.VARIABLES
    )


def test_topics() -> None:
    found = table("What NEPTUNE_LOGS takes")
    assert {name: text.strip() for name, text in found.items()} == logs.TOPICS


@pytest.mark.parametrize(
    ("heading", "options", "beside"),
    [
        ("neptune.compile", CompileOptions, set()),
        ("neptune.autotune", TuneOptions, CompileOptions.__annotations__.keys() - {"shapes"}),
        ("neptune.superoptimize", SearchOptions, CompileOptions.__annotations__.keys()),
    ],
)
def test_rows_of_options(heading: str, options: type, beside: set[str]) -> None:
    rows = {n: row for n, (_, row) in declared(options).items() if n not in beside}
    page = {n: text for n, text in table(heading).items() if n != "template"}
    assert page == {n: f" {row.default_in_words} | {row.text}" for n, row in rows.items()}


def test_options() -> None:
    compiled = set(table("neptune.compile"))
    assert compiled == keywords(neptune.compile) - {"expr"}
    assert set(table("A call of a kernel")) == keywords(neptune.Kernel.__call__) - {"self"}
    tuned = keywords(autotune) - {"expr"}
    assert set(table("neptune.autotune")) == (tuned - compiled) | {"shapes"}
    beside = re.search(r"Beside the options of `neptune.compile` \((.*?)\)", PAGE)
    assert beside is not None and set(QUOTED.findall(beside[1])) == (tuned & compiled) - {"shapes"}


def test_options_of_a_search() -> None:
    asked, compiled = keywords(neptune.superoptimize) - {"expr"}, keywords(neptune.compile)
    assert set(table("neptune.superoptimize")) == asked - compiled


def test_the_command_line() -> None:
    shown = table("Command line")
    there = dict(commands(app))
    assert shown.keys() == there.keys()
    for name, command in there.items():
        shown_options = (p for p in command.params if not getattr(p, "hidden", False))
        options = {o for p in shown_options for o in p.opts if o.startswith("--")} - {"--json"}
        assert set(QUOTED.findall(shown[name].partition("|")[0])) == options, name
