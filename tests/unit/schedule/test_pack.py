"""pack: heads of a group and query rows as rows of one axis, from the primitive to kernels on two targets."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import neptune
from bench.references import attention as reference
from neptune.errors import ScheduleError
from neptune.frontend.builder import build, compute, exp, max, placeholder, reduce_axis, select, sum, var
from neptune.fusion.schedule import Schedule
from neptune.ir.decompose import decompose
from neptune.ir.expr import Expr, logical_and
from neptune.ir.program import Buffer, For, Program, walk
from neptune.ir.text.parser import parse_expr, parse_program
from neptune.ops.attention import attention, operator
from neptune.templates.flash_attention import flash_attention
from neptune.verify.evaluate import evaluate
from neptune.verify.exact import check_exact
from neptune.verify.instances import number
from tests.examples.schedule_examples import Frozen, check_round_trips, check_same
from tests.goldens import check_golden
from tests.tiers import sampled

pytestmark = pytest.mark.compared
PACKED, APART = flash_attention.with_choices(packed=True), flash_attention.with_choices(packed=False)
GROUPS = (1, 3, 4, 5, 6, 7, 8, 12)
LENGTHS = ((1, 1), (1, 33), (5, 17), (33, 40), (33, 5))
DEPTH = 16


def grouped(group: int = 4, **options: Any) -> Program:
    """Causal attention of 2 key heads for `group` query heads each."""
    options = {"dtype": "float32", "depth": DEPTH, "kv_heads": 2, "causal": True} | options
    return attention(1, 2 * group, **options)


def two_axes(group: Expr | int, window: int | None = None) -> Program:
    """The same with the key head and the head within its group as axes of their own."""
    kv, m, n, d = 2, var("s_q"), var("s_kv"), DEPTH
    q = placeholder((kv, group, m, d), "float32", "q")
    k, v = (placeholder((kv, n, d), "float32", x) for x in "kv")
    c, j, t, u = reduce_axis((0, d), "d"), *(reduce_axis((0, n), x) for x in "jtu")
    rows, scores = (kv, group, m), (kv, group, m, n)
    s = compute(scores, lambda h, g, i, j: sum(q[h, g, i, c] * k[h, j, c], axis=c), "s")

    def masked(h: Expr, g: Expr, i: Expr, j: Expr) -> Expr:
        sees = j <= i + n - m
        sees = sees if window is None else logical_and(sees, i + n - m - j < window)
        return select(sees, s[h, g, i, j] * (1 / math.sqrt(d)), -math.inf)

    score = compute(scores, masked, "score")
    top = compute(rows, lambda h, g, i: max(score[h, g, i, j], axis=j), "top")
    p = compute(scores, lambda h, g, i, j: exp(score[h, g, i, j] - top[h, g, i]), "p")
    total = compute(rows, lambda h, g, i: sum(p[h, g, i, t], axis=t), "total")
    acc = compute((*rows, d), lambda h, g, i, e: sum(p[h, g, i, u] * v[h, u, e], axis=u), "acc")
    return build(
        compute(
            (*rows, d),
            lambda h, g, i, e: select(total[h, g, i] <= 0, 0, acc[h, g, i, e] / total[h, g, i]),
            "o",
        ),
        inputs=[q, k, v],
        name="two_axes",
    )


def packed(program: Program) -> Schedule:
    sch = Schedule(program)
    sch.pack(sch.loop("s", "h"), sch.loop("s", "i"))
    return sch


def tensors(program: Program, sizes: dict[str, int], seed: int = 0) -> list[torch.Tensor]:
    """Random inputs; vectors per head are positive and differ."""
    generator = torch.Generator().manual_seed(seed)

    def made(b: Buffer) -> torch.Tensor:
        x = torch.randn([number(d, sizes) for d in b.shape], generator=generator)
        return (x.abs() + 0.1 if x.ndim == 1 else x).to(getattr(torch, b.dtype))

    return [made(b) for b in program.inputs]


def agree(
    program: Program,
    template: Any,
    oracle: Callable[..., tuple[torch.Tensor, ...]],
    lengths: tuple[tuple[int, int], ...] = LENGTHS,
    limit: float = 2e-6,
    **sizes: int,
) -> neptune.Kernel:
    """Compare a kernel on two targets with a definition in float64, the results in memory that held NaN."""
    kernel = neptune.compile(program, template, target="llvm", params={"BLOCK_M": 16, "BLOCK_N": 16})
    for s_q, s_kv in lengths:
        inputs = tensors(program, {"s_q": s_q, "s_kv": s_kv, **sizes}, s_q)
        for k in (kernel, kernel.for_target("interpret")):
            compare(k, program, inputs, oracle(*inputs), limit)
    return kernel


def compare(
    kernel: neptune.Kernel,
    program: Program,
    inputs: list[torch.Tensor],
    wanted: tuple[torch.Tensor, ...],
    limit: float,
) -> None:
    dtypes = [getattr(torch, b.dtype) for b in program.outputs]
    outs = [torch.full(x.shape, math.nan, dtype=t) for x, t in zip(wanted, dtypes, strict=True)]
    kernel(*inputs, out=outs[0] if len(outs) == 1 else tuple(outs))
    for got, exact in zip(outs, wanted, strict=True):
        rows = torch.isfinite(exact)
        assert torch.equal(rows, torch.isfinite(got)) and torch.equal(got[~rows].double(), exact[~rows])
        difference = (got.double() - exact)[rows]
        assert difference.norm() <= limit * exact[rows].norm(), difference.abs().max()


# --- the primitive -------------------------------------------------------------------------------


def test_before_and_after() -> None:
    sch = packed(grouped(alibi=True, lse=True))
    assert sch.loops("s")[1].var == "h0" and sch.loops("s")[2].var == "i_h"
    check_golden("packed_attention.txt", str(sch.program))
    (note,) = sch.decisions
    assert (note.kind, note.subject, note.verdict) == ("pack", "i_h", "s_q * 4 rows")
    assert note.details == ("h = h0 * 4 + i_h % 4", "i = i_h // 4")


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_the_packed_program_means_the_same(group: int, layout: str) -> None:
    program = grouped(group, depth=2, layout=layout, alibi=True, sinks=True, lse=True)
    sch = Schedule(program)
    if group == 1:
        # Nobody shares the keys of a head.
        with pytest.raises(ScheduleError, match=r"the rows would differ in k\["):
            sch.pack(sch.loop("s", "h"), sch.loop("s", "i"))
        return
    sch.pack(sch.loop("s", "h"), sch.loop("s", "i"))
    rng = np.random.default_rng(group)
    for s_q, s_kv in ((1, 3), (3, 2), (5, 5)):
        sizes = {"s_q": s_q, "s_kv": s_kv}
        arrays = {b.name: rng.standard_normal([number(d, sizes) for d in b.shape]) for b in program.inputs}
        before, after = (evaluate(decompose(p), arrays, sizes) for p in (program, sch.program))
        for name in ("o", "lse"):
            np.testing.assert_allclose(after[name], before[name], 1e-12, 1e-12)


def test_one_row_needs_no_division() -> None:
    text = str(packed(grouped(4, queries=1, causal=False)).program)
    assert "q[b, h0 * 4 + i_h, 0, d] * k[b, h0, j, d]" in text and "%" not in text and "//" not in text


def test_one_key_head_is_one_group() -> None:
    text = str(packed(attention(1, 6, kv_heads=1, causal=True)).program)
    assert "q[b, i_h % 6, i_h // 6, d]" in text and "k[b, 0, j, d]" in text


def test_two_axes_with_a_group_of_any_size() -> None:
    program = two_axes(var("group"))
    sch = Schedule(program)
    sch.pack(sch.loop("s", "g"), sch.loop("s", "i"))
    text = str(sch.program)
    assert "q[h, i_g % group, i_g // group, d] * k[h, j, d]" in text and "temp s: f32[2, s_q * group, s_kv]" in text
    rng = np.random.default_rng(0)
    for group, s_q, s_kv in ((1, 1, 1), (3, 4, 5), (5, 2, 7)):
        sizes = {"group": group, "s_q": s_q, "s_kv": s_kv}
        arrays = {"q": rng.standard_normal((2, group, s_q, DEPTH))}
        arrays |= {x: rng.standard_normal((2, s_kv, DEPTH)) for x in "kv"}
        before, after = (evaluate(decompose(p), arrays, sizes) for p in (program, sch.program))
        np.testing.assert_allclose(after["o"], before["o"], 1e-12, 1e-12)


def uneven() -> Program:
    """10 heads in groups of 4: the last group has two."""
    m, n = var("m"), var("n")
    q, k = placeholder((10, m, 4), "float32", "q"), placeholder((3, n, 4), "float32", "k")
    c = reduce_axis((0, 4), "d")
    s = compute((10, m, n), lambda h, i, j: sum(q[h, i, c] * k[h // 4, j, c], axis=c), "s")
    return build(compute((10, m, n), lambda h, i, j: s[h, i, j] + 1.0, "y"), name="uneven")


def test_the_last_group_may_be_smaller() -> None:
    sch = packed(uneven())
    assert "when h0 * 4 + i_h % 4 < 10" in str(sch.program)
    check_same(uneven(), sch.program)


def test_a_stage_of_its_own_for_slopes_and_a_result_that_is_read() -> None:
    n = var("n")
    q, k = placeholder((6, n, 4), "float32", "q"), placeholder((2, n, 4), "float32", "k")
    c = reduce_axis((0, 4), "d")
    slope = compute((6,), lambda h: exp((h + 1).astype("float32") * -0.5), "slope")
    s = compute((6, n, n), lambda h, i, j: sum(q[h, i, c] * k[h // 3, j, c], axis=c), "s")
    y = compute((6, n, n), lambda h, i, j: s[h, i, j] * slope[h], "y")
    program = build([s, y], name="sloped")
    sch = Schedule(program)
    sch.pack(sch.loop("s", "h"), sch.loop("s", "i"))
    text = str(sch.program)
    assert "y[h0 * 3 + i_h % 3, i_h // 3, j] = s_local[h0, i_h, j] * slope[h0 * 3 + i_h % 3]" in text
    assert "s[h0 * 3 + i_h % 3, i_h // 3, j] = s_local[h0, i_h, j]" in text and "slope: slope[h] = exp" in text
    check_same(program, sch.program)


def test_choices_of_pairs_and_guarded_results_stay_where_they_are() -> None:
    text = """\
program best
  in x: f32[6, n, n]
  out top_index: i32[6, n]
  out y: f32[6, n]
  temp top: f32[6, n]
  scalar n: i32 lo 1
body:
  for h in [0, 6):
    for i in [0, n):
      for j in [0, n):
        top: top[h, i], top_index[h, i] argmax= x[h, i, j], j init -inf, 2147483647
  for h in [0, 6):
    for i in [0, n):
      y: y[h, i] = top[h, i] + cast(f32, top_index[h, i])
"""
    program = parse_program(text)
    sch = Schedule(program)
    sch.pack(sch.loop("top", "h"), sch.loop("top", "i"))
    assert "top[i_h % 6, i_h // 6], top_index[i_h % 6, i_h // 6] argmax= x[i_h % 6, i_h // 6, j]" in str(sch.program)
    check_same(program, sch.program)


# --- kernels -------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", sampled(GROUPS, 4))
def test_every_group_size(group: int) -> None:
    program = grouped(group, alibi=True, sinks=True, lse=True)
    kernel = agree(program, PACKED, reference(True, lse=True, alibi=True, sinks=True).float64)
    assert [kernel.facts.traversals[x] for x in "qkv"] == [1, 1, 1]
    assert ("i_h" in kernel.ir("fused")) == (group > 1)


@pytest.mark.parametrize(
    ("dtype", "limit", "options"),
    [
        ("float32", 2e-6, {"layout": "bshd", "lse": True}),
        ("float32", 2e-6, {"window": 9, "softcap": 5.0}),
        ("float16", 1e-3, {"layout": "bshd"}),
        ("bfloat16", 8e-3, {}),
    ],
)
def test_layouts_dtypes_and_masks(dtype: str, limit: float, options: dict[str, Any]) -> None:
    program = grouped(5, dtype=dtype, **options)
    agree(program, PACKED, reference(True, **options).float64, limit=limit)


@pytest.mark.parametrize(
    ("template", "queries", "options"),
    [
        ("flash_attention", 1, {"alibi": True, "lse": True}),
        ("flash_attention", 5, {"sinks": True, "layout": "bshd"}),
        pytest.param(None, 5, {"alibi": True}, marks=pytest.mark.slow),
    ],
)
def test_few_rows_are_packed_unasked(template: str | None, queries: int, options: dict[str, Any]) -> None:
    program = grouped(6, queries=queries, causal=queries > 1, **options)
    lengths = tuple((queries, n) for n in (1, 16, 45))
    kernel = agree(program, template, reference(queries > 1, **options).float64, lengths)
    assert kernel.facts.kernels[0].grid["y"] == "2" and "pack" in kernel.explain()


@pytest.mark.parametrize("group", [1, 5])
def test_two_axes_in_kernels(group: int) -> None:
    def oracle(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor]:
        (o,) = reference(True).float64(q.flatten(0, 1)[None], k[None], v[None])
        return (o[0].unflatten(0, q.shape[:2]),)

    agree(two_axes(var("group")), PACKED, oracle, ((1, 5), (5, 17), (33, 40)), group=group)


def test_extreme_scores_and_rows_without_keys() -> None:
    """Packed rows of one query differ in nothing but their head: what is huge in one stays out of the others."""
    program = grouped(4, lse=True)
    kernel = neptune.compile(program, PACKED, target="llvm", params={"BLOCK_M": 16, "BLOCK_N": 16})
    oracle = reference(True, lse=True).float64
    for factor in (30.0, 1000.0):
        q, k, v = tensors(program, {"s_q": 9, "s_kv": 7})
        q[0, 2] *= factor
        q[0, 5, 3:] = 0
        o, lse = kernel(q, k, v)
        for got, wanted in zip((o, lse), oracle(q, k, v), strict=True):
            assert torch.equal(torch.isfinite(got), torch.isfinite(wanted))
            torch.testing.assert_close(got.double(), wanted, rtol=2e-5, atol=2e-5)
    assert (o[:, :, :2] == 0).all() and (lse[:, :, :2] == -math.inf).all()


def test_keys_are_read_once_for_a_group() -> None:
    """Every program reads its keys once; packed, there are as many programs as key heads, else as query heads."""
    program = grouped(8, queries=1, causal=False)
    programs: dict[str, int] = {}
    for name, template in (("packed", flash_attention), ("apart", APART)):
        facts = neptune.compile(program, template, target="llvm").facts
        assert [facts.traversals[x] for x in "qkv"] == [1, 1, 1]
        (kernel,) = facts.kernels
        counts = (number(parse_expr(n, {"BLOCK_M": "int32"}), {"BLOCK_M": 16}) for n in kernel.grid.values())
        programs[name] = math.prod(counts)
    assert programs == {"packed": 2, "apart": 16}


def test_heads_that_share_keys_are_neighbours_in_the_grid() -> None:
    kernel = neptune.compile(operator("prefill_gqa", depth=16), target="interpret")
    (facts,) = kernel.facts.kernels
    assert facts.grid == {"x": "8 * ((s_q + (BLOCK_M - 1)) // BLOCK_M)", "y": "8", "z": "batch"}
    # The head within its group is the fastest, and says nothing about the keys.
    assert (
        "h1 = (pid_x % 8).to(tl.int64)" in kernel.source and "k_base = k_ptr + b * stride_k_batch + h0" in kernel.source
    )


@pytest.mark.parametrize("target", sampled(["cuda:90", "cuda:80", "hip:gfx942"], 3))
@pytest.mark.parametrize("name", sampled(["decode_gqa", "prefill_gqa"], 2))
def test_resources(name: str, target: str) -> None:
    # Rows of a prefill are packed on demand only: on Ampere that spills what fits otherwise.
    template = PACKED if target != "cuda:80" else flash_attention
    small = {"BLOCK_N": 32} if target == "hip:gfx942" else {}
    params = {"BLOCK_M": 16 if name == "decode_gqa" else 64, "num_warps": 4, **small}
    kernel = neptune.compile(operator(name), template, target=target, params=params)
    (found,) = kernel.resources(target)
    assert (found.spill_bytes, found.warnings) == (0, ())
    wanted = {"cuda:80": "mma", "cuda:90": "mma" if name == "decode_gqa" else "wgmma", "hip:gfx942": "mfma"}
    assert found.matrix == wanted[target]


# --- proofs and tiles ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("% 4, (i_h0 * BLOCK_M + i_h1) // 4, e]", "% 4, 0, e]"),
        ("slopes[h0 * 4 + (i_h0 * BLOCK_M + i_h1) % 4]", "slopes[h0]"),
        ("<= (i_h0 * BLOCK_M + i_h1) // 4 + s_kv", "<= (i_h0 * BLOCK_M + i_h1) + s_kv"),
        ("k[b, h0, ", "k[b, 0, "),
        ("BLOCK_M * i_h0 // 4 + s_kv + 1", "BLOCK_M * i_h0 // 4 + s_kv + 9"),
    ],
)
def test_the_exact_check_sees_a_wrong_row(right: str, wrong: str) -> None:
    program, text = packed_by_rows()
    assert right in text
    assert check_exact(program, parse_program(text.replace(right, wrong)), draws=4).verdict == "rejected"


def test_the_exact_check_takes_the_right_rows() -> None:
    program, text = packed_by_rows()
    assert check_exact(program, parse_program(text), draws=4).verdict == "accepted"


@functools.cache
def packed_by_rows() -> tuple[Program, str]:
    """Attention, and the text of its packed program as it is executed."""
    program = grouped(4, depth=2, alibi=True)
    sch = Schedule(program)
    PACKED(sch)
    return program, str(decompose(sch.program))


@pytest.mark.parametrize("group", [1, 3, 4, 8])
@pytest.mark.parametrize("window", sampled([None, 7, 1, 40], 2))
def test_tiles_against_brute_force(group: int, window: int | None) -> None:
    """Which tiles of keys a tile of packed rows visits, and which of them unmasked."""
    sch = Schedule(two_axes(group, window))
    PACKED(sch)
    pieces = [f for f in walk(sch.program.body) if isinstance(f, For) and f.var == "j0"]
    assert len(pieces) == (2 if window is None else 3)
    for m, n, bm, bn in product((1, 5, 16, 33), (1, 7, 16, 33, 64), (16, 32), (16, 32)):
        query, j = np.arange(m * group)[:, None] // group, np.arange(-(-n // bn) * bn)[None, :]
        seen = (j <= query + n - m) & (j < n)
        if window is not None:
            seen &= query + n - m - j < window
        for i0 in range(-(-m * group // bm)):
            env = {"s_q": m, "s_kv": n, "BLOCK_M": bm, "BLOCK_N": bn, "i_g0": i0}
            ranges = [range(number(f.lo, env), number(f.hi, env)) for f in pieces]
            visited = [t for r in ranges for t in r]
            tiles = seen[i0 * bm : (i0 + 1) * bm].reshape(-1, j.size // bn, bn)
            some, every = ({int(t) for t in np.flatnonzero(f(tiles, (0, 2)))} for f in (np.any, np.all))
            assert len(set(visited)) == len(visited) and some <= set(visited)
            clean = {t for f, r in zip(pieces, ranges, strict=True) for t in r if f.facts}
            assert clean <= every
            if window is None:
                assert set(visited) == some and clean == every


# --- what is refused -----------------------------------------------------------------------------


def refused(sch: Schedule, group: str, row: str, words: str, stage: str = "s") -> None:
    with pytest.raises(ScheduleError, match=words), Frozen(sch):
        sch.pack(sch.loop(stage, group), sch.loop(stage, row))


def test_refusals_leave_the_schedule_as_it_was() -> None:
    refused(Schedule(grouped(1)), "h", "i", "the rows would differ in")
    refused(Schedule(grouped()), "b", "i", r"the rows would differ in k\[b, h // 4, j, d\]")
    refused(Schedule(grouped()), "h", "h", "is packed with another one")
    refused(Schedule(grouped()), "h", "j", "reduces over `j`")
    again = packed(grouped())
    refused(again, "h0", "i_h", "the rows would differ in")
    tiled = Schedule(grouped())
    tiled.split(tiled.loop("s", "i"), 4)
    refused(tiled, "h", "i0", "is not an axis of `s` in full")
    tiled = Schedule(grouped())
    tiled.split(tiled.loop("score", "i"), 4)
    refused(tiled, "h", "i", "`score`, which runs over both, has been scheduled already")
    # Its first values are a stage of their own, which would write the old layout.
    decomposed = Schedule(grouped())
    decomposed.decompose_reduction("s", decomposed.loop("s", "b"))
    refused(decomposed, "h", "i", "`s`, which runs over both, has been scheduled already", "score")
    bound = Schedule(grouped())
    bound.bind(bound.loop("s", "b"), "grid.x")
    refused(bound, "h", "i", "has been scheduled already")


def test_several_times_where_rows_share_all() -> None:
    """Keys without a batch: first the heads, then the batch."""
    program, sch = shared_keys(), Schedule(shared_keys())
    sch.pack(sch.loop("s", "h"), sch.loop("s", "i"))
    sch.pack(sch.loop("s", "b"), sch.loop("s", "i_h"))
    assert [f.var for f in sch.loops("s")] == ["i_h_b", "j", "d"]
    check_same(program, sch.program)
    check_round_trips(sch, program)


def shared_keys() -> Program:
    m, n = var("m"), var("n")
    q, k = placeholder((3, 2, m, 4), "float32", "q"), placeholder((n, 4), "float32", "k")
    c = reduce_axis((0, 4), "d")
    s = compute((3, 2, m, n), lambda b, h, i, j: sum(q[b, h, i, c] * k[j, c], axis=c), "s")
    return build(compute((3, 2, m, n), lambda b, h, i, j: s[b, h, i, j] * 2.0, "y"), name="shared_keys")
