"""`python -m qa.repairs`: every example with its proofs, every refusal with its reason."""

from __future__ import annotations

import pytest

from qa import repairs
from qa.repair_programs import REFUSED, refusal
from tests.tiers import sampled


@pytest.mark.slow
def test_the_papers_examples_and_their_proofs(capsys: pytest.CaptureFixture[str]) -> None:
    assert repairs.main(["figure", "performers", "powers"]) == 0
    text = capsys.readouterr().out
    for line in (
        "g = 0.5*exp(c1 - r1 - c2)/r2",
        "Theorem 4.3: h = r2*t*exp(r1 - r1')/r2'",
        "deferred: mul 1.0 / l[i], applied once behind the loop",
        "Theorem 4.3: h = t**(r/r')",  # r = 1/Σ|x|
        "proved update: h(g(r, c), r, r') = g(r', c)",
        "proved commute: h(x + y, r, r') = h(x, r, r') + h(y, r, r')",
    ):
        assert line in text
    assert "eq. 4: not proved" not in text and "eq. 5: not proved" not in text and "== refused" not in text


def test_the_fused_programs_can_be_seen(capsys: pytest.CaptureFixture[str]) -> None:
    assert repairs.main(["--programs", "Figure 1"]) == 0
    assert "xsum_repair: xsum[i] = xsum[i] * xmax_rescale[i]" in capsys.readouterr().out


@pytest.mark.parametrize("name", sampled(REFUSED, 5))
def test_refusals_leave_the_schedule_as_it_was(name: str) -> None:
    message = refusal(name)
    assert REFUSED[name][1] in message and len(message.splitlines()) <= 20


def test_a_refusal_that_is_missing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(repairs.REFUSED, "Σ sin(r c)", (repairs.REFUSED["Σ sin(r c)"][0], "another reason"))
    assert repairs.main(["sin(r c)"]) == 1
