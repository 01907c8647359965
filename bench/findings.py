"""What does a plain `compile` make of programs that users stumbled over? Kernels, the matrix unit, warnings.

    python -m bench.findings [--json findings.json]

Each is compiled for an H200 with nothing given. A row: the template at the reference sizes, the number of kernels,
products on the matrix unit (that of what is left of a loop included), and the codes of `kernel.warnings`.
What the first tries of them gave stands beside it. No GPU is needed.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import neptune
from neptune.errors import NeptunePerformanceWarning
from neptune.frontend.builder import build, compute, exp, log, max, placeholder, reduce_axis, rsqrt, sum, var
from neptune.ir.expr import Expr
from neptune.ir.program import Program
from neptune.ops.attention import operator
from neptune.ops.linear import gated_linear
from neptune.ops.norm import rms_norm_linear
from neptune.ops.quantise import quantise_matmul

M, N, K = var("m"), var("n"), var("k")


def scaled_linear() -> Program:
    """y = Σ x·w·s[i], with a factor that does not move in the sum."""
    x, w, s = (
        placeholder((M, K), "float16", "x"),
        placeholder((K, N), "float16", "w"),
        placeholder((M,), "float32", "s"),
    )
    p = reduce_axis((0, K), "p")

    def term(i: Expr, j: Expr) -> Expr:
        return x[i, p].astype("float32") * w[p, j].astype("float32") * s[i]

    return build(compute((M, N), lambda i, j: sum(term(i, j), axis=p), "y"), name="scaled_linear")


def wide_norm_linear() -> Program:
    """RMSNorm → linear in float32 arithmetic on float16 data: nothing is rounded in between."""
    x, w = placeholder((M, K), "float16", "x"), placeholder((K, N), "float16", "w")
    p, q = reduce_axis((0, K), "p"), reduce_axis((0, K), "q")
    ss = compute((M,), lambda i: sum(x[i, p].astype("float32") * x[i, p].astype("float32"), axis=p), "ss")
    r = compute((M,), lambda i: rsqrt(ss[i] / K.astype("float32") + 1e-6), "r")

    def term(i: Expr, j: Expr) -> Expr:
        return x[i, q].astype("float32") * r[i] * w[q, j].astype("float32")

    return build(compute((M, N), lambda i, j: sum(term(i, j), axis=q), "y"), name="wide_norm_linear")


def gathered_loss(depth: int, classes: int | None = None) -> Program:
    """loss[i] = log Σ over v of exp(x[i] · w[v]) - x[i] · w[t[i]]: the score of the class is gathered, not masked out.

    x: [r, depth], w: [v, depth] of float16, t: [r] of int32, loss: [r]; v symbolic, or `classes`.
    """
    r, v = var("r"), var("v") if classes is None else classes
    x, w = placeholder((r, depth), "float16", "x"), placeholder((v, depth), "float16", "w")
    t, d, e = placeholder((r,), "int32", "t"), reduce_axis((0, depth), "d"), reduce_axis((0, depth), "e")

    def score(i: Expr, j: Expr, k: Expr) -> Expr:
        return x[i, k].astype("float32") * w[j, k].astype("float32")

    s = compute((r, v), lambda i, j: sum(score(i, j, d), axis=d), "s")
    a, b = reduce_axis((0, v), "a"), reduce_axis((0, v), "b")
    top = compute((r,), lambda i: max(s[i, a], axis=a), "top")
    total = compute((r,), lambda i: sum(exp(s[i, b] - top[i]), axis=b), "total")
    hit = compute((r,), lambda i: sum(score(i, t[i], e), axis=e), "hit")
    loss = compute((r,), lambda i: top[i] + log(total[i]) - hit[i], "loss")
    return build(loss, inputs=[x, w, t], name="gathered_loss")


def int8_linear() -> Program:
    """y = Σ x·w of int8, in int32."""
    x, w, p = placeholder((M, K), "int8", "x"), placeholder((K, N), "int8", "w"), reduce_axis((0, K), "p")

    def term(i: Expr, j: Expr) -> Expr:
        return x[i, p].astype("int32") * w[p, j].astype("int32")

    return build(compute((M, N), lambda i, j: sum(term(i, j), axis=p), "y"), name="int8_linear")


def half_sum() -> Program:
    """Rows of float16, summed in float16."""
    x, p = placeholder((M, K), "float16", "x"), reduce_axis((0, K), "p")
    return build(compute((M,), lambda i: sum(x[i, p], axis=p), "y"), name="half_sum")


def cumulative_sum() -> Program:
    """y[i, j] = Σ x[i, p] over p ≤ j: n² work."""
    x, p = placeholder((M, N), "float32", "x"), reduce_axis((0, N), "p")
    return build(compute((M, N), lambda i, j: sum(x[i, p], axis=p, where=p <= j), "y"), name="cumulative_sum")


FINDINGS: Mapping[str, tuple[Callable[[], Program], str]] = {
    "B1 two products of one x": (gated_linear, "1 kernel, grid y = m, no matrix unit"),
    "B2 a factor that does not move": (scaled_linear, "1 kernel, float32 element by element"),
    "B3 RMSNorm → linear": (rms_norm_linear, "3 kernels"),
    "B3 the same in float32": (wide_norm_linear, "2 kernels, float32 element by element"),
    "B4 loss of gathered scores": (lambda: gathered_loss(64), "the whole vocabulary as one tile"),
    "B5 int8": (int8_linear, "no matrix unit by any template"),
    "B5 quantised rows → int8": (lambda: quantise_matmul(width=64), "3 kernels, no matrix unit"),
    "F8 cumulative sum": (cumulative_sum, "n² work, not said"),
    "F9 sum of float16": (half_sum, "sums in float16, not said"),
    "decode": (lambda: operator("decode_gqa", heads=32, kv_heads=8), "flash_attention without parts"),
}


def tried(program: Program) -> dict[str, Any]:
    """What a plain compile makes of a program."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NeptunePerformanceWarning)
        kernel = neptune.compile(program, target="cuda:90")
    return {
        "template": kernel.explain(json=True)["template"],
        "kernels": len(kernel.facts.kernels),
        "dots": kernel.ir("tile").count("dot("),
        "variants": len(kernel.variants),
        "warnings": sorted({w.code for w in kernel.warnings}),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.findings", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every row")
    options = parser.parse_args(argv)
    rows = {}
    for name, (make, before) in FINDINGS.items():
        rows[name] = row = tried(make())
        print(
            f"{name:<32} {row['template']}, {row['kernels']} kernels, {row['dots']} dots, {row['variants']} variants; "
            f"{', '.join(row['warnings']) or 'no warning'}  (was: {before})",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
