"""The examples of graphs run, and their results are right."""

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
SAME = ("gated_mlp", "n_trans")
"""Those of which a template makes the same kernel."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gqa", "qk_norm", "rms_norm", "lora", "gated_mlp", "n_trans"])
def test_an_example(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Searched anew, and to the end."""
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path))
    assert runpy.run_path(str(FOLDER / f"graph_{name}.py"))["main"]() < 2e-3
    said = capsys.readouterr().out
    found = "none that is predicted to be faster than the template" if name in SAME else "found by search"
    assert f"graph: {found}" in said and "; everything within max_block_ops=" in said
