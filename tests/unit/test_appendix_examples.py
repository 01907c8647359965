"""The paper's figures as runnable files: each prints what its golden file holds."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.goldens import check_golden

FOLDER = Path(__file__).parents[2] / "appendix_examples"
NAMES = sorted(p.stem for p in FOLDER.glob("*.py"))


def test_every_figure_is_here() -> None:
    assert {"figure_1", "figures_4_14", "figures_8_9", "figures_10_11", "performers"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_it_prints_what_it_did(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    importlib.import_module(f"appendix_examples.{name}").main()
    check_golden(f"appendix_examples/{name}.txt", capsys.readouterr().out)


def test_naive_fusion_is_wrong_and_the_repair_is_not() -> None:
    from appendix_examples import figure_1

    wanted = "[1.553002 1.074841]"
    assert figure_1.result(figure_1.naive().program) != wanted
    assert figure_1.result(figure_1.repaired().program) == wanted


def test_the_inputs_of_attention_are_shorter_than_the_papers() -> None:
    from appendix_examples import figures_8_9

    assert figures_8_9.lines(figures_8_9.general_attention) < 38
    assert figures_8_9.lines(figures_8_9.schedule_attention) < 28
