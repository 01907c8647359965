"""The operators whose mutants are made: one row each, an expression and the template that fuses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import neptune
from neptune.frontend import builder as te
from neptune.frontend.builder import build, compute, exp, log, placeholder, reduce_axis, rsqrt, var
from neptune.ir.program import Program
from neptune.ops import softmax as rows
from neptune.ops.attention import prefill_causal, prefill_global
from neptune.tile.ir import TileProgram
from neptune.verify.shrink import shrink


@dataclass(frozen=True)
class Forms:
    """What is compared: the expression, and the two forms made of it; large constant dimensions made small."""

    original: Program
    fused: Program
    tiles: TileProgram


@dataclass(frozen=True)
class Case:
    """A row. `template` as `neptune.compile` takes it; `wide` names inputs that are large or infinite one at a time."""

    make: Callable[[], Program]
    template: Any = None

    @cache  # noqa: B019 (rows live as long as the module)
    def forms(self) -> Forms:
        """Compile, with all checks."""
        made = neptune.compile(self.make(), self.template, target="interpret").build
        original, fused, tiles = shrink(made.loops, made.fused, made.tiles)
        assert isinstance(original, Program) and isinstance(fused, Program) and isinstance(tiles, TileProgram)
        return Forms(original, fused, tiles)


# --- chains without an operator of their own ------------------------------------------------------


def logsumexp() -> Program:
    """y[i] = m[i] + log Σ_j exp(x[i, j] - m[i])."""
    r, n = var("r"), var("n")
    x, j = placeholder((r, n), "float32", "x"), reduce_axis((0, n), "j")
    m = compute((r,), lambda i: te.max(x[i, j], axis=j), "m")
    l = compute((r,), lambda i: te.sum(exp(x[i, j] - m[i]), axis=j), "l")  # noqa: E741
    return build(compute((r,), lambda i: m[i] + log(l[i]), "y"), name="logsumexp")


def rms_norm_linear() -> Program:
    """y = (x / rms(x) · g) w."""
    r, n, c = var("r"), var("n"), 32
    x, g, w = (
        placeholder((r, n), "float32", "x"),
        placeholder((n,), "float32", "g"),
        placeholder((n, c), "float32", "w"),
    )
    j, k = reduce_axis((0, n), "j"), reduce_axis((0, n), "k")
    ss = compute((r,), lambda i: te.sum(x[i, j] * x[i, j], axis=j), "ss")
    h = compute((r, n), lambda i, a: x[i, a] * g[a], "h")
    y = compute((r, c), lambda i, o: te.sum(h[i, k] * w[k, o] * rsqrt(ss[i] / n.astype("float32") + 1e-5), axis=k), "y")
    return build(y, inputs=[x, g, w], name="rms_norm_linear")


def abs_max_linear() -> Program:
    """y = (x · 127 / max|x|) w, row by row."""
    r, n, c = var("r"), var("n"), 32
    x, w = placeholder((r, n), "float32", "x"), placeholder((n, c), "float32", "w")
    j, k = reduce_axis((0, n), "j"), reduce_axis((0, n), "k")
    top = compute((r,), lambda i: te.max(te.abs(x[i, j]), axis=j), "top")
    q = compute((r, n), lambda i, a: x[i, a] / top[i] * 127.0, "q")
    y = compute((r, c), lambda i, o: te.sum(q[i, k] * w[k, o], axis=k), "y")
    return build(y, inputs=[x, w], name="abs_max_linear")


def cosine() -> Program:
    """y[i] = Σ x z / (|x| |z|)."""
    r, n = var("r"), var("n")
    x, z = placeholder((r, n), "float32", "x"), placeholder((r, n), "float32", "z")
    j = reduce_axis((0, n), "j")
    xx = compute((r,), lambda i: te.sum(x[i, j] * x[i, j], axis=j), "xx")
    zz = compute((r,), lambda i: te.sum(z[i, j] * z[i, j], axis=j), "zz")
    xz = compute((r,), lambda i: te.sum(x[i, j] * z[i, j], axis=j), "xz")
    return build(compute((r,), lambda i: xz[i] * rsqrt(xx[i]) * rsqrt(zz[i]), "y"), inputs=[x, z], name="cosine")


CASES: dict[str, Case] = {
    "prefill_global": Case(lambda: prefill_global(lse=True), "flash_attention"),
    "prefill_causal": Case(lambda: prefill_causal(lse=True), "flash_attention"),
    "attention_unfused": Case(lambda: prefill_causal(dtype="float32"), "attention_unfused"),
    "figure1": Case(rows.figure1, "softmax_online"),
    "softmax": Case(rows.softmax, "softmax_online"),
    "softmax_row": Case(rows.softmax, "softmax_row"),
    "softmax_three_kernel": Case(rows.softmax, "softmax_three_kernel"),
    "logsumexp": Case(logsumexp),
    "rms_norm_linear": Case(rms_norm_linear),
    "abs_max_linear": Case(abs_max_linear),
    "cosine": Case(cosine),
}
