"""What the compiler makes of everything at hand, recorded, and compared with another version's record.

    python -m qa.replay record --out FILE [--jobs 2] [--only fuzz …] [--verify 1] [--like OLD]
    python -m qa.replay compare OLD NEW [--common] [--ignore source …] [--items chains/] [--examples 3]

`record` compiles shipped operators by every template with all of its choices, the chains, the repairs, and random
programs of `qa.fuzz` and `qa.variety` by fixed seeds (`qa.replay_corpus`); it runs no kernel. For each it keeps
template, schedule, repairs with their proofs and assumptions, refusals with their texts, facts, the programs, a digest
of the generated text, or what ended it (`qa.replay_extract`). One line of JSON an item, after one that says what made
them; a name that ends in .gz is compressed. Some 20 MB: no file for the repository.

The checks are off (NEPTUNE_VERIFY=0), but for the kind `checked`: `--verify 1` switches them on for all. A random
schedule depends on what is granted; `--like OLD` repeats the requests that another record has, so that a change of the
compiler does not draw others.

`compare` prints differences by aspect, most frequent first, and exits with 1 where there is one. Items that only NEW
has are counted, not compared. Where two checkouts are compared, record each with its own package and these modules:

    cd /tmp && PYTHONPATH=OTHER_CHECKOUT:THIS_CHECKOUT python -m qa.replay record --out other.jsonl
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any, cast

from qa.replay_compare import ASPECTS, compare, shown
from qa.replay_extract import Record

LIMIT = 600
"""Seconds that an item may take: a busy machine must not decide what a record says."""
KINDS = ("operators", "chains", "repairs", "checked", "fuzz", "variety")


class TooLong(Exception):
    """An item took longer than `LIMIT`."""


def opened(path: Path, mode: str) -> IO[str]:
    """A text file, compressed if its name says so."""
    if path.suffix == ".gz":
        return cast(IO[str], gzip.open(path, mode + "t", encoding="utf-8"))
    return path.open(mode, encoding="utf-8")


def header(verify: int) -> Record:
    """What made a record: the commit of the package, versions, the level of checks."""
    import neptune
    from neptune.versions import versions

    folder = Path(neptune.__file__).parent
    git = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return {"commit": git.stdout.strip() or None, "verify": verify, **versions("sympy", "apache-tvm")}


# --- recording -------------------------------------------------------------------------------------


@cache
def _items() -> dict[str, Any]:
    from qa.replay_corpus import items

    return items()


def record_one(asked: tuple[str, Record | None]) -> tuple[str, Record]:
    """The record of an item by name, with the record of the same item that it should be like."""
    name, before = asked

    def stop(*_: Any) -> None:
        raise TooLong(f"it took more than {LIMIT} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT)
    try:
        return name, _items()[name](before)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def begin(level: int) -> None:
    """Give a process the settings of one that records."""
    os.environ.update({"NEPTUNE_VERIFY": str(level), "NEPTUNE_CACHE_DIR": "0"})
    for name in ("NEPTUNE_DUMP", "NEPTUNE_FUSION_FUEL", "NEPTUNE_LOGS"):
        os.environ.pop(name, None)


@contextmanager
def recording(level: int) -> Iterator[None]:
    """The settings of a process that records, for a while."""
    before = dict(os.environ)
    begin(level)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def records(asked: Sequence[tuple[str, Record | None]], jobs: int, verify: int) -> Iterator[tuple[str, Record]]:
    """The records in the order in which they are asked for."""
    if jobs == 1:
        with recording(verify):
            yield from map(record_one, asked)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=begin, initargs=(verify,)) as pool:
        yield from pool.map(record_one, asked, chunksize=4)


def record(options: argparse.Namespace) -> int:
    """Write a file of records."""
    like = load(options.like)[1] if options.like else {}
    with recording(options.verify):
        names = [n for n in _items() if n.partition("/")[0] in options.only and n.startswith(options.items)]
    asked = [(n, like.get(n)) for n in names[:: options.every]]
    start = time.monotonic()
    with opened(options.out, "w") as file:
        for k, row in enumerate(_written(file, options, records(asked, options.jobs, options.verify)), 1):
            if k % 50 == 0 or k == len(asked):
                print(f"{k} of {len(asked)}, {time.monotonic() - start:.0f} s, {row}", file=sys.stderr, flush=True)
    return 0


def _written(file: IO[str], options: argparse.Namespace, made: Iterable[tuple[str, Record]]) -> Iterator[str]:
    def line(value: Record) -> None:
        file.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")
        file.flush()

    line(header(options.verify))
    for name, row in made:
        line({"item": name, **row})
        yield name


def load(path: Path) -> tuple[Record, dict[str, Record]]:
    """The header of a file, and its records by name."""
    with opened(path, "r") as file:
        first, *rest = map(json.loads, file)
    return first, {row["item"]: row for row in rest}


# --- the command -----------------------------------------------------------------------------------


def compared(options: argparse.Namespace) -> int:
    """Print how two files of records differ."""
    (old, before), (new, after) = load(options.old), load(options.new)
    for name, value in (("old", old), ("new", new)):
        print(f"{name}: {', '.join(f'{k} {v}' for k, v in value.items())}")
    before, after = ({n: r for n, r in x.items() if n.startswith(options.items)} for x in (before, after))
    if options.common:
        before = {n: r for n, r in before.items() if n in after}
    found = compare(before, after, frozenset(options.ignore))
    print("\n".join(shown(found, options.examples, options.width, options.lines)))
    return int(found.differs)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m qa.replay", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True)
    make = commands.add_parser("record", help="compile everything and keep what became of it")
    make.add_argument("--out", type=Path, required=True, metavar="FILE")
    make.add_argument("--jobs", type=int, default=1, help="processes")
    make.add_argument("--only", nargs="+", choices=KINDS, default=KINDS, metavar="KIND", help=f"of {', '.join(KINDS)}")
    make.add_argument("--items", default="", metavar="PREFIX", help="only items whose names begin so")
    make.add_argument("--every", type=int, default=1, metavar="N", help="one item of N")
    make.add_argument("--verify", type=int, default=0, choices=(0, 1, 2), help="the level of checks; by default none")
    make.add_argument("--like", type=Path, metavar="OLD", help="a record whose random requests are repeated")
    make.set_defaults(run=record)
    beside = commands.add_parser("compare", help="print the differences between two records")
    beside.add_argument("old", type=Path)
    beside.add_argument("new", type=Path)
    beside.add_argument("--ignore", nargs="+", choices=ASPECTS, default=(), metavar="ASPECT", help=", ".join(ASPECTS))
    beside.add_argument("--items", default="", metavar="PREFIX", help="only items whose names begin so")
    beside.add_argument("--common", action="store_true", help="NEW is of some items only: the others are not missing")
    beside.add_argument("--examples", type=int, default=3, help="of each aspect")
    beside.add_argument("--width", type=int, default=160, help="of a line that is shown")
    beside.add_argument("--lines", type=int, default=12, help="of a difference that is shown")
    beside.set_defaults(run=compared)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    code: int = options.run(options)
    return code


if __name__ == "__main__":
    sys.exit(main())
