"""pack(h), without a query axis: from the primitive to kernels that are as fast as with a query axis of 1."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
import torch

import neptune
from neptune.errors import ScheduleError
from neptune.frontend.builder import build, compute, exp, max, placeholder, reduce_axis, select, sum, var
from neptune.fusion.schedule import Schedule
from neptune.ir.decompose import decompose
from neptune.ir.expr import Expr
from neptune.ir.program import Program
from neptune.ir.text.parser import parse_program
from neptune.schedule.roles import pack_heads
from neptune.templates.flash_attention import flash_attention
from neptune.templates.flash_decoding import flash_decoding
from neptune.templates.softmax_online import softmax_online
from neptune.verify.evaluate import evaluate
from neptune.verify.exact import check_exact
from tests.examples.schedule_examples import Frozen, check_round_trips, check_same
from tests.tiers import sampled

pytestmark = pytest.mark.compared
DEPTH = 16
SIZES = ((8, 1), (8, 2), (6, 3), (8, 4), (8, 8), (10, 4), (3, 4), (1, 4))
"""Heads and the size of a group, the last group as large as the others and smaller."""


def decode(
    heads: int = 8,
    group: int = 4,
    dtype: str = "float32",
    depth: int = DEPTH,
    queries: tuple[int, ...] = (),
    masked: bool = True,
) -> Program:
    """One query a batch row, with a query axis of `queries` or none; `masked`: over the first `lengths[b]` keys."""
    b, n = var("batch"), var("n")
    q = placeholder((b, heads, *queries, depth), dtype, "q")
    k, v = (placeholder((b, -(-heads // group), n, depth), dtype, x) for x in "kv")
    lengths = placeholder((b,), "int32", "lengths")
    rows = (b, heads, *queries)
    d, j, t, u = reduce_axis((0, depth), "d"), *(reduce_axis((0, n), x) for x in "jtu")

    def f32(x: Expr) -> Expr:
        return x.astype("float32")

    def masked(b: Expr, h: Expr, *i: Expr) -> Expr:
        scaled = s[(b, h, *i)] * (1 / math.sqrt(depth))
        return select(i[-1] < lengths[b], scaled, -math.inf) if masked else scaled

    def scores(b: Expr, h: Expr, *i: Expr) -> Expr:
        return sum(f32(q[(b, h, *i[:-1], d)]) * f32(k[b, h // group, i[-1], d]), axis=d)

    def values(b: Expr, h: Expr, *i: Expr) -> Expr:
        return sum(f32(narrow[(b, h, *i[:-1], u)]) * f32(v[b, h // group, u, i[-1]]), axis=u)

    def mean(*r: Expr) -> Expr:
        return select(total[r[:-1]] <= 0, 0, acc[r] / total[r[:-1]]).astype(dtype)

    s = compute((*rows, n), scores, "s")
    score = compute((*rows, n), masked, "score")
    top = compute(rows, lambda *r: max(score[(*r, j)], axis=j), "top")
    p = compute((*rows, n), lambda *r: exp(score[r] - top[r[:-1]]), "p")
    total = compute(rows, lambda *r: sum(p[(*r, t)], axis=t), "total")
    narrow = compute((*rows, n), lambda *r: p[r].astype(dtype), "narrow")
    acc = compute((*rows, depth), values, "acc")
    inputs = [q, k, v, *([lengths] if masked else [])]
    return build([compute((*rows, depth), mean, "o")], inputs=inputs, name="decode")


def reference(group: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The same in float64; a row without keys is 0."""
    k, v = (x.double().repeat_interleave(group, 1)[:, : q.shape[1]] for x in (k, v))
    score = torch.einsum("bhd,bhjd->bhj", q.double(), k) / math.sqrt(q.shape[-1])
    score = score.masked_fill(torch.arange(k.shape[2]) >= lengths[:, None, None], -math.inf)
    return torch.einsum("bhj,bhjd->bhd", torch.nan_to_num(score.softmax(-1)), v)


def packed(program: Program) -> Schedule:
    sch = Schedule(program)
    sch.pack(sch.loop("s", "h"))
    return sch


# --- the primitive -------------------------------------------------------------------------------


def test_before_and_after() -> None:
    sch = Schedule(decode())
    assert sch.pack(sch.loop("s", "h")).var == "h_r"
    assert [f.var for f in sch.loops("s")] == ["b", "h0", "h_r", "i0", "d"]
    text = str(sch.program)
    for line in (
        "temp s: f32[batch, 2, 4, n]",
        "temp acc: f32[batch, 2, 4, 16]",
        "s: s[b, h0, h_r, i0] += q[b, h0 * 4 + h_r, d] * k[b, h0, i0, d] init 0.0",
        "top: top[i0, h0, h_r] max= score[i0, h0, h_r, j]",
        "acc: acc[b, h0, h_r, i0] += narrow[b, h0, h_r, u] * v[b, h0, u, i0] init 0.0",
        "o: o[i0, h0 * 4 + h_r, i2] = select(total[i0, h0, h_r] <= 0.0, ",
    ):
        assert line in text, text
    (note,) = sch.decisions
    assert (note.kind, note.subject, note.verdict) == ("pack", "h_r", "4 rows")
    assert note.details == ("h = h0 * 4 + h_r",)


@pytest.mark.parametrize(("heads", "group"), SIZES[1:])
def test_the_packed_program_means_the_same(heads: int, group: int) -> None:
    program = decode(heads, group, depth=2)
    sch = packed(program)
    assert (f"when h0 * {group} + h_r < {heads}" in str(sch.program)) == (heads % group > 0)
    rng = np.random.default_rng(group)
    for batch, n in ((1, 1), (3, 5)):
        sizes = {"batch": batch, "n": n}
        arrays: dict[str, Any] = {"q": rng.standard_normal((batch, heads, 2))}
        arrays |= {x: rng.standard_normal((batch, -(-heads // group), n, 2)) for x in "kv"}
        arrays["lengths"] = np.arange(batch) % (n + 1)
        before, after = (evaluate(decompose(p), arrays, sizes) for p in (program, sch.program))
        np.testing.assert_allclose(after["o"], before["o"], 1e-12, 1e-12)


def test_one_argument_is_recorded_and_replayed() -> None:
    program = scores()
    sch = packed(program)
    (step,) = sch.trace
    assert str(step) == 'sch.pack(sch.loop("s", "h"))'
    check_round_trips(sch, program)
    check_same(program, sch.program)


def scores() -> Program:
    """Scores and what is made of them, per head: a bias of a stage of its own, a norm, and a result that is read."""
    n = var("n")
    q, k = placeholder((6, 4), "float32", "q"), placeholder((2, n, 4), "float32", "k")
    c, e = (reduce_axis((0, 4), x) for x in "ce")
    slope = compute((6,), lambda h: exp((h + 1).astype("float32") * -0.5), "slope")
    # A product of two vectors for each head is nothing that heads could share.
    norm = compute((6,), lambda h: sum(q[h, e] * q[h, e], axis=e), "norm")
    s = compute((6, n), lambda h, j: sum(q[h, c] * k[h // 3, j, c], axis=c), "s")
    return build([s, compute((6, n), lambda h, j: s[h, j] * slope[h] + norm[h], "y")], name="scores")


def test_a_symbolic_number_of_heads_is_guarded() -> None:
    m, n = var("m"), var("n")
    q, k = placeholder((m, 4), "float32", "q"), placeholder(((m + 3) // 4, n, 4), "float32", "k")
    c = reduce_axis((0, 4), "c")
    s = compute((m, n), lambda h, j: sum(q[h, c] * k[h // 4, j, c], axis=c), "s")
    program = build(compute((m, n), lambda h, j: s[h, j] + 1.0, "y"), name="blocks")
    sch = packed(program)
    assert "for h0 in [0, (m + 3) // 4)" in str(sch.program) and "when h0 * 4 + h_r < m" in str(sch.program)
    check_same(program, sch.program)


@pytest.mark.parametrize(
    ("group", "loop", "words"),
    [(1, "h", "nothing is read at `h // G`"), (4, "b", "nothing is read at `b // G`"), (4, "d", "reduces over `d`")],
)
def test_refusals_leave_the_schedule_as_it_was(group: int, loop: str, words: str) -> None:
    sch = Schedule(decode(group=group))
    with pytest.raises(ScheduleError, match=words), Frozen(sch):
        sch.pack(sch.loop("s", loop))
    again = packed(decode())
    with pytest.raises(ScheduleError, match="nothing is read at `h_r // G`"), Frozen(again):
        again.pack(again.loop("s", "h_r"))


# --- unasked -------------------------------------------------------------------------------------


def unasked(program: Program) -> list[str]:
    sch = Schedule(program)
    assert pack_heads(sch, "flash_attention") == bool(sch.trace)
    return [str(s) for s in sch.trace]


def test_only_where_rows_are_heads_of_groups() -> None:
    assert unasked(decode()) == ['sch.pack(sch.loop("s", "h"))']
    assert unasked(decode(group=1)) == [] and unasked(decode(queries=(1,))) == []
    assert unasked(decode(10)) == []


def test_queries_before_the_heads_are_rows_as_well() -> None:
    assert unasked(heads_last()) == ['sch.pack(sch.loop("s", "h"), sch.loop("s", "i"))']


def heads_last(shared: bool = True) -> Program:
    """Attention of queries [m, heads]: the axis of heads is next to the keys."""
    m, n = var("m"), var("n")
    q, k = placeholder((m, 8, DEPTH), "float32", "q"), placeholder((2, n, DEPTH), "float32", "k")
    d, j, t = reduce_axis((0, DEPTH), "d"), reduce_axis((0, n), "j"), reduce_axis((0, n), "t")
    s = compute((m, 8, n), lambda i, h, j: sum(q[i, h, d] * k[h // 4, j, d], axis=d), "s")
    top = compute((m, 8), lambda i, h: max(s[i, h, j], axis=j), "top")
    total = compute((m, 8), lambda i, h: sum(exp(s[i, h, t] - top[i, h]), axis=t), "total")
    if shared:
        return build([total], name="heads_last")
    u = reduce_axis((0, 8), "u")
    return build([compute((m,), lambda i: sum(total[i, u], axis=u), "all")], name="summed")


def test_what_sums_over_the_heads_stays_as_it_is() -> None:
    """A refusal of the packing takes no template away."""
    assert unasked(heads_last(shared=False)) == []


# --- kernels -------------------------------------------------------------------------------------


CASES = [
    (heads, group, dtype, template)
    for k, (heads, group) in enumerate(SIZES)
    for dtype, template in [
        [("float32", flash_decoding), ("float16", flash_attention), ("bfloat16", softmax_online)][k % 3],
    ]
]


@pytest.mark.parametrize(
    ("heads", "group", "dtype", "template"),
    sampled([*CASES, (10, 4, "float16", flash_decoding), (8, 4, "float32", softmax_online)], 4),
)
def test_kernels_against_float64(heads: int, group: int, dtype: str, template: Any) -> None:
    """Short and long rows, rows without keys and large scores, into memory that held NaN."""
    program = decode(heads, group, dtype)
    kernel = neptune.compile(program, template, target="llvm", params={"BLOCK_M": 16, "BLOCK_N": 16})
    # Stages that are guarded cannot be fused: heads of uneven groups stay as they are.
    assert ("h_r" in kernel.ir("fused")) == (group > 1 and heads % group == 0)
    limit = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    generator = torch.Generator().manual_seed(heads)
    for batch, n in ((1, 1), (3, 5), (2, 33), (4, 40)):
        kv = (batch, -(-heads // group), n, DEPTH)
        q, k, v = (
            torch.randn(x, generator=generator).to(getattr(torch, dtype)) for x in ((batch, heads, DEPTH), kv, kv)
        )
        q[0, heads // 2] *= 100
        lengths = torch.tensor([n, 0, n - 1, n // 2][:batch], dtype=torch.int32)
        exact = reference(group, q, k, v, lengths)
        for form in (kernel, kernel.for_target("interpret")):
            o = torch.full_like(q, math.nan)
            form(q, k, v, lengths, out=o)
            assert (o.double() - exact).norm() <= limit * exact.norm(), (o.double() - exact).abs().max()
            assert (o[lengths == 0] == 0).all()


@pytest.mark.parametrize("template", sampled([flash_attention, flash_decoding, softmax_online], 2))
def test_queries_before_the_heads_in_kernels(template: Any) -> None:
    kernel = neptune.compile(heads_last(), template, target="llvm", params={"BLOCK_M": 16, "BLOCK_N": 16})
    assert "i_h" in kernel.ir("fused")
    for m, n in ((1, 5), (9, 33)):
        q, k = torch.randn(m, 8, DEPTH) * 3, torch.randn(2, n, DEPTH)
        s = torch.einsum("ihd,hjd->ihj", q.double(), k.double().repeat_interleave(4, 0))
        exact = (s - s.amax(-1, keepdim=True)).exp().sum(-1)
        total = torch.full((m, 8), math.nan)
        kernel(q, k, out=total)
        assert (total - exact).norm() <= 2e-6 * exact.norm()


@functools.cache
def default(queries: tuple[int, ...]) -> neptune.Kernel:
    program = decode(32, 4, "float16", 128, queries, masked=False)
    return neptune.compile(program, target="cuda:90", shapes={"batch": 8, "n": 4096}, records=False)


@pytest.mark.slow
def test_the_default_is_as_fast_as_with_a_query_axis() -> None:
    without, beside = default(()), default((1,))
    products = without.source.count("tl.dot(")
    assert products > 0 and products == beside.source.count("tl.dot(") and "sch.pack(" in without.explain()
    assert time_of(without) <= 1.05 * time_of(beside)


def time_of(kernel: neptune.Kernel) -> float:
    """The predicted time, µs."""
    prediction = kernel.explain(json=True)["prediction"]
    assert prediction["sizes"] == {"batch": 8, "n": 4096}
    us: float = prediction["us"]
    return us


@pytest.mark.parametrize("target", sampled(["cuda:90", "cuda:80", "hip:gfx942"], 3))
def test_resources(target: str) -> None:
    params = {"BLOCK_M": 16, "BLOCK_N": 32, "num_warps": 4}
    kernel = neptune.compile(decode(32, 4, "float16", 128), flash_attention, target=target, params=params)
    (found,) = kernel.resources(target)
    assert (found.spill_bytes, found.warnings) == (0, ())
    assert found.matrix == ("mfma" if target == "hip:gfx942" else "mma")


# --- proofs --------------------------------------------------------------------------------------


@functools.cache
def executed() -> tuple[Program, str]:
    program = decode(4, 2, depth=2)
    sch = Schedule(program)
    flash_attention(sch)
    return program, str(decompose(sch.program))


def test_the_exact_check_takes_the_right_heads() -> None:
    program, text = executed()
    assert check_exact(program, parse_program(text), draws=4).verdict == "accepted"


@pytest.mark.parametrize(
    ("right", "wrong"), [("k[b, h0, ", "k[b, h_r1, "), ("v[b, h0, ", "v[b, 0, "), ("o[b, h0 * 2 + ", "o[b, h0 + ")]
)
def test_the_exact_check_sees_a_wrong_head(right: str, wrong: str) -> None:
    program, text = executed()
    assert right in text, text
    # h_r runs over a tile: only its first two lanes are rows.
    assert check_exact(program, parse_program(text.replace(right, wrong)), draws=4).verdict == "rejected"
