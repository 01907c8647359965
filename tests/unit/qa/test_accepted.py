"""The table of operators with an asynchronous form, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from qa.accepted import main


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
