"""localize: what one program of a kernel keeps to itself becomes a tile."""

from __future__ import annotations

import numpy as np
import pytest

from neptune.frontend.builder import argmax, build, compute, placeholder, reduce_axis, var
from neptune.fusion.schedule import Schedule
from neptune.ir.decompose import decompose
from neptune.ir.program import Alloc, Program, walk
from neptune.ir.text.parser import parse_program
from neptune.ir.verify import verify
from neptune.ops.attention import prefill_causal, prefill_global
from neptune.ops.softmax import softmax
from neptune.schedule.state import Loop
from neptune.templates.flash_attention import flash_attention
from neptune.tile.localize import localize
from tests.examples.schedule_examples import check_same, maps, matmul, outputs, row_sums

M, N = var("m"), var("n")


def placed(program: Program) -> Program:
    result = localize(decompose(program))
    verify(result, lowered=True)
    return result


def tiles(program: Program) -> dict[str, str]:
    return {s.buffer.name: str(s.buffer.shape) for s in walk(program.body) if isinstance(s, Alloc)}


def same(before: Program, after: Program, *sizes: dict[str, int]) -> None:
    for s in sizes:
        expected, found = outputs(before, s), outputs(after, s)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("make", [prefill_causal, prefill_global])
def test_attention_keeps_everything_on_chip(make: object) -> None:
    assert callable(make)
    program = make(batch=1, heads=1, depth=2, dtype="float32", lse=True)
    sch = Schedule(program)
    flash_attention(sch)
    result = placed(sch.program)
    assert result.temporaries == ()
    for s_q, s_kv in ((1, 1), (3, 5), (5, 3), (4, 4)):
        same(program, result, {"s_q": s_q, "s_kv": s_kv, "BLOCK_M": 2, "BLOCK_N": 2})


def test_an_output_is_written_back() -> None:
    sch = Schedule(maps())
    i, j = sch.loops("t")
    i0, j0, _, _ = sch.tile([i, j], [sch.param("BM", [2]), sch.param("BN", [2])])
    sch.fuse_at("u", j0)
    sch.fuse_at("w", j0)
    sch.bind([i0, j0], ["grid.y", "grid.x"])
    result = placed(sch.program)
    assert set(tiles(result)) == {"t_tile", "u"}
    check_same(maps(), result)


def test_the_name_of_the_tile_may_be_taken() -> None:
    x = placeholder((M,), name="t_tile")
    t = compute((M,), lambda i: x[i] + 1.0, "t")
    p = build([t, compute((M,), lambda i: t[i] * 2.0, "u")])
    sch = Schedule(p)
    (i,) = sch.loops("t")
    sch.fuse_at("u", i)
    result = placed(sch.program)
    assert set(tiles(result)) == {"t_tile_1"}
    check_same(p, result)


def test_a_buffer_of_two_kernels() -> None:
    """c is accumulated in the first kernel and read in the second: a tile there, written back."""
    sch = Schedule(matmul())
    i, j, _ = sch.loops("c")
    i0, _, _, _ = sch.tile([i, j], [2, 2])
    sch.bind(i0, "grid.x")
    result = placed(sch.program)
    assert [b.name for b in result.temporaries] == ["c"]
    assert set(tiles(result)) == {"c_tile"}
    check_same(matmul(), result)


def test_an_init_in_a_kernel_of_its_own() -> None:
    """The second kernel reads what the first has written: there is no tile to start afresh."""
    sch = Schedule(row_sums())
    i, j = sch.loops("r")
    sch.reorder(j, i)
    result = placed(sch.program)
    assert "r" in {b.name for b in result.temporaries} and not tiles(result)
    check_same(row_sums(), result)


def test_a_running_value_outlives_its_iteration() -> None:
    sch = Schedule(softmax())
    i, j = sch.loops("m")
    sch.rolling_update("l", j)
    sch.bind(i, "grid.x")
    result = placed(sch.program)
    same(softmax(), result, {"rows": 3, "cols": 5})


def test_a_buffer_set_in_some_iterations_is_not_made_afresh() -> None:
    text = """\
program p
  in x: f32[m, n]
  out y: f32[m, n]
  temp t: f32[m]
  scalar m: i32 lo 1
  scalar n: i32 lo 1
body:
  for i in [0, m) grid.x:
    for j in [0, n):
      t: t[i] = x[i, j] when j < 1
      y: y[i, j] = t[i] + x[i, j]
"""
    program = parse_program(text)
    same(program, placed(program), {"m": 2, "n": 3})


def test_pieces_after_partition() -> None:
    sch = Schedule(row_sums())
    i, j = sch.loops("e")
    i0, j0, _, _ = sch.tile([i, j], [sch.param("BM", [2]), sch.param("BN", [2])])
    sch.bind(i0, "grid.x")
    sch.fuse_at("r", j0)
    sch.inline("e")
    sch.fuse_at("y", Loop("r", i0.var))
    sch.partition(Loop("r", j0.var))
    check_same(row_sums(), placed(sch.program))


def test_pieces_that_keep_a_tile_each_write_it_back() -> None:
    """e is wanted by another kernel, and the loop that computes and sums it is in two pieces."""
    sch = Schedule(row_sums())
    i, j = sch.loops("e")
    i0, j0, *_ = sch.tile([i, j], [2, 4])
    sch.bind(i0, "grid.x")
    sch.fuse_at("r", j0)
    sch.partition(j0)
    result = placed(sch.program)
    assert {b.name for b in result.temporaries} == {"e", "r"}
    names = [s.buffer.name for s in walk(result.body) if isinstance(s, Alloc)]
    assert names.count("e_tile") == 2 and str(result).count("e_store:") == 2
    check_same(row_sums(), result)


def test_what_one_reduction_folds_into_is_placed_as_one() -> None:
    x, j = placeholder((M, N), "float32", "x"), reduce_axis((0, N), "j")
    value, index = compute((M,), lambda i: argmax(x[i, j], axis=j), "best")
    twice = compute((M,), lambda i: value[i] * 2, "twice")
    program = build([index, twice], name="p")
    sch = Schedule(program)
    i, _ = sch.loops("best")
    i0, _ = sch.split(i, sch.param("BM", [2]))
    sch.bind(i0, "grid.x")
    sch.fuse_at("twice", i0)
    result = placed(sch.program)
    text = str(result)
    # The index is an output and is written back; nothing else needs the value.
    assert "best_value[i1], best_index_tile[i1] argmax= x[i0 * BM + i1, j], j" in text
    assert "best_index_store: best_index[i0 * BM + i1] = best_index_tile[i1]" in text
    assert result.temporaries == () and tiles(result).keys() == {"best_value", "best_index_tile"}
    for m, n in ((1, 1), (5, 3)):
        same(program, result, {"m": m, "n": n, "BM": 2})
