"""The actions of roles, read from the text: a straight list of actions each, for one program of the grid and given
sizes.

wait b parity       goes on when the last complete phase of barrier b has this parity
arrive b count      bytes > 0: and as many bytes are expected (`mbarrier.expect`)
copy b slot         a copy into a slot begins; when it lands, b has its bytes
product slots       a product begins to read
finish n            all products but the newest n have ended
load, store slot    a role reads or writes shared memory itself
send slot           a copy out of a slot begins
sent n              all but the newest n have read their slots
fence, sync         what a role stored is visible to copies and products; its threads have all come here
"""

from __future__ import annotations

from dataclasses import dataclass

from neptune.hopper.emulate.memory import Slot


@dataclass(slots=True)
class Action:
    """`number`: a parity, a count of arrivals, or what may stay in flight. `text`: for readers."""

    kind: str
    line: int
    barrier: int = -1
    number: int = 0
    bytes: int = 0
    slots: tuple[Slot, ...] = ()
    cells: tuple[int, ...] = ()


@dataclass(frozen=True)
class Finding:
    """A fault of a protocol: where it is, and a shortest run that shows it (one step a line)."""

    kind: str
    role: str
    line: int
    text: str
    run: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.role}, line {self.line}: {self.text}"


@dataclass
class Trace:
    """`barriers`: names and counts. `findings`: what is wrong in a role by itself."""

    names: list[str]
    roles: list[list[Action]]
    barriers: list[tuple[str, int]]
    findings: list[Finding]
    cells: list[str]

    @property
    def length(self) -> int:
        return sum(map(len, self.roles))

    def describe(self, role: int, position: int) -> str:
        """An action, for a run."""
        a = self.roles[role][position]
        what = {
            "wait": f"wait for parity {a.number} of",
            "arrive": f"expect {a.bytes} bytes on" if a.bytes else "arrive on",
            "copy": "copy to",
            "product": "product of",
            "finish": f"wait until {a.number} products are in flight",
            "sent": f"wait until {a.number} stores are in flight",
            "send": "store from",
        }.get(a.kind, a.kind)
        on = [self.barriers[a.barrier][0]] if a.kind in ("wait", "arrive") else [str(s) for s in a.slots]
        return f"{self.names[role]}, line {a.line}: {' '.join([what, ', '.join(on)]).strip()}"


def number_cells(roles: list[list[Action]]) -> list[str]:
    """Fills in `cells` of all actions: the parts of buffers that are accessed as one, by number; their names.

    A slot of few indices consists of all cells whose indices begin with its own.
    """
    used = dict.fromkeys(a.slots for role in roles for a in role)
    slots = sorted({s for together in used for s in together}, key=lambda s: (s.serial, s.index))
    depth = {s.serial: max(len(o.index) for o in slots if o.serial == s.serial) for s in slots}
    cells = [s for s in slots if len(s.index) == depth[s.serial]]
    parts = {s: tuple(i for i, c in enumerate(cells) if s.meets(c)) for s in slots}
    known = {together: tuple(dict.fromkeys(c for s in together for c in parts[s])) for together in used}
    for role in roles:
        for action in role:
            action.cells = known[action.slots]
    return [str(c) for c in cells]
