"""Golden files: expected text under tests/golden, rewritten when NEPTUNE_UPDATE_GOLDENS=1."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"


def check_golden(name: str, text: str, folder: Path = FOLDER) -> None:
    """Compare `text` with the golden file `name`; pytest shows the difference."""
    path = folder / name
    if os.environ.get("NEPTUNE_UPDATE_GOLDENS") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.exists(), f"no golden file {name}: run with NEPTUNE_UPDATE_GOLDENS=1 and read what it wrote"
    assert text == path.read_text(), f"{name} changed: if so intended, run with NEPTUNE_UPDATE_GOLDENS=1"
