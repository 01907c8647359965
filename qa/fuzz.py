"""Random reduction programs under random schedules, and fusion requests that must be refused.

    python -m qa.fuzz --count 500 --seed 0 [--seconds 600] [--jobs 2] [--json fuzz.json]

Every program that a schedule is granted for must mean what it says by all oracles (`qa.fuzzing.judge`); every
request that is refused must leave the schedule alone and say why on one screen; requests without a sound repair must
be refused. A failure is made small and printed as a file for `tests/fuzz/saved`.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neptune.errors import NeptuneError
from neptune.schedule.trace import FUSIONS
from qa import harness
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
    failures: list[tuple[str, str]] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    exact: dict[str, str] = field(default_factory=dict)
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
    outcome = Outcome(seed)
    effort = effort_of(seed) if effort is None else effort
    case: Case = {}
    verdict = Verdict()
    try:
        with _limited(LIMIT):
            case, verdict = _judged(seed, effort)
    except TooLong:
        outcome.failures.append(("timeout", f"it took more than {LIMIT} s"))
    outcome.failures += [(f.kind, f.message) for f in verdict.failures]
    outcome.accepted, outcome.exact = verdict.accepted, verdict.exact
    outcome.refused = [reason(asked, error) for asked, error in verdict.refused]
    if verdict.failures:
        outcome.case = shrink(case, verdict.failures[0]) if small else case
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


def trial(seed: int) -> harness.Outcome:
    """What became of a seed; where it failed, with its case as a file of `tests/fuzz/saved`."""
    o = run_one(seed)
    if o.failures:
        kind, message = o.failures[0]
        seen = f"{kind}: {message}"[:300]
        return harness.Outcome("wrong", seen, case_text({**(o.case or {}), "seen": seen}) if o.case else "")
    return harness.Outcome("right") if o.accepted else harness.Outcome("refused", next(iter(o.refused), ""))


if __name__ == "__main__":
    # What a check rejects is a failure here.
    os.environ.setdefault("NEPTUNE_STRICT", "1")
    harness.command(trial, __doc__)
