"""causal_attention: the numbers of flash_attention, with the longest programs first."""

from __future__ import annotations

import math

import pytest
import torch

import neptune
from neptune.errors import ScheduleError
from neptune.fusion.schedule import Schedule
from neptune.ir.program import Program
from neptune.ir.text.parser import parse_program
from neptune.ops.attention import operator, prefill_causal
from neptune.ops.linear import matmul
from neptune.schedule.primitives.reverse import longest_last
from neptune.templates.causal_attention import causal_attention


@pytest.mark.parametrize("target", ["llvm", "interpret"])
@pytest.mark.parametrize(("s_q", "s_kv"), [(150, 150), (1, 70), (70, 200), (200, 70)])
def test_the_numbers_are_those_of_attention(target: str, s_q: int, s_kv: int) -> None:
    kernel = neptune.compile(prefill_causal(depth=32), "causal_attention", target="llvm").for_target(target)
    q, k, v = (torch.randn(1, 2, n, 32, dtype=torch.float16) for n in (s_q, s_kv, s_kv))
    seen = torch.arange(s_kv)[None, :] <= torch.arange(s_q)[:, None] + s_kv - s_q
    scores = (q.double() @ k.double().mT / math.sqrt(32)).masked_fill(~seen, -math.inf)
    exact = torch.softmax(scores, -1).nan_to_num() @ v.double()
    assert torch.allclose(kernel(q, k, v).double(), exact, atol=2e-3)


def test_its_source_is_that_of_flash_attention_but_for_the_order() -> None:
    def lines(template: str) -> list[str]:
        made = neptune.compile(prefill_causal(depth=32), template, target="interpret")
        return made.source.partition("\n@triton.jit")[2].splitlines()

    forth, back = lines("flash_attention"), lines("causal_attention")
    differ = [(a, b) for a, b in zip(forth, back, strict=True) if a != b]
    assert differ and all(b.replace("(i0_count - 1 - i0)", "i0").split() == a.split() for a, b in differ)


def scheduled(program: Program) -> Schedule:
    sch = Schedule(program)
    causal_attention(sch)
    return sch


def test_groups_of_heads_too() -> None:
    assert scheduled(operator("prefill_causal", heads=8, kv_heads=2, depth=32)).trace[-1].primitive == "reverse"


@pytest.mark.parametrize("name", ["prefill_global", "prefill_window"])
def test_where_later_rows_see_no_more_it_is_refused(name: str) -> None:
    with pytest.raises(ScheduleError, match="no mask lets later rows see more keys"):
        scheduled(operator(name, depth=32))


def test_what_is_no_attention_is_refused() -> None:
    with pytest.raises(ScheduleError):
        scheduled(matmul())


@pytest.mark.parametrize(
    ("bounds", "found"),
    [
        ("[0, min(n, i + 1))", True),
        ("[i, n)", False),
        ("[0, n)", False),
        ("[max(0, i - 4), min(n, i + 1))", False),
        ("[0, max(0, n - i))", False),
    ],
)
def test_which_programs_become_longer(bounds: str, found: bool) -> None:
    program = parse_program(f"""program p
  in x: f32[m, n]
  out y: f32[m]
  scalar m: i32 lo 1
  scalar n: i32 lo 1
body:
  for i in [0, m) grid.x:
    a: y[i] = 0.0
    for j in {bounds}:
      y: y[i] += x[i, j]
""")
    loop = longest_last(program)
    assert (loop is not None and loop.var == "i") == found
