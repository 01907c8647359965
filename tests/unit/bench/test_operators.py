"""bench.operators: every shipped operator has a reference, a row, and errors that can fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import neptune
from bench import operators
from bench.operator_references import REFERENCES
from bench.operator_tables import page
from neptune.ops.shipped import OPERATORS
from tests.unit.ops.checks import meaning


def test_every_operator_has_a_reference() -> None:
    assert REFERENCES.keys() == OPERATORS.keys()


@pytest.mark.parametrize("name", OPERATORS)
def test_the_reference_is_what_the_expression_says(name: str) -> None:
    """In float64: two ways to say it, of which one is plain torch."""
    shipped, reference = OPERATORS[name], REFERENCES[name]
    dtype = "float8_e4m3fn" if shipped.family == "float8" else "float32"
    program = shipped(dtype=dtype, **reference.options)
    given = [operators.wide(x) for x in operators.inputs_of(program, reference, "random")]
    said = [torch.from_numpy(x) for x in meaning(program, *(x.numpy() for x in given))]
    pairs = zip(reference.settled(given, said), reference.settled(given, reference.results(*given)), strict=True)
    assert all((ours - exact).norm() <= 1e-6 * exact.norm() for ours, exact in pairs)


def test_a_row(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    said = ["--only", "variance", "--dtypes", "float16", "--json", str(file)]
    assert operators.main(said) == 0
    (row,) = json.loads(file.read_text())["rows"]
    assert row["facts"]["kernels"] == ["variance_kernel"] and row["facts"]["traversals"] == {"x": 1.0}
    assert 0 < row["errors"]["float16"]["ours"] < 1e-3 and row["errors"]["float16"]["of limit"] <= 1
    assert row["lines"] > 5
    text = page([row], {"python": "3", "torch": "2"})
    assert "| variance |" in text and "| variance | float16 |" in text


def test_a_wrong_kernel_is_above_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variance over n - 1, where the expression says n."""
    wrong = neptune.compile(OPERATORS["variance"](dtype="float16", correction=1), target="llvm")
    monkeypatch.setattr(operators.neptune, "compile", lambda program, target: wrong)
    assert operators.errors(OPERATORS["variance"], "float16", ["llvm"])["of limit"] > 1
