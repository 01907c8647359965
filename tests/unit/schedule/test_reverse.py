"""reverse: a grid from its last program to its first."""

from __future__ import annotations

import pytest
import torch

import neptune
from neptune.errors import ScheduleError
from neptune.fusion.schedule import Schedule, replay
from neptune.ir.text.parser import parse_program
from neptune.ops.attention import prefill_causal
from neptune.templates.flash_attention import flash_attention
from neptune.verify.exact import check_exact
from tests.examples.random_schedules import random_schedule
from tests.examples.schedule_examples import check_same, maps, matmul, row_sums


def tiled() -> Schedule:
    sch = Schedule(matmul())
    outer, _ = sch.split(sch.loops("c")[0], 4)
    sch.bind(outer, "grid.x")
    return sch


def test_indices_bounds_and_guards_are_of_the_mirrored_program() -> None:
    sch = tiled()
    sch.reverse(sch.loop("c", "i0"))
    text = str(sch.program)
    assert "((m + 3) // 4 - 1 - i0) * 4 + i1" in text and "i0 * 4" not in text
    check_same(matmul(), sch.program)
    assert replay(matmul(), sch.trace).program == sch.program


def test_a_mirror_that_leaves_a_program_out_is_seen() -> None:
    """The exact check tells a mirror about another end: hi - i would leave the first tile to nobody."""
    sch = tiled()
    sch.reverse(sch.loop("c", "i0"))
    assert check_exact(matmul(), sch.program).accepted
    short = str(sch.program).replace("(m + 3) // 4 - 1 - i0", "(m + 3) // 4 - i0")
    assert short != str(sch.program)
    assert not check_exact(matmul(), parse_program(short)).accepted


def test_twice_means_the_first_order_again() -> None:
    sch = tiled()
    for _ in range(2):
        sch.reverse(sch.loop("c", "i0"))
    check_same(matmul(), sch.program)


def test_what_is_fused_under_it_later_is_mirrored_too() -> None:
    sch = tiled()
    sch.reverse(sch.loop("c", "i0"))
    sch.fuse_at("d", sch.loop("c", "i1"))
    check_same(matmul(), sch.program)


@pytest.mark.parametrize("seed", range(12))
def test_any_schedule_means_the_same(seed: int) -> None:
    for program in (maps(), row_sums(), matmul()):
        sch = random_schedule(program, seed)
        for stage in sch.stages:
            for loop in sch.loops(stage):
                try:
                    sch.reverse(loop)
                except ScheduleError as error:
                    assert "one iteration after the other" in str(error) or "is in pieces" in str(error)
        check_same(program, sch.program) if not sch.program.owes else None


def longest_first(sch: Schedule) -> None:
    """Causal attention whose last rows, which see most keys, are begun first."""
    flash_attention(sch)
    sch.reverse(sch.loop(sch.reductions[0], "i0"))


@pytest.mark.parametrize("target", ["llvm", "interpret"])
def test_rows_of_causal_attention_are_begun_with_the_longest(target: str) -> None:
    program = prefill_causal(depth=32)
    made = neptune.compile(program, longest_first, target=target)
    q, k, v = (torch.randn(1, 2, 150, 32, dtype=torch.float16) for _ in "qkv")
    exact = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    assert torch.allclose(made(q, k, v).double(), exact, atol=2e-3)
    if target == "interpret":
        assert "i0_count - 1 - i0" in made.source
