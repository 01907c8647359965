"""The main job: causal attention, from plain tensor expressions to one proved, running Triton kernel.

    make demo

The expression is written in TVM's language without a word about tiles. The `flash_attention` template fuses
it; the generated Triton runs on the GPU where there is one, else in Triton's interpreter; the same fused
program also runs natively through LLVM. Both are compared with float64 and with torch.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import torch

import neptune
from neptune.errors import NeptuneError
from neptune.frontend import builder as nt

try:
    from tvm import te, tirx
except ModuleNotFoundError:
    raise SystemExit('this example is written in TVM\'s language: pip install "neptune-compiler[te]"') from None

DEPTH = 64
HEADS, QUERIES, KEYS = 2, 250, 331


def attention() -> Any:
    """o = softmax(scale · q kᵀ, masked) v, query i seeing the keys j ≤ i + s_kv - s_q."""
    batch, heads, s_q, s_kv = (te.var(n) for n in ("batch", "heads", "s_q", "s_kv"))
    q = te.placeholder((batch, heads, s_q, DEPTH), "float16", name="q")
    k = te.placeholder((batch, heads, s_kv, DEPTH), "float16", name="k")
    v = te.placeholder((batch, heads, s_kv, DEPTH), "float16", name="v")
    scale, low, zero = (tirx.const(x, "float32") for x in (1 / math.sqrt(DEPTH), -math.inf, 0.0))
    d = te.reduce_axis((0, DEPTH), name="d")
    j1, j2, j3 = (te.reduce_axis((0, s_kv), name="j") for _ in range(3))
    rows, scores = (batch, heads, s_q), (batch, heads, s_q, s_kv)

    s = te.compute(
        scores,
        lambda b, h, i, j: te.sum(q[b, h, i, d].astype("float32") * k[b, h, j, d].astype("float32"), axis=d),
        name="s",
    )
    score = te.compute(
        scores,
        lambda b, h, i, j: te.if_then_else(j <= i + s_kv - s_q, s[b, h, i, j] * scale, low),
        name="score",
    )
    m = te.compute(rows, lambda b, h, i: te.max(score[b, h, i, j1], axis=j1), name="m")
    p = te.compute(scores, lambda b, h, i, j: te.exp(score[b, h, i, j] - m[b, h, i]), name="p")
    l = te.compute(rows, lambda b, h, i: te.sum(p[b, h, i, j2], axis=j2), name="l")  # noqa: E741
    w = te.compute(scores, lambda b, h, i, j: p[b, h, i, j].astype("float16"), name="p_cast")
    acc = te.compute(
        (*rows, DEPTH),
        lambda b, h, i, e: te.sum(w[b, h, i, j3].astype("float32") * v[b, h, j3, e].astype("float32"), axis=j3),
        name="acc",
    )
    # A row that sees no key has l = 0, and is 0 rather than 0/0.
    return te.compute(
        (*rows, DEPTH),
        lambda b, h, i, e: te.if_then_else(l[b, h, i] <= zero, zero, acc[b, h, i, e] / l[b, h, i]).astype("float16"),
        name="o",
    )


def visible(s_q: int, s_kv: int) -> torch.Tensor:
    """True where query i may see key j (aligned bottom-right)."""
    return torch.arange(s_kv)[None, :] <= torch.arange(s_q)[:, None] + s_kv - s_q


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same attention by torch, in the dtype of its arguments."""
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=visible(q.shape[2], k.shape[2]))


def error(got: torch.Tensor, exact: torch.Tensor) -> float:
    """‖got − exact‖₂ / ‖exact‖₂ in float64."""
    return float((got.cpu().double() - exact).norm() / exact.norm())


def heading(text: str) -> None:
    print(f"\n{'─' * 100}\n{text}\n{'─' * 100}")


def compare(expression: Any) -> bool:
    """Run every target there is here and print its error; True if each is as good as torch's."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, n, DEPTH, dtype=torch.float16) for n in (QUERIES, KEYS, KEYS))
    exact = reference(q.double(), k.double(), v.double())
    by_torch = error(reference(q, k, v), exact)
    print(f"{HEADS} heads, {QUERIES} queries, {KEYS} keys, depth {DEPTH}, fp16; error against float64")
    print(f"  {'torch':<10} {by_torch:.2e}")
    fine = True
    for target in ["cuda"] * torch.cuda.is_available() + ["interpret", "llvm"]:
        kernel = neptune.compile(
            expression, "flash_attention", target=target, params={"BLOCK_M": 64, "BLOCK_N": 32}, name="causal_attention"
        )
        given = [x.to("cuda" if target == "cuda" else "cpu") for x in (q, k, v)]
        o = kernel(*given)
        assert isinstance(o, torch.Tensor)
        found = error(o, exact)
        fine &= found <= 1.1 * by_torch
        print(f"  {target:<10} {found:.2e}")
    return fine


def show_errors(expression: Any) -> None:
    """What a user sees who asks for something wrong; nothing has changed afterwards."""

    def unknown_stage(sch: neptune.Schedule) -> None:
        sch.inline("scores")

    def forgotten_repair(sch: neptune.Schedule) -> None:
        *_, i, j, _ = sch.loops("s")
        _, j0, *_ = sch.tile([i, j], [64, 64])
        for stage in ("score", "m", "p", "l"):
            sch.fuse_at(stage, j0)

    rows, cols = nt.var("rows"), nt.var("cols")
    x = nt.placeholder((rows, cols), "float32", "x")
    a, b = nt.reduce_axis((0, cols), "j"), nt.reduce_axis((0, cols), "j")
    m = nt.compute((rows,), lambda i: nt.max(x[i, a], axis=a), "m")
    unsound = nt.compute((rows,), lambda i: nt.sum(nt.tanh(x[i, b] - m[i]), axis=b), "t")
    kernel = neptune.compile(expression, "flash_attention", target="llvm")
    q, k = (torch.zeros(1, 2, n, DEPTH, dtype=torch.float16) for n in (8, 9))
    for what in (
        lambda: neptune.compile(expression, unknown_stage),
        lambda: neptune.compile(expression, forgotten_repair),
        lambda: neptune.compile(unsound, "softmax_online"),
        lambda: kernel(q, k, k.float()),
    ):
        try:
            what()
        except NeptuneError as e:
            print(f"{type(e).__name__}: {e}\n")
        else:
            raise AssertionError("that should have been refused")


def main() -> int:
    expression = attention()
    kernel = neptune.compile(expression, "flash_attention", target="llvm", name="causal_attention")
    heading("The generated Triton")
    print(kernel.source)
    heading("How it came about")
    print(kernel.explain())
    heading("What is refused, and how")
    show_errors(expression)
    heading("Results")
    fine = compare(expression)
    print("\neach at most 1.1 × torch's error" if fine else "\nWORSE THAN TORCH")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
