"""Indices that tensors hold: clamped on llvm, and reported where NEPTUNE_CHECK=1 asks for it."""

from __future__ import annotations

import functools

import pytest
import torch

import neptune
from neptune.errors import ShapeError
from neptune.frontend.assemble import build
from neptune.frontend.builder import compute, placeholder, reduce_axis, select, sum, var
from neptune.runtime.calls.indices import lookups

M, N = var("m"), var("n")


def gather():
    x, idx = placeholder((N,), "float32", "x"), placeholder((M,), "int32", "idx")
    return compute((M,), lambda i: x[idx[i]], "y")


def sparse():
    """A matrix in rows of any length, times a vector."""
    start, col = placeholder((M + 1,), "int32", "start"), placeholder((N,), "int32", "col")
    x = placeholder((var("k"),), "float32", "x")

    def row(i):
        j = reduce_axis((start[i], start[i + 1]), "j")
        return sum(x[col[j]], axis=j)

    return compute((M,), row, "y")


def pages():
    """Entries of a table behind a row's length may hold anything."""
    table, length = placeholder((M, 4), "int32", "table"), placeholder((M,), "int32", "length")
    x = placeholder((N, 2), "float32", "x")
    j = reduce_axis((0, 8), "j")
    return compute((M,), lambda i: sum(select(j < length[i], x[table[i, j // 2], j % 2], 0.0), axis=j), "y")


@functools.cache
def compiled(make):
    return neptune.compile(make(), target="llvm")


X = torch.arange(5, dtype=torch.float32)


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.fixture
def checked(monkeypatch):
    monkeypatch.setenv("NEPTUNE_CHECK", "1")


@pytest.mark.parametrize("target", ["llvm", "interpret"])
@pytest.mark.parametrize("value", [5, -1, 2**31 - 1, -(2**31)])
def test_an_index_that_leads_out_of_a_tensor_is_reported_with_its_tensor_and_value(checked, target, value):
    kernel = compiled(gather).for_target(target)
    assert kernel(X, ints(0, 4, 2)).tolist() == [0, 4, 2]
    with pytest.raises(ShapeError) as error:
        kernel(X, ints(0, 4, value))
    text = str(error.value)
    assert f"`idx` leads out of `x`: `idx[i]` is {value}" in text and "0 to 4" in text and "i = 2" in text
    assert kernel(X, ints(3)).tolist() == [3]


@pytest.mark.parametrize("value, nearest", [(5, 4.0), (-1, 0.0), (2**31 - 1, 4.0), (-(2**31), 0.0)])
def test_llvm_clamps(value, nearest):
    assert compiled(gather).for_target("llvm")(X, ints(value, 1)).tolist() == [nearest, 1.0]


def test_nothing_is_reported_unasked(monkeypatch):
    monkeypatch.delenv("NEPTUNE_CHECK", raising=False)
    kernel = compiled(gather).for_target("interpret")
    assert kernel(X, ints(1, 2)).tolist() == [1, 2]
    monkeypatch.setattr(type(kernel.executable), "checked_call", None)  # what is called nowhere
    # The interpreter's memory is guarded by NaN; what matters is that nothing is said.
    kernel(X, ints(5, 2))


@pytest.mark.parametrize("target", ["llvm", "interpret"])
def test_rows_between_loaded_bounds_are_looked_at_and_no_others(checked, target):
    kernel = compiled(sparse).for_target(target)
    # Element 2 belongs to no row.
    good = ints(0, 2, 2), ints(1, 4, 99)
    starts, cols = good
    assert kernel(starts, X, cols).tolist() == [5.0, 0.0]
    with pytest.raises(ShapeError, match=r"`col` leads out of `x`: `col\[j\]` is 99"):
        kernel(ints(0, 2, 3), X, cols)
    with pytest.raises(ShapeError, match=r"`start` leads out of `col`: `j` is 3"):
        kernel(ints(0, 2, 4), X, ints(1, 4, 0))


def test_loaded_bounds_are_clamped_on_llvm():
    kernel = compiled(sparse).for_target("llvm")
    found = kernel(ints(0, 2, 1_000_000), X, ints(1, 4, -7))
    assert found[0] == 5.0 and torch.isfinite(found).all()
    kernel(ints(-(2**20), 2, 3), X, ints(1, 4, 2**31 - 1))


@pytest.mark.parametrize("target", ["llvm", "interpret"])
def test_what_no_row_reads_may_hold_anything(checked, target):
    kernel = compiled(pages).for_target(target)
    x = torch.arange(6, dtype=torch.float32).reshape(3, 2)
    table = torch.tensor([[2, 0, -1, 99], [1, -1, -1, -1]], dtype=torch.int32)
    assert kernel(ints(3, 1), x, table).tolist() == [4 + 5 + 0, 2]
    with pytest.raises(ShapeError, match=r"`table` leads out of `x`: .* is -1"):
        kernel(ints(5, 1), x, table)


def test_each_read_is_a_row_and_plain_ones_are_none():
    assert [(r.source, r.read.buffer) for r in lookups(build(sparse(), None, None))] == [("start", "col"), ("col", "x")]
    x = placeholder((N,), "float32", "x")
    assert lookups(build(compute((N,), lambda i: x[i], "y"), None, None)) == ()


def test_a_saved_kernel_is_checked_too(tmp_path, monkeypatch):
    compiled(gather).for_target("llvm").save(tmp_path / "gather")
    monkeypatch.setenv("NEPTUNE_CHECK", "1")
    with pytest.raises(ShapeError, match="leads out"):
        neptune.load(tmp_path / "gather", "llvm")(X, ints(7))


def test_nothing_is_looked_at_while_a_graph_is_captured(checked, monkeypatch):
    from neptune.runtime.calls import indices

    kernel = compiled(gather).for_target("llvm")
    rows = kernel.executable._lookups
    on_gpu = type("OnGpu", (), {"device": torch.device("cuda", 0)})()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    indices.check_indices(rows, "gather", {"idx": on_gpu}, {})


def test_many_reads_are_looked_at_in_parts(checked, monkeypatch):
    monkeypatch.setattr("neptune.runtime.calls.indices.AT_ONCE", 2)
    kernel = compiled(gather).for_target("llvm")
    with pytest.raises(ShapeError, match="i = 6"):
        kernel(X, ints(0, 1, 2, 3, 4, 0, -3, 9))
