"""All interleavings of a trace from one: what happens before what (docs/hopper_protocol.md has the proof).

One run is taken, in which copies land at once. Its steps are ordered by: each role's own order; a copy's landing behind
its issue; the end of a phase of a barrier behind all of its arrivals and landings, and behind the phase before; a wait
behind the end of the phase that let it pass. The run speaks for all if no other can leave this order:

  (1) a wait that the end of phase n lets pass comes behind the end of phase n - 1: it cannot pass two turns early;
  (2) phase n + 1 of its barrier ends behind that wait: it cannot be overtaken;
  (3) an arrival (or landing) of phase n comes behind the end of phase n - 1: it cannot be counted in an earlier one;
  (4) each phase expects as many bytes as are copied in it.

Then every run is a linear extension of the order: none is stuck unless this one is, and two accesses of one slot
overlap in some run exactly if neither ends before the other begins. What such a run must contain is what comes before
the two: that is the shortest one. A protocol that breaks (1) - (4) is refused, whether or not it does harm.

Vector clocks: Mattern, Virtual Time and Global States of Distributed Systems, 1989.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from neptune.hopper.protocol.actions import Action, Finding, Trace

Clock = list[int]
"""For each role how many of its actions, and for each barrier how many phases, have happened before."""


@dataclass
class _Phases:
    """A barrier in the run. `clock`: what came before the arrivals of this phase; `ended[n]`: before phase n's end."""

    name: str
    count: int
    clock: Clock
    pending: int = 0
    bytes: int = 0
    ended: list[Clock] = field(default_factory=list)
    passed: list[tuple[int, int, int]] = field(default_factory=list)
    """Waits: the phase that let them pass, the role, the action."""

    @property
    def done(self) -> int:
        return len(self.ended)


@dataclass(slots=True)
class _Access:
    """An access of a cell. It ends with an action of its role, or with a phase of a barrier (`barrier` ≥ 0)."""

    role: int
    begin: int
    end: int
    barrier: int
    write: bool
    clock: Clock


class Causal:
    """The run of one trace, and what it finds."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.width = len(trace.roles)
        self.findings: list[Finding] = []
        self.phases: list[Finding] = []
        zero = [0] * (self.width + len(trace.barriers))
        self.barriers = [_Phases(name, count, list(zero), count) for name, count in trace.barriers]
        self.clocks = [list(zero) for _ in trace.roles]
        self.at = [0] * self.width
        self.steps: list[tuple[int, int]] = []
        self.accesses: list[list[_Access]] = [[] for _ in trace.cells]
        self.after: list[list[Clock]] = [[] for _ in trace.roles]

    def run(self) -> list[Finding]:
        moved = True
        while moved and not self.findings:
            moved = False
            for role in range(self.width):
                while self._step(role):
                    moved = True
        if not self.findings:
            self._stuck()
        self._overtaken()
        if not self.findings:
            self._ends()
            for cell, accesses in enumerate(self.accesses):
                self._races(cell, accesses)
        # What comes of it says more than that other runs may leave the order.
        return self.findings + self.phases

    def _find(self, kind: str, role: int, position: int, text: str, clocks: Sequence[Clock] = ()) -> None:
        action = self.trace.roles[role][position]
        known = self.phases if kind == "phase" else self.findings
        known.append(Finding(kind, self.trace.names[role], action.line, text, self.shortest(clocks)))

    def shortest(self, clocks: Sequence[Clock]) -> tuple[str, ...]:
        """The steps that are before any of these, in the order of the run."""
        if not clocks:
            return ()
        least = [max(c[r] for c in clocks) for r in range(self.width)]
        return tuple(self.trace.describe(r, position) for r, position in self.steps if position < least[r])

    # The run.

    def _step(self, role: int) -> bool:
        actions, position = self.trace.roles[role], self.at[role]
        if position == len(actions) or self.findings:
            return False
        a, clock = actions[position], self.clocks[role]
        if a.kind == "wait" and not self._pass(role, position, a, clock):
            return False
        self.at[role] = clock[role] = position + 1
        self.steps.append((role, position))
        if a.kind == "arrive":
            self._arrive(role, position, a, clock)
        elif a.cells:
            self._access(role, position, a, clock)
        self.after[role].append(list(clock))
        return True

    def _pass(self, role: int, position: int, a: Action, clock: Clock) -> bool:
        b = self.barriers[a.barrier]
        if (b.done - 1) & 1 != a.number:
            return False
        if clock[self.width + a.barrier] < b.done - 1:
            text = f"waits for phase {b.done} of {b.name}, and passes already before phase {b.done - 1} has ended"
            self._find("phase", role, position, text, [clock])
        b.passed.append((b.done, role, position))
        if b.done:
            _join(clock, b.ended[-1])
        return True

    def _arrive(self, role: int, position: int, a: Action, clock: Clock) -> None:
        b = self.barriers[a.barrier]
        self._counted(role, position, a, clock)
        if a.number > b.pending:
            self._find(
                "arrivals", role, position, f"{a.number} arrivals on {b.name}, which awaits {b.pending}", [clock]
            )
        b.pending -= a.number
        b.bytes += a.bytes
        self._ended(role, position, a, clock)

    def _counted(self, role: int, position: int, a: Action, clock: Clock) -> None:
        b = self.barriers[a.barrier]
        if clock[self.width + a.barrier] < b.done:
            text = f"arrives on {b.name} in phase {b.done + 1}, and may do so before the one before has ended"
            self._find("phase", role, position, text, [clock])
        _join(b.clock, clock)

    def _ended(self, role: int, position: int, a: Action, clock: Clock) -> None:
        b = self.barriers[a.barrier]
        if b.pending:
            return
        if b.bytes < 0:
            self._find("bytes", role, position, f"{-b.bytes} bytes more are copied than {b.name} expects", [clock])
        elif not b.bytes:
            if b.ended:
                _join(b.clock, b.ended[-1])
            b.clock[self.width + a.barrier] = b.done + 1
            b.ended.append(list(b.clock))
            b.pending = b.count

    def _access(self, role: int, position: int, a: Action, clock: Clock) -> None:
        begin = list(clock)
        if a.kind == "copy":
            b = self.barriers[a.barrier]
            self._counted(role, position, a, clock)
            accesses = _Access(role, position, b.done + 1, a.barrier, True, begin)
            b.bytes -= a.bytes
            self._ended(role, position, a, clock)
        else:
            accesses = _Access(role, position, self._end(role, position, a), -1, a.kind == "store", begin)
        for cell in a.cells:
            self.accesses[cell].append(accesses)

    def _end(self, role: int, position: int, a: Action) -> int:
        """The action with which an access ends: the wait that covers it."""
        until = {"product": "finish", "send": "sent"}.get(a.kind)
        if until is None:
            return position
        behind, actions = 0, self.trace.roles[role]
        for i in range(position + 1, len(actions)):
            if actions[i].kind == a.kind:
                behind += 1
            elif actions[i].kind == until and actions[i].number <= behind:
                return i
        return len(actions)

    # What the run says of all others.

    def _stuck(self) -> None:
        stuck = [r for r in range(self.width) if self.at[r] < len(self.trace.roles[r])]
        if not stuck:
            return
        where = [(r, self.trace.roles[r][self.at[r]]) for r in stuck]
        text = "; ".join(
            f"{self.trace.names[r]}, line {a.line} waits for parity {a.number} of {self.missing(a.barrier)}"
            for r, a in where
        )
        self._find("deadlock", stuck[0], self.at[stuck[0]], text, self.clocks)

    def missing(self, barrier: int) -> str:
        b = self.barriers[barrier]
        lacks = [f"{b.pending} arrivals"] * (b.pending > 0) + [f"{b.bytes} bytes"] * (b.bytes != 0)
        return f"{b.name} ({b.done} phases complete, missing {' and '.join(lacks)})"

    def _overtaken(self) -> None:
        for b in self.barriers:
            for phase, role, position in b.passed:
                if phase < b.done and b.ended[phase][role] <= position:
                    text = f"waits for phase {phase} of {b.name}, and no longer passes if phase {phase + 1} has ended"
                    self._find("phase", role, position, text, [b.ended[phase]])

    def _ends(self) -> None:
        for b in self.barriers:
            if b.bytes:
                last = self.width - 1
                position = len(self.trace.roles[last]) - 1
                self._find("bytes", last, position, f"at the end {b.name} still expects {b.bytes} bytes", self.clocks)

    def _races(self, cell: int, accesses: list[_Access]) -> None:
        """Each access against the last write before it and, if it writes, against the reads since."""
        write: _Access | None = None
        reads: list[_Access] = []
        for y in accesses:
            if write is None and not y.write:
                self._find(
                    "uninitialised", y.role, y.begin, f"reads {self.trace.cells[cell]}, which nothing has written"
                )
            before = ([write] if write else []) + (reads if y.write else [])
            late = next((x for x in before if not self._over(x, y)), None)
            if late is not None:
                self._race(cell, late, y)
                return
            write, reads = (y, []) if y.write else (write, [*reads, y])

    def _over(self, x: _Access, y: _Access) -> bool:
        """Whether x ends before y begins, in every run."""
        return y.clock[self.width + x.barrier] >= x.end if x.barrier >= 0 else y.clock[x.role] > x.end

    def _race(self, cell: int, x: _Access, y: _Access) -> None:
        slot = self.trace.cells[cell]
        first, second = (self.trace.describe(a.role, a.begin) for a in (x, y))
        run = [x.clock, y.clock]
        if not y.write:
            self._find(
                "read before arrival", y.role, y.begin, f"reads {slot} while this may be on its way: {first}", run
            )
        elif x.write:
            self._find("two writes", y.role, y.begin, f"writes {slot} while this is: {first}", run)
        else:
            self._find("buffer in use", x.role, x.begin, f"reads {slot} while this may write to it: {second}", run)


def _join(clock: Clock, other: Clock) -> None:
    clock[:] = map(max, clock, other)


def causal(trace: Trace) -> list[Finding]:
    """The faults between roles in any interleaving; none, if all run to their ends without a race."""
    return Causal(trace).run()
