"""qa.gpu_check without a GPU: what it refuses, what it runs in the interpreter, and what it catches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bench.cases import TEMPLATES, Case
from qa import gpu_check

CAUSAL = Case("prefill_causal", "flash_attention", "float16", depth=16, lse=True)
SMALLEST = replace(gpu_check.SMALL, cases=(CAUSAL, Case("softmax", "softmax_row")), sizes=((3, 2),))


@pytest.mark.parametrize("argv", [[], ["--target", "cuda"]])
def test_without_a_gpu_it_says_so(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main(argv) == 2
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and "no such GPU" in said


@pytest.mark.slow
def test_it_runs_in_the_interpreter(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu_check, "SMALL", SMALLEST)
    assert gpu_check.main(["--target", "interpret"]) == 0
    assert "6 checks on interpret, 0 failed" in capsys.readouterr().out
    checks = list(gpu_check.results("interpret", SMALLEST))
    assert [c.view for c in checks] == [*gpu_check.VIEWS] * 2
    assert {"o, random", "o, x30", "lse, needle 0"} <= {s["of"] for s in checks[0].samples}


def test_a_kernel_without_its_mask_fails() -> None:
    unmasked = gpu_check.compiled(replace(CAUSAL, operator="prefill_global"), "interpret", gpu_check.SMALL_TILES)
    found = gpu_check.check(CAUSAL, unmasked, (3, 2), "dense", 1)
    assert not found.passes and found.of_limit > 1
    assert any("not exactly zero" in p for p in found.problems)
    assert "FAIL" in gpu_check.line(found)


def test_poison_lies_around_every_view() -> None:
    t = torch.arange(12.0).reshape(3, 4)
    for view in gpu_check.VIEWS:
        placed = gpu_check.placed(t, view, "cpu")
        assert torch.equal(placed.view, t) and placed.intact()
        placed.memory[-1] = 0
        assert not placed.intact()
    assert gpu_check.placed(t, "unaligned", "cpu").view.data_ptr() % 16 == 4
    assert gpu_check.placed(t, "dense", "cpu", empty=True).view.isnan().all()


def test_plans_cover_what_is_shipped() -> None:
    for plan in (gpu_check.FULL, gpu_check.SMALL):
        covered = {(c.operator, c.template) for c in plan.cases}
        assert {op for op, _ in covered} == set(TEMPLATES)
        assert {template for _, template in covered} == {t for templates in TEMPLATES.values() for t in templates}
        assert any(queries > length for queries, length in plan.sizes)  # rows without keys
