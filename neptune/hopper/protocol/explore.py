"""All interleavings of a trace, one by one: roles × landings of copies over the states of barriers, breadth first.

A state is where each role stands, each barrier's phase, arrivals and bytes, the copies in flight, and the turn that
each part of shared memory holds. Products and stores are in flight from their issue to the wait that covers them: that
follows from where their role stands.

Some neighbouring actions of a role are one step, since the states between them show nothing that those around do not:
- what only ends accesses or orders a role's own threads (`finish`, `sent`, `fence`, `sync`) goes with a following
  action that does not wait: before it more is in flight, and nobody else sees the difference;
- what begins an access that lasts (`product`, `send`, `copy` with its `expect`) goes with the action before it: who
  meets it later meets it while it lasts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from neptune.hopper.protocol.actions import Action, Finding, Trace
from neptune.hopper.protocol.local import in_flight

_ENDS = ("finish", "sent", "fence", "sync")


@dataclass(frozen=True)
class Explored:
    """The result of a visit: how many states it saw, and the first that is wrong. Not `whole`: there are more states
    than were allowed, and nothing is known."""

    states: int
    finding: Finding | None
    whole: bool = True


Barriers = tuple[tuple[int, int, int], ...]
State = tuple[tuple[int, ...], Barriers, int, tuple[int, ...]]
"""Positions; of each barrier complete phases, missing arrivals and bytes; copies in flight (bits); contents."""


@dataclass(frozen=True)
class _Wrong:
    """A fault of a role in a step."""

    kind: str
    role: int
    at: int
    text: str


class _Explorer:
    def __init__(self, trace: Trace) -> None:
        self.trace, self.roles = trace, trace.roles
        self.after = [_steps(role) for role in trace.roles]
        self.flying = [in_flight(role) for role in trace.roles]
        self.copies = [
            (r, position) for r, role in enumerate(trace.roles) for position, a in enumerate(role) if a.kind == "copy"
        ]
        self.number = {where: i for i, where in enumerate(self.copies)}
        self.seen: dict[tuple[int, int, int], int] = {}
        self.parent: dict[State, tuple[State, str] | None] = {}

    def begin(self) -> State:
        bars = tuple((0, count, 0) for _, count in self.trace.barriers)
        return (0,) * len(self.roles), bars, 0, (-1,) * len(self.trace.cells)

    def run(self, most: int) -> Explored:
        level = [self.begin()]
        self.parent[level[0]] = None
        while level:
            following = []
            for state in level:
                steps = list(self.next(state))
                wrong = next((new for _, new in steps if isinstance(new, _Wrong)), None)
                if not steps:
                    wrong = self.stuck(state)
                if wrong is not None:
                    return Explored(len(self.parent), self.finding(wrong, state))
                for step, new in steps:
                    if not isinstance(new, _Wrong) and new not in self.parent:
                        self.parent[new] = (state, step)
                        following.append(new)
            if len(self.parent) > most:
                return Explored(len(self.parent), None, whole=False)
            level = following
        return Explored(len(self.parent), None)

    def finding(self, wrong: _Wrong, state: State) -> Finding:
        steps = [] if wrong.kind == "deadlock" else [self.trace.describe(wrong.role, wrong.at)]
        above = self.parent[state]
        while above is not None:
            steps.append(above[1])
            above = self.parent[above[0]]
        line = self.roles[wrong.role][wrong.at].line
        return Finding(wrong.kind, self.trace.names[wrong.role], line, wrong.text, tuple(reversed(steps)))

    def stuck(self, state: State) -> _Wrong | None:
        """The fault where no role has a step: some are not at their end, or a barrier is not."""
        pos, bars, _, _ = state
        waiting = [r for r, p in enumerate(pos) if p < len(self.roles[r])]
        if waiting:
            waits = "; ".join(
                f"{self.trace.describe(r, pos[r])}: {bars[self.roles[r][pos[r]].barrier][0]} phases complete"
                for r in waiting
            )
            return _Wrong("deadlock", waiting[0], pos[waiting[0]], waits)
        late = [i for i, (_, _, tx) in enumerate(bars) if tx]
        if late:
            name = self.trace.barriers[late[0]][0]
            text = f"at the end {name} still expects {bars[late[0]][2]} bytes"
            return _Wrong("bytes", 0, len(self.roles[0]) - 1, text)
        return None

    def next(self, state: State) -> Iterator[tuple[str, State | _Wrong]]:
        pos, _, mask, _ = state
        for role, position in enumerate(pos):
            if position < len(self.roles[role]):
                new = self.step(state, role, position)
                if new is not None:
                    yield self.trace.describe(role, position), new
        for i, (role, position) in enumerate(self.copies):
            if mask >> i & 1:
                yield "lands: " + self.trace.describe(role, position), self.land(state, i)

    def land(self, state: State, i: int) -> State | _Wrong:
        pos, bars, mask, content = state
        role, position = self.copies[i]
        a = self.roles[role][position]
        held = list(content)
        for cell in a.cells:
            held[cell] = i
        changed = self._changed(bars, a.barrier, 0, -a.bytes, role, position)
        return changed if isinstance(changed, _Wrong) else (pos, changed, mask & ~(1 << i), tuple(held))

    def step(self, state: State, role: int, position: int) -> State | _Wrong | None:
        pos, bars, mask, content = state
        end = self.after[role][position]
        for i in range(position, end):
            a = self.roles[role][i]
            if a.kind == "wait":
                if (bars[a.barrier][0] - 1) & 1 != a.number:
                    return None
            elif a.kind == "arrive":
                changed = self._changed(bars, a.barrier, a.number, a.bytes, role, i)
                if isinstance(changed, _Wrong):
                    return changed
                bars = changed
            elif a.cells:
                wrong = self._access(pos, mask, content, role, i, a)
                if wrong is not None:
                    return wrong
                if a.kind == "copy":
                    mask |= 1 << self.number[role, i]
                elif a.kind == "store":
                    held = list(content)
                    for cell in a.cells:
                        held[cell] = len(self.copies) + i * len(self.roles) + role
                    content = tuple(held)
            pos = (*pos[:role], i + 1, *pos[role + 1 :])
        return pos, bars, mask, content

    def _changed(self, bars: Barriers, b: int, count: int, bytes: int, role: int, position: int) -> Barriers | _Wrong:
        done, pending, tx = bars[b]
        name, full = self.trace.barriers[b]
        if count > pending:
            return _Wrong("arrivals", role, position, f"{count} arrivals on {name}, which awaits {pending}")
        pending, tx = pending - count, tx + bytes
        if not pending and tx < 0:
            return _Wrong("bytes", role, position, f"{-tx} bytes more are copied than {name} expects")
        if not pending and not tx:
            done, pending = done + 1, full
        return (*bars[:b], (done, pending, tx), *bars[b + 1 :])

    def _access(
        self, pos: tuple[int, ...], mask: int, content: tuple[int, ...], role: int, position: int, a: Action
    ) -> _Wrong | None:
        for cell in a.cells:
            slot = self.trace.cells[cell]
            for i, where in enumerate(self.copies):
                if mask >> i & 1 and cell in self.roles[where[0]][where[1]].cells:
                    kind = "two writes" if a.kind in ("copy", "store") else "read before arrival"
                    return _Wrong(kind, role, position, f"{slot} while in flight: {self.trace.describe(*where)}")
            if a.kind in ("copy", "store"):
                for r, p in enumerate(pos):
                    for reader in self.flying[r][p]:
                        if cell in self.roles[r][reader].cells:
                            text = f"writes {slot} while this reads it: {self.trace.describe(r, reader)}"
                            return _Wrong("buffer in use", role, position, text)
            elif (wrong := self._content(cell, content[cell], role, position)) is not None:
                return wrong
        return None

    def _content(self, cell: int, held: int, role: int, position: int) -> _Wrong | None:
        slot = self.trace.cells[cell]
        if held < 0:
            return _Wrong("uninitialised", role, position, f"reads {slot}, which nothing has written")
        if self.seen.setdefault((role, position, cell), held) != held:
            return _Wrong("wrong turn", role, position, f"reads {slot}, which holds one turn or another")
        return None


def _steps(role: list[Action]) -> list[int]:
    """For each action the end of the step that begins with it."""
    ends, count = [], len(role)
    for begin in range(count):
        end = begin
        while end < count and role[end].kind in _ENDS:
            end += 1
        if end > begin and (end == count or role[end].kind == "wait"):
            ends.append(end)
            continue
        end += 1
        while end < count and (role[end].kind in ("product", "send", "copy") or _expects(role, end)):
            end += 1
        ends.append(end)
    return ends


def _expects(role: list[Action], position: int) -> bool:
    """Whether this is the `expect` of the copy behind it, and so ends no phase."""
    a, more = role[position], role[position + 1 : position + 2]
    return bool(a.bytes and a.kind == "arrive" and more and more[0].kind == "copy" and more[0].barrier == a.barrier)


def explore(trace: Trace, most: int = 1_000_000) -> Explored:
    """Visits all states, at most `most`; stops at the first that is wrong, by a shortest run."""
    return _Explorer(trace).run(most)
