"""The programs of `qa.repair_programs`: the paper's examples with their proofs, and every refusal with its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from neptune import Program, Schedule
from neptune.fusion.repairs.roles import Query
from neptune.fusion.repairs.theorem import inverse
from neptune.fusion.rewriting.plan import plan
from neptune.ops.attention import prefill_causal
from neptune.ops.softmax import figure1
from neptune.schedule.state import Loop
from neptune.templates.flash_attention import flash_attention
from neptune.templates.softmax_online import softmax_online
from qa.repair_programs import PROGRAMS, REFUSED, refusal
from tests.tiers import sampled


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


EXAMPLES: dict[str, tuple[Callable[[], Program], Callable[[Schedule], None]]] = {
    "Figure 1": (figure1, figure_1),
    "attention (Figures 8 and 9)": (lambda: prefill_causal(batch=1, heads=1, depth=16), flash_attention),
    **{name: (PROGRAMS[name].program, softmax_online) for name in ("Performers", "powers")},
}


def scheduled(name: str) -> Recorded:
    make, template = EXAMPLES[name]
    sch = Recorded(make())
    template(sch)
    return sch


def shown(sch: Recorded) -> Iterator[str]:
    """Each repair, and the h of Theorem 4.3 (all of r rolled, nothing deferred) with its equations 4 and 5."""
    for d in (d for d in sch.decisions if d.kind == "rolling_update"):
        yield from d.details
        found = inverse(sch.queries[d.subject])
        if found is not None:
            assert found.update is not None and found.commute is not None, "equations 4 and 5 are proved"
            yield f"Theorem 4.3: {found.h}"


@pytest.mark.slow
def test_the_papers_examples_and_their_proofs() -> None:
    text = "\n".join(line for name in EXAMPLES for line in shown(scheduled(name)))
    for line in (
        "g = 0.5*exp(c1 - r1 - c2)/r2",
        "Theorem 4.3: h = r2*t*exp(r1 - r1')/r2'",
        "deferred: mul 1.0 / l[i], applied once behind the loop",
        "Theorem 4.3: h = t**(r/r')",  # r = 1/Σ|x|
        "proved update: h(g(r, c), r, r') = g(r', c)",
        "proved commute: h(x + y, r, r') = h(x, r, r') + h(y, r, r')",
    ):
        assert line in text


def test_a_repair_is_a_stage_of_the_fused_program() -> None:
    assert "xsum_repair: xsum[i] = xsum[i] * xmax_rescale[i]" in str(scheduled("Figure 1").program)


@pytest.mark.parametrize("name", sampled(REFUSED, 5))
def test_refusals_leave_the_schedule_as_it_was(name: str) -> None:
    message = refusal(name)
    assert REFUSED[name][1] in message and len(message.splitlines()) <= 20
