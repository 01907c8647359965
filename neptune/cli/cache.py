"""`neptune cache`: what has been measured, and how it goes from one machine to another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import click

from neptune import config
from neptune.cli.options import as_json
from neptune.cli.outputs import guarded, say, table
from neptune.records import exchange
from neptune.records.record import Discovery, Failure, Record, Unknown, parse
from neptune.records.store import Store

A_FILE = click.Path(path_type=Path)
_structure = click.option(
    "--structure", "structures", multiple=True, metavar="NAME", help="Of these alone; repeatable."
)


@click.group("cache", short_help="Show, move and shrink the records of measurements.")
def cache_group() -> None:
    """Show, move and shrink the records of measurements.

    They lie in the folder `records` of the cache (NEPTUNE_CACHE_DIR). Those that ship with Neptune are shown, too; only
    your own are exported and pruned. A program is named by the first digits of its structure, or by what it was called.
    """


@cache_group.command("ls")
@as_json
def ls_command(as_json: bool) -> None:
    """List the programs that have records, by device.

    \b
    Example:
        neptune cache ls
    """

    def act() -> None:
        store = Store(config.read().cache_dir)
        own = [parse(line) for line in store.lines() if line.strip()]
        groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
        for r in store.all():
            groups[r.structure, r.device].append(r)
        rows = [_summary(group) for group in groups.values()]
        counts = {"records": sum(isinstance(r, Record) for r in own)}
        counts |= {"failed": sum(isinstance(r, Failure) for r in own)}
        counts |= {"graphs": sum(isinstance(r, Discovery) for r in own)}
        counts |= {"unknown": sum(isinstance(r, Unknown) for r in own), "unreadable": own.count(None)}

        def shown() -> None:
            table([{**row, "structure": row["structure"][: exchange.DIGITS_TO_NAME]} for row in rows])
            click.echo(f"{store.path or 'no cache folder'}: {_words(counts)}; others ship with Neptune")

        say({"file": str(store.path) if store.path else None, **counts, "programs": rows}, as_json, shown)

    guarded(act, as_json)


@cache_group.command("show")
@click.argument("program")
@click.option("--all", "every", is_flag=True, help="Every candidate, not the fastest few at each sizes.")
@as_json
def show_command(program: str, every: bool, as_json: bool) -> None:
    """Print the records of a program, the fastest of each sizes first.

    \b
    Examples:
        neptune cache show softmax
        neptune cache show 0d6c2f --all
    """

    def act() -> None:
        store = Store(config.read().cache_dir)
        lines: list[Record | Failure] = [*store.all(), *store.failures()]
        records_found = exchange.of_program(lines, f"neptune cache show {program}", program)
        records = [r for r in records_found if isinstance(r, Record)]
        failed = [r for r in records_found if isinstance(r, Failure)]
        groups: dict[tuple[Any, ...], list[Record]] = defaultdict(list)
        for r in records:
            groups[r.structure, r.device, tuple(r.sizes.items())].append(r)
        kept = [r for _, g in sorted(groups.items()) for r in sorted(g, key=_us)[: None if every else 3]]
        answer = {"records": [asdict(r) for r in kept], "of": len(records), "failed": [asdict(f) for f in failed]}

        def shown() -> None:
            table([_row(r) for r in kept])
            if len(kept) < len(records):
                click.echo(f"{len(kept)} of {len(records)} records; --all shows every one")
            if failed:
                click.echo("failed, and not tried again by the same versions:")
                table([_row(f) for f in failed])

        say(answer, as_json, shown)

    guarded(act, as_json)


@cache_group.command("export")
@click.argument("file", type=A_FILE)
@_structure
@as_json
def export_command(file: Path, structures: tuple[str, ...], as_json: bool) -> None:
    """Write your own records to FILE.

    \b
    Example:
        neptune cache export mine.jsonl --structure softmax
    """

    def act() -> None:
        store = exchange.user_store()
        request = f"neptune cache export {file}"
        own = [r for r in map(parse, store.lines()) if isinstance(r, Record)]
        wanted = sorted({r.structure for name in structures for r in exchange.of_program(own, request, name)})
        _done(exchange.export_records(store, file, wanted), f"written to {file}", as_json)

    guarded(act, as_json)


@cache_group.command("import")
@click.argument("files", nargs=-1, required=True, type=A_FILE, metavar="FILE...")
@as_json
def import_command(files: Sequence[Path], as_json: bool) -> None:
    """Add the records of FILEs, or of other cache folders, to your own.

    \b
    Example:
        neptune cache import theirs.jsonl
    """

    def act() -> None:
        store = exchange.user_store()
        _done(exchange.import_records(store, files), f"added to {store.path}", as_json)

    guarded(act, as_json)


@cache_group.command("merge")
@click.argument("to", type=A_FILE, metavar="RESULT")
@click.argument("files", nargs=-1, required=True, type=A_FILE, metavar="FILE...")
@as_json
def merge_command(to: Path, files: Sequence[Path], as_json: bool) -> None:
    """Write the records of FILEs, or of cache folders, to one file RESULT, each once.

    \b
    Example:
        neptune cache merge all.jsonl monday.jsonl tuesday.jsonl
    """
    guarded(lambda: _done(exchange.merge_records(files, to), f"written to {to}", as_json), as_json)


@cache_group.command("prune")
@click.option("--keep", default=3, show_default=True, metavar="N", help="The fastest N of each, beside the newest.")
@click.option("--failed", is_flag=True, help="Forget what failed, so that it is tried again.")
@as_json
def prune_command(keep: int, failed: bool, as_json: bool) -> None:
    """Remove all but the fastest and the newest of your own records of each candidate at the same sizes, and what is no
    record.

    \b
    Example:
        neptune cache prune --keep 1
    """

    def act() -> None:
        store = exchange.user_store()
        _done(exchange.prune_records(store, keep, failed), f"kept in {store.path}", as_json)

    guarded(act, as_json)


def _us(r: Record) -> float:
    return median(r.us)


def _pairs(values: Any) -> str:
    return " ".join(f"{k}={v}" for k, v in values.items())


def _row(r: Record | Failure) -> dict[str, Any]:
    return {
        "structure": r.structure[: exchange.DIGITS_TO_NAME],
        "device": r.device,
        "sizes": _pairs(r.sizes),
        "us": f"{_us(r):.2f}" if isinstance(r, Record) else r.how,
        "candidate": f"{r.template} {_pairs({**r.params, **r.numbers})}",
        "made with": f"neptune {r.versions.get('neptune')}, triton {r.versions.get('triton')}",
        "when": r.when,
    }


def _summary(group: Sequence[Record]) -> dict[str, Any]:
    return {
        "structure": group[0].structure,
        "name": ", ".join(sorted({r.name for r in group if r.name})),
        "device": group[0].device,
        "records": len(group),
        "sizes": len({tuple(r.sizes.items()) for r in group}),
        "newest": max(r.when for r in group),
    }


def _done(counts: exchange.Counts, where: str, as_json: bool) -> None:
    """What became of the records."""
    more = {n: k for n, k in asdict(counts).items() if n != "kept" and k}
    text = f"{counts.kept} records {where}" + (f"; {_words(more)}" if more else "")
    say(asdict(counts), as_json, lambda: click.echo(text))


def _words(counts: dict[str, int]) -> str:
    words = {"known": "there already", "unreadable": "no record"}
    return ", ".join(f"{k} {words.get(n, n)}" for n, k in counts.items())
