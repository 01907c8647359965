"""Random reduction programs under random schedules, and fusion requests that must be refused.

    python -m qa.fuzz --count 500 --seed 0 [--minutes 10] [--jobs 2] [--json fuzz.json] [--save tests/fuzz/saved]

Every program that a schedule is granted for must mean what it says by all oracles (`qa.fuzzing.judge`); every
request that is refused must leave the schedule alone and say why on one screen; requests without a sound repair must
be refused. A failure is made small and saved as a test. The exit status is 1 where something failed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from neptune.errors import NeptuneError
from neptune.schedule.fuel import FUSIONS
from qa.fuzzing import draw, schedules, unsound
from qa.fuzzing.judge import Case, Effort, Verdict, judge, program_of
from qa.fuzzing.shrink import shrink

UNSOUND_EVERY = 5
"""Of so many programs one is a request that must be refused."""
LIMIT = 120
"""Seconds that a program may take."""
MEMORY = 8 << 30
"""Bytes that it may take on top of what the process has: one that asks for more fails as a MemoryError."""


@dataclass
class Outcome:
    """What became of the program of a seed; `case` is kept where something failed, made small."""

    seed: int
    unsound: str | None = None
    failures: list[tuple[str, str]] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    exact: dict[str, str] = field(default_factory=dict)
    targets: list[str] = field(default_factory=list)
    seconds: float = 0.0
    case: Case | None = None

    @property
    def fused(self) -> bool:
        return bool(FUSIONS.intersection(self.accepted))


class TooLong(Exception):
    """A program took longer than `LIMIT`."""


def effort_of(seed: int) -> Effort:
    """The costly oracles take turns."""
    return Effort(llvm=seed % 3 == 0, tvm=seed % 6 == 0, interpret=seed % 7 == 0, offline=seed % 60 == 30)


def run_one(seed: int, effort: Effort | None = None, small: bool = True) -> Outcome:
    """Draw, schedule and judge the program of a seed; a failing one is shrunk if `small`."""
    start = time.perf_counter()
    outcome = Outcome(seed)
    effort = effort_of(seed) if effort is None else effort
    case: Case = {}
    verdict = Verdict()
    try:
        with _limited(LIMIT):
            case, verdict = _judged(seed, effort)
    except TooLong:
        outcome.failures.append(("timeout", f"it took more than {LIMIT} s"))
    outcome.unsound = case.get("why")
    outcome.failures += [(f.kind, f.message) for f in verdict.failures]
    outcome.accepted, outcome.exact, outcome.targets = verdict.accepted, verdict.exact, verdict.targets
    outcome.refused = [reason(asked, error) for asked, error in verdict.refused]
    if verdict.failures:
        outcome.case = shrink(case, verdict.failures[0]) if small else case
    outcome.seconds = time.perf_counter() - start
    return outcome


def _judged(seed: int, effort: Effort) -> tuple[Case, Verdict]:
    if seed % UNSOUND_EVERY == 0:
        case = unsound.draw(seed)
        return case, judge(case, effort)
    program = draw.draw(seed)
    try:
        driver = schedules.draw(program_of(program), seed)
    except NeptuneError as error:
        return {"program": program, "steps": [], "data": seed}, Verdict(refused=[("program", error)])
    case = {"program": program, "steps": driver.steps, "data": seed}
    return case, judge(case, effort, driver)


class _limited:
    """Raises TooLong in what runs longer, and MemoryError in what asks for more than `MEMORY`."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds

    def __enter__(self) -> None:
        def stop(*_: Any) -> None:
            raise TooLong

        self.before = signal.signal(signal.SIGALRM, stop)
        signal.alarm(self.seconds)
        self.memory = resource.getrlimit(resource.RLIMIT_AS)
        if (statm := Path("/proc/self/statm")).exists():
            now = int(statm.read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, self.memory[1]))

    def __exit__(self, *_: object) -> None:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, self.memory)
        signal.signal(signal.SIGALRM, self.before)


def reason(asked: str, error: NeptuneError) -> str:
    """Why something was refused, without names and numbers."""
    lines = [x for x in error.wrong.splitlines() if x.strip()]
    # A refused repair says what was tried in its last line.
    line = lines[-1] if lines and "no repair was found" in lines[0] else lines[0] if lines else ""
    text = re.sub(r"`[^`]*`", "`…`", line)
    text = re.sub(r"\b[rstyxzwpqkv]\d*(_\w+)?\b(?=[ ,:]|$)|\d+", "_", text)
    return f"{asked}: {text.strip()[:100]}"


# --- many ------------------------------------------------------------------------------------------


def outcomes(seeds: Iterable[int], jobs: int = 1, until: float | None = None) -> Iterator[Outcome]:
    """The outcomes of seeds in any order, none begun after `until` (time.monotonic)."""

    def late() -> bool:
        return until is not None and time.monotonic() > until

    if jobs == 1:
        for seed in seeds:
            if late():
                return
            yield run_one(seed)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        todo = iter(seeds)
        running: set[Future[Outcome]] = set()
        while True:
            while len(running) < 2 * jobs and not late() and (n := next(todo, None)) is not None:
                running.add(pool.submit(run_one, n))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for f in done:
                yield f.result()


def summary(found: Sequence[Outcome], seconds: float) -> str:
    """What was fuzzed, what was refused and why, what failed."""
    asked = [o for o in found if o.unsound is not None]
    failed = [o for o in found if o.failures]
    exact = Counter(f"{k} {v.split(':')[0]}" for o in found for k, v in o.exact.items())
    targets = Counter(t for o in found for t in o.targets)
    accepted, refused = Counter(p for o in found for p in o.accepted), Counter(r for o in found for r in o.refused)
    granted = sum("unsound" in dict(o.failures) for o in asked)
    lines = [
        f"{len(found):6} programs fuzzed in {seconds:.0f} s, {sum(o.fused for o in found)} of them fused",
        f"{len(asked):6} of them requests that must be refused; granted: {granted}",
        f"{sum(accepted.values()):6} requests granted: {_listed(accepted)}",
        f"{sum(refused.values()):6} requests refused",
        f"{'':6} exact checks: {_listed(exact)}",
        f"{'':6} also run by: {_listed(targets)}",
        f"{len(failed):6} failures: {_listed(Counter(o.failures[0][0] for o in failed))}",
        "refused, by request and reason:",
        *(f"{n:6} {text}" for text, n in refused.most_common(40)),
    ]
    return "\n".join(lines)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{k} {n}" for k, n in counts.most_common()) or "none"


def save(outcome: Outcome, folder: Path) -> Path:
    """The case of a failure as a file, named by its kind and seed."""
    kind, message = outcome.failures[0]
    path = folder / f"{kind.replace('-', '_')}_{outcome.seed}.json"
    path.write_text(case_text({**(outcome.case or {}), "seen": f"{kind}: {message}"[:300]}))
    return path


def case_text(case: Case) -> str:
    """A case as JSON, a line for each input, stage and request."""
    program = case["program"]
    rest = {k: v for k, v in case.items() if k not in ("program", "steps")}

    def block(items: Iterable[Any], pad: str) -> str:
        return ",".join(f"\n{pad}{json.dumps(x)}" for x in items)

    inner = ",\n".join(
        f'  "{k}": [{block(v, "   ")}]' if k in ("inputs", "stages") else f'  "{k}": {json.dumps(v)}'
        for k, v in program.items()
    )
    tail = "".join(f',\n "{k}": {json.dumps(v)}' for k, v in rest.items())
    return f'{{"program": {{\n{inner}}},\n "steps": [{block(case["steps"], "  ")}]{tail}}}\n'


def main(argv: Sequence[str] | None = None) -> int:
    # What a check rejects is a failure here.
    os.environ.setdefault("NEPTUNE_STRICT", "1")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="how many programs, by consecutive seeds")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--minutes", type=float, help="begin no program after so many minutes")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--json", type=Path, help="write all outcomes there")
    parser.add_argument("--save", type=Path, help="a folder for cases that fail, made small: tests/fuzz/saved")
    args = parser.parse_args(argv)
    start = time.monotonic()
    until = None if args.minutes is None else start + 60 * args.minutes
    found: list[Outcome] = []
    for o in outcomes(range(args.seed, args.seed + args.count), args.jobs, until):
        found.append(o)
        for kind, message in o.failures[:1]:
            print(f"seed {o.seed}: {kind}: {message}", flush=True)
        if o.case is not None:
            print(f"  saved as {save(o, args.save)}" if args.save else f"  {json.dumps(o.case)}", flush=True)
    print(summary(found, time.monotonic() - start))
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(o) for o in found], indent=1))
    return int(any(o.failures for o in found))


if __name__ == "__main__":
    sys.exit(main())
