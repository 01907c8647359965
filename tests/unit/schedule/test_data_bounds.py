"""Bounds that come from tensors: extremes of rows in front of the loop, a scan over the keys, ranges per row."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import pairwise, product
from operator import or_

import numpy as np
import pytest
import torch

import neptune
from neptune.frontend.builder import build, compute, exp, max, placeholder, reduce_axis, select, sum, var
from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Expr, eq, loads, logical_and, logical_or, op
from neptune.ir.program import For, Program, stages, walk
from neptune.ir.text.printer import print_stage
from neptune.ir.verify import verify
from neptune.schedule.solve_bounds import MOST
from neptune.verify.evaluate import evaluate
from tests.examples.schedule_examples import check_same

M, N, B = var("m"), var("n"), var("batch")
NEG_INF = float("-inf")


def cut(mask: Callable[[Expr, Expr], Expr]) -> tuple[Program, Program]:
    """The row maxima of a masked matrix, and the same with its key loop cut."""
    x = placeholder((M, N), name="x")
    j = reduce_axis((0, N), "j")
    t = compute((M, N), lambda i, j: select(mask(i, j), x[i, j], NEG_INF), "t")
    program = build(compute((M,), lambda i: max(t[i, j], axis=j), "y"))
    sch = Schedule(program)
    i, jj = sch.loops("t")
    _, j0, _, _ = sch.tile([i, jj], [2, 2])
    sch.fuse_at("y", j0)
    sch.partition(j0)
    verify(sch.program)
    return program, sch.program


def values_agree(program: Program, made: Program, tensors: dict[str, Callable[..., np.ndarray]]) -> None:
    rng = np.random.default_rng(0)
    for m, n in ((1, 1), (3, 5), (4, 4), (5, 9), (7, 2)):
        inputs = {"x": rng.normal(size=(m, n)), **{k: make(rng, m, n) for k, make in tensors.items()}}
        sizes = {"m": m, "n": n}
        expected, found = (evaluate(p, inputs, sizes)["y"] for p in (program, made))
        np.testing.assert_array_equal(found, expected)


def test_rows() -> None:
    start = placeholder((M,), "int32", "start")
    program, made = cut(lambda i, j: start[i] <= j)
    text = [print_stage(s) for s in stages(made.body) if s.name.startswith("start")]
    assert text[:2] == [
        "start_min_init: start_min[] = 2147483647",
        "start_min: start_min[] min= start[i0 * 2 + i1] when i0 * 2 + i1 < m",
    ]
    values_agree(program, made, {"start": lambda rng, m, n: rng.integers(-3, n + 3, m)})


def test_a_tensor_that_is_shorter_than_the_rows_is_read_within_its_bounds() -> None:
    """`i < 2 and start[i] <= j` reads no more than start[1]; the extremes must not either."""
    start = placeholder((2,), "int32", "start")
    program, made = cut(lambda i, j: logical_and(i < 2, start[i] <= j))
    fold = next(s for s in stages(made.body) if s.name == "start_min")
    assert "i0 * 2 + i1 < 2" in print_stage(fold)
    values_agree(program, made, {"start": lambda rng, m, n: rng.integers(0, n + 1, 2)})


def test_sizes_of_64_bits() -> None:
    """A scan counts iterations in 32 bits, as loops do, whatever its bounds are."""
    m, n = var("m", "int64"), var("n", "int64")
    x = placeholder((m, n), name="x")
    doc, keys = placeholder((m,), "int64", "doc"), placeholder((n,), "int64", "keys")
    j = reduce_axis((0, n), "j")
    t = compute((m, n), lambda i, j: select(eq(doc[i], keys[j]), x[i, j], NEG_INF), "t")
    program = build(compute((m,), lambda i: max(t[i, j], axis=j), "y"))
    sch = Schedule(program)
    i, jj = sch.loops("t")
    _, j0, _, _ = sch.tile([i, jj], [2, 2])
    sch.fuse_at("y", j0)
    sch.partition(j0)
    verify(sch.program)
    edge = 2**63 - 1
    numbers = {
        "doc": lambda rng, m, n: rng.choice([-edge, 0, edge], m),
        "keys": lambda rng, m, n: rng.choice([0, edge], n),
    }
    values_agree(program, sch.program, numbers)


def test_scan() -> None:
    doc, keys = placeholder((M,), "int32", "doc"), placeholder((N,), "int32", "keys")
    program, made = cut(lambda i, j: eq(doc[i], keys[j]))
    (scan,) = [s for s in walk(made.body) if isinstance(s, For) and s.var == "j0_step"]
    pieces = [s for s in walk(made.body) if isinstance(s, For) and s.var == "j0"]
    assert {x.buffer for p in pieces for e in (p.lo, p.hi) for x in loads(e)} == {"j0_first", "j0_last"}
    # Keys are compared one by one: there are no extremes of theirs.
    assert {s.name for s in stages(scan)} == {"j0_firsts", "j0_lasts"}
    assert {x.buffer for s in stages(scan) for v in s.action.values for x in loads(v)} >= {"keys", "doc_min", "doc_max"}
    anything = {"doc": lambda rng, m, n: rng.integers(0, 3, m), "keys": lambda rng, m, n: rng.integers(0, 3, n)}
    values_agree(program, made, anything)
    nothing = {"doc": lambda rng, m, n: np.full(m, 2**31 - 1), "keys": lambda rng, m, n: np.full(n, -(2**31))}
    values_agree(program, made, nothing)


@pytest.mark.parametrize(
    "mask",
    [
        lambda i, j, flag: eq(flag[i, j], 1),
        lambda i, j, flag: flag[j, i] <= j,
        lambda i, j, flag: flag[i, i] * j < 3,
        lambda i, j, flag: eq(i % 2, j % 2),
    ],
)
def test_what_no_extreme_bounds_is_checked_everywhere(mask: Callable[..., Expr]) -> None:
    """Data of both axes, and what is neither rising nor falling: the tail alone cuts the loop."""
    size = (N + M, N + M)
    flag = placeholder(size, "int32", "flag")
    program, made = cut(lambda i, j: mask(i, j, flag))
    assert not any(loads(e) for s in walk(made.body) if isinstance(s, For) for e in (s.lo, s.hi))
    inputs = {"flag": lambda rng, m, n: rng.integers(-1, 4, (m + n, m + n))}
    values_agree(program, made, inputs if any(b.name == "flag" for b in program.inputs) else {})


EDGES = (2**31 - 1, 2**31 - 4, -(2**31), -(2**31) + 4, 0)


@pytest.mark.parametrize(
    "mask",
    [
        lambda i, j, doc, keys: eq(doc[i] + 5, keys[j]),
        lambda i, j, doc, keys: eq(doc[i], keys[j] - 5),
        lambda i, j, doc, keys: doc[i] + j <= keys[j],
        lambda i, j, doc, keys: doc[i] * 2 > keys[j],
        lambda i, j, doc, keys: doc[i] * j < 3,
        lambda i, j, doc, keys: keys[j] * j < doc[i],
    ],
)
def test_a_scan_of_numbers_that_wrap_around(mask: Callable[..., Expr]) -> None:
    """2**31 - 1 and 5 more is a small number: that it is larger than the rows' is not so."""
    doc, keys = placeholder((M,), "int32", "doc"), placeholder((N,), "int32", "keys")
    program, made = cut(lambda i, j: mask(i, j, doc, keys))
    read = {b.name for b in program.inputs}
    for one, other in product(EDGES, repeat=2):
        of = {"doc": lambda rng, m, n, x=one: np.full(m, x, np.int32)}
        of |= {"keys": lambda rng, m, n, x=other: np.full(n, x, np.int32)}
        values_agree(program, made, {n: make for n, make in of.items() if n in read})
    some = {n: lambda rng, m, k: rng.choice(EDGES, m).astype(np.int32) for n in ("doc",)}
    some |= {"keys": lambda rng, m, k: rng.choice(EDGES, k).astype(np.int32)}
    values_agree(program, made, {n: make for n, make in some.items() if n in read})


@pytest.mark.parametrize("keys", [1, 7, 300, 1000])
def test_a_scan_of_many_keys_in_steps(keys: int) -> None:
    """The first and the last key are found wherever they lie in a step, and none behind the end."""
    doc, own = placeholder((M,), "int32", "doc"), placeholder((N,), "int32", "keys")
    program, made = cut(lambda i, j: eq(doc[i], own[j]))
    rng = np.random.default_rng(keys)
    for at in {0, keys // 2, keys - 1}:
        numbers = np.full(keys, 5, np.int32)
        numbers[at] = 3
        given = {"x": rng.standard_normal((3, keys)).astype(np.float32), "doc": np.array([3, 4, 5], np.int32)}
        found, expected = (evaluate(p, {**given, "keys": numbers}, {"m": 3, "n": keys})["y"] for p in (made, program))
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("start", [2**40, 2**31 - 1, 2**62, -(2**62), 0])
def test_a_scan_begins_nowhere_behind_the_end(start: int) -> None:
    """Where a range begins is no number of int32; times the length of a tile it is none of int64, either."""
    begin = placeholder((M,), "int64", "begin")
    doc, keys = placeholder((M,), "int32", "doc"), placeholder((N,), "int32", "keys")
    program, made = cut(lambda i, j: logical_and(begin[i] < j, eq(doc[i], keys[j])))
    same = {n: lambda rng, m, k: np.zeros(m, np.int32) for n in ("doc",)}
    same |= {"keys": lambda rng, m, k: np.zeros(k, np.int32), "begin": lambda rng, m, k: np.full(m, start, np.int64)}
    values_agree(program, made, same)


@pytest.mark.parametrize(
    "mask",
    [
        lambda i, j, prefix: logical_or(j < prefix[0], logical_and(j <= i, i - j < 3)),
        lambda i, j, prefix: logical_or(prefix[0] <= j, logical_and(j <= i, i - j < 3)),
        lambda i, j, prefix: logical_or(j < 4, prefix[0] <= j),
    ],
)
@pytest.mark.parametrize("prefix", [0, 3, 8, 1000])
def test_a_scan_of_several_ranges_reaches_as_far_as_any(mask: Callable[..., Expr], prefix: int) -> None:
    """A prefix reaches further than a window, or what is behind a number begins before it."""
    doc, keys = placeholder((M,), "int32", "doc"), placeholder((N,), "int32", "keys")
    ends = placeholder((1,), "int32", "prefix")
    program, made = cut(lambda i, j: logical_and(eq(doc[i], keys[j]), mask(i, j, ends)))
    of = {"doc": lambda rng, m, n: rng.integers(0, 2, m), "keys": lambda rng, m, n: rng.integers(0, 2, n)}
    values_agree(program, made, {**of, "prefix": lambda rng, m, n: np.full(1, prefix, np.int32)})


@pytest.mark.parametrize("word", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_numbers_of_64_bits_are_compared_without_a_difference(word: str) -> None:
    """2**63 - 1 less -(2**63) is no number of int64."""
    doc, keys = placeholder((M,), "int64", "doc"), placeholder((N,), "int64", "keys")
    program, made = cut(lambda i, j: op(word, doc[i], keys[j]))
    edges = (-(2**63), 2**63 - 1, -1, 0)
    for one, other in product(edges, repeat=2):
        of = {"doc": lambda rng, m, n, x=one: np.full(m, x), "keys": lambda rng, m, n, x=other: np.full(n, x)}
        values_agree(program, made, of)


def test_a_bound_that_the_kernel_computes_itself_is_left_alone() -> None:
    x, w = placeholder((M, N), name="x"), placeholder((M,), "int32", "w")
    j = reduce_axis((0, N), "j")
    own = compute((M,), lambda i: w[i] + 1, "own")
    t = compute((M, N), lambda i, j: select(j < own[i], x[i, j], NEG_INF), "t")
    program = build(compute((M,), lambda i: max(t[i, j], axis=j), "y"))
    sch = Schedule(program)
    i, jj = sch.loops("t")
    _, j0, _, _ = sch.tile([i, jj], [2, 2])
    sch.fuse_at("y", j0)
    sch.partition(j0)
    bounds = [e for s in walk(sch.program.body) if isinstance(s, For) for e in (s.lo, s.hi)]
    assert not any(loads(e) for e in bounds)


def test_many_alternatives() -> None:
    def blocks(i: Expr, j: Expr) -> Expr:

        return reduce(or_, [logical_and(3 * k <= j, j < 3 * k + 1) for k in range(MOST + 1)])

    program, made = cut(blocks)
    values_agree(program, made, {})
    check_same(program, made)


# --- ranges of reductions ------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["llvm", "interpret"])
def test_ragged_rows(target: str) -> None:
    """A reduce axis whose range is data, per row and between offsets."""
    x, n_of = placeholder((B, N), "float32", "x"), placeholder((B,), "int32", "n_of")
    rows = compute((B,), lambda b: sum(x[b, j := reduce_axis((0, n_of[b]), "j")], axis=j), "rows")
    run = neptune.compile(build(rows, inputs=[x, n_of]), target=target)
    data, lengths = torch.randn(5, 10), torch.tensor([0, 4, 10, 1, 9], dtype=torch.int32)
    wanted = torch.stack([data[b, :n].sum() for b, n in enumerate(lengths)])
    torch.testing.assert_close(run(data, lengths), wanted)


def test_ragged_softmax() -> None:
    v, offsets = placeholder((N,), "float32", "v"), placeholder((B + 1,), "int32", "offsets")
    top = compute((B,), lambda b: max(v[j := reduce_axis((offsets[b], offsets[b + 1]), "j")], axis=j), "top")
    total = compute(
        (B,), lambda b: sum(exp(v[j := reduce_axis((offsets[b], offsets[b + 1]), "j")] - top[b]), axis=j), "total"
    )
    run = neptune.compile(build(total, inputs=[v, offsets]), target="llvm")
    data, cuts = torch.randn(600), torch.tensor([0, 4, 4, 300, 600], dtype=torch.int32)
    parts = [data[a:b] for a, b in pairwise(cuts.tolist())]
    wanted = torch.stack([(p - p.max()).exp().sum() if len(p) else torch.zeros(()) for p in parts])
    torch.testing.assert_close(run(data, cuts), wanted)


def test_tiles_of_rows_read_no_range_beyond_the_last() -> None:
    x, n_of = placeholder((B, N), "float32", "x"), placeholder((B,), "int32", "n_of")
    program = build(compute((B,), lambda b: sum(x[b, j := reduce_axis((0, n_of[b]), "j")], axis=j), "rows"))
    sch = Schedule(program)
    sch.split(sch.loops("rows")[0], 4)
    assert "select(b0 * 4 + b1 < batch, n_of[b0 * 4 + b1], 0)" in str(sch.program)
    data, lengths = np.random.default_rng(0).normal(size=(5, 3)), np.array([0, 3, 1, 2, 3])
    sizes = {"batch": 5, "n": 3}
    found, expected = (evaluate(p, {"x": data, "n_of": lengths}, sizes)["rows"] for p in (sch.program, program))
    np.testing.assert_allclose(found, expected)
