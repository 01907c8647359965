"""What is repaired, how, and why that is right: the paper's examples, other chains, and what is refused.

    python -m qa.repairs [--programs] [name …]

For every fused reduction: g, the h that is rolled, what waits for the end of the loop, each obligation with how it
was proved, and the h of Theorem 4.3 (all of r rolled, nothing deferred) with its equations 4 and 5. Then the message
of every refusal; each leaves the schedule as it was. `--programs` prints the fused programs, too; names (parts of
titles) select sections. Nothing is compiled: 1 if something was taken or refused that should not be.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator

from neptune import Program, Schedule
from neptune.fusion.inverse import inverse
from neptune.fusion.plan import plan
from neptune.fusion.roles import Query
from neptune.ops.attention import prefill_causal
from neptune.ops.softmax import figure1
from neptune.schedule.state import Decision, Loop
from neptune.templates.flash_attention import flash_attention
from neptune.templates.softmax_online import softmax_online
from qa.repair_programs import PROGRAMS, REFUSED, refusal

Template = Callable[[Schedule], None]


class Recorded(Schedule):
    """A schedule that keeps what was asked of the solver."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.queries: dict[str, Query] = {}

    def rolling_update(self, stage: str, loop: Loop) -> None:
        """The primitive; the question it puts to the solver is kept."""
        self.queries[stage] = plan(self._state, stage, loop).query
        super().rolling_update(stage, loop)


def figure_1(sch: Schedule) -> None:
    """The paper's Figure 1 and 10: the sum under the loop of the maximum."""
    sch.rolling_update("xsum", sch.loops("xmax")[1])


EXAMPLES: dict[str, tuple[Callable[[], Program], Template]] = {
    "Figure 1": (figure1, figure_1),
    "attention (Figures 8 and 9)": (lambda: prefill_causal(batch=1, heads=1, depth=16), flash_attention),
    **{name: (chain.program, softmax_online) for name, chain in PROGRAMS.items()},
}


def lines(decision: Decision) -> Iterator[str]:
    """One fused reduction."""
    yield f"  {decision.subject}: {decision.verdict}; {decision.reason}"
    yield from (f"    {detail}" for detail in decision.details)


def theorem(query: Query) -> Iterator[str]:
    """The h of Theorem 4.3 with its two equations."""
    found = inverse(query)
    if found is not None:
        yield f"    Theorem 4.3: {found.h}"
        for number, record in ((4, found.update), (5, found.commute)):
            how = "not proved" if record is None else f"{record.statement}  [{record.how}]"
            yield f"      eq. {number}: {how}"


def example(name: str, programs: bool) -> Iterator[str]:
    """Every repair of one program."""
    make, template = EXAMPLES[name]
    sch = Recorded(make())
    template(sch)
    yield f"== {name}"
    for decision in sch.decisions:
        if decision.kind == "rolling_update":
            yield from lines(decision)
            yield from theorem(sch.queries[decision.subject])
    if programs:
        yield str(sch.program)


def main(argv: list[str] | None = None) -> int:
    """Print the sections that `argv` asks for."""
    parser = argparse.ArgumentParser(prog="python -m qa.repairs", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of the titles of sections")
    parser.add_argument("--programs", action="store_true", help="print the fused programs")
    options = parser.parse_args(argv)

    def wanted(title: str) -> bool:
        return not options.names or any(n.lower() in title.lower() for n in options.names)

    failed = False
    for name in filter(wanted, EXAMPLES):
        print("\n".join(example(name, options.programs)), end="\n\n")
    for name in (n for n in REFUSED if wanted(f"refused: {n}")):
        message = refusal(name)
        failed |= REFUSED[name][1] not in message
        print(f"== refused: {name}\n{message}\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
