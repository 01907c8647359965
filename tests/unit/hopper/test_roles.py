"""From walks to roles: what is staged, where consumers wait and release, which products run under what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neptune.errors import InternalError
from neptune.hopper.ir import AsyncKernel, Fill, Finish, Levers, Out, Ring, walk_async
from neptune.hopper.parser import parse_async
from neptune.hopper.printer import print_astmt
from neptune.hopper.roles.kernel import roles
from neptune.hopper.roles.verify import verify_async
from neptune.ir.expr import Const, op
from neptune.tile.ir import Assign, Branch, Local, Loop, Scalar, TileProgram, TStmt
from neptune.tile.verify import verify_tiles
from tests.examples.hopper_examples import attention, product
from tests.examples.walks import tiles_of, walked

ATTENTION = Levers(tiles={"BLOCK_M": 64, "BLOCK_N": 128})
PRODUCT = Levers(stages=3, tiles={"BLOCK_M": 64, "BLOCK_N": 256, "BLOCK_K": 64})


def of_attention(levers: Levers = ATTENTION) -> tuple[AsyncKernel, TileProgram]:
    walked, program = attention()
    return roles(walked, program, levers), program


def of_product(levers: Levers = PRODUCT) -> tuple[AsyncKernel, TileProgram]:
    walked, program = product()
    return roles(walked, program, levers), program


def outline(kernel: AsyncKernel) -> str:
    """The consumer without what lies between its waits: no computations, a word for each name."""
    lines = [line for s in kernel.consumer for line in print_astmt(s, 0)]
    kept = ("await", "issue", "finish", "release", "drain", "send", "for", "if")
    return "\n".join(line.split(" = ")[0] for line in lines if line.split()[0] in kept)


def test_the_examples_are_well_formed() -> None:
    for _, program in (attention(), product()):
        verify_tiles(program)


def test_both_products_of_attention_are_issued_side_by_side() -> None:
    kernel, _ = of_attention()
    (loop,) = [s for s in walk_async(kernel.consumer) if isinstance(s, Loop) and s.var == "j0"]
    lines = [x for s in loop.body for x in print_astmt(s, 0)]
    assert [x.split(" = ")[0] for x in lines] == [
        "await k(turn[] + 1)", "issue s<i1 j1>", "await v(turn[])", "issue acc<i1 e>", "m_prev<i1>", "finish 1: s",
        "release k(turn[] + 1)", "m<i1>", "p<i1 j1>", "m_rescale<i1>", "l<i1>",
        "finish 0: acc also m p m_rescale l", "release v(turn[])", "turn<>", "acc<i1 e>", "p_cast<i1 j1>",
    ]  # fmt: skip


def test_what_a_consumer_does_not_read_it_releases_unread() -> None:
    kernel, _ = of_attention()
    (loop,) = [s for s in walk_async(kernel.consumer) if isinstance(s, Loop) and s.var == "t"]
    lines = [x for s in loop.body for x in print_astmt(s, 0)]
    assert lines == [
        "await k(turn[])", "release k(turn[])", "await v(turn[])", "release v(turn[])", "turn<> = (turn + 1)",
    ]  # fmt: skip


def test_rings_of_loops_have_stages_and_what_is_loaded_once_has_one() -> None:
    kernel, _ = of_attention(replace(ATTENTION, stages=4))
    assert kernel.rings == (
        Ring("q", "q", ("i1", "d"), "float16", 1, own=True),
        Ring("k", "k", ("j1", "d"), "float16", 4, own=False),
        Ring("v", "v", ("j1", "e"), "float16", 4, own=False),
    )
    assert [s.ring for s in walk_async(kernel.producer) if isinstance(s, Fill)] == ["q", "k", "v"]


def test_results_leave_over_the_tile_of_the_queries() -> None:
    kernel, _ = of_attention(replace(ATTENTION, own_out=False))
    assert kernel.outs == (Out("o_out", "o", ("i1", "e"), "float16", over="q"),)
    assert outline(kernel).splitlines()[-3:] == ["send o_out: o[b, h, rearrange((i0 * 64 + iota(i1)), 'i1 -> i1 1'), "
        "rearrange(iota(e), 'e -> 1 e')]", "drain o_out", "release q(q_turn[])"]  # fmt: skip


def test_a_sum_of_products_of_tiles_stays_in_flight_until_the_next_one_is_issued() -> None:
    kernel, _ = of_product()
    (around,) = [s for s in kernel.consumer if isinstance(s, Branch)]
    lines = [x.split(" = ")[0] for x in print_astmt(around, 0)]
    assert lines == [
        "if 0 < (k + (BLOCK_K - 1)) // BLOCK_K:",
        "  await a(turn[])", "  await b(turn[])", "  issue c<i1 j1>",
        "  for p0 in [1, (k + (BLOCK_K - 1)) // BLOCK_K):",
        "    await a(turn[] + 1)", "    await b(turn[] + 1)", "    issue c<i1 j1>", "    finish 1:  also c",
        "    release a(turn[])", "    release b(turn[])", "    turn<>",
        "  finish 0: c", "  release a(turn[])", "  release b(turn[])", "  turn<>",
    ]  # fmt: skip


def test_with_one_stage_a_product_releases_its_tiles_behind_itself() -> None:
    kernel, _ = of_product(replace(PRODUCT, stages=1))
    (loop,) = [s for s in walk_async(kernel.consumer) if isinstance(s, Loop)]
    assert [x.split(" = ")[0] for s in loop.body for x in print_astmt(s, 0)] == [
        "await a(turn[])", "await b(turn[])", "issue c<i1 j1>", "finish 0: c",
        "release a(turn[])", "release b(turn[])", "turn<>",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "template", "pending"),
    [("gated_linear", "matmul", 2), ("l2_normalise_matmul", "norm_linear_rolling", 1)],
)
def test_all_sums_of_an_iteration_stay_in_flight(operator: str, template: str, pending: int) -> None:
    """Beside a statistic of a tile, too, which is read into registers under the product before."""
    _, tiles = tiles_of(operator, template)
    levers = Levers(2, 3, "table", tiles={"BLOCK_N": 64, "BLOCK_K": 64})
    made = roles(walked(tiles, levers), tiles, levers)
    verify_async(made, tiles)
    assert [s.pending for s in walk_async(made.consumer) if isinstance(s, Finish)] == [pending, 0]


def test_a_sum_that_the_loop_reads_is_finished_in_its_iteration() -> None:
    walk, program = product()
    (loop,) = [s for s in walk.kernel.body if isinstance(s, Loop)]
    c = next(s for s in loop.body if isinstance(s, Assign) and s.name == "c")
    scaled = Assign("c", op("mul", Local("c", c.value.dims, "float32"), Scalar(Const(0.5, "float32"))), "c")
    body = tuple(replace(loop, body=(*loop.body, scaled)) if s is loop else s for s in walk.kernel.body)
    kernel = roles(replace(walk, kernel=replace(walk.kernel, body=body)), program, PRODUCT)
    verify_async(kernel, program)
    assert [(s.pending, s.names) for s in walk_async(kernel.consumer) if isinstance(s, Finish)] == [(0, ("c",))]


def test_the_weight_of_a_group_is_its_iterations() -> None:
    kernel, _ = of_attention()
    assert "weight max((min(group * 128 + 128, s_kv) + (BLOCK_N - 1)) // BLOCK_N, 0) + 1" in str(kernel)
    assert of_product()[0].weight is None


@pytest.mark.parametrize("made", [of_attention, of_product], ids=["attention", "product"])
@pytest.mark.parametrize("own_out", [True, False])
def test_the_text_reads_back(made: object, own_out: bool) -> None:
    assert callable(made)
    kernel, program = made(replace(made()[0].levers, own_out=own_out))
    again = parse_async(str(kernel), program)
    assert str(again) == str(kernel)
    assert (again.grid, again.rings, again.outs, again.levers, again.weight) == (
        kernel.grid, kernel.rings, kernel.outs, kernel.levers, kernel.weight,
    )  # fmt: skip


def test_the_walk_is_one_of_as_many_consumers() -> None:
    walked, program = attention()
    with pytest.raises(InternalError, match="one of 2 consumers"):
        roles(walked, program, replace(ATTENTION, consumers=3))


def test_the_stage_of_a_product_reads_back() -> None:
    walked, program = product()
    renamed = map_names(walked.kernel.body)
    kernel = roles(replace(walked, kernel=replace(walked.kernel, body=renamed)), program, PRODUCT)
    assert "issue c<i1 j1> = (c + dot(staged(a, turn[]), staged(b, turn[])))  # the_sum" in str(kernel)
    assert str(parse_async(str(kernel), program)) == str(kernel)


def map_names(body: tuple[TStmt, ...]) -> tuple[TStmt, ...]:
    """The statements of another stage."""
    return tuple(
        replace(s, body=map_names(s.body))
        if isinstance(s, Loop | Branch)
        else replace(s, stage="the_sum")
        if isinstance(s, Assign) and s.name == "c"
        else s
        for s in body
    )
