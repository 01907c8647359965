"""compute_at: the region that is read, no more than is asked, and a reason where there is none.

reverse_compute_at: fuse_at that owes nothing.
"""

from __future__ import annotations

import pytest
import torch

import neptune
from neptune.errors import ScheduleError
from neptune.frontend.builder import build, compute, maximum, minimum, placeholder, reduce_axis, select, sum, var
from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Expr
from neptune.ir.program import Program
from neptune.ops.attention import prefill_causal
from tests.examples.lowering import check_matmul
from tests.examples.schedule_examples import Frozen, check_same, maps, matmul, row_sums

M, N = var("m"), var("n")


def blur(width: int = 3) -> Program:
    """t = 2 x, y[i] = t[i] + … + t[i + width - 1]: stages t, y."""
    x = placeholder((M + width - 1, N), name="x")
    t = compute((M + width - 1, N), lambda i, j: x[i, j] * 2.0, "t")

    def window(i: Expr, j: Expr) -> Expr:
        total: Expr = t[i, j]
        for k in range(1, width):
            total = total + t[i + k, j]
        return total

    return build(compute((M, N), window, "y"), name="blur")


def test_a_region_is_what_is_read() -> None:
    sch = Schedule(blur())
    i0, _ = sch.split(sch.loops("y")[0], 4)
    sch.compute_at("t", i0)
    text = str(sch.program)
    assert "for i in [0, 6):" in text and "t: t[i0 * 4 + i, j] = x[i0 * 4 + i, j]" in text
    check_same(blur(), sch.program)
    (said,) = [d for d in sch.decisions if d.kind == "compute_at"]
    assert said.reason == "regions may overlap" and said.details[0].startswith("i: 6 of ")


def test_inner_loops_and_whole_axes() -> None:
    for depth in range(2):
        sch = Schedule(blur())
        sch.compute_at("t", sch.loops("y")[depth])
        check_same(blur(), sch.program)
    assert "computed again" not in str(sch.decisions)


def test_named_tiles() -> None:
    sch = Schedule(blur())
    i, j = sch.loops("y")
    _, j0, *_ = sch.tile([i, j], [sch.param("BM", [2, 4]), sch.param("BN", [2, 4])])
    sch.compute_at("t", j0)
    assert "for i in [0, BM + 2):" in str(sch.program) and "for j1 in [0, BN):" in str(sch.program)
    check_same(blur(), sch.program)


def test_elements_that_are_computed_again_are_reported() -> None:
    x, z = placeholder((N,), name="x"), placeholder((M, N), name="z")
    t = compute((N,), lambda j: x[j] * 2.0, "t")
    program = build(compute((M, N), lambda i, j: t[j] + z[i, j], "y"))
    sch = Schedule(program)
    sch.compute_at("t", sch.loops("y")[0])
    assert sch.decisions[-1].reason == "computed again in every iteration of i"
    check_same(program, sch.program)


@pytest.mark.parametrize("read", ["mod", "half", "clamp", "reverse", "pad"])
def test_quasi_affine_reads(read: str) -> None:
    x = placeholder((N,), name="x")
    t = compute((N,), lambda j: x[j] + 1.0, "t")
    reads = {
        "mod": lambda j: t[(j + 3) % N],
        "half": lambda j: t[j // 2],
        "clamp": lambda j: t[maximum(minimum(j - 2, N - 1), 0)],
        "reverse": lambda j: t[N - 1 - j],
        "pad": lambda j: select(j >= 1, t[j - 1], 0.0),
    }
    program = build(compute((N,), reads[read], "y"))
    sch = Schedule(program)
    j0, _ = sch.split(sch.loops("y")[0], 4)
    sch.compute_at("t", j0)
    check_same(program, sch.program)


def test_reductions() -> None:
    sch = Schedule(matmul())
    i, j = sch.loops("d")
    _, j0, *_ = sch.tile([i, j], [2, 4])
    sch.compute_at("c", j0)
    assert [f.var for f in sch.loops("c")] == ["i0", "j0", "i1", "j1", "p"]
    check_same(matmul(), sch.program)


def test_chains_and_several_readers() -> None:
    for shift in (0, 1):
        sch = Schedule(maps(shift))
        i = sch.loops("w")[0]
        sch.compute_at("u", i)
        check_same(maps(shift), sch.program)
        with pytest.raises(ScheduleError, match="`t` is a result"), Frozen(sch):
            sch.compute_at("t", i)


def test_a_chain_of_producers() -> None:
    x = placeholder((M + 4,), name="x")
    a = compute((M + 4,), lambda i: x[i] + 1.0, "a")
    b = compute((M + 2,), lambda i: a[i] + a[i + 2], "b")
    program = build(compute((M,), lambda i: b[i] * b[i + 2], "c"))
    sch = Schedule(program)
    i0, _ = sch.split(sch.loops("c")[0], 4)
    sch.compute_at("b", i0)
    sch.compute_at("a", i0)
    assert sch.stages == ("a", "b", "c")
    check_same(program, sch.program)


def test_a_producer_that_is_wanted_before_its_own() -> None:
    """The region of the first is inferred through the second where that stands by then."""
    x = placeholder((M + 1,), name="x")
    a = compute((M + 1,), lambda i: x[i] + 1.0, "a")
    program = build(compute((M,), lambda i: a[i] * a[i + 1], "b"))
    sch = Schedule(program)
    copy = sch.cache_read("a", "x")
    i0, _ = sch.split(sch.loops("b")[0], 4)
    sch.compute_at("a", i0)
    sch.compute_at(copy, i0)
    check_same(program, sch.program)


def test_a_tile_of_a_matmul_compiles() -> None:
    def arrange(sch: Schedule) -> None:
        i, j = sch.loops("d")
        i0, j0, *_ = sch.tile([i, j], [sch.param("BM", [16]), sch.param("BN", [16])])
        sch.bind([i0, j0], ["grid.y", "grid.x"])
        sch.compute_at("c", j0)
        sch.split(sch.loops("c")[-1], 16)
        sch.set_scope("c", "tile")

    tiles = check_matmul(arrange, "BM", "BN")
    assert len(tiles.kernels) == 1 and not tiles.temporaries


def top_down(sch: Schedule) -> None:
    """Flash attention from its end: the reductions roll, and scores are computed where they are read."""
    b, h, i, j = sch.loops("m")
    i0, j0, *_ = sch.tile([i, j], [sch.param("BLOCK_M", [32]), sch.param("BLOCK_N", [16])])
    sch.bind([b, h, i0], ["grid.z", "grid.y", "grid.x"])
    for stage in ("l", "acc"):
        sch.rolling_update(stage, j0)
    sch.fuse_at("o", i0)
    for stage in ("score", "s"):
        sch.compute_at(stage, j0)
    sch.partition(j0)


@pytest.mark.parametrize("target", ["llvm", "interpret"])
def test_attention_from_its_end(target: str) -> None:
    kernel = neptune.compile(prefill_causal(depth=16, dtype="float32"), top_down, target=target)
    assert len(kernel.facts.kernels) == 1 and not kernel.facts.temporaries
    q, k, v = (torch.randn(1, 2, s, 16, generator=torch.Generator().manual_seed(s)) for s in (37, 50, 50))
    hidden = torch.arange(50)[None] > torch.arange(37)[:, None] + 13
    scores = (q.double() @ k.double().transpose(2, 3) / 4).masked_fill(hidden, float("-inf"))
    assert (kernel(q, k, v) - torch.softmax(scores, -1) @ v.double()).abs().max() < 1e-5


def test_what_is_still_changing_is_not_read() -> None:
    """e reads r, which the loop over j still folds."""
    x = placeholder((M, N), name="x")
    j1, j2 = reduce_axis((0, N), "j"), reduce_axis((0, N), "j")
    r = compute((M,), lambda i: sum(x[i, j1], axis=j1), "r")
    e = compute((M, N), lambda i, j: x[i, j] * r[i], "e")
    program = build(compute((M,), lambda i: sum(e[i, j2], axis=j2), "z"))
    sch = Schedule(program)
    sch.fuse_at("e", sch.loops("r")[0])
    sch.fuse_at("z", sch.loops("e")[1])
    check_same(program, sch.program)
    sch = Schedule(program)
    sch.fuse_at("e", sch.loops("r")[0])
    with pytest.raises(ScheduleError), Frozen(sch):
        sch.compute_at("e", sch.loops("r")[1])


# --- reverse compute at -------------------------------------------------------------------------


def test_under_a_loop_where_all_is_complete() -> None:
    sch = Schedule(matmul())
    i, j, _ = sch.loops("c")
    _, j0, *_ = sch.tile([i, j], [2, 4])
    sch.reverse_compute_at("d", j0)
    assert not sch.program.owes
    check_same(matmul(), sch.program)


def test_a_reduction_of_maps() -> None:
    sch = Schedule(row_sums())
    sch.reverse_compute_at("r", sch.loops("e")[1])
    check_same(row_sums(), sch.program)
