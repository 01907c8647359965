"""Default tiles that stay in registers."""

from __future__ import annotations

import pytest

import neptune
from bench.chain_attention import ATTENTION
from bench.chain_programs import ROW_CHAINS
from neptune import Program, Schedule
from neptune.driver.device import machine_for
from neptune.frontend.builder import abs, build, compute, exp, max, placeholder, reduce_axis, sum, var
from neptune.ops.attention import operator
from neptune.ops.norm import layer_norm
from neptune.runtime.launching.launch import parse_target
from neptune.templates.flash_attention import flash_attention
from neptune.templates.softmax_online import softmax_online
from neptune.templates.softmax_row import softmax_row
from neptune.tile.ir import Assign, TileProgram, TStmt
from neptune.tile.pipeline import lower
from neptune.tile.registers import dots, registers
from neptune.tune.choose import lowered as lowered_by
from neptune.tune.defaults import BUDGET, defaults, fits
from neptune.tune.model.columns import Points
from neptune.tune.params import resolve_params
from neptune.tune.rank import model_of, predictions
from tests.examples.kernels import put, tile
from tests.texts import generate
from tests.unit.tile.test_registers import load, program

CHAINS = {c.name: c for c in ROW_CHAINS}


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
    values = defaults(made)
    assert (values["ROWS"], values["COLS"], values["num_warps"]) == found
    assert registers(made.kernels[0], values) <= BUDGET


def test_where_no_tile_can_be_shorter_there_are_more_threads() -> None:
    candidates = {"ROWS": (16, 32)}
    assert defaults(program(*many(1), candidates=candidates)) == {"ROWS": 16, "num_warps": 4, "num_stages": 2}
    assert defaults(program(*many(2), candidates=candidates))["num_warps"] == 8
    assert defaults(program(*many(99), candidates=candidates))["num_warps"] == 16


def test_what_is_given_stays() -> None:
    made = program(*many(6), candidates={"ROWS": (128, 64, 32, 16), "COLS": (64, 128, 32, 16)})
    assert defaults(made, {"ROWS": 128}) == {"ROWS": 128, "COLS": 16, "num_warps": 4, "num_stages": 2}
    assert defaults(made, {"num_warps": 8})["ROWS"] == 64
    assert defaults(made, {"ROWS": 128, "COLS": 128}) == {"ROWS": 128, "COLS": 128, "num_warps": 16, "num_stages": 2}
    assert defaults(made, {"ROWS": 128, "COLS": 128, "num_warps": 1})["num_warps"] == 1
    assert resolve_params(made, {"ROWS": 128}) == defaults(made, {"ROWS": 128})


def lowered(expression: Program) -> TileProgram:
    schedule = Schedule(expression)
    flash_attention(schedule)
    return lower(schedule.program)


@pytest.mark.parametrize("depth", [64, 128, 256])
def test_attention_keeps_the_tiles_that_were_measured(depth: int) -> None:
    made = lowered(operator("prefill_causal", depth=depth))
    assert defaults(made) == {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 2}
    # The launch function of the module has the same ones.
    assert "BLOCK_M=128, BLOCK_N=64, num_warps=8, num_stages=2, launcher" in generate(made)


def test_each_warp_of_a_matrix_unit_keeps_rows_of_its_own() -> None:
    (chain,) = [c for c in ATTENTION if c.name == "differential_attention"]
    values = defaults(lowered(chain.build(64)))
    assert (values["BLOCK_M"], values["BLOCK_N"], values["num_warps"]) == (128, 32, 8)


def test_what_cannot_fit_is_chosen_last() -> None:
    """A whole row of pairs in many dimensions, each read from memory; parts of it fit."""
    rows, cols = var("rows"), var("cols")
    pair = placeholder((rows, cols, 64), "float32", "pair")
    d = reduce_axis((0, 64), "d")
    score = compute((rows, cols), lambda i, j: sum(abs(pair[i, j, d]), axis=d), "score")
    j = reduce_axis((0, cols), "j")
    top = compute((rows,), lambda i: max(score[i, j], axis=j), "top")
    share = compute((rows,), lambda i: sum(exp(score[i, j] - top[i]), axis=j), "share")
    expression = build(share, name="pairs")
    row = Schedule(expression)
    softmax_row(row)
    online = Schedule(expression)
    softmax_online(online)
    assert not fits(lower(row.program)) and fits(lower(online.program))


@pytest.mark.parametrize(
    ("name", "dtype", "found"), [("abs_max_matmul", "float16", (128, 64)), ("l2_normalise_matmul", "float32", (64, 32))]
)
def test_a_product_of_float32_wants_short_operands(name: str, dtype: str, found: tuple[int, int]) -> None:
    """No matrix unit takes them on sm_80 and sm_90: its operands fill the registers, those of float16 do not."""
    made = lowered(CHAINS[name].build(64))
    assert {d.a.dtype for d in dots(made.kernels[0])} == {dtype}
    values = defaults(made)
    assert (values["BLOCK_M"], values["BLOCK_N"]) == found


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "hip:gfx942"])
def test_defaults_do_not_spill(target: str) -> None:
    """A chain whose first candidates do, on every target."""
    made = neptune.compile(CHAINS["standardise_linear"].build(64), target="interpret")
    assert [r.spill_bytes for r in made.resources(target)] == [0]


@pytest.mark.parametrize(
    ("sizes", "values", "squeezed"),
    [
        ({"rows": 2048, "cols": 32768}, {"BLOCK_M": 1, "num_warps": 16}, True),
        ({"rows": 2048, "cols": 32768}, {"BLOCK_M": 1, "num_warps": 32}, True),
        ({"rows": 2048, "cols": 65536}, {"BLOCK_M": 1, "num_warps": 32}, False),
        ({"rows": 8192, "cols": 4096}, {"BLOCK_M": 8, "num_warps": 16}, False),
    ],
)
def test_a_row_that_is_a_little_too_long_is_squeezed(
    sizes: dict[str, int], values: dict[str, int], squeezed: bool
) -> None:
    """What the estimate says, beside what the compiler makes of it; of several rows there are smaller tiles."""
    program, target = layer_norm("bfloat16", gain=True, bias=True), "cuda:90"
    machine = machine_for(parse_target(target))
    tiles = lowered_by("softmax_row", program).tiles
    point = Points.at([{**values, "num_stages": 2}], sizes)
    (kernel,) = predictions(model_of(tiles), point, machine).at(0).kernels
    assert (not kernel.needs.too_large(values["num_warps"], machine)) == squeezed
    if values["BLOCK_M"] == 1:
        made = neptune.compile(program, "softmax_row", target=target, params=values, shapes=sizes)
        assert (made.resources(target)[0].spill_bytes == 0) == squeezed
