"""The commands behind `neptune`; needs click and rich.

Results go to the standard output, errors to the standard error, or as JSON to the output with `--json`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from neptune.base.codes import BY_CODE, Kind
from neptune.cli import options
from neptune.cli.cache import cache_group
from neptune.cli.inputs import expression, template
from neptune.cli.outputs import DONE, REFUSED, UsersMistake, guarded, say, say_error, show, table
from neptune.cli.search import search_command
from neptune.cli.tune import autotune_command
from neptune.driver.options import CompileOptions
from neptune.errors import NeptunePerformanceWarning

STAGES = ("loops", "scheduled", "fused", "tile")
FORMS = ("form", "roles")
"""What resources say of kernels that have several forms."""


class App(click.Group):
    """The command group; what is wrong with the usage is JSON, too, where JSON is asked for."""

    as_json = False

    def main(self, args: Sequence[str] | None = None, **extra: Any) -> Any:  # type: ignore[override]
        self.as_json = "--json" in (sys.argv[1:] if args is None else args)
        return super().main(args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            if not self.as_json:
                raise
            kind = "UsageError" if isinstance(error, click.UsageError) else "Error"
            say_error(kind, error.format_message(), True, error.error if isinstance(error, UsersMistake) else None)
            raise SystemExit(error.exit_code) from None


EPILOG = """
\b
Exit codes:
    0  done
    1  refused: not legal, not proved, or not there
    2  wrong usage of this command
    3  a defect of Neptune

\b
Environment:
    NEPTUNE_TARGET        where --target is not given
    NEPTUNE_VERIFY        0, 1 or 2: how much is checked
    NEPTUNE_STRICT        1: what a check rejects is a defect
    NEPTUNE_CHECK         1: calls look at the indices that tensors hold
    NEPTUNE_CACHE_DIR     a folder for compiled kernels; 0 for none
    NEPTUNE_RECORDS       0: the model alone chooses, not what was measured
    NEPTUNE_FORM          triton or auto: of kernels for sm_90, without --form
    NEPTUNE_TIERED        beside, wait or never: first calls from torch
    NEPTUNE_DUMP          a folder for every form of the program, and a report
    NEPTUNE_LOGS          e.g. +fusion,codegen
    NEPTUNE_FUSION_FUEL   stop before the n+1st fusion
    NEPTUNE_TRACEBACK     1: with Neptune's own frames
    NO_COLOR              no colours
"""
"""What stands behind the commands of `neptune --help`."""
MARKS = {"ok": "green", "missing": "red", "no": "yellow", "optional": "dim"}


@click.group(cls=App, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="neptune-compiler", prog_name="neptune")
def app() -> None:
    """Compile schedules of tensor expressions to Triton, and see why they look as they do."""


@app.command("compile")
@options.reference
@options.schedule
@options.options_of(CompileOptions)
@click.option("--ir", "stage", type=click.Choice(STAGES), help="Print this form of the program instead.")
@click.option("--asm", metavar="TARGET", help="Print the assembly for TARGET, e.g. cuda:90; needs no GPU.")
@click.option("--resources", metavar="TARGET", help="Print registers, spills and shared memory on TARGET.")
@options.save
@options.as_json
def compile_command(
    stage: str | None, asm: str | None, resources: str | None, save: str | None, as_json: bool, **request: Any
) -> None:
    """Print the Triton source of an expression.

    OPERATOR is a shipped one (see `neptune ops`). FILE is a Python file with a FUNCTION that takes no
    arguments and returns te tensors, tensors of the builder or a Program; FUNCTION may be left out
    where there is only one.

    \b
    Examples:
        neptune compile rms_norm --target cuda:90
        neptune compile prefill_causal --target cuda:90 --form asynchronous
        neptune compile examples/causal_attention.py:attention -p BLOCK_M=64
        neptune compile examples/causal_attention.py:attention --resources cuda:90
        neptune compile examples/causal_attention.py:attention --save attention
    """
    if sum(x is not None for x in (stage, asm, resources, save)) > 1:
        raise click.UsageError("give one of --ir, --asm, --resources and --save")

    def act() -> None:
        kernel = _kernel(**request)
        _tell(kernel)
        answer = {"name": kernel.name, "target": kernel.target, "template": kernel.explain(json=True)["template"]}
        answer |= {"params": kernel.params, "warnings": kernel.explain(json=True)["warnings"]}
        if resources is not None:
            rows = [_fields(r) for r in kernel.resources(resources)]
            if not any(r["roles"] for r in rows):
                rows = [{k: v for k, v in r.items() if k not in FORMS} for r in rows]
            say(answer | {"resources": rows}, as_json, lambda: table(rows))
        elif asm is not None:
            texts = kernel.asm(asm)
            say(answer | {"asm": texts}, as_json, lambda: show("\n".join(texts.values()), "text"))
        elif save is not None:
            kernel.save(save)
            say(answer | {"saved": save}, as_json, lambda: click.echo(f"wrote {save}"))
        elif stage is not None:
            text = kernel.ir(stage)
            say(answer | {"ir": text}, as_json, lambda: show(text, "text"))
        else:
            say(answer | {"source": kernel.source}, as_json, lambda: show(kernel.source, "python"))

    guarded(act, as_json)


@app.command("explain", short_help="Say what was fused, how it was proved, and why.")
@options.reference
@options.schedule
@options.options_of(CompileOptions)
@click.option("--html", type=click.Path(dir_okay=False), metavar="FILE", help="Write a report with every pass instead.")
@options.as_json
def explain_command(html: str | None, as_json: bool, **request: Any) -> None:
    """Say what was fused, deferred and rolled, how it was proved, and what the kernel does.

    \b
    Examples:
        neptune explain prefill_causal --target cuda:90
        neptune explain examples/causal_attention.py:attention
        neptune explain examples/causal_attention.py:attention --html why.html
    """

    def act() -> None:
        kernel = _kernel(**request)
        if html is not None:
            _tell(kernel)
            path = str(kernel.report(html))
            say({"name": kernel.name, "report": path}, as_json, lambda: click.echo(f"wrote {path}"))
        else:
            say(kernel.explain(json=True), as_json, lambda: click.echo(kernel.explain(), nl=False))

    guarded(act, as_json)


@app.command("templates")
@options.as_json
def templates_command(as_json: bool) -> None:
    """List the shipped templates, with what each does.

    \b
    Example:
        neptune templates
    """

    def act() -> None:
        from neptune.tune.choose import shipped_templates

        answer = {name: _first_line(t) for name, t in shipped_templates().items()}
        say(answer, as_json, lambda: table([{"name": n, "what it does": text} for n, text in answer.items()]))

    guarded(act, as_json)


@app.command("ops", short_help="List the shipped operators.")
@click.argument("words", nargs=-1, metavar="[WORD]…")
@options.as_json
def ops_command(words: tuple[str, ...], as_json: bool) -> None:
    """List the shipped operators: what each is, its inputs, and the call that makes it in Python.

    With WORDs, those in whose name, kind or description all of them stand, each with its options and an example.

    \b
    Examples:
        neptune ops
        neptune ops attention sinks
    """

    def act() -> None:
        from neptune.cli.operators import described, matching

        shipped = matching(words)
        answer = {s.name: described(s, whole=bool(words)) for s in shipped}
        if not words:
            rows = [{"name": n, **{k: r[k] for k in ("what it is", "inputs")}} for n, r in answer.items()]
            return say(answer, as_json, lambda: table(rows))
        blocks = ["\n".join([n, *(f"  {k + ':':12} {v}" for k, v in r.items())]) for n, r in answer.items()]
        say(answer, as_json, lambda: click.echo("\n\n".join(blocks)))

    guarded(act, as_json)


@app.command("check-env", short_help="Say what this machine can compile for and run on.")
@options.as_json
def check_env_command(as_json: bool) -> None:
    """Say what this machine can compile for and run on, with a remedy for each problem.

    Exits with 1 where something required is missing.

    \b
    Example:
        neptune check-env
    """
    from neptune.cli import environment

    findings = environment.examine()
    good = environment.usable(findings)

    def shown() -> None:
        lines = Table(box=None, show_header=False, pad_edge=False)
        for f in findings:
            lines.add_row(f"[{MARKS[f.mark]}]{f.mark}[/]", escape(f.subject), escape(f.found))
            if f.remedy and not f.good:
                lines.add_row("", "", f"[dim]try: {escape(f.remedy)}[/]")
        Console(width=None if sys.stdout.isatty() else 200).print(lines)
        click.echo("this machine can run kernels" if good else "this machine cannot run kernels")

    say(environment.as_json(findings), as_json, shown)
    raise SystemExit(DONE if good else REFUSED)


app.add_command(autotune_command)
app.add_command(autotune_command, "tune")
app.add_command(search_command)
app.add_command(cache_group)


@app.command("calibrate", short_help="Measure the GPU at hand for the cost model.")
@options.as_json
def calibrate_command(as_json: bool) -> None:
    """Measure bandwidths, clock and rates of the GPU at hand, and keep them for the cost model.

    Takes less than a minute, and asks that nothing else runs on the GPU. From then on predictions, and what is chosen
    by them, follow what was measured; kernels that are cached for other constants are compiled anew.

    \b
    Example:
        neptune calibrate
    """

    def act() -> None:
        from neptune.cli import calibrated

        answer = calibrated.measure()
        say(answer, as_json, lambda: table(calibrated.rows(answer)))
        if not as_json:
            click.echo(calibrated.summary(answer))

    guarded(act, as_json)


# --- inputs --------------------------------------------------------------------------------------


def _kernel(reference: str, schedule: str | None, **given: Any) -> Any:
    """Return the kernel of a request."""
    from neptune.driver.pipeline import compile

    with warnings.catch_warnings():
        # `_tell` and explain() say them, without the line of a program that is ours.
        warnings.simplefilter("ignore", NeptunePerformanceWarning)
        # What is not there is said before anything is imported for it.
        values, how = options.values_of(CompileOptions, given), template(schedule)
        return compile(expression(reference), how, **values)


@app.command("explain-error")
@click.argument("code")
@options.as_json
def explain_error_command(code: str, as_json: bool) -> None:
    """Say what the CODE of an error stands for, and what helps.

    \b
    Example:
        neptune explain-error NPT-C005
    """
    kind = BY_CODE.get(code.upper())
    if kind is None:
        raise click.BadParameter(f"there is no code {code!r}; an error's last line has one, say {next(iter(BY_CODE))}")
    entry: Kind = kind
    answer = {"code": entry.code, "kind": entry.title, "cure": entry.cure}
    say(answer, as_json, lambda: click.echo(f"{entry.code}: {entry.title}\n  what helps: {entry.cure}"))


def _tell(kernel: Any) -> None:
    """Say on the standard error what makes a kernel slow."""
    for remark in kernel.warnings:
        click.echo(f"warning: {remark}", err=True)


def _fields(resources: Any) -> dict[str, Any]:
    """The fields of a dataclass, as JSON and a table take them."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(resources).items()}


def _first_line(template: Any) -> str:
    """Return the first paragraph of a template's description, on one line."""
    doc = getattr(template, "doc", None) or template.__doc__ or ""
    return " ".join(doc.strip().split("\n\n")[0].split())
