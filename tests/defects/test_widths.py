"""Integers have widths: masks near the limits of int32 and int64, in Triton's 32-bit arithmetic and in proofs.

Most masks go through mods, the template and the evaluator, which wraps around at every width as Triton does
(`qa.fuzz_masks`); some through the interpreter.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import neptune
from neptune.codegen.llvm import compile_llvm
from neptune.errors import ExpressionError, FusionError, InternalError, ShapeError
from neptune.frontend import builder as nb
from neptune.functional.mods import traced
from neptune.fusion.schedule import Schedule
from neptune.ir.evaluate.domains import EvaluationError
from neptune.ir.evaluate.expressions import Evaluator
from neptune.ir.evaluate.floats import Float64
from neptune.ir.evaluate.memory import Memory
from neptune.ir.evaluate.program import evaluate
from neptune.ir.expr import Const, Op, Var, binary, cast
from neptune.ir.integers import evaluate_size
from neptune.ir.program import For, Program, walk
from neptune.ir.text.printer import print_expr
from neptune.ops import masks
from neptune.ops.attention import attention
from neptune.runtime.calls.products import Widths
from neptune.runtime.modules import Form
from neptune.schedule import solve_bounds
from neptune.templates.flash_attention import flash_attention
from qa import fuzz_masks

ROWS, KEYS = 5, 7
FACTORS = {
    "factor": "j * 30_000_000 <= i * 30_000_000",
    "prime": "j * 1_000_000_007 <= i * 1_000_000_007 + 5",
    "two factors": "j * 400_000_009 <= i * 700_000_001",
    "negative": "-j * 300_000_000 >= -i * 300_000_000",
    "quotient": "(j * 30_000_000) // 60_000_000 <= i",
    "remainder": "(j * 30_000_000 + 2**31 - 1) % 70_000_000 <= i * 10_000_000",
    "offset": "j + 2**31 - 5 <= i + 2**31 - 5",
    "product": "(i - 70_000) * (i - 70_000) <= j * 1_000_000_000",
    "two positions": "i * j * 500_000_000 < i + 2**31",
    "window": "(i - j < 2**31 - 1) & (j <= i)",
    "cut off": "(i * 1_000_000_000).int() <= j",
}
LONG = {
    "factor": "i.long() * 2**40 <= j",
    "offset": "j.long() + 2**40 <= i + 2**40 + 1",
    "quotient": "(j.long() * 2**40) // 2**39 <= i",
    "wraps": "j * 2**62 < i",
    "limit": "i + (2**63 - 3) > j",
}
CAPTURED = {
    "start": "t0[i] + 2 <= j",
    "length": "j < t0[b] + 1",
    "difference": "t0[i] - t1[j] <= 0",
    "document": "(t0[i] == t1[j]) & (j <= i)",
    "scaled": "t0[i] * 3 <= j * 1_000_000_000",
    "of rows": "(t0[b] > 3) & (j <= i)",
}


@pytest.mark.parametrize("mask", FACTORS.values(), ids=list(FACTORS))
def test_w1_a_factor_in_a_mask_meets_the_tile(mask: str) -> None:
    assert fuzz_masks.run(mask, {}, ROWS, KEYS, 128, 0).kind == "right"


@pytest.mark.parametrize("mask", LONG.values(), ids=list(LONG))
def test_l0b_int64_arithmetic_in_a_mask(mask: str) -> None:
    assert fuzz_masks.run(mask, {}, ROWS, KEYS, 64, 0).kind == "right"


@pytest.mark.parametrize("mask", CAPTURED.values(), ids=list(CAPTURED))
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_w1_captured_numbers_at_their_limits(mask: str, dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    held = {
        "t0": torch.tensor([limits.max, limits.min, 3, 0, limits.max - 2], dtype=dtype),
        "t1": torch.tensor([limits.min, 1, limits.max, 3, 3, limits.max - 1, 0], dtype=dtype),
    }
    assert fuzz_masks.run(mask, {n: t for n, t in held.items() if n in mask}, ROWS, KEYS, 16, 0).kind == "right"


@pytest.mark.parametrize("mask", [FACTORS["factor"], LONG["factor"]])
def test_w1_in_the_interpreter(monkeypatch: pytest.MonkeyPatch, mask: str) -> None:
    monkeypatch.setenv("NEPTUNE_TARGET", "interpret")
    mod = fuzz_masks.mask_of(mask, {})
    q = torch.randn(1, 1, ROWS, 16)
    k, v = torch.randn(1, 1, KEYS, 16), torch.randn(1, 1, KEYS, 16)
    found = neptune.functional.attention(q, k, v, mask_mod=mod)
    right = fuzz_masks.weights(fuzz_masks.brute(mod, ROWS, KEYS), *(x[0, 0].double().numpy() for x in (q, k, v)))
    np.testing.assert_allclose(found[0, 0].numpy(), right, atol=1e-5)


def test_w1_the_expression_of_a_builder_is_widened() -> None:
    program = attention(depth=2, dtype="float32", mask=lambda b, h, i, j: j * 30_000_000 <= i * 30_000_000)
    assert "cast(i64, j) * 30000000:i64 <= cast(i64, i) * 30000000:i64" in str(program)
    usual = attention(depth=2, dtype="float32", mask=lambda b, h, i, j: j * 300 <= i * 300 + 7)
    assert "i64" not in str(usual)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
@pytest.mark.parametrize("target", ["evaluator", "llvm"])
def test_w1_data_have_the_widths_of_torch(dtype: str, target: str) -> None:
    n = nb.var("n")
    x, y = nb.placeholder((n,), dtype, "x"), nb.placeholder((n,), dtype, "y")
    out = nb.compute((n,), lambda i: binary("floordiv", x[i] + y[i], 2) + x[i] * y[i], name="out")
    of = getattr(torch, dtype)
    low, high = torch.iinfo(of).min, torch.iinfo(of).max
    a = torch.tensor([low, high, high, 7, low], dtype=of)
    b = torch.tensor([low, high, 1, 5, high], dtype=of)
    if target == "evaluator":
        made = evaluate(nb.build(out), {"x": a.numpy(), "y": b.numpy()}, {"n": 5})["out"]
        found = torch.as_tensor(np.asarray(made)).to(of)
    else:
        pytest.importorskip("tvm")
        found = neptune.compile(out, target=target)(a, b)
    assert torch.equal(found, (a + b) // 2 + a * b)


BY = st.sampled_from([1, 2, 3, 4, 2**31 - 1])
INTEGERS = st.recursive(
    st.sampled_from(["x", "y"]),
    lambda e: st.one_of(
        st.builds("({} {} {})".format, e, st.sampled_from("+-*"), e | st.integers(-4, 4).map(str)),
        st.builds("({} {} {})".format, e, st.sampled_from(["//", "%"]), BY),
        st.builds("select({} {} {}, {}, {})".format, e, st.sampled_from(["<", ">="]), e | BY, e, e),
        st.builds("(-{})".format, e),
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@settings(max_examples=6, derandomize=True, deadline=None)
@given(exprs=st.lists(INTEGERS, min_size=6, max_size=6))
@example(exprs=["(x * 2) // 2", "(x * 3) % 3", "select(x + y > y, x, y)", "select(x - y < 0, x, y)"])
def test_data_wrap_around_on_llvm_whatever_is_done_with_them(dtype: str, exprs: list[str]) -> None:
    """Neither TVM nor LLVM may take a sum of data for exact: (x * 2) // 2 is not x."""
    pytest.importorskip("tvm")
    n, of = nb.var("n"), getattr(torch, dtype)
    low, high = torch.iinfo(of).min, torch.iinfo(of).max
    values = [low, low + 1, -2, -1, 0, 1, 2, 7, high - 1, high, high // 2 + 1, low // 2 - 1]
    a, b = torch.tensor([*itertools.product(values, values)], dtype=of).unbind(1)
    x, y = nb.placeholder((n,), dtype, "x"), nb.placeholder((n,), dtype, "y")

    def made(text: str, k: int) -> nb.Tensor:
        return nb.compute((n,), lambda i: eval(text, {"select": nb.select, "x": x[i], "y": y[i]}), f"o{k}")

    # So that each is read.
    results = [made(t, k) for k, t in enumerate([*exprs, "x + y"])]
    all_found = [torch.empty_like(a.contiguous()) for _ in results]
    compile_llvm(nb.build(results, inputs=[x, y]))([a.contiguous(), b.contiguous()], all_found)
    for text, found in zip(exprs, all_found, strict=False):
        right = eval(text, {"select": torch.where, "x": a, "y": b})  # a text of the strategy's
        assert torch.equal(found, right), text


@pytest.mark.parametrize("text", ["(x * 2) // 2", "(x * 4 + 8) % 4"])
def test_a_quotient_of_data_is_no_index(text: str) -> None:
    """What a schedule works out of indices it leaves alone in data."""
    n = nb.var("n")
    x, a = nb.placeholder((n,), "int32", "x"), torch.tensor([5, 2**31 - 1, -(2**31), 2**30], dtype=torch.int32)
    kernel = neptune.compile(nb.compute((n,), lambda i: eval(text, {"x": x[i]}), "y"), target="interpret")
    assert torch.equal(kernel(a), eval(text, {"x": a}))


LENGTH_MASKS: dict[str, Callable[[Any, Any], Any]] = {
    "n - j > -5": lambda n, j: n - j > -5,
    "n + 5 > j": lambda n, j: n + 5 > j,
    "j - n < 5": lambda n, j: j - n < 5,
    "n * 2 > j": lambda n, j: n * 2 > j,
    "n - 7 <= j": lambda n, j: n - 7 <= j,
    "j >= n + n": lambda n, j: j >= n + n,
}


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("rule", LENGTH_MASKS)
def test_w1_arithmetic_on_data_wraps_around_in_loops_as_in_tiles(rule: str, dtype: str) -> None:
    """What a comparison says of data decides which tiles are visited, and which without a mask: bounds that take it for
    exact visited, or left out, others than the mask where it wraps around."""
    lengths = nb.placeholder((nb.var("batch"),), dtype, "lengths")
    program = attention(heads=1, depth=8, dtype="float32", mask=lambda b, h, i, j: LENGTH_MASKS[rule](lengths[b], j))
    kernel = neptune.compile(program, "flash_attention", target="llvm", params={"BLOCK_M": 16, "BLOCK_N": 16})
    of = torch.iinfo(getattr(torch, dtype))
    middle = 1 << (of.bits - 2)
    n = torch.tensor(
        [of.min, of.min + 6, -middle - 3, -2, 0, 7, 33, middle + 3, of.max - 4, of.max], dtype=getattr(torch, dtype)
    )
    draw = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(len(n), 1, x, 8, generator=draw) for x in (3, 50, 50))
    given = {"q": q, "k": k, "v": v, "lengths": n}
    found = kernel(*(given[b.name] for b in program.inputs))
    seen = LENGTH_MASKS[rule](n[:, None], torch.arange(50, dtype=n.dtype))
    s = (q.double() @ k.double().mT / 8**0.5).masked_fill(~seen[:, None, None], -math.inf)
    torch.testing.assert_close(found.double(), torch.softmax(s, -1).nan_to_num() @ v.double(), rtol=1e-5, atol=1e-6)


def test_w1_constants_stay_in_their_dtype() -> None:
    assert cast(2**31, "int32") == Const(-(2**31), "int32")
    assert binary("add", Const(100, "int8"), Const(100, "int8")) == Const(-56, "int8")
    assert Var("i") + 2**40 == Op("add", (cast(Var("i"), "int64"), Const(2**40, "int64")), "int64")
    # What int32 does not hold stays as it was written, and is widened where it is an index.
    assert isinstance(binary("mul", Const(2**20, "int32"), Const(2**20, "int32")), Op)


def test_w1_a_bound_in_32_bits_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: bounds as they were before, in int32 whatever they come to."""
    monkeypatch.setattr(solve_bounds, "reduced", lambda p: p)
    monkeypatch.setattr(solve_bounds, "exact", lambda p, scope: solve_bounds.to_expr(p, "int32"))
    program = attention(depth=16, dtype="float32", mask=lambda b, h, i, j: j * 30_000_000 <= i * 30_000_000)
    with pytest.raises((FusionError, InternalError), match="may leave int32"):
        neptune.compile(program, flash_attention, target="interpret")
    with pytest.raises(EvaluationError, match="read of k out of bounds"):
        fuzz_masks.run(FACTORS["factor"], {}, ROWS, KEYS, 128, 0)


def test_w1_a_call_whose_sizes_have_no_room_is_refused() -> None:
    program = attention(depth=2, dtype="float32", mask=lambda b, h, i, j: j * 1000 <= i * 1000 + 500)
    sch = Schedule(program)
    flash_attention(sch)
    widths = Widths(sch.program, {t.name: 64 for t in sch.program.tunables})
    sizes = {"batch": 1, "heads": 1, "s_q": 1 << 20, "s_kv": 1 << 20}
    widths.check(sizes)
    widths.check({**sizes, "s_q": 2_000_000, "s_kv": 2_000_000})
    with pytest.raises(ShapeError, match="may leave int32 at these sizes"):
        widths.check({**sizes, "s_q": 3_000_000, "s_kv": 3_000_000})


CHUNKS = (1, 3, 16, 2**31 - 1, 0, -1, -(2**31))
FARTHEST = 2**31 - 2**16  # no loop is longer


@functools.cache
def _chunked() -> Program:
    mask = masks.chunked(nb.var("c"))
    return attention(heads=1, depth=16, dtype="float32", causal=False, mask=mask, name="chunked")


@functools.cache
def _bounds_of_chunks() -> list[For]:
    return [s for s in walk(fuzz_masks.fused(_chunked()).body) if isinstance(s, For) and s.var == "j0"]


@functools.cache
def _kernel_of_chunks() -> neptune.Kernel:
    return neptune.compile(_chunked(), flash_attention, target="interpret", params={"BLOCK_M": 16, "BLOCK_N": 16})


@pytest.mark.parametrize("c", CHUNKS)
def test_chunks_of_any_length(c: int) -> None:
    """A length below 1 counts as 1; the first rows stand before the first key where there are more of them."""
    for rows, keys in ((5, 40), (40, 5), (33, 33)):
        q, k, v = (torch.randn(1, 1, n, 16) for n in (rows, keys, keys))
        i, j = np.arange(rows)[:, None] + keys - rows, np.arange(keys)[None, :]
        seen = i // max(c, 1) == j // max(c, 1)
        right = fuzz_masks.weights(seen, *(x[0, 0].double().numpy() for x in (q, k, v)))
        given = {"q": q.numpy(), "k": k.numpy(), "v": v.numpy()}
        sizes = {"batch": 1, "s_q": rows, "s_kv": keys, "c": c}
        for found in (evaluate(_chunked(), given, sizes)["o"], _kernel_of_chunks()(q, k, v, c)):
            np.testing.assert_allclose(np.asarray(found)[0, 0], right, atol=1e-5)


@pytest.mark.parametrize("c", CHUNKS)
def test_bounds_of_chunks_at_the_limits_of_rows(c: int) -> None:
    """Bounds as int32 and int64 compute them are those of exact integers: no part wraps around."""
    loops, evaluator, b = _bounds_of_chunks(), Evaluator(Memory(Float64())), max(c, 1)
    assert len(loops) == 3
    for s_q, s_kv, m in itertools.product((1, 300, FARTHEST), (1, 300, FARTHEST), (16, 128)):
        for i0 in (0, (s_q - 1) // m):
            env = {"s_q": s_q, "s_kv": s_kv, "c": c, "BLOCK_M": m, "BLOCK_N": 64, "i0": i0}
            for e in (e for f in loops for e in (f.lo, f.hi)):
                assert int(evaluator.run(e, env)) == evaluate_size(e, env)
            first, last = i0 * m + s_kv - s_q, min(i0 * m + m, s_q) - 1 + s_kv - s_q
            keys = max(0, first // b * b), min(s_kv, last // b * b + b)
            if keys[0] < keys[1]:
                ends = evaluate_size(loops[0].lo, env), evaluate_size(loops[-1].hi, env)
                assert ends == (keys[0] // 64, -(-keys[1] // 64)), env


def test_w1_a_call_whose_sizes_need_64_bits_takes_them(tmp_path: Path) -> None:
    """A saved kernel, too; and int32 has room for what is usual."""
    n = nb.var("n")
    x = nb.placeholder((n,), "float32", "x")
    out = nb.compute((n,), lambda i: nb.select(i * 1500 < 7, x[i], 0.0), "out")
    kernel = neptune.compile(out, target="interpret", params={"MAP_N": 1 << 16})
    kernel.save(tmp_path / "kernel")
    of = kernel.executable.modules
    assert "int64" not in of.source(Form()) and "idx_i.to(tl.int64) * 1500" in of.source(Form(int64_offsets=True))
    long = torch.ones((1 << 21) + 5)
    for one in (kernel, neptune.load(tmp_path / "kernel")):
        assert int(one(torch.ones(70)).sum()) == int(one(long).sum()) == 1


def test_w1_int32_of_a_mod_wraps_at_any_length() -> None:
    """What torch computes in int32 is not widened for long rows: it is taken to wrap around from the start."""
    mod = traced(lambda b, h, i, j: i.int() * 1500 <= j.int() * 1500, "mask_mod")
    exact = traced(lambda b, h, i, j: i * 1500 <= j * 1500, "mask_mod")
    texts = [print_expr(m.expression(*map(Var, "bhij"))) for m in (mod, exact)]
    assert texts[0].count("bitxor") == 2 and texts[1] == "i * 1500 <= j * 1500"


def test_w1_numbers_that_a_dtype_does_not_hold_are_refused() -> None:
    with pytest.raises(ExpressionError, match="no number of int32"):
        held = torch.tensor([1], dtype=torch.int32)
        neptune.functional.attention(*(torch.zeros(1, 1, 2, 16),) * 3, mask_mod=lambda b, h, i, j: held[b] + 2**40 > j)


def test_masks_of_the_fuzzer() -> None:
    """A few masks of `qa.fuzz_masks`; it runs for longer by hand."""
    kinds = [fuzz_masks.trial(seed) for seed in range(12)]
    assert {k.kind for k in kinds} <= {"right", "refused"}, kinds
