"""The parts of a walk by themselves: rows and groups, pieces of loops, bodies that are the same, what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from neptune.errors import Unsupported
from neptune.frontend.builder import placeholder, var
from neptune.hopper.bodies.pieces import Group, Run, direction, runs
from neptune.ir.expr import Const, Expr, Var, cast, maximum, minimum
from neptune.ops.masks import segments
from neptune.tile.ir import Assign, Branch, Dot, Local, Loop, TileProgram, walk_stmts
from neptune.tile.parser import parse_tiles
from neptune.tile.passes.same import same_but_for_masks
from tests.examples.walks import refused, tiles_of, walked

ROWS, N, B = Var("i"), Var("n"), Var("B")


def attention(name: str = "prefill_causal", **options: object) -> TileProgram:
    return tiles_of(name, "flash_attention", **{"depth": 16, "heads": 2, **options})[1]


def edited(tiles: TileProgram, old: str, new: str) -> TileProgram:
    text = str(tiles)
    assert old in text, text
    return parse_tiles(text.replace(old, new), tiles)


# --- rows --------------------------------------------------------------------------------------


def test_rows_of_grouped_programs_are_one_grid_variable() -> None:
    _, tiles = tiles_of("matmul", "matmul")
    w = walked(tiles)
    assert [g.var for g in tiles.kernels[0].grid] == ["i01", "j0", "i00"]
    assert [g.var for g in w.kernel.grid] == ["i0", "j0"] and w.rows == "i0"
    assert str(w.kernel.grid[0].extent) == str((Var("m") + 63) // 64)
    # The condition for a tile of rows that there is not is what the grid says now.
    assert not [s for s in w.kernel.body if isinstance(s, Branch) and "i0" in str(s.pred)]


def test_programs_that_know_more_than_their_rows() -> None:
    _, tiles = tiles_of("matmul", "matmul")
    found = refused(edited(tiles, "cast(f16, c)", "cast(f16, (c + cast(f32, i00)))"))
    assert "know more of their rows" in found.why


ROW = "(j0 * BLOCK_N + iota(j1)), 'j1 -> j1 1'), rearrange(iota(d)"
INSIDE = "< s_kv), 'j1 -> j1 1'), 0.0)"
TWICE = ROW.replace("(j0 *", "((j0 *", 1).replace("iota(j1))", "iota(j1)) * 2)")
OUTSIDE, FILLED = INSIDE.replace("s_kv", "s_q"), INSIDE.replace("0.0", "1.0")
REFUSED: dict[str, tuple[Callable[[], TileProgram], str, str]] = {
    "few rows": (lambda: attention(queries=16), "never has more than 64 rows", "i1"),
    "wide": (lambda: attention(depth=512), "axis e of its product has 512 elements", "acc"),
    "unaligned": (lambda: attention(depth=20), "k has rows of 20 float16, no multiple of 16 bytes", "s"),
    "computed": (lambda: attention(kv_dtype="float8_e4m3fn"), "its right operand is computed", "s"),
    "strided": (lambda: edited(attention(), ROW, TWICE), "k is gathered from k, or strided", "s"),
    "another mask": (lambda: edited(attention(), INSIDE, OUTSIDE), "k is masked by more than the ends of k", "s"),
    "8 bits": (lambda: tiles_of("quantise_matmul", "norm_linear")[1], "w has rows of int8 across the depth", "c"),
    "filled": (lambda: edited(attention(), INSIDE, FILLED), "k is masked by more than the ends of k", "s"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit(case: str) -> None:
    tiles, why, where = REFUSED[case]
    found = refused(tiles())
    assert why in found.why and found.where == where and found.legal, (found.why, found.where)


# --- bounds ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("e", "way"),
    [
        (N, 0),
        (ROWS * 64 + N, 1),
        ((N - ROWS * B) // B, -1),
        (minimum(N, maximum(ROWS, ROWS * 2)), 1),
        (ROWS - ROWS * 2, None),
        (ROWS * N, None),
        (ROWS % 2, None),
        (cast(ROWS, "int64") * 64, 1),
        (cast(cast(ROWS, "int64"), "int32"), None),
    ],
)
def test_direction(e: Expr, way: int | None) -> None:
    assert direction(e, "i", frozenset({"B"})) == way


def test_extremes_of_a_group() -> None:
    group = Group("i", "g", 3, frozenset({"B"}), frozenset())
    assert group.extreme(ROWS * 64, largest=True) == (Var("g") * 3 + 2) * 64
    assert group.extreme(N - ROWS, largest=True) == N - Var("g") * 3
    assert group.extreme(N, largest=True) == N
    by_parity = group.extreme(ROWS % 2, largest=False)
    each = [(Var("g") * 3 + w) % 2 for w in range(3)]
    assert by_parity == minimum(minimum(each[0], each[1]), each[2])


def test_a_tile_left_over_is_a_piece() -> None:
    body = attention("prefill_global").kernels[0].body
    (run,) = [s for s in runs(body) if isinstance(s, Run)]
    assert [str(p.hi) for p in run.pieces] == [str(N_KV // B_N), str((N_KV + (B_N - 1)) // B_N)]
    assert run.pieces[0].facts and not run.pieces[1].facts


def test_a_tile_left_over_is_the_first_one_visited() -> None:
    """Masked code stands in front of the loop, once."""
    w = walked(attention("prefill_global"))
    (turned,) = [s for s in w.kernel.body if isinstance(s, Branch)]
    (loop,) = [s for s in turned.body if isinstance(s, Loop)]
    assert loop.lo == Const(1, "int32")
    assert [s.name for s in w.kernel.body if isinstance(s, Assign) and s.name.startswith("j0_")] == ["j0_end"]
    # A diagonal may cross two tiles.
    (turned,) = [s for s in walked(attention()).kernel.body if isinstance(s, Branch)]
    assert len([s for s in turned.body if isinstance(s, Loop)]) == 2


N_KV, B_N = Var("s_kv"), Var("BLOCK_N")


def test_a_condition_for_more_than_one_tile_is_none() -> None:
    tiles = edited(
        attention("prefill_global"),
        "if s_kv // BLOCK_N < (s_kv + (BLOCK_N - 1)) // BLOCK_N:",
        "if s_kv // BLOCK_N < s_kv:",
    )
    (run,) = [s for s in runs(tiles.kernels[0].body) if isinstance(s, Run)]
    assert len(run.pieces) == 1


def test_bounds_kept_for_each_tile_of_rows_are_none_of_a_group() -> None:
    b, q = var("batch"), var("s_q")
    mask = segments(placeholder((b, q), "int32", "first"), placeholder((b, q), "int32", "last"))
    tiles = attention("attention", mask=mask)
    assert walked(tiles).late
    (line,) = [x for x in str(tiles).splitlines() if x.startswith("  first_min<> = min(")]
    found = refused(edited(tiles, line, "  first_min<> = min(first_min, first[b, i0]<>)"))
    assert "depends on the rows of one consumer" in found.why


# --- bodies ------------------------------------------------------------------------------------


def bodies(tiles: TileProgram) -> list[tuple[Loop | Branch, frozenset[str]]]:
    found = [s for s in runs(tiles.kernels[0].body) if isinstance(s, Run)]
    return [(p, frozenset({"m", "l", "acc", "p_cast"})) for r in found for p in r.pieces]  # type: ignore[misc]


def test_masks_do_not_count() -> None:
    (clean, names), (masked, _) = bodies(attention())
    assert same_but_for_masks(masked.body, clean.body, names)
    # The other way round the mask would be missing.
    assert not same_but_for_masks(clean.body, masked.body, names)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("reduce(p, sum, 'j1')", "reduce(p, max, 'j1')"),
        ("(l * m_rescale)", "(l * m)"),
        ("cast(f16, p)", "cast(f16, (p * p))"),
        ("* 0.25", "* 0.5"),
        ("cast(f16, p)", "cast(f16, where((p > 0.5), p, 0.0))"),
    ],
)
def test_all_else_counts(old: str, new: str) -> None:
    tiles = attention()
    front, loop, rest = str(tiles).partition("    score<i1 j1> = where(")
    changed = parse_tiles(front + loop + rest.replace(old, new, 1), tiles)
    (clean, names), (masked, _) = bodies(changed)
    assert not same_but_for_masks(masked.body, clean.body, names)


def test_operands_have_names() -> None:
    w = walked(tiles_of("differential_attention", "flash_attention", depth=16)[1])
    dots = [s.value for s in walk_stmts(w.kernel.body) if isinstance(s, Assign) and s.name in w.late]
    left = {d.a for d in dots if isinstance(d, Dot)}
    assert left == {Local(f"acc{k}_left", ("i1", "j1"), "float16") for k in (1, 2)}


def test_a_refusal_says_where_and_what_fits() -> None:
    found = Unsupported("it multiplies float32", "s", "16 bits")
    assert str(found).startswith("s: it multiplies float32") and "16 bits" in found.legal
