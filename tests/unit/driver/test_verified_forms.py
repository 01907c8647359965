"""Every form of a compilation is verified where that is asked for, and the log says which step made a bad one."""

from __future__ import annotations

from dataclasses import replace

import pytest

import neptune
from neptune.driver import passes
from neptune.errors import InternalError
from neptune.ir.program import Program
from neptune.ops.softmax import softmax
from neptune.tile import pipeline as tile_passes
from neptune.tile.ir import TileKernel


@pytest.fixture
def verified(monkeypatch) -> list[object]:
    """What is verified after `import`."""
    seen: list[object] = []

    def note(check):
        return lambda made, **how: (seen.append(made), check(made, **how))[1]

    monkeypatch.setattr(passes, "verify", note(passes.verify))
    monkeypatch.setattr(passes, "verify_tiles", note(passes.verify_tiles))
    return seen


@pytest.mark.parametrize(("level", "strict", "every"), [("1", "", False), ("2", "", True), ("1", "1", True)])
def test_every_form_is_verified_where_it_is_asked_for(verified, monkeypatch, level, strict, every):
    monkeypatch.setenv("NEPTUNE_VERIFY", level)
    monkeypatch.setenv("NEPTUNE_STRICT", strict)
    monkeypatch.setattr(passes, "check", lambda *_, **__: passes.unchecked("not asked for here"))
    kernel = neptune.compile(softmax(), "softmax_row", target="interpret")
    forms = [f.made for f in kernel.build.trail if f.name.startswith(("schedule", "tile-"))]
    missing = [f for f in forms if not any(f is v for v in verified)]
    assert (not missing) == every
    # The last ones always are.
    assert any(kernel.build.tiles is v for v in verified) and sum(isinstance(v, Program) for v in verified) >= 3


def test_the_log_names_the_pass_that_spoils_a_kernel(monkeypatch, caplog):
    def spoil(kernel: TileKernel) -> TileKernel:
        return replace(kernel, body=())

    passes = tuple(replace(p, run=spoil) if p.name == "narrow" else p for p in tile_passes.PASSES)
    monkeypatch.setattr(tile_passes, "PASSES", passes)
    with pytest.raises(InternalError, match="never written"):
        neptune.compile(softmax(), "softmax_row", target="interpret")
    assert "not well-formed after tile pass narrow" in caplog.text
