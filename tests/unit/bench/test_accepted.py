"""The table of operators with an asynchronous form, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.accepted import main


def test_a_form_that_is_accepted_and_one_that_there_is_not(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["matmul", "gaussian mixture", "--json", str(tmp_path / "rows.json")])
    accepted, refused = capsys.readouterr().out.splitlines()
    assert accepted.startswith("matmul ") and accepted.endswith("accepted but for numbers")
    assert refused.startswith("gaussian mixture ") and "no form: " in refused
    assert '"spill_bytes": 0' in (tmp_path / "rows.json").read_text()


def test_an_operator_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["softmax"])
    assert "no operator 'softmax'" in capsys.readouterr().err


def test_what_the_form_adds_is_told_step_by_step(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["matmul", "--time", "--json", str(tmp_path / "rows.json")])
    said = capsys.readouterr().out
    assert "s added: walk 0." in said and "protocol 0." in said
    steps = json.loads((tmp_path / "rows.json").read_text())["matmul"]["steps"]
    assert all(seconds > 0 for seconds in steps.values()), "each step is made"
