"""A kernel as an operator of torch: what torch's own checks say of it, and what torch makes of it where it traces."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode

import neptune
from neptune.errors import ShapeError
from neptune.frontend.builder import build, compute, max, maximum, placeholder, reduce_axis, sum, var
from neptune.kernel import Kernel
from neptune.ops.softmax import softmax
from neptune.runtime.custom_op import schema


@pytest.fixture(scope="module")
def rows() -> Kernel:
    """Of x: f32[n, m], scaled: the maximum of each row, and the row sums; two results and a scalar."""
    n, m = var("n"), var("m")
    x = placeholder((n, m), "float32", "x")
    j = reduce_axis((0, m), "j")
    top = compute((n,), lambda i: max(x[i, j] * var("scale", "float32"), axis=j), "top")
    total = compute((n,), lambda i: sum(x[i, j], axis=j), "total")
    return neptune.compile(build([top, total], name="rows"), target="llvm")


@pytest.fixture(scope="module")
def padded() -> Kernel:
    """A result with computed sizes: x: f32[n] → y: f32[max(n, 4), n + 1]."""
    n = var("n")
    x = placeholder((n,), "float32", "x")
    y = compute((maximum(n, 4), n + 1), lambda i, j: x[j % n] * 2.0, "y")
    return neptune.compile(build(y, name="padded"), target="llvm")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def test_the_schema_follows_from_the_kernel(rows: Kernel) -> None:
    assert schema(rows.executable.signature) == "rows(Tensor x, float scale) -> (Tensor, Tensor)"


def test_torch_checks_the_operator(rows: Kernel, padded: Kernel) -> None:
    torch.library.opcheck(rows.torch_op("neptune_tests::rows"), (torch.randn(5, 7), 2.0))
    torch.library.opcheck(padded.torch_op("neptune_tests::padded"), (torch.randn(3),))


def test_fake_results_have_the_shapes_dtypes_and_strides_of_real_ones(padded: Kernel) -> None:
    op = padded.torch_op("neptune_tests::padded")
    for n in (1, 3, 9):
        real = op(torch.ones(n))
        with FakeTensorMode() as mode:
            fake = op(mode.from_tensor(torch.ones(n)))
        assert (fake.shape, fake.dtype, fake.stride()) == (real.shape, real.dtype, real.stride())


def test_one_kernel_is_one_operator(rows: Kernel, tmp_path: Path) -> None:
    op = rows.torch_op("neptune_tests::again")
    rows.save(tmp_path / "rows")
    assert neptune.load(tmp_path / "rows").torch_op("neptune_tests::again") is op
    assert pickle.loads(pickle.dumps(rows)).torch_op("neptune_tests::again") is op
    assert rows.for_target("interpret").torch_op("neptune_tests::again") is op
    other = neptune.compile(softmax(), target="llvm")
    with pytest.raises(ShapeError, match="another kernel has this name"):
        other.torch_op("neptune_tests::again")


def test_asking_for_a_name_of_torchs_own_changes_nothing(rows: Kernel) -> None:
    before = torch.ops.aten
    with pytest.raises(ShapeError, match="not Neptune's"):
        rows.torch_op("aten::add")
    assert torch.ops.aten is before


def test_it_compiles_without_breaks_and_once_for_all_sizes(rows: Kernel) -> None:
    op = rows.torch_op("neptune_tests::rows")
    traces = CompileCounter()
    f = torch.compile(lambda x: op(x * 2, 0.5)[0] + 1, fullgraph=True, dynamic=True, backend=traces)
    for n in range(2, 102):
        x = torch.randn(n, n % 13 + 2)
        torch.testing.assert_close(f(x), x.amax(1) + 1)
    assert traces.frame_count == 1


def test_a_traced_call_of_the_kernel_itself_is_an_operator(rows: Kernel) -> None:
    traces = CompileCounter()
    f = torch.compile(lambda x: rows(x, scale=2.0)[0] + 1, fullgraph=True, backend=traces)
    for n in range(5, 15):
        x = torch.randn(n, 4)
        torch.testing.assert_close(f(x), x.amax(1) * 2 + 1)
    assert traces.frame_count == 2, "one with the first size, one for all others"


def test_inductor_takes_it(rows: Kernel) -> None:
    x = torch.randn(5, 6)
    f = torch.compile(lambda x: rows(x.t().contiguous(), 1.0)[0], fullgraph=True, backend="aot_eager_decomp_partition")
    torch.testing.assert_close(f(x), x.amax(0))


def test_a_call_with_memory_of_the_callers_is_one_break(rows: Kernel) -> None:
    out = (torch.empty(5), torch.empty(5))

    def f(x: torch.Tensor) -> torch.Tensor:
        rows(x * 2, 1.0, out=out)
        return out[0] + 1

    x = torch.randn(5, 6)
    assert torch._dynamo.explain(f)(x).graph_break_count == 1
    torch.testing.assert_close(torch.compile(f, backend="eager")(x), x.amax(1) * 2 + 1)


class Rows(torch.nn.Module):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel, self.weight = kernel, torch.nn.Parameter(torch.randn(4, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernel(x, 1.0)[0] + self.kernel(self.weight, 1.0)[1].sum()


@pytest.mark.parametrize("strict", [True, False])
def test_it_exports_with_symbolic_sizes(rows: Kernel, strict: bool) -> None:
    module = Rows(rows)
    n = torch.export.Dim("n")
    with torch.no_grad():
        made = torch.export.export(module, (torch.randn(5, 3),), dynamic_shapes={"x": {0: n}}, strict=strict)
        x = torch.randn(11, 3)
        torch.testing.assert_close(made.module()(x), module(x))
    assert "neptune_kernels.rows" in str(made.graph)


def test_parameters_without_gradients(rows: Kernel) -> None:
    module = Rows(rows)
    x = torch.randn(5, 3)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(torch.compile(module, fullgraph=True, backend="aot_eager")(x), module(x))


def test_a_gradient_is_refused_with_what_to_do(rows: Kernel) -> None:
    module, x = Rows(rows), torch.randn(5, 3)
    op = rows.torch_op("neptune_tests::rows")
    for call in (lambda: module(x), lambda: op(module.weight, 1.0)):
        with pytest.raises(ShapeError, match=r"requires a gradient(.|\n)*torch\.no_grad\(\)"):
            call()
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match=r"requires a gradient(.|\n)*torch\.no_grad\(\)"):
        torch.compile(module, fullgraph=True, backend="aot_eager")(x)


def test_what_does_not_fit_is_refused_where_it_is_traced(rows: Kernel) -> None:
    op = rows.torch_op("neptune_tests::rows")
    with FakeTensorMode():
        with pytest.raises(ShapeError, match=r"`x` is torch\.float64 of 3 dimensions"):
            op(torch.ones(2, 3, 4, dtype=torch.float64), 1.0)
        op(torch.ones(2, 3), 1.0)


def test_sizes_that_must_agree_are_checked_where_they_are_traced() -> None:
    n = var("n")
    x, y = (placeholder((n,), "float32", name) for name in ("x", "y"))
    kernel = neptune.compile(build(compute((n,), lambda i: x[i] + y[i], "z"), name="plus"), target="llvm")
    with FakeTensorMode(), pytest.raises(RuntimeError, match="dimension 0 of argument `y` is not n"):
        kernel.torch_op("neptune_tests::plus")(torch.ones(3), torch.ones(4))


def test_empty_tensors(rows: Kernel) -> None:
    top, total = rows.torch_op("neptune_tests::rows")(torch.ones(3, 0), 1.0)
    assert top.shape == (3,) and total.tolist() == [0.0] * 3


def test_a_benchmark_has_quartiles_and_says_the_target(rows: Kernel) -> None:
    took = rows.benchmark(torch.ones(64, 64), scale=1.0)
    assert 0 < took.lower <= took.median <= took.upper
    assert took.calls >= 5 and str(took).endswith(f"{took.calls} calls on llvm")
