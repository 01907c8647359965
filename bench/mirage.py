"""Graphs found by search: how the search went, and how fast they are.

    python -m bench.mirage search  [--only RMSNorm …] [--budget 60s] [--json FILE]
    python -m bench.mirage wild    [--only swiglu …] [--budget 20s]
    python -m bench.mirage speed   --save DIR | --run DIR --json FILE [--dry-run]

Each part has its description behind `--help`. Programs are those of `bench.mirage_programs`.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from bench import mirage_speed
from bench.mirage_eager import EAGER


def speed(argv: Sequence[str]) -> int:
    """Save kernels here, or measure them where a GPU is."""
    parser = _parser("speed", mirage_speed.__doc__)
    parser.add_argument("--save", type=Path, metavar="DIR", help="search, compile and save; no GPU is needed")
    parser.add_argument("--run", type=Path, metavar="DIR", help="measure what was saved")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--dtypes", nargs="+", default=["float16", "bfloat16"])
    parser.add_argument("--target", default="cuda:90", help="what is compiled for")
    parser.add_argument("--budget", default="60s", help="of each search")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where samples go, and what is done already")
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin nothing after so long")
    parser.add_argument("--dry-run", action="store_true", help="measure nothing")
    options = parser.parse_args(argv)
    if (options.save is None) == (options.run is None):
        parser.error("one of --save DIR and --run DIR")
    if options.run is not None:
        gpu = None if options.dry_run else mirage_speed.Gpu()
        return mirage_speed.run(options.run, options.json, options.seconds, gpu)
    from bench.mirage_save import save_all

    return save_all(options.save, options.only, options.batches, options.dtypes, options.target, options.budget)


def _parser(name: str, said: str | None) -> argparse.ArgumentParser:
    described = (said or "").strip()
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=f"python -m bench.mirage {name}", description=described, formatter_class=raw)
    parser.add_argument("--only", nargs="+", choices=list(EAGER), default=list(EAGER), metavar="NAME")
    return parser


def _part(module: str) -> Callable[[Sequence[str]], int]:
    """The command of a module, which is imported when it is asked for: measuring needs none of them."""

    def run(argv: Sequence[str]) -> int:
        made: int = import_module(f"bench.mirage_{module}").main(argv)
        return made

    return run


PARTS: dict[str, Callable[[Sequence[str]], int]] = {
    "search": _part("search"),
    "wild": _part("wild"),
    "speed": speed,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    os.environ.setdefault("NEPTUNE_STRICT", "0")
    warnings.simplefilter("ignore")
    given = list(sys.argv[1:] if argv is None else argv)
    if not given or given[0] not in PARTS:
        print(f"{(__doc__ or '').strip()}\n\none of {', '.join(PARTS)}", file=sys.stderr)
        return 0 if given[:1] in (["--help"], ["-h"]) else 2
    return PARTS[given[0]](given[1:])


if __name__ == "__main__":
    sys.exit(main())
