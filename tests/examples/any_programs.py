"""A zoo of small programs, each with its float64 reference: what "any program runs" means."""

# ruff: noqa: B008, E501 (one program a line; the default arguments are fresh tensors)
from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

import neptune
from neptune.errors import NeptuneError
from neptune.frontend import builder as te
from neptune.frontend.assemble import Tensor
from neptune.frontend.builder import compute, eq, maximum, placeholder, reduce_axis, var
from neptune.ir.integers import evaluate_size

m, n, k, b = (var(x) for x in "mnkb")
Array = Any


@dataclass(frozen=True)
class Case:
    """A program at given sizes. `ref` maps the inputs, in float64 (integers and bools as they are), to the results."""

    name: str
    make: Callable[[], Tensor | tuple[Tensor, ...]]
    ref: Callable[..., Any]
    sizes: Mapping[str, int] = field(default_factory=dict)
    # Largest value + 1 of integer inputs, by name (sizes or numbers): indices must stay inside.
    below: Mapping[str, str | int] = field(default_factory=dict)
    tol: float = 2e-6

    def inputs(self, program: Any, rng: np.random.Generator) -> list[torch.Tensor]:
        """Random tensors of the program's inputs."""
        return [self._draw(x, rng) for x in program.inputs]

    def _draw(self, buffer: Any, rng: np.random.Generator) -> torch.Tensor:
        shape = tuple(evaluate_size(d, self.sizes) for d in buffer.shape)
        if buffer.dtype == "bool":
            return torch.from_numpy(np.asarray(rng.random(shape) < 0.5))
        if buffer.dtype.startswith("int"):
            top = self.below.get(buffer.name, 9)
            low = 0 if buffer.name in self.below else -9
            high = self.sizes[top] if isinstance(top, str) else top
            return torch.from_numpy(np.asarray(rng.integers(low, max(high, 1), shape))).to(getattr(torch, buffer.dtype))
        values = np.asarray(rng.standard_normal(shape))
        return torch.from_numpy(values).to(getattr(torch, buffer.dtype))


def inp(shape: Any, dtype: str = "float32", name: str = "x") -> Tensor:
    return placeholder(shape, dtype, name)


def fold(f: Callable[..., Any], shape: Any, extents: Any, value: Callable[..., Any], name: str = "y") -> Tensor:
    """A reduction: `value(*axes, *reduced)` folded by `f`."""
    reduced = [reduce_axis((0, e), f"r{q}") for q, e in enumerate(extents)]
    return compute(shape, lambda *axes: f(value(*axes, *reduced), axis=reduced), name)


# --- maps ---------------------------------------------------------------------------------------


def _map(shape: Any, value: Callable[..., Any], *inputs: Tensor, out: Any = None, name: str = "y") -> Tensor:
    return compute(shape if out is None else out, lambda *i: value(*inputs, *i), name)


def identity() -> Tensor:
    return _map((m, n), lambda x, i, j: x[i, j], inp((m, n)))


def scalar_out() -> Tensor:
    return _map((), lambda x: x[()] * 2.0, inp(()))


def transpose() -> Tensor:
    return _map((n, m), lambda x, i, j: x[j, i], inp((m, n)))


def chained() -> Tensor:
    x = inp((m, n))
    a = compute((m, n), lambda i, j: x[i, j] * 2.0, "a")
    c = compute((m, n), lambda i, j: te.exp(a[i, j]), "c")
    return compute((m, n), lambda i, j: c[i, j] + a[i, j], "y")


def softmax() -> Tensor:
    x = inp((m, n))
    mx = fold(te.max, (m,), (n,), lambda i, j: x[i, j], "mx")
    e = compute((m, n), lambda i, j: te.exp(x[i, j] - mx[i]), "e")
    s = fold(te.sum, (m,), (n,), lambda i, j: e[i, j], "s")
    return compute((m, n), lambda i, j: e[i, j] / s[i], "y")


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def matmul(dtype: str = "float32") -> Tensor:
    x, w = inp((m, k), dtype), inp((k, n), dtype, "w")
    return fold(te.sum, (m, n), (k,), lambda i, j, r: x[i, r].astype("float32") * w[r, j].astype("float32"))


def matmul_bias_relu() -> Tensor:
    x, w, v = inp((m, k)), inp((k, n), name="w"), inp((n,), name="v")
    h = fold(te.sum, (m, n), (k,), lambda i, j, r: x[i, r] * w[r, j], "h")
    return compute((m, n), lambda i, j: maximum(h[i, j] + v[j], 0.0), "y")


def conv2d() -> Tensor:
    x, w = inp((b, 3, m + 2, n + 2)), inp((4, 3, 3, 3), name="w")
    return fold(te.sum, (b, 4, m, n), (3, 3, 3), lambda q, o, i, j, c, u, v: x[q, c, i + u, j + v] * w[o, c, u, v])


def reversed_rounded() -> Tensor:
    x = inp((n,))

    def value(i: Any, r: Any) -> Any:
        back = x[n - 1 - r]
        return te.cast(te.if_then_else(back > x[0], x[r], back), "bfloat16")

    return fold(te.max, (m,), (n,), value)


def _reversed_rounded(x: Array) -> Array:
    chosen = torch.from_numpy(np.where(x[::-1] > x[0], x, x[::-1]))
    return np.full(5, chosen.to(torch.bfloat16).double().max())


def conv2d_channels() -> Tensor:
    x, w = inp((b, k, m + 2, n + 2)), inp((4, k, 3, 3), name="w")
    return fold(te.sum, (b, 4, m, n), (k, 3, 3), lambda q, o, i, j, c, u, v: x[q, c, i + u, j + v] * w[o, c, u, v])


def _conv2d(x: Array, w: Array) -> Array:
    return np.einsum("bcijuv,ocuv->boij", sliding_window_view(x, (3, 3), axis=(2, 3)), w)


def variance() -> tuple[Tensor, Tensor]:
    x = inp((m, n))
    s = fold(te.sum, (m,), (n,), lambda i, j: x[i, j], "s")
    mean = compute((m,), lambda i: s[i] / n.astype("float32"), "mean")
    q = fold(te.sum, (m,), (n,), lambda i, j: (x[i, j] - mean[i]) * (x[i, j] - mean[i]), "q")
    var_ = compute((m,), lambda i: q[i] / n.astype("float32"), "variance")
    return mean, var_


def both() -> tuple[Tensor, Tensor]:
    x = inp((m, n))
    s = fold(te.sum, (m,), (n,), lambda i, j: x[i, j], "s")
    return s, compute((m, n), lambda i, j: x[i, j] - s[i], "y")


def two_matmuls() -> Tensor:
    x, w, v = inp((m, k)), inp((k, n), name="w"), inp((n, 8), name="v")
    h = fold(te.sum, (m, n), (k,), lambda i, j, r: x[i, r] * w[r, j], "h")
    return fold(te.sum, (m, 8), (n,), lambda i, d, j: h[i, j] * v[j, d], "y")


def shifted_stage() -> Tensor:
    x = inp((n + 1,))
    a = compute((n + 1,), lambda i: x[i] * 2.0, "a")
    return compute((n,), lambda i: a[i] + a[i + 1], "y")


def pairwise() -> Tensor:
    x = inp((n,))
    s = fold(te.sum, (n,), (n,), lambda i, j: x[i] * x[j], "s")
    return compute((n, n), lambda i, j: s[i] + s[j], "y")


def diamond() -> Tensor:
    x = inp((m, n))
    rows = fold(te.sum, (m,), (n,), lambda i, j: x[i, j], "rows")
    cols = fold(te.max, (n,), (m,), lambda j, i: x[i, j], "cols")
    return compute((m, n), lambda i, j: rows[i] * cols[j], "y")


def scale_by_total() -> Tensor:
    x = inp((n,))
    t = fold(te.sum, (), (n,), lambda j: x[j], "t")
    return compute((n,), lambda i: x[i] / (te.abs(t[()]) + 1.0), "y")


def two_layouts() -> tuple[Tensor, Tensor]:
    x = inp((m, n))
    a = compute((m, n), lambda i, j: x[i, j] + 1.0, "a")
    return a, compute((n, m), lambda j, i: a[i, j] * 3.0, "y")


def triangle() -> Tensor:
    x = inp((n,))
    j = reduce_axis((0, n), "j")
    return compute((n,), lambda i: te.sum(x[j], axis=j, where=j <= i), "y")


def paged() -> Tensor:
    pool, table = inp((8, 4, n), name="pool"), inp((m, 3), "int32", "table")
    return compute((m, 12, n), lambda i, t, d: pool[table[i, t // 4], t % 4, d], "y")


def gathered_sum() -> Tensor:
    x, idx = inp((m, n)), inp((b, k), "int32", "idx")
    return fold(te.sum, (b, n), (k,), lambda i, j, r: x[idx[i, r], j])


SIZES = {"m": 5, "n": 19, "k": 37, "b": 2}
SQUARE = {"n": 13}

CASES = (
    # maps
    Case("identity", identity, lambda x: x, SIZES),
    Case("scalar_out", scalar_out, lambda x: 2 * x),
    Case("transpose", transpose, lambda x: x.T, SIZES),
    Case("chained", chained, lambda x: np.exp(2 * x) + 2 * x, SIZES),
    Case(
        "broadcast",
        lambda: _map((m, n), lambda x, v, i, j: x[i] + v[j], inp((m,)), inp((n,), name="v")),
        lambda x, v: x[:, None] + v,
        SIZES,
    ),
    Case("spread", lambda: _map((m, n, 3), lambda x, i, j, c: x[j], inp((n,))), lambda x: np.tile(x[:, None], (5, 1, 3)), SIZES),
    Case("diagonal", lambda: _map((n,), lambda x, i: x[i, i], inp((n, n))), np.diagonal, SQUARE),
    Case("reversed", lambda: _map((n,), lambda x, i: x[n - 1 - i], inp((n,))), lambda x: x[::-1], SIZES),
    Case("strided", lambda: _map((n,), lambda x, i: x[2 * i + 1], inp((n * 2,))), lambda x: x[1::2], SIZES),
    Case("halved", lambda: _map((n * 2,), lambda x, i: x[i // 2], inp((n,))), lambda x: np.repeat(x, 2), SIZES),
    Case("wrapped", lambda: _map((n,), lambda x, i: x[(i + 3) % n], inp((n,))), lambda x: np.roll(x, -3), SIZES),
    Case(
        "reshaped", lambda: _map((n * 6,), lambda x, i: x[i // 6, i % 6], inp((n, 6))), lambda x: x.reshape(-1), SIZES
    ),
    Case("constants", lambda: compute((7, 19), lambda i, j: i * 100 + j, "y"), lambda: np.add.outer(np.arange(7) * 100, np.arange(19))),
    Case("zeros", lambda: compute((33,), lambda i: te.const(0.0), "y"), lambda: np.zeros(33)),
    Case(
        "select",
        lambda: _map((m, n), lambda x, i, j: te.select(x[i, j] > 0.0, x[i, j], x[i, j] * 0.5), inp((m, n))),
        lambda x: np.where(x > 0, x, x * 0.5),
        SIZES,
    ),
    Case(
        "padded",
        lambda: _map(
            (n + 2,), lambda x, i: te.select(te.all_of(i >= 1, i < n + 1), x[i - 1], 0.0), inp((n,))
        ),
        lambda x: np.pad(x, 1),
        SIZES,
    ),
    Case("bool_out", lambda: _map((m, n), lambda x, i, j: x[i, j] > 0.0, inp((m, n))), lambda x: x > 0, SIZES),
    Case(
        "bool_in",
        lambda: _map((n,), lambda x, p, i: te.select(p[i], x[i], 0.0), inp((n,)), inp((n,), "bool", "p")),
        lambda p, x: np.where(p, x, 0),
        SIZES,
    ),
    Case("int_out", lambda: _map((n,), lambda x, i: x[i] * 3 - 1, inp((n,), "int32")), lambda x: x * 3 - 1, SIZES),
    Case("int64_floor", lambda: _map((n,), lambda x, i: x[i] // 4, inp((n,), "int64")), lambda x: x // 4, SIZES),
    Case("half", lambda: _map((m, n), lambda x, i, j: x[i, j] * 2.0, inp((m, n), "float16")), lambda x: 2 * x, SIZES),
    Case("bf16_map", lambda: _map((m, n), lambda x, i, j: -x[i, j], inp((m, n), "bfloat16")), lambda x: -x, SIZES),
    Case("gather_rows", lambda: _map((m, n), lambda x, q, i, j: x[q[i], j], inp((k, n)), inp((m,), "int32", "q")), lambda x, q: x[q], SIZES, {"q": "k"}),
    Case("gather_elements", lambda: _map((m, n), lambda x, q, i, j: x[i, q[i, j]], inp((m, k)), inp((m, n), "int64", "q")), lambda x, q: np.take_along_axis(x, q, 1), SIZES, {"q": "k"}),
    Case("paged", paged, lambda pool, t: pool[t].reshape(5, 12, 19), SIZES, {"table": 8}),
    Case("one_long", lambda: _map((1, n, 1), lambda x, a, j, c: x[a, j, c] + 1.0, inp((1, n, 1))), lambda x: x + 1, SIZES),
    Case("rank5", lambda: _map((2, 3, m, 3, n), lambda x, p, q, i, r, j: x[p, q, i, r, j] * 2.0, inp((2, 3, m, 3, n))), lambda x: 2 * x, SIZES),
    # lone reductions
    Case("sum_last", lambda: fold(te.sum, (m,), (n,), lambda i, j, x=inp((m, n)): x[i, j]), lambda x: x.sum(1), SIZES),
    Case("sum_first", lambda: fold(te.sum, (n,), (m,), lambda j, i, x=inp((m, n)): x[i, j]), lambda x: x.sum(0), SIZES),
    Case("sum_middle", lambda: fold(te.sum, (m, n), (k,), lambda i, j, r, x=inp((m, k, n)): x[i, r, j]), lambda x: x.sum(1), SIZES),
    Case("sum_all", lambda: fold(te.sum, (), (m, n), lambda i, j, x=inp((m, n)): x[i, j]), lambda x: x.sum(), SIZES),
    Case("sum_two_of_three", lambda: fold(te.sum, (n,), (m, k), lambda j, i, r, x=inp((m, n, k)): x[i, j, r]), lambda x: x.sum((0, 2)), SIZES),
    Case("max_all", lambda: fold(te.max, (), (n,), lambda j, x=inp((n,)): x[j]), lambda x: x.max(), SIZES),
    Case("min_last", lambda: fold(te.min, (m,), (n,), lambda i, j, x=inp((m, n)): x[i, j]), lambda x: x.min(1), SIZES),
    Case("prod_last", lambda: fold(te.prod, (m,), (7,), lambda i, j, x=inp((m, 7)): x[i, j]), lambda x: x.prod(1), SIZES),
    Case("prod_int64", lambda: fold(te.prod, (m,), (5,), lambda i, j, x=inp((m, 5), "int64"): x[i, j]), lambda x: x.prod(1), SIZES),
    Case("sum_int32", lambda: fold(te.sum, (m,), (n,), lambda i, j, x=inp((m, n), "int32"): x[i, j]), lambda x: x.sum(1), SIZES),
    Case("max_int32", lambda: fold(te.max, (m,), (n,), lambda i, j, x=inp((m, n), "int32"): x[i, j]), lambda x: x.max(1), SIZES),
    Case("count", lambda: fold(te.sum, (m,), (n,), lambda i, j, x=inp((m, n)): te.select(x[i, j] > 0.0, te.const(1, "int32"), te.const(0, "int32"))), lambda x: (x > 0).sum(1), SIZES),
    Case("sum_half", lambda: fold(te.sum, (m,), (n,), lambda i, j, x=inp((m, n), "float16"): x[i, j].astype("float32")), lambda x: x.sum(1), SIZES),
    Case("sum_of_ones", lambda: fold(te.sum, (m,), (n,), lambda i, j: te.const(1.0)), lambda: np.full(5, 19.0), SIZES),
    Case("sum_of_rows", lambda: fold(te.sum, (m,), (n,), lambda i, j, x=inp((m,)), w=inp((n,), name="w"): x[i] + w[j] * 0.0), lambda x, w: x * 19, SIZES),
    Case("sum_long", lambda: fold(te.sum, (m,), (5000,), lambda i, j, x=inp((m, 5000)): x[i, j]), lambda x: x.sum(1), SIZES, tol=3e-5),
    Case("prefix_sum", triangle, np.cumsum, SIZES),
    Case("trace", lambda: fold(te.sum, (), (n,), lambda j, x=inp((n, n)): x[j, j]), np.trace, SQUARE),
    # products
    Case("matmul", matmul, lambda x, w: x @ w, SIZES),
    Case("matmul_half", lambda: matmul("float16"), lambda x, w: x @ w, SIZES),
    Case("matmul_bf16", lambda: matmul("bfloat16"), lambda x, w: x @ w, SIZES),
    Case("matmul_t", lambda: fold(te.sum, (m, n), (k,), lambda i, j, r, x=inp((m, k)), w=inp((n, k), name="w"): x[i, r] * w[j, r]), lambda x, w: x @ w.T, SIZES),
    Case("matmul_small_k", lambda: fold(te.sum, (m, n), (3,), lambda i, j, r, x=inp((m, 3)), w=inp((3, n), name="w"): x[i, r] * w[r, j]), lambda x, w: x @ w, SIZES),
    Case("matvec", lambda: fold(te.sum, (m,), (k,), lambda i, r, x=inp((m, k)), w=inp((k,), name="w"): x[i, r] * w[r]), lambda x, w: x @ w, SIZES),
    Case("outer_then_sum", lambda: fold(te.sum, (m, n), (k,), lambda i, j, r, x=inp((m,)), w=inp((n,), name="w"), v=inp((k,), name="v"): x[i] * w[j] * v[r]), lambda x, w, v: np.outer(x, w) * v.sum(), SIZES),
    Case("batched", lambda: fold(te.sum, (b, m, n), (k,), lambda q, i, j, r, x=inp((b, m, k)), w=inp((b, k, n), name="w"): x[q, i, r] * w[q, r, j]), lambda x, w: x @ w, SIZES),
    Case("matmul_int32", lambda: fold(te.sum, (m, n), (k,), lambda i, j, r, x=inp((m, k), "int32"), w=inp((k, n), "int32", "w"): x[i, r] * w[r, j]), lambda x, w: x @ w, SIZES),
    Case("matmul_bias_relu", matmul_bias_relu, lambda x, w, v: np.maximum(x @ w + v, 0), SIZES),
    Case("two_matmuls", two_matmuls, lambda x, w, v: x @ w @ v, SIZES, tol=1e-5),
    Case("gram", lambda: fold(te.sum, (m, m), (k,), lambda i, j, r, x=inp((m, k)): x[i, r] * x[j, r]), lambda x: x @ x.T, SIZES),
    Case("distances", lambda: fold(te.sum, (m, n), (k,), lambda i, j, r, x=inp((m, k)), w=inp((n, k), name="w"): te.abs(x[i, r] - w[j, r])), lambda x, w: np.abs(x[:, None] - w).sum(-1), SIZES),
    # windows
    Case("conv1d", lambda: fold(te.sum, (n,), (3,), lambda i, r, x=inp((n + 2,)), w=inp((3,), name="w"): x[i + r] * w[r]), lambda x, w: np.convolve(x, w[::-1], "valid"), SIZES),
    Case("conv1d_strided", lambda: fold(te.sum, (n,), (3,), lambda i, r, x=inp((n * 2 + 1,)), w=inp((3,), name="w"): x[2 * i + r] * w[r]), lambda x, w: np.convolve(x, w[::-1], "valid")[::2], SIZES),
    Case("conv1d_long", lambda: fold(te.sum, (m,), (n,), lambda i, r, x=inp((m + n - 1,)), w=inp((n,), name="w"): x[i + r] * w[r]), lambda x, w: np.convolve(x, w[::-1], "valid"), SIZES),
    Case("conv2d", conv2d, _conv2d, SIZES),
    Case("conv2d_channels", conv2d_channels, _conv2d, {"m": 3, "n": 4, "k": 5, "b": 1}),
    Case("reversed_rounded", reversed_rounded, _reversed_rounded, SIZES),
    Case("max_pool", lambda: fold(te.max, (m, n), (2, 2), lambda i, j, u, v, x=inp((m * 2, n * 2)): x[2 * i + u, 2 * j + v]), lambda x: x.reshape(5, 2, 19, 2).max((1, 3)), SIZES),
    Case("gathered_sum", gathered_sum, lambda x, q: x[q].sum(1), SIZES, {"idx": "m"}),
    # several stages, several outputs
    Case("softmax", softmax, _softmax, SIZES),
    Case("variance", variance, lambda x: (x.mean(1), x.var(1)), SIZES),
    Case("both", both, lambda x: (x.sum(1), x - x.sum(1, keepdims=True)), SIZES),
    Case("shifted_stage", shifted_stage, lambda x: 2 * (x[:-1] + x[1:]), SIZES),
    Case("pairwise", pairwise, lambda x: np.add.outer(x * x.sum(), x * x.sum()), SIZES, tol=1e-5),
    Case("diamond", diamond, lambda x: np.outer(x.sum(1), x.max(0)), SIZES),
    Case("scale_by_total", scale_by_total, lambda x: x / (abs(x.sum()) + 1), SIZES),
    Case("two_layouts", two_layouts, lambda x: (x + 1, 3 * (x + 1).T), SIZES),
    Case("identity_and_more", lambda: _identity_and_more(), lambda x: (x, np.sqrt(np.abs(x))), SIZES),
    Case("one_hot", lambda: _map((m, n), lambda q, i, j: te.select(eq(q[i], j), te.const(1.0), 0.0), inp((m,), "int32", "q")), lambda q: np.eye(19)[q], SIZES, {"q": "n"}),
    Case("length_one", softmax, _softmax, {"m": 1, "n": 1}),
)  # fmt: skip


def _identity_and_more() -> tuple[Tensor, Tensor]:
    x = inp((m, n))
    y = compute((m, n), lambda i, j: x[i, j], "y")
    return y, compute((m, n), lambda i, j: te.sqrt(te.abs(y[i, j])), "z")


BY_NAME = {c.name: c for c in CASES}


# --- templates that do little, and a run of the kernel ----------------------------------------------


def identity(sch: Any) -> None:
    """Nothing is bound, nothing is tiled."""


def bound(sch: Any) -> None:
    """The outermost loop of every stage on the grid, where it can be."""
    for stage in sch.stages:
        with suppress(NeptuneError):
            sch.bind(sch.loops(stage)[:1], ["grid.x"] * len(sch.loops(stage)[:1]))


def cut(sch: Any) -> None:
    """Every loop split, none bound."""
    size = sch.param("SIZE", [8])
    for stage in sch.stages:
        for loop in sch.loops(stage):
            sch.split(loop, size)


def turned(sch: Any) -> None:
    """Loops inside out: reductions outside of what they add up."""
    for stage in sch.stages:
        with suppress(NeptuneError):
            sch.reorder(*reversed(sch.loops(stage)))


TEMPLATES: dict[str, Callable[[Any], None] | None] = {
    "automatic": None,
    "identity": identity,
    "bound": bound,
    "cut": cut,
    "turned": turned,
}
# What the partial templates are tried on: each kind of program once.
SOME = ("transpose", "gather_rows", "sum_middle", "matmul_half", "max_pool", "both", "prefix_sum", "diamond")


def run(case: Case, kernel: neptune.Kernel, target: str, device: str = "cpu") -> None:
    """Call a kernel on random inputs into poisoned outputs, and compare with float64."""
    program = kernel.build.loops
    inputs = case.inputs(program, np.random.default_rng(7))
    plain = [t.double().numpy() if t.dtype.is_floating_point else t.numpy() for t in inputs]
    wanted = case.ref(*plain)
    outputs = [poisoned([evaluate_size(d, case.sizes) for d in b.shape], b.dtype, device) for b in program.outputs]
    kernel(*(t.to(device) for t in inputs), *(case.sizes[s] for s in kernel.scalars), out=outputs)
    for got, w in zip(outputs, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        w = np.asarray(w, np.float64)
        # Narrow results are exact here: copies, negations, doublings.
        room = case.tol * (1 + np.abs(w).max()) if got.dtype == torch.float32 else 0.0
        np.testing.assert_allclose(got.double().cpu().numpy(), w, rtol=0, atol=room, err_msg=f"{case.name} on {target}")


def poisoned(shape: list[int], dtype: str, device: str) -> torch.Tensor:
    kind = getattr(torch, dtype)
    return torch.full(shape, float("nan") if kind.is_floating_point else 77, dtype=kind, device=device)
