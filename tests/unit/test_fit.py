"""fit: default tiles that stay in registers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

import neptune
from bench.chain_attention import ATTENTION
from bench.chain_programs import ROW_CHAINS
from neptune import Program, Schedule
from neptune.choose import automatic
from neptune.codegen.triton import generate
from neptune.ir.expr import Const, Var
from neptune.ir.program import Buffer, Tunable
from neptune.ops.attention import operator
from neptune.params import resolve_params
from neptune.templates.flash_attention import flash_attention
from neptune.templates.softmax_row import softmax_row
from neptune.tile.fit import BESIDE, BUDGET, THREADS, dots, fits, params, registers
from neptune.tile.ir import Assign, LoadTile, TileKernel, TileProgram, TStmt
from neptune.tile.pipeline import lower
from tests.kernels import N, fold, full, loop, map_, put, row, tile

CHAINS = {c.name: c for c in ROW_CHAINS}
LONG = 1024


def program(*body: TStmt, candidates: Mapping[str, tuple[int, ...]]) -> TileProgram:
    """One kernel over rows `r` and columns `c`, which are tunables where candidates are given, else LONG."""
    axes = tuple((a, Var(n) if n in candidates else Const(LONG, "int32")) for a, n in (("r", "ROWS"), ("c", "COLS")))
    tunables = tuple(Tunable(n, of) for n, of in candidates.items())
    buffers = (Buffer("x", (N, N), "float32"),), (Buffer("y", (N,), "float32"),)
    return TileProgram("k", *buffers, (), (), tunables, (TileKernel("k_kernel", (), axes, body),))


def load(name: str = "x") -> Assign:
    value = LoadTile(name, (), None, 0.0, ("r", "c"), "float32")
    return Assign(name, value)


def estimate(*body: TStmt, rows: int = 64, cols: int = 32, warps: int = 1) -> float:
    """In numbers of elements of all threads."""
    made = program(*body, candidates={"ROWS": (rows,), "COLS": (cols,)})
    return registers(made.kernels[0], {"ROWS": rows, "COLS": cols, "num_warps": warps}) * THREADS * warps


def test_what_is_alive_at_one_time_counts() -> None:
    square, s = 64 * 32, BESIDE * 64
    added = Assign("s", map_("add", row("s"), fold("max", tile("x"))))
    once = (load(), Assign("s", fold("max", tile("x"))), put(row("s")))
    assert estimate(*once) == square
    # Two tiles at one time, or one after the other.
    both = (load("x"), load("w"), Assign("s", fold("max", map_("add", tile("x"), tile("w")))), put(row("s")))
    assert estimate(*both) == 3 * square
    assert estimate(*once[:2], load("w"), Assign("t", fold("max", tile("w"))), put(row("s"))) == square + s
    # A loop keeps what it adds up, and addresses; the tile of one iteration does not reach the next.
    assert estimate(Assign("s", full(0.0)), loop(load(), added), put(row("s"))) == 1.5 * square + s


def test_elementwise_code_takes_the_place_of_what_it_reads() -> None:
    square = 64 * 32
    doubled = (load(), Assign("d", map_("add", tile("x"), tile("x"))), put(tile("d")))
    assert estimate(*doubled) == square
    kept = (*doubled, put(tile("x")))
    assert estimate(*kept) == 2 * square
    assert estimate(load(), put(fold("sum", map_("mul", tile("x"), tile("x"))))) == 2 * square


def test_more_threads_hold_less_each() -> None:
    body = (load(), put(tile("x")))
    made = program(*body, candidates={"ROWS": (64,), "COLS": (32,)}).kernels[0]
    sizes = {"ROWS": 64, "COLS": 32}
    one, four = (registers(made, {**sizes, "num_warps": w}) for w in (1, 4))
    assert (one, four) == (64, 16)
    assert registers(made, {"ROWS": 128, "COLS": 32, "num_warps": 1}) == 2 * one


def many(count: int) -> list[TStmt]:
    """As many tiles that are alive at one time."""
    names = [f"x{n}" for n in range(count)]
    return [*(Assign(n, load().value) for n in names), *(put(tile(n)) for n in names)]


@pytest.mark.parametrize(
    ("tiles", "found"),
    [(2, (128, 64, 4)), (3, (64, 64, 4)), (6, (64, 32, 4)), (12, (32, 32, 4)), (24, (32, 16, 4)), (48, (16, 16, 4))],
)
def test_the_longest_tile_is_made_shorter_until_all_fit(tiles: int, found: tuple[int, int, int]) -> None:
    made = program(*many(tiles), candidates={"ROWS": (128, 64, 32, 16), "COLS": (64, 128, 32, 16)})
    values = params(made)
    assert (values["ROWS"], values["COLS"], values["num_warps"]) == found
    assert registers(made.kernels[0], values) <= BUDGET


def test_where_no_tile_can_be_shorter_there_are_more_threads() -> None:
    candidates = {"ROWS": (16, 32)}
    assert params(program(*many(1), candidates=candidates)) == {"ROWS": 16, "num_warps": 4, "num_stages": 2}
    assert params(program(*many(2), candidates=candidates))["num_warps"] == 8
    assert params(program(*many(99), candidates=candidates))["num_warps"] == 16


def test_what_is_given_stays() -> None:
    made = program(*many(6), candidates={"ROWS": (128, 64, 32, 16), "COLS": (64, 128, 32, 16)})
    assert params(made, {"ROWS": 128}) == {"ROWS": 128, "COLS": 16, "num_warps": 4, "num_stages": 2}
    assert params(made, {"num_warps": 8})["ROWS"] == 64
    assert params(made, {"ROWS": 128, "COLS": 128}) == {"ROWS": 128, "COLS": 128, "num_warps": 16, "num_stages": 2}
    assert params(made, {"ROWS": 128, "COLS": 128, "num_warps": 1})["num_warps"] == 1
    assert resolve_params(made, {"ROWS": 128}) == params(made, {"ROWS": 128})


def lowered(expression: Program) -> TileProgram:
    schedule = Schedule(expression)
    flash_attention(schedule)
    return lower(schedule.program)


@pytest.mark.parametrize("depth", [64, 128, 256])
def test_attention_keeps_the_tiles_that_were_measured(depth: int) -> None:
    made = lowered(operator("prefill_causal", depth=depth))
    assert params(made) == {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 2}
    # The launch function of the module has the same ones.
    assert "BLOCK_M=128, BLOCK_N=64, num_warps=8, num_stages=2)" in generate(made)


def test_each_warp_of_a_matrix_unit_keeps_rows_of_its_own() -> None:
    (chain,) = [c for c in ATTENTION if c.name == "differential_attention"]
    values = params(lowered(chain.build(64)))
    assert (values["BLOCK_M"], values["BLOCK_N"], values["num_warps"]) == (128, 32, 8)


def test_what_cannot_fit_is_chosen_last() -> None:
    """A whole row of distances in many dimensions; a loop over parts of it takes one kernel more."""
    names = [automatic(CHAINS["gaussian_mixture"].build(depth))[0] for depth in (16, 64)]
    assert names == ["softmax_row", "flash_attention"]
    row = Schedule(CHAINS["gaussian_mixture"].build(64))
    softmax_row(row)
    assert not fits(lower(row.program)) and fits(lowered(CHAINS["gaussian_mixture"].build(64)))


@pytest.mark.parametrize(
    ("name", "dtype", "found"), [("abs_max_matmul", "float16", (128, 64)), ("l2_normalise_matmul", "float32", (64, 32))]
)
def test_a_product_of_float32_wants_short_operands(name: str, dtype: str, found: tuple[int, int]) -> None:
    """No matrix unit takes them on sm_80 and sm_90: its operands fill the registers, those of float16 do not."""
    made = lowered(CHAINS[name].build(64))
    assert {d.a.dtype for d in dots(made.kernels[0])} == {dtype}
    values = params(made)
    assert (values["BLOCK_M"], values["BLOCK_N"]) == found


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "hip:gfx942"])
def test_defaults_do_not_spill(target: str) -> None:
    """A chain whose first candidates do, on every target."""
    made = neptune.compile(CHAINS["standardise_linear"].build(64), target="interpret")
    assert made.params["BLOCK_M"] < 128
    assert [r.spill_bytes for r in made.resources(target)] == [0]
