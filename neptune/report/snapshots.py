"""The way of a compilation: what each step of the schedule and each pass left behind, and why it stands there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neptune.fusion.schedule import Schedule
from neptune.ir.program import Program
from neptune.schedule.state import Decision
from neptune.tile.ir import TileProgram
from neptune.verify.exact import ExactReport

if TYPE_CHECKING:
    from typing import TypeAlias

    Made: TypeAlias = Program | TileProgram | ExactReport | str


@dataclass(frozen=True)
class Snapshot:
    """The result of one pass. `name` serves in file names, `title` is the whole call; `decisions` are those that
    the pass made."""

    name: str
    title: str
    why: str
    made: Made
    decisions: tuple[Decision, ...] = ()

    @property
    def text(self) -> str:
        """The form as text: IR, Triton source, or what a check says."""
        form = self.made
        return report_text(form) if isinstance(form, ExactReport) else str(form)


def report_text(r: ExactReport) -> str:
    """An exact check in a few lines."""
    lines = [f"{r.verdict} by the {r.model}: {r.draws} draws, {r.compared} elements; {r.bound}"]
    lines += [f"seeds {', '.join(map(str, r.seeds))}", *r.notes]
    return "\n".join([*lines, *([str(r.counterexample)] if r.counterexample else [])]) + "\n"


def schedule_forms(sch: Schedule) -> Iterator[Snapshot]:
    """One form per primitive that the template called, with the first sentence of its documentation as the reason."""
    decisions = list(sch.decisions)
    for step in sch.trace:
        if step.program is None or step.primitive == "param":
            continue
        # A primitive notes at most one decision, of its own kind.
        made_here = (decisions.pop(0),) if decisions and decisions[0].kind == step.primitive else ()
        what = next((str(a) for a in step.args if isinstance(a, str)), None)
        name = "-".join(filter(None, ("schedule", step.primitive, what)))
        doc = (getattr(type(sch), step.primitive).__doc__ or "").strip().split("\n\n")[0]
        yield Snapshot(name, str(step), " ".join(doc.split()), step.program, made_here)
