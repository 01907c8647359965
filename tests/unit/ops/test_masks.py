"""Attention under every mask: against float64, with hostile lengths, and without reading what is skipped."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import neptune
from neptune.frontend.builder import build, compute, placeholder, select, var
from neptune.ir.expr import Expr, Var
from neptune.ir.program import For, walk
from neptune.ir.text.printer import print_expr
from neptune.ops import masks
from neptune.ops.attention import attention
from neptune.templates.flash_attention import flash_attention
from neptune.verify.evaluate import evaluate
from qa.masks import BATCH, Case, cases
from tests.examples.lowering import lowered, scheduled
from tests.goldens import check_golden
from tests.texts import generate
from tests.tiers import in_turn, sampled

pytestmark = pytest.mark.compared
CASES = cases()
HEADS, DEPTH, BLOCK = 2, 16, 16
SHAPES = ((33, 47), (17, 17), (40, 17), (1, 70))
INTERPRETED = (
    "window w",
    "sink or window",
    "chunked and causal",
    "document and causal",
    "segments",
    "lengths and causal",
)
SIMILAR = ("window 1", "window 16", "window 1000", "prefix or window", "chunked 48", "lengths", "document")
RUNS = [("llvm", n) for n in CASES if n not in SIMILAR] + [("interpret", n) for n in INTERPRETED]
NEG_INF = float("-inf")
HIGH, LOW = 2**31 - 1, -(2**31)


@functools.cache
def kernel(name: str) -> neptune.Kernel:
    program = attention(heads=HEADS, depth=DEPTH, dtype="float32", lse=True, mask=CASES[name].mask)
    params = {"BLOCK_M": BLOCK, "BLOCK_N": BLOCK}
    return neptune.compile(program, "flash_attention", target="llvm", params=params)


def seen(case: Case, s_q: int, s_kv: int, data: Mapping[str, Any]) -> torch.Tensor:
    i, j = np.arange(s_q)[:, None], np.arange(s_kv)[None, :]
    rows = [np.broadcast_to(case.sees(i, j, s_q, s_kv, data, b), (s_q, s_kv)) for b in range(BATCH)]
    return torch.tensor(np.stack(rows))[:, None]


def expected(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, see: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scores = (q.double() @ k.double().mT / DEPTH**0.5).masked_fill(~see, float("-inf"))
    o = torch.softmax(scores, -1).nan_to_num() @ v.double()
    return o, torch.logsumexp(scores, -1)


def check(target: str, case: Case, s_q: int, s_kv: int, data: Mapping[str, Any], scalars: Mapping[str, int]) -> None:
    device = "cuda" if target == "cuda" else "cpu"
    run = kernel(case.name).for_target(target)
    torch.manual_seed(s_q * s_kv)
    q, k, v = (torch.randn(BATCH, HEADS, n, DEPTH) for n in (s_q, s_kv, s_kv))
    o, lse = expected(q, k, v, see := seen(case, s_q, s_kv, data))
    if s_q <= BLOCK:
        # What no query of the one tile sees, in tiles of keys that none sees any of, is never read.
        for b in range(BATCH):
            for start in range(0, s_kv, BLOCK):
                if not see[b, 0, :, start : start + BLOCK].any():
                    k[b, :, start : start + BLOCK] = v[b, :, start : start + BLOCK] = float("nan")
    tensors = [torch.tensor(np.ascontiguousarray(data[n])).to(device, torch.int32) for n in run.inputs[3:] if n in data]
    got_o, got_lse = (t.cpu() for t in run(*(t.to(device) for t in (q, k, v)), *tensors, *scalars.values()))
    torch.testing.assert_close(got_o.double(), o, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got_lse.double(), lse, rtol=1e-4, atol=1e-5)
    assert (got_o[~see.expand(-1, HEADS, -1, -1).any(-1)] == 0).all()


@pytest.mark.parametrize(("target", "name"), sampled(RUNS, 3))
def test_attention(target: str, name: str) -> None:
    case = CASES[name]
    for s_q, s_kv in SHAPES:
        data = case.data(np.random.default_rng(s_kv), s_q, s_kv)
        check(target, case, s_q, s_kv, data, case.scalars or {})


HOSTILE: list[tuple[str, dict[str, list[int]]]] = [
    ("lengths of both", {"kv_len": [HIGH, 5], "q_len": [HIGH, LOW]}),
    ("lengths of both", {"kv_len": [0, LOW], "q_len": [16, 16]}),
    ("window and lengths", {"kv_len": [HIGH, LOW]}),
    ("segments", {"start": [LOW, HIGH], "end": [HIGH, HIGH]}),
    ("segments", {"start": [5, 9], "end": [5, LOW]}),
]


@pytest.mark.parametrize(
    ("target", "name", "data"),
    [
        pytest.param(t, n, d, marks=[pytest.mark.slow] * (n == "window and lengths"))
        for t in ("llvm", "interpret")
        for n, d in HOSTILE
        if (t, n) in RUNS
    ],
)
def test_any_value_of_a_tensor(target: str, name: str, data: dict[str, list[int]]) -> None:
    """The mask compares without computing, and so must what skips tiles."""
    s_q, s_kv = 16, 40
    wide = {
        n: np.repeat(np.array(x)[:, None], s_q, axis=1) if n in ("start", "end") else np.array(x)
        for n, x in data.items()
    }
    check(target, CASES[name], s_q, s_kv, wide, {})


@pytest.mark.parametrize("target", ["llvm", "interpret"])
@pytest.mark.parametrize("w", [HIGH, 0, -3, 1])
def test_any_window(target: str, w: int) -> None:
    def sees(i: Any, j: Any, s_q: int, s_kv: int, data: Any, b: int) -> Any:
        return (j <= i + s_kv - s_q) & (i + s_kv - s_q - j < w)

    case = replace(CASES["window w"], sees=sees)
    check(target, case, 16, 40, {}, {"w": w})
    check(target, case, 40, 16, {}, {"w": w})


def test_a_window_longer_than_any_axis_is_causal() -> None:
    b, h, i, j = map(Var, "bhij")
    assert masks.window(masks.LONGEST)(b, h, i, j) == masks.window(2**40)(b, h, i, j) == masks.causal()(b, h, i, j)
    assert masks.window(masks.LONGEST - 1)(b, h, i, j) != masks.causal()(b, h, i, j)


def test_decoding() -> None:
    """One query: positions are those of a program with a fixed number of queries."""
    kv_len = placeholder((var("batch"),), "int32", "kv_len")
    mask = masks.and_(masks.window(20), masks.lengths(kv_len))
    run = neptune.compile(
        attention(heads=HEADS, depth=DEPTH, dtype="float32", queries=1, mask=mask), "flash_attention", target="llvm"
    )
    assert run.inputs == ("q", "k", "v", "kv_len")
    q, k, v = (torch.randn(BATCH, HEADS, n, DEPTH) for n in (1, 50, 50))
    lengths = torch.tensor([50, 33], dtype=torch.int32)
    j = torch.arange(50)
    see = ((j > 29) & (j < lengths[:, None]))[:, None, None]
    o = run(q, k, v, lengths)
    assert isinstance(o, torch.Tensor)
    torch.testing.assert_close(o.double(), expected(q, k, v, see)[0], rtol=1e-4, atol=1e-5)


# --- what each mask says -------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(CASES))
def test_the_predicate(name: str) -> None:
    """Every mask by itself, evaluated for every query and key."""
    case, (b_n, s_q, s_kv) = CASES[name], (BATCH, 7, 9)
    q, k = placeholder((var("batch"), var("s_q")), name="q"), placeholder((var("s_kv"),), name="k")
    shape = (var("batch"), var("s_q"), var("s_kv"))
    one = compute(shape, lambda b, i, j: select(case.mask(b, Var("b"), i, j), 1.0 + 0.0 * q[b, i] * k[j], 0.0), "y")
    program = build(one)
    data = case.data(np.random.default_rng(3), s_q, s_kv)
    arrays = {"q": np.ones((b_n, s_q)), "k": np.ones(s_kv), **data}
    sizes = {"batch": b_n, "s_q": s_q, "s_kv": s_kv, **(case.scalars or {})}
    found = evaluate(program, {b.name: arrays[b.name] for b in program.inputs}, sizes)["y"]
    np.testing.assert_array_equal(np.asarray(found) == 1, seen(case, s_q, s_kv, data)[:, 0].numpy())


# --- what is generated ---------------------------------------------------------------------------


def test_golden() -> None:
    """Bounds that tensors hold. Which tiles every mask visits is counted (`qa.masks`)."""
    program = attention(heads=8, depth=64, mask=CASES["segments"].mask, name="attention_segments")
    check_golden("mask_segments.py.txt", generate(lowered(scheduled(program, flash_attention))))


@pytest.mark.parametrize(
    ("name", "target"),
    sampled(
        in_turn(
            [
                "window 1000",
                "chunked and causal",
                "lengths and causal",
                "segments",
                "sink or window",
                "document and causal",
            ],
            ["cuda:90", "cuda:80", "hip:gfx942"],
        ),
        6,
    ),
)
def test_offline(name: str, target: str) -> None:
    """Compiled for GPUs that are not here, each mask for one: the matrix unit is used and nothing is spilled."""
    program = attention(heads=8, depth=64, mask=CASES[name].mask)
    run = neptune.compile(program, "flash_attention", target="llvm", params={"BLOCK_M": 64, "BLOCK_N": 64})
    (resources,) = run.resources(target)
    assert resources.matrix and not resources.spill_bytes


# --- other spellings -----------------------------------------------------------------------------


def key_loops(program: neptune.Program) -> list[tuple[str, str]]:
    return [(print_expr(s.lo), print_expr(s.hi)) for s in walk(program.body) if isinstance(s, For) and s.var == "j0"]


def test_masks_turned_round_and_one_inside_another() -> None:
    """masked_fill(j > position, -inf), and a mask around a mask, are cut like the conjunction."""

    def turned(b: Expr, h: Expr, i: Expr, j: Expr, s: Expr) -> Expr:
        return select(masks.position(i) - j >= 20, NEG_INF, select(j > masks.position(i), NEG_INF, s))

    plain = attention(heads=1, depth=16, mask=masks.window(20))
    other = attention(heads=1, depth=16, score=turned)
    assert key_loops(scheduled(other, flash_attention)) == key_loops(scheduled(plain, flash_attention))
    assert len(key_loops(scheduled(plain, flash_attention))) == 3


def test_tensor_expressions() -> None:
    """`te.any` and `te.all` are masks like any other."""
    # Here, so that the masks can be read on a machine without TVM.
    from tvm import te

    m, n = te.var("m"), te.var("n")
    x = te.placeholder((m, n), name="x")
    j = te.reduce_axis((0, n), "j")
    k = te.reduce_axis((0, n), "k")
    see = te.compute(
        (m, n),
        lambda i, j: te.if_then_else(te.any(j < 4, te.all(j <= i, i - j < 30)), x[i, j], te.const(NEG_INF, "float32")),
        "see",
    )
    top = te.compute((m,), lambda i: te.max(see[i, j], axis=j), "top")
    total = te.compute((m,), lambda i: te.sum(te.exp(see[i, k] - top[i]), axis=k), "total")
    run = neptune.compile([top, total], "flash_attention", target="llvm", params={"BLOCK_M": 16, "BLOCK_N": 16})
    assert run.ir("fused").count("for j0 in") == 4
    data = torch.randn(100, 100)
    at = torch.arange(100)
    visible = (at < 4) | ((at <= at[:, None]) & (at[:, None] - at < 30))
    scores = data.masked_fill(~visible, NEG_INF).double()
    got_top, got_total = run(data)
    torch.testing.assert_close(got_top.double(), scores.amax(1))
    wanted = (scores - scores.amax(1, keepdim=True)).exp().sum(1)
    torch.testing.assert_close(got_total.double(), wanted, rtol=1e-5, atol=1e-6)


def test_ranges_apart_are_one_pass() -> None:
    assert kernel("sink or window").facts.traversals == {"q": 1, "k": 1, "v": 1}
