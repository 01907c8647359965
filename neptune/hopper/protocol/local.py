"""Rules of one role by itself: shared memory that it stores to, and what reads that behind its back.

Copies, products and stores of the TMA unit go by another path to shared memory than loads and stores of threads (the
"async proxy" of PTX): between the two there is a fence. A role has many threads, one of which sends: between what all
of them store and the send, and between the wait for a send and the next store, they meet. (`mbarrier.arrive` is such
a meeting: the compiler lets all threads come there before one arrives.)
"""

from __future__ import annotations

from collections.abc import Iterator

from neptune.hopper.protocol.actions import Action, Finding, Trace

_BEHIND = ("copy", "product", "send")


def rules(trace: Trace) -> Iterator[Finding]:
    """The faults of each role by itself, such as those of its stores."""
    behind = {c for role in trace.roles for a in role if a.kind in _BEHIND for c in a.cells}
    guards = _guards(trace.roles)
    for number, (name, role) in enumerate(zip(trace.names, trace.roles, strict=True)):
        yield from _stores(name, role, behind)
        yield from _releases(trace, number, guards)
        yield from _turns(trace, number, guards)


def _guards(roles: list[list[Action]]) -> dict[int, set[int]]:
    """For each barrier the cells that it says are free: those copied to next after a wait for it and for no other one.

    Where a role waits for several barriers before it copies, the text does not say which is for which.
    """
    guards: dict[int, set[int]] = {}
    for role in roles:
        waits: list[int] = []
        copied = False
        for a in role:
            if a.kind == "wait":
                waits = [*([] if copied else waits), a.barrier]
                copied = False
            elif a.kind == "copy":
                copied = True
                if len(waits) == 1:
                    guards.setdefault(waits[0], set()).update(a.cells)
    return guards


def _releases(trace: Trace, number: int, guards: dict[int, set[int]]) -> Iterator[Finding]:
    """Arrivals that say of a slot that it is free while a product or a send of the same role is reading it.

    What the other role waits for besides may save such a kernel; nothing in its text says so, and it is refused.
    """
    role = trace.roles[number]
    for position, flying in enumerate(in_flight(role)):
        a = role[position] if position < len(role) else None
        if a is None or a.kind != "arrive" or a.barrier not in guards:
            continue
        for reader in flying:
            if guards[a.barrier] & set(role[reader].cells):
                text = (
                    f"arrives on {trace.barriers[a.barrier][0]} before this has read: {trace.describe(number, reader)}"
                )
                yield Finding("early release", trace.names[number], a.line, text)


def _turns(trace: Trace, number: int, guards: dict[int, set[int]]) -> Iterator[Finding]:
    """The slots that a role touches without holding them: from the wait for its arrival to the release of it, it does.

    Between a release and the next wait a slot may hold this turn or another one, whatever other waits make of that.
    """
    fulls: dict[int, set[int]] = {}
    for role in trace.roles:
        for a in role:
            if a.kind == "copy":
                fulls.setdefault(a.barrier, set()).update(a.cells)
    rings = set[int]().union(*guards.values()) & set[int]().union(*fulls.values())
    held: set[int] = set()
    for a in trace.roles[number]:
        if a.kind == "wait":
            held |= fulls.get(a.barrier, set())
        elif a.kind == "arrive":
            held -= guards.get(a.barrier, set())
        elif a.kind != "copy":
            late = [c for c in a.cells if c in rings - held]
            if late:
                text = f"{a.kind} of {trace.cells[late[0]]}, which it has not waited for since it released it"
                yield Finding("wrong turn", trace.names[number], a.line, text)


def in_flight(role: list[Action]) -> list[tuple[int, ...]]:
    """For each position of a role (0 … number of actions) the reads that are in flight there."""
    flying: list[tuple[int, ...]] = [()]
    reads: dict[str, list[int]] = {"product": [], "send": []}
    until = {"finish": "product", "sent": "send"}
    for position, a in enumerate(role):
        if a.kind in reads:
            reads[a.kind].append(position)
        elif a.kind in until:
            known = reads[until[a.kind]]
            del known[: max(len(known) - a.number, 0)]
        flying.append((*reads["product"], *reads["send"]))
    return flying


def _stores(name: str, role: list[Action], behind: set[int]) -> Iterator[Finding]:
    """A store, then a fence of each thread, then the meeting of threads, then what goes behind their backs."""
    stored: dict[int, int] = {}  # cells by the line of the store: not fenced
    fenced: dict[int, int] = {}  # fenced, and the threads have not met since
    multiplied: set[int] = set()  # what products have read, of which each thread knows its own part
    flying: list[Action] = []
    sending: list[Action] = []
    read: set[int] = set()  # sends that only one thread knows to have been read
    for a in role:
        if a.kind == "store":
            stored |= dict.fromkeys(a.cells, a.line)
            for cells, what in ((read, "send"), (multiplied, "product")):
                if cells & set(a.cells):
                    slots = ", ".join(map(str, a.slots))
                    text = f"no thread_barrier between the wait for the last {what} of {slots} and this store to it"
                    yield Finding("threads", name, a.line, text)
        elif a.kind == "fence":
            fenced, stored = fenced | stored, {}
        elif a.kind in ("sync", "arrive"):
            fenced, read, multiplied = {}, set(), {c for p in flying for c in p.cells}
        if a.kind in _BEHIND or a.kind == "arrive":
            seen = behind if a.kind == "arrive" else set(a.cells)
            for kind, written, lacks in (
                ("fence", stored, "fence_async_shared"),
                ("threads", fenced, "thread_barrier"),
            ):
                if late := [line for cell, line in written.items() if cell in seen]:
                    yield Finding(kind, name, a.line, f"no {lacks} since the store of line {late[0]}")
        if a.kind == "product":
            flying.append(a)
            multiplied |= set(a.cells)
        elif a.kind == "finish":
            flying = flying[max(len(flying) - a.number, 0) :]
        elif a.kind == "send":
            sending.append(a)
        elif a.kind == "sent":
            done, sending = sending[: max(len(sending) - a.number, 0)], sending[max(len(sending) - a.number, 0) :]
            read |= {c for s in done for c in s.cells}
