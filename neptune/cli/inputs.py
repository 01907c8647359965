"""Arguments of the command line, FILE:FUNCTION and NAME=N; a mistake in either is wrong usage."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from neptune.cli.outputs import UsersMistake
from neptune.errors import NeptuneError


def expression(reference: str) -> Any:
    """The result of calling the function FILE:FUNCTION, or a shipped operator by its name, NAME or FAMILY:NAME."""
    file = reference.partition(":")[0]
    if not Path(file).is_file() and not file.endswith(".py"):
        return _operator(reference)()
    value = function(reference, "expression")
    try:
        return value()
    except NeptuneError:
        raise
    except (Exception, SystemExit) as error:
        # The user's own mistake, like one at the top of the file; one that exits would look like success.
        raise UsersMistake(f"{value.__name__}() of {reference} fails", error) from None


def _operator(reference: str) -> Callable[[], Any]:
    """A shipped operator; what is none is answered with those whose names are like it, or the families."""
    from neptune.ops.shipped import OPERATORS

    family, _, name = reference.rpartition(":")
    shipped = OPERATORS.get(name)
    if shipped is not None and family in ("", shipped.family):
        return shipped
    like = get_close_matches(name, OPERATORS, cutoff=0.5)
    raise click.BadParameter(
        f"there is no file and no operator {reference!r}"
        + (f"; like it are {', '.join(like)}" if like else "; `neptune ops` lists them"),
        param_hint="expression",
    )


def template(text: str | None) -> Any:
    """A template: FILE:FUNCTION, or the name of a shipped one, which is looked up at once."""
    if text is None:
        return None
    if ":" in text or text.endswith(".py"):
        return function(text, "template")
    from neptune.tune.choose import shipped_template

    shipped_template(text)
    return text


def checked_target(text: str | None) -> str | None:
    """A target that there is; None, too, stands for the default."""
    if text is not None:
        from neptune.runtime.launching.launch import parse_target

        parse_target(text)
    return text


def named_numbers(texts: tuple[str, ...], option: str) -> dict[str, int]:
    """Several NAME=N of one option."""
    return dict(named_number(text, option) for text in texts)


def shapes_of(shared: tuple[str, ...], at: tuple[str, ...]) -> list[dict[str, int]]:
    """The shapes of `--shape NAME=N` and `--at NAME=N,NAME=N`: one, or each of --at with the sizes of --shape.

    >>> shapes_of(("heads=32",), ("length=1024", "length=4096"))
    [{'heads': 32, 'length': 1024}, {'heads': 32, 'length': 4096}]
    """
    each = [(*shared, *text.split(",")) for text in at] or [shared]
    shapes = []
    for texts in each:
        sizes = named_numbers(tuple(t.strip() for t in texts), "--at" if at else "--shape")
        if len(sizes) < len(texts):
            twice = next(n for n in sizes if sum(t.partition("=")[0].strip() == n for t in texts) > 1)
            raise click.BadParameter(
                f"{twice!r} has two values in one shape; several shapes are --at {twice}=1,… --at {twice}=8,…",
                param_hint="--at" if at else "--shape",
            )
        shapes.append(sizes)
    return shapes


def named_values(texts: tuple[str, ...], option: str) -> dict[str, int | bool | str]:
    """Several NAME=VALUE of one option: numbers, `true` and `false`, or words, which a form's parameters may have.

    >>> named_values(("stages=2", "own_out=true", "asynchronous.persistent=table"), "--param")
    {'stages': 2, 'own_out': True, 'asynchronous.persistent': 'table'}
    """
    values: dict[str, int | bool | str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        word = value.strip().lower()
        if equals and word.isidentifier() and name.replace(".", "").isidentifier():
            values[name] = {"true": True, "false": False}.get(word, value.strip())
        else:
            values |= dict([named_number(text, option)])
    return values


def named_number(text: str, option: str) -> tuple[str, int]:
    """`BLOCK_M=128`."""
    name, equals, value = text.partition("=")
    example = {"--param": "BLOCK_M=128", "--lever": "stages=3"}.get(option, "rows=4096")
    known = name.replace(".", "").isidentifier() if option == "--param" else name.isidentifier()
    if equals and known and re.fullmatch(r"-\d+|\d+\.\d*", value.strip()):
        raise click.BadParameter(f"{text!r}: {value.strip()} is no whole number of 0 or more", param_hint=option)
    if not equals or not known or not value.strip().isdecimal():
        raise click.BadParameter(f"{text!r} is not NAME=N, e.g. {example}", param_hint=option)
    return name, int(value)


def function(reference: str, what: str) -> Callable[..., Any]:
    """The function FILE:FUNCTION; without FUNCTION, the only one that the file defines and that can be called."""
    file, _, name = reference.partition(":")
    if not Path(file).is_file():
        raise click.BadParameter(f"there is no file {file!r}", param_hint=what)
    module = _module(Path(file))
    own = {n: f for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__}
    fitting = {n: f for n, f in own.items() if not n.startswith("_") and _required(f) == (what == "template")}
    if name:
        if name not in own:
            raise click.BadParameter(f"{file} has no function {name!r}; it has {_names(own)}", param_hint=what)
        return own[name]
    if len(fitting) != 1:
        raise click.BadParameter(f"name the function, {file}:NAME; it has {_names(fitting)}", param_hint=what)
    return next(iter(fitting.values()))


def _module(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise click.BadParameter(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # The file may import its neighbours, as where Python itself runs it.
    sys.path.insert(0, str(file.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        # The user's own mistake: its last line says what, the traceback of the command would not help.
        raise UsersMistake(f"{file} cannot be imported", error) from None
    finally:
        sys.path.pop(0)
    return module


def _required(function: Callable[..., Any]) -> int:
    """Return the number of arguments that a function requires."""
    parameters = inspect.signature(function).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return sum(p.default is p.empty and p.kind not in variadic for p in parameters)


def _names(functions: dict[str, Any]) -> str:
    return ", ".join(functions) or "none"
