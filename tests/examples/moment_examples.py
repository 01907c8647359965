"""Chains of sums about means, with what they are in torch: two passes, in the dtype that is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from neptune.frontend import builder as te
from neptune.frontend.builder import Tensor, build, compute, placeholder, reduce_axis, rsqrt, sqrt, var
from neptune.ir.expr import Expr
from neptune.ir.program import Program
from tests.examples.chains import matrix, per_row

T = torch.Tensor
EPS = 1e-5
COLUMNS = 32


@dataclass(frozen=True)
class Example:
    """`program`, what it is by torch, and the names of the reductions in it, the first predecessor's first."""

    make: Callable[[], Program]
    two_pass: Callable[..., T]
    sums: tuple[str, ...]
    inputs: str = "x"

    @property
    def first(self) -> str:
        """The stage whose tiling the others take over."""
        return "f" if "m" in self.inputs else self.sums[0]


def count() -> Expr:
    return var("n").astype("float32")


def row(value: Callable[[Expr], Expr], name: str) -> Tensor:
    return compute((var("r"),), value, name)


def mean_of(x: Tensor, name: str) -> Tensor:
    s = per_row(lambda i, j: x[i, j], f"s{name}")
    return row(lambda i: s[i] / count(), f"m{name}")


def centred(x: Tensor, name: str = "x", power: int = 2) -> tuple[Tensor, Tensor]:
    """The mean of x, and Σ (x - mean)^power."""
    m = mean_of(x, name)

    def value(i: Expr, j: Expr) -> Expr:
        d = x[i, j] - m[i]
        return d * d if power == 2 else d * d * d

    return m, per_row(value, "q" if power == 2 else "q3")


def variance(sample: bool = False) -> Program:
    _, q = centred(matrix("x"))
    n = (te.maximum(var("n") - 1, 1)).astype("float32") if sample else count()
    return build(row(lambda i: q[i] / n, "y"), name="variance")


def deviation() -> Program:
    _, q = centred(matrix("x"))
    return build(row(lambda i: sqrt(q[i] / count()), "y"), name="deviation")


def skewness() -> Program:
    x = matrix("x")
    m, q = centred(x)

    def cube(i: Expr, j: Expr) -> Expr:
        d = x[i, j] - m[i]
        return d * d * d

    q3 = per_row(cube, "q3")
    return build(row(lambda i: q3[i] / count() / te.power(q[i] / count() + EPS, 1.5), "y"), name="skewness")


def layer_norm() -> Program:
    x, g, b = matrix("x"), placeholder((var("n"),), "float32", "g"), placeholder((var("n"),), "float32", "b")
    m, q = centred(x)
    r = row(lambda i: rsqrt(q[i] / count() + EPS), "rstd")
    y = compute((var("r"), var("n")), lambda i, j: (x[i, j] - m[i]) * r[i] * g[j] + b[j], "y")
    return build(y, inputs=[x, g, b], name="layer_norm")


def linear(affine: bool, dtype: str = "float32") -> Program:
    """standardise → linear, or LayerNorm → linear."""
    x, w = placeholder((var("r"), var("n")), dtype, "x"), placeholder((var("n"), COLUMNS), dtype, "w")
    g, b = (placeholder((var("n"),), "float32", name) for name in "gb")
    f = compute((var("r"), var("n")), lambda i, j: x[i, j].astype("float32"), "f")
    m, q = centred(f)
    r = row(lambda i: rsqrt(q[i] / count() + EPS), "rstd")

    def normal(i: Expr, j: Expr) -> Expr:
        z = (f[i, j] - m[i]) * r[i]
        return z * g[j] + b[j] if affine else z

    z = compute((var("r"), var("n")), normal, "z")
    j = reduce_axis((0, var("n")), "j")
    y = compute((var("r"), COLUMNS), lambda i, k: te.sum(z[i, j] * w[j, k].astype("float32"), axis=j), "y")
    return build(y, inputs=[x, w, *([g, b] if affine else [])], name="layer_norm_linear" if affine else "standardised")


def weighted(positive: bool) -> Program:
    """Σ w (x - Σwx / Σw)²  / Σw; moment of inertia where nothing says that weights are positive."""
    x, w = matrix("x"), matrix("w")

    def weight(i: Expr, j: Expr) -> Expr:
        return te.abs(w[i, j]) if positive else w[i, j]

    sw = per_row(weight, "sw")
    swx = per_row(lambda i, j: weight(i, j) * x[i, j], "swx")
    m = row(lambda i: swx[i] / sw[i], "m")
    q = per_row(lambda i, j: weight(i, j) * (x[i, j] - m[i]) * (x[i, j] - m[i]), "q")
    return build(row(lambda i: q[i] / sw[i], "y"), inputs=[x, w], name="weighted")


def covariance(correlation: bool = False) -> Program:
    x, z = matrix("x"), matrix("w")
    mx, mz = mean_of(x, "x"), mean_of(z, "z")
    c = per_row(lambda i, j: (x[i, j] - mx[i]) * (z[i, j] - mz[i]), "cov")
    if not correlation:
        return build(row(lambda i: c[i] / count(), "y"), inputs=[x, z], name="covariance")
    vx = per_row(lambda i, j: (x[i, j] - mx[i]) * (x[i, j] - mx[i]), "vx")
    vz = per_row(lambda i, j: (z[i, j] - mz[i]) * (z[i, j] - mz[i]), "vz")
    y = row(lambda i: c[i] / sqrt(vx[i] + EPS) / sqrt(vz[i] + EPS), "y")
    return build(y, inputs=[x, z], name="correlation")


def _mean(x: T) -> T:
    return x.mean(1, keepdim=True)


def _var(x: T) -> T:
    return ((x - _mean(x)) ** 2).mean(1)


def _standard(x: T) -> T:
    return (x - _mean(x)) * torch.rsqrt(_var(x) + EPS)[:, None]


def _weighted(x: T, w: T) -> T:
    m = (w * x).sum(1, keepdim=True) / w.sum(1, keepdim=True)
    return (w * (x - m) ** 2).sum(1) / w.sum(1)


def _covariance(x: T, z: T) -> T:
    return ((x - _mean(x)) * (z - _mean(z))).mean(1)


def _correlation(x: T, z: T) -> T:
    n = x.shape[1]
    return n * _covariance(x, z) / torch.sqrt(n * _var(x) + EPS) / torch.sqrt(n * _var(z) + EPS)


def _skewness(x: T) -> T:
    return ((x - _mean(x)) ** 3).mean(1) / (_var(x) + EPS) ** 1.5


EXAMPLES = {
    "variance": Example(variance, _var, ("sx", "q")),
    "sample": Example(lambda: variance(True), lambda x: _var(x) * x.shape[1] / max(x.shape[1] - 1, 1), ("sx", "q")),
    "deviation": Example(deviation, lambda x: torch.sqrt(_var(x)), ("sx", "q")),
    "skewness": Example(skewness, _skewness, ("sx", "q", "q3")),
    "layer_norm": Example(layer_norm, lambda x, g, b: _standard(x) * g + b, ("sx", "q"), "xgb"),
    "standardised": Example(lambda: linear(False), lambda x, w: _standard(x) @ w, ("sx", "q", "y"), "xm"),
    "layer_norm_linear": Example(
        lambda: linear(True), lambda x, w, g, b: (_standard(x) * g + b) @ w, ("sx", "q", "y"), "xmgb"
    ),
    "weighted": Example(lambda: weighted(True), lambda x, w: _weighted(x, w.abs()), ("sw", "swx", "q"), "xw"),
    "inertia": Example(lambda: weighted(False), _weighted, ("sw", "swx", "q"), "xw"),
    "covariance": Example(covariance, _covariance, ("sx", "sz", "cov"), "xz"),
    "correlation": Example(lambda: covariance(True), _correlation, ("sx", "sz", "cov", "vx", "vz"), "xz"),
}
