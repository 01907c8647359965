"""Large programs are checked in pieces, and as a whole where a piece differs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from neptune.fusion.schedule import Schedule
from neptune.ir.program import Program, stages
from neptune.ir.text.parser import parse_program
from neptune.schedule.stagewise import tile_stage
from neptune.templates.stagewise import TILES
from neptune.tile.ir import TileProgram
from neptune.tile.pipeline import lowering
from neptune.verify.draws import Shared
from neptune.verify.exact import check_exact
from neptune.verify.pieces import LARGE, check, pieces

LAST = LARGE + 1
SQUARE = "inp[i] * inp[i]"


def chain(nests: Sequence[tuple[str, str]]) -> Program:
    """Maps of one row, each (its buffer, its value)."""
    made = list(dict.fromkeys(name for name, _ in nests))
    head = ["program chain", "  in inp: f32[n]", f"  out t{LAST}: f32[n]"]
    head += [f"  temp {name}: f32[n]" for name in made if name != f"t{LAST}"]
    body = [f"  for i in [0, n):\n    s{k}: {name}[i] = {value}" for k, (name, value) in enumerate(nests)]
    return parse_program("\n".join([*head, "  scalar n: i32 lo 1", "body:", *body, ""]))


def powers(step: int) -> list[tuple[str, str]]:
    """The powers of x up to LAST + 1, or of them every so many: t(k) = x · t(k - 1), or x · x · t(k - 2)."""
    first = LAST % step
    by = " * ".join(["inp[i]"] * step)
    start = (f"t{first}", " * ".join(["inp[i]"] * (first + 1)))
    return [start, *((f"t{k}", f"t{k - step}[i] * ({by})") for k in range(first + step, LAST + 1, step))]


ORIGINAL = chain(powers(1))


def test_programs_are_cut_at_buffers_that_both_have() -> None:
    made = chain(powers(2))
    found = pieces(ORIGINAL, made)
    assert len(found) == len(stages(made.body)) > 3
    for k, (mine, theirs) in enumerate(found):
        assert [b.name for b in mine.inputs] == [b.name for b in theirs.inputs]
        assert [b.name for b in mine.outputs] == [b.name for b in theirs.outputs]
        assert len(stages(mine.body)) == (2 if k else LAST % 2 + 1) and len(stages(theirs.body)) == 1
        assert [s.name for s in mine.scalars] == ["n"]
    report = check(ORIGINAL, made)
    assert report.accepted and report.notes[0].startswith(f"in {len(found)} pieces")
    assert report.compared > check_exact(ORIGINAL, made).compared
    assert len(report.sizes) == report.draws


def test_small_programs_are_one_piece() -> None:
    small = chain([("t1", SQUARE), (f"t{LAST}", "t1[i] * inp[i]")])
    assert pieces(small, small) and not any("pieces" in n for n in check(small, small).notes)


@pytest.mark.parametrize("at", [0, 3, -1])
def test_a_wrong_piece_is_rejected(at: int) -> None:
    nests = powers(2)
    name, value = nests[at]
    nests[at] = name, f"{value} + 1.0"
    report = check(ORIGINAL, chain(nests))
    assert report.verdict == "rejected" and report.counterexample is not None
    assert report.counterexample.output == f"t{LAST}"


def test_a_buffer_that_holds_something_else_is_no_ground_for_a_rejection() -> None:
    """One buffer is twice what it is in the expression, and its reader takes half of it."""
    nests = powers(1)
    nests[4:6] = [("t4", f"{nests[4][1]} * 2.0"), ("t5", f"{nests[5][1]} * 0.5")]
    made = chain(nests)
    assert any(not check_exact(*both).accepted for both in pieces(ORIGINAL, made))
    report = check(ORIGINAL, made)
    assert report.accepted and not any("pieces" in n for n in report.notes)


def test_what_is_handed_on_beside_joints_or_written_again_ties_kernels() -> None:
    plain = len(pieces(ORIGINAL, ORIGINAL))
    extra = powers(1)
    extra[3:3] = [("other", SQUARE)]
    extra[7] = (extra[7][0], "t5[i] * inp[i] + (other[i] - other[i])")
    assert len(pieces(ORIGINAL, chain(extra))) == plain - 3
    again = powers(1)
    again.insert(6, ("t2", f"{SQUARE} * inp[i]"))
    assert len(pieces(ORIGINAL, chain(again))) == plain - 3
    # Written again by another value, behind its readers: the result is still right, and a reader in between is not.
    again[6] = ("t2", SQUARE)
    assert check(ORIGINAL, chain(again)).accepted
    again[7] = ("t6", "t2[i] * inp[i] * inp[i] * inp[i] * inp[i]")
    assert check(ORIGINAL, chain(again)).verdict == "rejected"


def test_what_an_original_makes_together_is_given_together() -> None:
    """A slice that would make a buffer that it is given is none: then there are no pieces."""
    head = (
        "program pair\n  in x: f32[n, m]\n  out y: f32[n]\n  temp v: f32[n]\n  temp at: i32[n]\n  scalar n: i32 lo 1\n"
    )
    sizes = "  scalar n: i32 lo 1\n  scalar m: i32 lo 1\n"
    best = "v[i], at[i] argmax= x[i, j], j init -3.4028234663852886e+38, 2147483647"
    last = "  for i in [0, n):\n    y: y[i] = v[i] + x[i, at[i]]\n"
    loops = "  for i in [0, n):\n    for j in [0, m):\n      "
    pair = parse_program(f"{head}{sizes}body:\n{loops}s: {best}\n{last}")
    assert [[b.name for b in mine.inputs] for mine, _ in pieces(pair, pair)] == [["x"], ["x", "v", "at"]]
    # Here a third nest makes the place alone, and its slice of the original would make v, too, which it reads.
    alone = "v[i] = x[i, 0] + x[i, 0] - x[i, 0]\n"
    place = f"{loops}p: at[i] max= select(x[i, j] == v[i], j, 0) init 0\n"
    apart = parse_program(f"{head}{sizes}body:\n  for i in [0, n):\n    v: {alone}{place}{last}")
    assert pieces(pair, apart) == []


def test_kernels_are_cut_like_nests() -> None:
    sch = Schedule(ORIGINAL)
    for stage in list(sch.stages):
        tile_stage(sch, stage, TILES)
    tiles = lowering(sch.program).tiles
    found = pieces(ORIGINAL, tiles)
    assert len(found) == len(tiles.kernels)
    for _, piece in found:
        assert isinstance(piece, TileProgram)
        assert len(piece.kernels) == len(piece.tunables) == 1
    shared: list[Shared] = []
    assert check(ORIGINAL, tiles, shared=shared).accepted
    assert [s.original for s in shared] == [mine for mine, _ in found]
