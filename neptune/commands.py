"""The commands behind `neptune`; needs click and rich.

Results go to the standard output, errors to the standard error, or as JSON to the output with `--json`.
Exit codes: 0 done, 1 a NeptuneError (one screen), 2 wrong usage, 3 a defect of Neptune.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table

from neptune.errors import InternalError, NeptuneError

F = TypeVar("F", bound=Callable[..., Any])
STAGES = ("loops", "scheduled", "fused", "tile")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="neptune-compiler", prog_name="neptune")
def app() -> None:
    """Compile schedules of tensor expressions to Triton, and see why they look as they do."""


def _request(command: F) -> F:
    """The arguments that `compile` and `explain` share."""
    options = [
        click.argument("expression", metavar="FILE[:FUNCTION]"),
        click.option("--template", "-t", metavar="NAME", help="A shipped template, or FILE:FUNCTION of your own."),
        click.option("--target", metavar="TARGET", help="cuda, cuda:90, hip:gfx942, interpret or llvm."),
        click.option("--param", "-p", "params", multiple=True, metavar="NAME=N", help="A tile size; repeatable."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@app.command("compile")
@_request
@click.option("--ir", "stage", type=click.Choice(STAGES), help="Print this form of the program instead.")
def compile_command(
    expression: str,
    template: str | None,
    target: str | None,
    params: tuple[str, ...],
    as_json: bool,
    stage: str | None,
) -> None:
    """Print the Triton source of an expression.

    FILE is a Python file with a FUNCTION that takes no arguments and returns te tensors or a Program;
    FUNCTION may be left out where there is only one.

    \b
    Example:
        neptune compile attention.py:causal --template flash_attention -p BLOCK_M=128
    """

    def act() -> None:
        kernel = _kernel(expression, template, target, params)
        text = kernel.source if stage is None else kernel.ir(stage)
        if as_json:
            said = {"name": kernel.name, "target": kernel.target, "template": kernel.explain(json=True)["template"]}
            said |= {"params": kernel.params, "source" if stage is None else "ir": text}
            click.echo(json.dumps(said, indent=2))
        else:
            _show(text, "python" if stage is None else "text")

    _guarded(act, as_json)


@app.command("explain")
@_request
def explain_command(
    expression: str, template: str | None, target: str | None, params: tuple[str, ...], as_json: bool
) -> None:
    """Say what was fused, deferred and rolled, how it was proved, and what the kernel does.

    \b
    Example:
        neptune explain attention.py:causal --template flash_attention
    """

    def act() -> None:
        kernel = _kernel(expression, template, target, params)
        if as_json:
            click.echo(json.dumps(kernel.explain(json=True), indent=2))
        else:
            click.echo(kernel.explain(), nl=False)

    _guarded(act, as_json)


@app.command("check-env")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check_env_command(as_json: bool) -> None:
    """Say what this machine can compile for and run on, with a remedy for each problem.

    Exits with 1 where something required is missing.

    \b
    Example:
        neptune check-env
    """
    from neptune import environment

    findings = environment.examine()
    good = environment.usable(findings)
    if as_json:
        click.echo(json.dumps(environment.as_json(findings), indent=2))
    else:
        table = Table(box=None, show_header=False, pad_edge=False)
        for f in findings:
            mark = "[green]ok[/]" if f.good else "[red]missing[/]" if f.required else "[yellow]no[/]"
            table.add_row(mark, f.subject, f.found)
            if f.remedy and not f.good:
                table.add_row("", "", f"[dim]try: {f.remedy.replace('[', chr(92) + '[')}[/]")
        Console(soft_wrap=True).print(table)
        click.echo("this machine can run kernels" if good else "this machine cannot run kernels")
    raise SystemExit(0 if good else 1)


# --- inputs --------------------------------------------------------------------------------------


def _kernel(expression: str, template: str | None, target: str | None, params: tuple[str, ...]) -> Any:
    from neptune.compiler import compile

    function = _function(expression, "expression")
    own = template is not None and (":" in template or template.endswith(".py"))
    chosen: Any = _function(template, "template") if own and template is not None else template
    return compile(function(), chosen, target=target, params=dict(_param(p) for p in params))


def _param(text: str) -> tuple[str, int]:
    """`BLOCK_M=128`."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier() or not value.strip().isdecimal():
        raise click.BadParameter(f"{text!r} is not NAME=N, e.g. BLOCK_M=128", param_hint="--param")
    return name, int(value)


def _function(reference: str, what: str) -> Callable[..., Any]:
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
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        # The user's own mistake: its last line says what, the traceback of the command would not help.
        raise click.ClickException(f"{file} cannot be imported: {type(error).__name__}: {error}") from None
    return module


def _required(function: Callable[..., Any]) -> int:
    """How many arguments a function cannot do without."""
    parameters = inspect.signature(function).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return sum(p.default is p.empty and p.kind not in variadic for p in parameters)


def _names(functions: dict[str, Any]) -> str:
    return ", ".join(functions) or "none"


# --- outputs -------------------------------------------------------------------------------------


def _show(text: str, language: str) -> None:
    """Coloured on a terminal; plain text, as it is, anywhere else (and with NO_COLOR)."""
    console = Console()
    if console.is_terminal and not console.no_color and language != "text":
        console.print(Syntax(text, language, background_color="default"))
    else:
        click.echo(text, nl=not text.endswith("\n"))


def _guarded(act: Callable[[], None], as_json: bool) -> None:
    """Run a command; what a user can cause is one screen and exit code 1."""
    try:
        act()
    except (NeptuneError, InternalError) as error:
        kind = type(error).__name__
        if as_json:
            click.echo(json.dumps({"error": kind, "message": str(error)}, indent=2))
        else:
            click.secho(f"{kind}: {error}", err=True)
        raise SystemExit(1 if isinstance(error, NeptuneError) else 3) from None
