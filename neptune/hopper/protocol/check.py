"""The check of a Gluon kernel's protocol that a compilation makes: quick, and for all interleavings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from neptune.errors import Unsupported
from neptune.hopper.emulate.roles import ProtocolError
from neptune.hopper.emulate.text import steps
from neptune.hopper.protocol import Finding, causal, explore, traces


@dataclass(frozen=True)
class Report:
    """`programs`: how many were checked; `actions`: what their roles do, together; `states`: those visited one by one,
    where that was asked for; `unreached`: lines of the text on which a role takes a step, in none of the programs.
    A kernel with findings does not run."""

    programs: int
    actions: int
    seconds: float
    findings: tuple[Finding, ...]
    states: int = 0
    unreached: tuple[int, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.findings

    @property
    def unread(self) -> str | None:
        """Why what the roles do is not known before they run."""
        return next((f.text for f in self.findings if f.kind == "not read"), None)

    def __str__(self) -> str:
        visited = f", {self.states} states" if self.states else ""
        counts = f"{self.programs} programs, {self.actions} actions{visited}, {self.seconds:.2f} s"
        return "\n".join([f"protocol: {'in step' if self.ok else 'refused'} ({counts})", *map(str, self.findings)])


@dataclass(frozen=True)
class Trial:
    """A launch to be checked: `call` gets the names of the module and launches a kernel, or calls a launch function.

    That sees a GPU of so many `processors`. `most`: of a larger grid so many programs are checked, evenly. `spare`:
    only where a line is not reached yet. `only`: of several kernels the one that is looked at, by its function's name.
    """

    call: Callable[[dict[str, Any]], object]
    processors: int = 2
    most: int | None = None
    spare: bool = False
    only: str = ""


def check(source: str, trials: Iterable[Trial], *, most_states: int = 0) -> Report:
    """Whether the roles of all kernels of a module keep in step, whatever their interleaving; stops at what is wrong.

        check(text, [Trial(lambda m: m["causal"](q, k, v, o))])      tensors of torch on CPU; only their sizes matter
        check(text, [Trial(lambda m: m["kernel"][(2,)](*args))])     arguments as for `neptune.hopper.emulate.run`
        check(text, trials(program, kernel))                         of a generated module (`protocol.trials`)

    Nothing is computed or written. Small launches suffice, if they have loops of 0, 1, … 2 · stages + 1 iterations and
    several tiles to a program (docs/hopper_protocol.md, "Why a few iterations suffice").
    `most_states`: the programs that have no more states are also explored one by one, seconds for what else takes
    milliseconds.
    """
    begun, programs, actions, states = time.perf_counter(), 0, 0, 0
    findings: list[Finding] = []
    unreached: set[int] | None = None
    for trial in trials:
        if unreached is None:
            unreached = set(steps(source, trial.only))
        if trial.spare and not unreached:
            continue
        try:
            launched = traces(source, trial.call, trial.processors, trial.most, trial.only)
        except (ProtocolError, Unsupported, LookupError, NameError) as error:
            findings, launched = [Finding("not read", "text", 0, str(error))], []
        for trace in launched:
            programs, actions = programs + 1, actions + trace.length
            unreached -= {a.line for role in trace.roles for a in role}
            findings = [*trace.findings, *causal(trace)]
            if most_states and not findings:
                visited = explore(trace, most_states)
                states += visited.states if visited.whole else 0
                findings = [visited.finding] if visited.finding else []
            if findings:
                break
        if findings:
            break
    seconds = time.perf_counter() - begun
    return Report(programs, actions, seconds, tuple(findings), states, tuple(sorted(unreached or ())))


def together(reports: Sequence[Report]) -> Report:
    """The reports on several kernels of a module as one."""
    return Report(
        sum(r.programs for r in reports),
        sum(r.actions for r in reports),
        sum(r.seconds for r in reports),
        tuple(f for r in reports for f in r.findings),
        sum(r.states for r in reports),
        tuple(line for r in reports for line in r.unreached),
    )
