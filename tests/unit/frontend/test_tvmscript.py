"""The PrimFunc importer: equal to the TE importer, schedules dropped only where they are complete, clear refusals."""

from __future__ import annotations

import pytest
import torch

import neptune
from neptune.errors import ExpressionError
from neptune.ir.program import stages

tvm = pytest.importorskip("tvm")
import tvm.s_tir as s_tir  # noqa: E402
from tvm import te, tirx  # noqa: E402

from neptune.frontend.te import from_te  # noqa: E402
from neptune.frontend.tvmscript import from_tvmscript  # noqa: E402
from tests.examples import te_examples  # noqa: E402


def placeholders(outputs):
    found = []

    def visit(t):
        for i in t.op.input_tensors:
            visit(i)
        if isinstance(t.op, te.PlaceholderOp) and t not in found:
            found.append(t)

    for t in outputs:
        visit(t)
    return found


def both(outputs, *scalars):
    """(by the TE importer, by the PrimFunc importer)."""
    outputs = [outputs] if isinstance(outputs, te.Tensor) else list(outputs)
    args = [*placeholders(outputs), *scalars]
    name = outputs[0].op.name
    return from_te(outputs, args, name), from_tvmscript(te.create_prim_func([*args, *outputs]), name=name)


def script(body: str, head: str = 'x: T.Buffer((8, 4), "float32"), y: T.Buffer((8,), "float32")'):
    """A PrimFunc from the lines of its body."""
    lines = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
    return tvm.script.from_source(f"@T.prim_func(s_tir=True)\ndef main({head}):\n{lines}\n")


SUM = """
for i, j in T.grid(8, 4):
    with T.sblock("y"):
        v_i, v_j = T.axis.remap("SR", [i, j])
        with T.init():
            y[v_i] = T.float32(0)
        y[v_i] = y[v_i] + x[v_i, v_j]
"""


def ragged():
    m = te.var("m")
    start, x = te.placeholder((m + 1,), "int32", "start"), te.placeholder((te.var("n"),), "float32", "x")

    def row(i):
        k = te.reduce_axis((start[i], start[i + 1]), "k")
        return te.sum(x[k], axis=k)

    return te.compute((m,), row, "y")


def zero_dimensions():
    x = te.placeholder((te.var("n"),), "int8", "x")
    k = te.reduce_axis((0, x.shape[0]), "k")
    total = te.compute((), lambda: te.sum(x[k].astype("int32"), axis=k), "total")
    point = te.compute((), lambda: total() * 2, "point")
    return [total, te.compute((1, 3), lambda i, j: point() + j, "wide")]


@pytest.mark.parametrize(
    "outputs",
    [
        te_examples.figure1(),
        te_examples.softmax("float16"),
        te_examples.attention(True),
        te_examples.attention(False, "bshd", 64, "float32", True),
        ragged(),
        zero_dimensions(),
    ],
    ids=["figure1", "softmax", "causal", "global", "ragged", "0-d"],
)
def test_equal_to_the_te_importer(outputs):
    by_te, by_primfunc = both(outputs)
    assert by_te == by_primfunc


def test_parameters_keep_their_order_and_scalars_follow():
    n, w, alpha = te.var("n"), te.var("w"), te.var("alpha", "float32")
    a, b = te.placeholder((n,), "float32", "a"), te.placeholder((n,), "float32", "b")
    p = te.compute((n,), lambda i: te.if_then_else(i < w, b[i] * alpha, a[i]), "p")
    q = te.compute((n,), lambda i: b[i] + 1.0, "q")
    function = te.create_prim_func([q, a, alpha, p, b, w])
    program = from_tvmscript(function)
    assert [x.name for x in program.inputs] == ["a", "b"] and [x.name for x in program.outputs] == ["q", "p"]
    assert [s.name for s in program.scalars] == ["n", "alpha", "w"]
    program = from_tvmscript(function, inputs=["w", "b", function.params[1], "alpha"])
    assert [x.name for x in program.inputs] == ["b", "a"]
    assert [s.name for s in program.scalars] == ["n", "w", "alpha"]
    with pytest.raises(ExpressionError, match=r"(?s)inputs: 'c' is none.*`a`"):
        from_tvmscript(function, inputs=["c"])


@pytest.mark.parametrize("size", [8, None])
@pytest.mark.parametrize("kind", ["split", "fuse", "both", "threads", "swap"])
def test_an_applied_schedule_changes_nothing(kind, size):
    m = size or te.var("m")
    x = te.placeholder((m, 6), "float32", "x")
    k = te.reduce_axis((0, 6), "k")
    y = te.compute((m,), lambda i: te.sum(x[i, k], axis=k), "y")
    z = te.compute((m, 6), lambda i, j: x[i, j] - y[i], "z")
    plain = te.create_prim_func([x, z])
    sch = s_tir.Schedule(plain)
    a, b = sch.get_loops(sch.get_sblock("z"))
    if kind == "split":
        sch.split(a, [None, 3])
    elif kind == "fuse":
        sch.fuse(a, b)
    elif kind == "both":
        sch.split(sch.fuse(a, b), [None, 5])
    elif kind == "threads":
        outer, inner = sch.split(a, [None, 4])
        sch.bind(outer, "blockIdx.x")
        sch.bind(inner, "threadIdx.x")
        sch.vectorize(b)
    else:
        sch.reorder(*reversed(sch.get_loops(sch.get_sblock("y"))))
    scheduled = from_tvmscript(sch.mod["main"])
    expected = from_tvmscript(plain)
    assert [s.action.index for s in stages(expected.body)] != []
    values = torch.randn(8, 6)
    kernels = [neptune.compile(p, lambda sch: None, target="llvm") for p in (expected, scheduled)]
    results = [k(values) for k in kernels]
    assert torch.equal(*results) and torch.allclose(results[0], values - values.sum(1, keepdim=True), atol=1e-5)


def test_an_init_block_of_its_own():
    x = te.placeholder((8, 4), "float32", "x")
    k = te.reduce_axis((0, 4), "k")
    plain = te.create_prim_func([x, te.compute((8,), lambda i: te.max(x[i, k], axis=k), "y")])
    sch = s_tir.Schedule(plain)
    block = sch.get_sblock("y")
    sch.decompose_reduction(block, sch.get_loops(block)[0])
    assert "y_init" in sch.mod.script()
    assert from_tvmscript(sch.mod["main"]) == from_tvmscript(plain)


def test_compile_takes_a_function_and_a_module():
    function = script(SUM)
    x = torch.randn(8, 4)
    for taken in (function, tvm.IRModule({"row_sum": function})):
        kernel = neptune.compile(taken, lambda sch: None, target="llvm")
        assert torch.allclose(kernel(x), x.sum(1), atol=1e-6)
    assert kernel.name == "row_sum"
    module = tvm.IRModule({"f": function, "g": function.with_attr("global_symbol", "g")})
    with pytest.raises(ExpressionError, match=r"2 PrimFuncs: f, g"):
        neptune.compile(module, target="llvm")
    with pytest.raises(ExpressionError, match="no PrimFunc"):
        neptune.compile(tvm.IRModule({}), target="llvm")


def best(combine, start=-1, swapped=False):
    """The PrimFunc of [value, index] of each row, by a TE combiner of such pairs."""
    pair = te.comm_reducer(combine, lambda t, u: (tirx.min_value(t), tirx.const(start, u)))
    m, n = te.var("m"), te.var("n")
    x, k = te.placeholder((m, n), "float32", "x"), te.reduce_axis((0, n), "k")
    value, index = te.compute((m,), lambda i: pair((x[i, k], k), axis=k), "best")
    return te.create_prim_func([x, index, value] if swapped else [x, value, index])


def first(a, b):
    return tirx.max(a[0], b[0]), tirx.Select(a[0] >= b[0], a[1], b[1])


def ordered(a, b):
    keep = tirx.Or(a[0] > b[0], tirx.And(a[0] == b[0], a[1] < b[1]))
    return tirx.Select(keep, a[0], b[0]), tirx.Select(keep, a[1], b[1])


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("combine, start", [(first, -1), (ordered, 2**31 - 1)])
def test_argmax(combine, start, swapped):
    kernel = neptune.compile(best(combine, start, swapped), target="llvm")
    x = torch.randint(-3, 4, (6, 21)).float()
    results = dict(zip(kernel.outputs, kernel(x), strict=True))
    assert torch.equal(results["best_v0"], x.max(1).values)
    assert torch.equal(results["best_v1"].long(), (x == x.max(1).values[:, None]).long().argmax(1))
