"""One harness for the fuzzers: draws cases by seed in processes of their own, counts what became of them.

A fuzzer is a function `trial(seed) -> Outcome`; `command(trial, __doc__)` is its command line:

    python -m qa.fuzz_masks --count 1000 --seed 0 --jobs 2 [--seconds 600] [--json out.json]

The status is 1 where an outcome is in `FAILURES`. With one job all runs in this process, so that a debugger can stop.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

KINDS = ("right", "refused", "skipped", "wrong", "raised", "rejected", "endless")
FAILURES = frozenset({"wrong", "raised", "rejected", "endless"})
"""skipped: a case that says nothing, since the oracle has no value. wrong: another value than the oracle's. raised: an
exception that is no refusal. rejected: a check of Neptune's own threw out what Neptune made. endless: no end within the
limit."""


@dataclass(frozen=True)
class Outcome:
    """What became of the case of a seed; `reason` groups outcomes, `case` is the program as a person would write it."""

    kind: str
    reason: str = ""
    case: str = ""

    def __post_init__(self) -> None:
        assert self.kind in KINDS, self.kind


Trial = Callable[[int], Outcome]


class _TooLong(BaseException):
    """The case of a seed took longer than the limit; no handler of `Exception` takes it for an error."""


def attempt(trial: Trial, seed: int, limit: int) -> Outcome:
    """The outcome of `trial(seed)` within `limit` seconds; what it raises is an outcome too."""

    def stop(*_: Any) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(limit)
    try:
        return trial(seed)
    except _TooLong:
        return Outcome("endless", f"no end in {limit} s")
    except Exception as error:
        return Outcome("raised", f"{type(error).__name__}: {error}"[:300], traceback.format_exc())
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _of_seed(job: tuple[Trial, int, int]) -> tuple[int, Outcome]:
    trial, seed, limit = job
    return seed, attempt(trial, seed, limit)


def outcomes(trial: Trial, seeds: range, jobs: int, seconds: float, limit: int) -> Iterator[tuple[int, Outcome]]:
    """(seed, outcome) as they come, until `seconds` are over (0: until all seeds are done)."""
    end = time.monotonic() + seconds if seconds else float("inf")
    work = ((trial, seed, limit) for seed in seeds)
    if len(seeds) == 1 or jobs == 1:
        for job in work:
            if time.monotonic() > end:
                return
            yield _of_seed(job)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=200) as pool:
        for pair in pool.imap_unordered(_of_seed, work):
            yield pair
            if time.monotonic() > end:
                pool.terminate()
                return


def command(trial: Trial, about: str | None, check: bool = True) -> None:
    """Run a fuzzer by its options, and leave with its status."""
    # Trials run where click may be missing.
    import click

    @click.command(help=about)
    @click.option("--count", default=200, show_default=True, help="Cases.")
    @click.option("--seed", default=0, show_default=True, help="The first case's seed; the others follow.")
    @click.option("--jobs", default=1, show_default=True, help="Processes.")
    @click.option("--seconds", default=0.0, help="Stop after so many seconds; 0: when all are done.")
    @click.option("--limit", default=120, show_default=True, help="Seconds a case may take.")
    @click.option("--json", "path", type=click.Path(path_type=Path), help="Where figures are written.")
    def run(count: int, seed: int, jobs: int, seconds: float, limit: int, path: Path | None) -> None:
        start, kinds, reasons, failed = time.monotonic(), Counter[str](), Counter[tuple[str, str]](), []
        for at, outcome in outcomes(trial, range(seed, seed + count), jobs, seconds, limit):
            kinds[outcome.kind] += 1
            if outcome.kind != "right":
                reasons[outcome.kind, outcome.reason] += 1
            if outcome.kind in FAILURES:
                failed.append({"seed": at, **asdict(outcome)})
                click.echo(f"seed {at}: {outcome.kind}: {outcome.reason}\n{outcome.case}")
        total = sum(kinds.values())
        click.echo(
            f"{total} cases in {time.monotonic() - start:.0f} s: " + ", ".join(f"{n} {k}" for k, n in kinds.items())
        )
        for (kind, reason), n in reasons.most_common(40):
            click.echo(f"{n:6} {kind}: {reason}")
        if path:
            path.write_text(
                json.dumps(
                    {"kinds": kinds, "reasons": [[*k, n] for k, n in reasons.items()], "failed": failed}, indent=1
                )
            )
        sys.exit(bool(failed) and check)

    run()
