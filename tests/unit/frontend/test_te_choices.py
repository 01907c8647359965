"""TE's argmax and argmin: what is recognised, with TVM's own lowering as the oracle, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

tvm = pytest.importorskip("tvm")
from tvm import te, tirx  # noqa: E402

import neptune  # noqa: E402
from neptune.errors import ExpressionError  # noqa: E402
from neptune.frontend.te import from_te  # noqa: E402

M, N = te.var("m"), te.var("n")


def select(p, a, b):
    return tirx.Select(p, a, b)


def low(at, value):
    return tirx.const(-1, at), te.min_value(value)


def high(at, value):
    return tirx.const(-1, at), te.max_value(value)


# Of (index, value) pairs.
def first_max(a, b):
    return select(a[1] >= b[1], a[0], b[0]), select(a[1] >= b[1], a[1], b[1])


def first_min(a, b):
    keep = tirx.Not(b[1] < a[1])
    return tirx.if_then_else(keep, a[0], b[0]), tirx.Min(a[1], b[1])


def ordered_max(a, b):
    keep = tirx.Or(a[1] > b[1], tirx.And(a[1] == b[1], a[0] < b[0]))
    return select(keep, a[0], b[0]), select(keep, a[1], b[1])


def last_max(a, b):
    return select(a[1] > b[1], a[0], b[0]), select(a[1] > b[1], a[1], b[1])


def sums(a, b):
    return a[0] + b[0], a[1] + b[0]


def crossed(a, b):
    return select(a[0] >= b[1], a[0], b[0]), tirx.Max(a[1], b[1])


def smallest_of_both(a, b):
    return select(a[0] < b[0], a[0], b[0]), select(a[1] < b[1], a[1], b[1])


def rows(combine, identity=low, dtype="float32", index=None, swapped=False, name="best", shape=(M, N)):
    """[index, value] of each row."""
    x, k = te.placeholder(shape, dtype, name="x"), te.reduce_axis((0, shape[1]), name="k")

    def swap(pair):
        return pair[::-1] if swapped else pair

    fold = te.comm_reducer(
        lambda a, b: swap(combine(swap(a), swap(b))), lambda s, t: swap(identity(*swap((s, t)))), name="fold"
    )
    at = (lambda i: k) if index is None else (lambda i: index(i, k, x))
    found = te.compute((shape[0],), lambda i: fold(swap((at(i), x[i, k])), axis=k), name=name)
    return list(swap(tuple(found))), x


def tiled(sch):
    i, j = sch.loops("best")
    i0, *_ = sch.tile([i, j], [sch.param("BLOCK_M", [4]), sch.param("BLOCK_N", [8])])
    sch.bind(i0, "grid.x")


@pytest.mark.parametrize(
    ("combine", "identity", "reducer"),
    [(first_max, low, "argmax"), (first_min, high, "argmin"), (ordered_max, low, "argmax")],
)
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_recognised_and_equal_to_tvm(combine, identity, reducer, swapped, dtype):
    outs, x = rows(combine, identity, dtype, swapped=swapped)
    assert f" {reducer}= x[i, k], k init " in str(from_te(outs))
    kernel = neptune.compile(outs, tiled, target="llvm")
    oracle = tvm.compile(te.create_prim_func([x, *outs]), target="llvm")
    for n in (1, 21):
        values = torch.randint(-3, 3, (6, n)).to(getattr(torch, dtype))
        values[1] = torch.iinfo(values.dtype).min if dtype == "int32" else float("-inf")
        values[2] = torch.iinfo(values.dtype).max if dtype == "int32" else float("inf")
        wanted = [np.zeros(6, "int32"), np.zeros(6, dtype)]
        arrays = [tvm.runtime.tensor(a) for a in (values.numpy(), *wanted)]
        oracle(*arrays)
        for found, array in zip(kernel(values), arrays[1:], strict=True):
            np.testing.assert_array_equal(found.numpy(), array.numpy())


def test_one_result_alone_and_several_axes():
    outs, _ = rows(first_max)
    assert [b.name for b in from_te(outs[0]).outputs] == ["best_index"]
    x, r, c = te.placeholder((M, N), "float32", name="x"), te.reduce_axis((0, M), "r"), te.reduce_axis((0, N), "c")
    fold = te.comm_reducer(first_max, low, name="fold")
    at, _ = te.compute((), lambda: fold((r * N + c, x[r, c]), axis=[r, c]), name="best")
    assert "argmax= x[r, c], r * n + c init" in str(from_te(at))


def test_where_and_wide_indices():
    x, k = te.placeholder((M, N), "float32", name="x"), te.reduce_axis((0, N), name="k")
    fold = te.comm_reducer(first_max, low, name="fold")
    outs = te.compute((M,), lambda i: fold((k.var.astype("int64"), x[i, k]), axis=k, where=k <= i), name="best")
    program = from_te(list(outs))
    assert [b.dtype for b in program.outputs] == ["int64", "float32"]
    values = torch.randn(5, 9)
    at, best = neptune.compile(list(outs), tiled, target="llvm")(values)
    left = torch.where(torch.arange(9) <= torch.arange(5)[:, None], values, -torch.inf)
    assert torch.equal(at, left.argmax(1)) and torch.equal(best, left.max(1).values)


@pytest.mark.parametrize(
    "make",
    [
        lambda: rows(sums),
        lambda: rows(crossed, dtype="int32"),
        lambda: rows(smallest_of_both),
        lambda: rows(first_max, index=lambda i, k, x: i),
    ],
)
def test_refused(make):
    """Beside what `tests/errors/cases/imports.py` shows."""
    with pytest.raises(ExpressionError, match="importing stage `best`"):
        from_te(make()[0])


def test_a_start_of_any_index_where_indices_are_compared():
    outs, _ = rows(ordered_max, lambda s, t: (tirx.const(5, s), te.min_value(t)))
    assert "init -3.4028234663852886e+38, 5" in str(from_te(outs))
