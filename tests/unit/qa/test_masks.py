"""The tiles that every mask visits and does not check are those of brute force; and the count would notice others."""

from __future__ import annotations

import dataclasses

import pytest

from neptune.ir.expr import Expr, binary
from neptune.ir.program import Stage, Stmt, Store, stages, sub_stmts, with_stmts
from qa import masks as counting
from tests.tiers import sampled

CASES = counting.cases()
SMALL = (1, 2, 3, 5, 8, 13, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65)
LARGE = ((257, 257, 64, 32), (509, 509, 32, 128), (1021, 340, 128, 64), (211, 1024, 16, 16), (1, 1999, 16, 64))


@pytest.mark.parametrize("name", sampled(CASES, 7))
def test_tiles(name: str) -> None:
    shapes = [(q, n, bm, bn) for q, n in counting.instances(SMALL) for bm, bn in ((16, 16), (32, 16), (16, 64))]
    counts = [counting.count(CASES[name], *shape) for shape in (*shapes, *LARGE)]
    assert not [c for c in counts if c.faults]
    assert sum(c.visited for c in counts) >= sum(c.needed for c in counts) > 0


@pytest.mark.parametrize("name", sampled(CASES, 7))
def test_tiles_of_parts(name: str) -> None:
    """Split or not, the same tiles: a part in which nothing is seen visits none, and none is visited by two."""
    shapes = ((1, 17), (1, 333), (20, 70))
    counts = [counting.count(CASES[name], q, n, 16, 16, parts=p) for q, n in shapes for p in (1, 3, 30)]
    assert not [c for c in counts if c.faults]
    assert sum(c.visited for c in counts) >= sum(c.needed for c in counts) > 0


def test_a_windowed_prefill_visits_only_the_tiles_of_its_window() -> None:
    """The number of visited tiles is that of a band: it grows with the length, not with its square."""
    (short, long) = (counting.count(CASES["window 100"], n, n, 64, 64) for n in (1024, 2048))
    assert short.visited == short.needed and long.visited == long.needed
    assert long.visited <= 2.1 * short.visited and long.visited < 0.1 * long.tiles


def test_two_sets_that_lie_apart_are_two_loops() -> None:
    """A few tokens at the start and a window: what lies between is visited by none."""
    c = counting.count(CASES["sink or window"], 2048, 2048, 64, 64)
    assert c.visited == c.needed <= counting.BATCH * 32 * 4


@pytest.mark.slow
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize(
    ("name", "parts"),
    [
        *((n, 0) for n in ("causal", "window 100", "sink or window", "chunked 48", "lengths and causal", "segments")),
        ("lengths", 3),
    ],
)
def test_a_wrong_bound_is_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str, parts: int, side: int, change: int
) -> None:
    """Every bound of every piece moved by one tile."""
    own = counting.pieces(name, parts > 0)
    for k in range(len(own.clean)):
        body = _moved(own.program.body, 2 * k + side, change)
        monkeypatch.setattr(
            counting, "pieces", lambda *_, body=body: dataclasses.replace(own, program=own.program.with_body(body))
        )
        faults = [counting.count(CASES[name], 300, 300, bm, bn, parts=parts).faults for bm, bn in ((16, 16), (64, 32))]
        assert any(faults), k


def _moved(s: Stmt, k: int, change: int) -> Stmt:
    if isinstance(s, Stage) and isinstance(s.action, Store) and s.name == f"bound_{k}_init":
        value: Expr = binary("add", s.action.value, change)
        return dataclasses.replace(s, action=dataclasses.replace(s.action, value=value))
    return with_stmts(s, tuple(_moved(p, k, change) for p in sub_stmts(s)))


def test_the_bounds_are_those_of_the_schedule() -> None:
    """What is counted is what the scheduled program runs: its pieces, with the stages that their bounds read."""
    own = counting.pieces("segments")
    names = {s.name for s in stages(own.program.body)}
    assert {"start_min", "start_max", "end_min", "end_max"} <= names
    assert own.clean == (False, True, False)
